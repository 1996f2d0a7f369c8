// A state over its chunks in order, 64 value channels a warpgroup, in registers.
//
// One chunk of 64 tokens, S [V, K] the state before it:
//   X^T  = V^T - (S K^T) diag(gamma)
//   V'^T = X^T T^T
//   O^T  = scale (S Q^T) diag(gamma) + V'^T P^T
//   S   <- gamma_C S + V'^T diag(gamma_C / gamma) K
// and O only where it is asked for. Transposed throughout, so that S and what depends on it stay in registers, as left
// operands; all right operands come from shared memory as they lie there.
#pragma once
#include "join.cuh"

namespace {

// acc [64, 64] (+)= a [64, 128] times boxes whose rows are the columns of the product; from step to step of 16.
template <class E, int From, int End>
__device__ __forceinline__ void multiply(float (&acc)[32], const uint32_t (&a)[8][4], uint32_t box) {
#pragma unroll
  for (int k = From; k < End; ++k) {
    wgmma<E, 0>(acc, a[k], descriptor(box, k / 4 * kBoxBytes + k % 4 * 32), k > 0);
  }
}

// low, high [64, 32] (+)= a [64, 64] times a packed lower triangle, transposed: of its rows 0 to 31, of the others.
template <class E>
__device__ __forceinline__ void multiply_lower(float (&low)[16], float (&high)[16], const uint32_t (&a)[4][4],
                                               uint32_t triangle, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<E, 0>(high, a[k], descriptor_packed(triangle, lower_rows(k)), accumulate || k > 0);
#pragma unroll
  for (int k = 0; k < 2; ++k) wgmma<E, 0>(low, a[k], descriptor_packed(triangle, upper_rows(k)), accumulate || k > 0);
}

// acc [64, 64] += a [64, 64] times a square of 16 x 16 blocks, transposed.
template <class E>
__device__ __forceinline__ void multiply_square(float (&acc)[32], const uint32_t (&a)[4][4], uint32_t square) {
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<E, 0>(acc, a[k], descriptor_packed(square, block_of_square(0, k)), 1);
}

// A warpgroup's 64 value channels, from the first chunk to the last.
template <class E, int Groups, bool Output, bool Checkpoints>
__device__ __forceinline__ void advance(const Problem& p, Block<Groups, Output, Checkpoints>& s, int wg) {
  constexpr bool kHandsOut = Checkpoints && kStaged<Groups>;
  constexpr int kStages = kStagesOf<Groups, Output, Checkpoints>;
  const Work& work = s.work;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
  // A thread holds, of every 8 columns, two neighbours of two rows: rows 16 warp + lane / 4 and eight further.
  const int column = 2 * (lane % 4);
  float S[2][32];  // [V, K], key channels 0 to 63 and 64 to 127
  const int row = work.slice + wg * kSlice + 16 * warp + lane / 4;
  const auto load = [&](const float* from, bool k_first) {
    if (work.identity || from == nullptr) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        S[i / 32][i % 32] = work.identity && row + i % 4 / 2 * 8 == column + i / 4 * 8 + i % 2 ? 1.f : 0.f;
      }
    } else if (k_first) {
#pragma unroll
      for (int i = 0; i < 64; ++i) S[i / 32][i % 32] = from[row + i % 4 / 2 * 8 + (column + i / 4 * 8 + i % 2) * D];
    } else {
#pragma unroll
      for (int i = 0; i < 64; i += 2) {
        const float2 pair = *reinterpret_cast<const float2*>(from + (row + i % 4 / 2 * 8) * D + column + i / 4 * 8);
        S[i / 32][i % 32] = pair.x, S[i / 32][i % 32 + 1] = pair.y;
      }
    }
  };
  const auto save = [&](float* to, bool k_first) {
    const int lane = lane_here(), column = 2 * (lane % 4);  // found again, and not kept over chunks
    const int row = work.slice + 16 * anew(threadIdx.x / 32) + lane / 4;
    if (k_first) {
#pragma unroll
      for (int i = 0; i < 64; ++i) to[row + i % 4 / 2 * 8 + (column + i / 4 * 8 + i % 2) * D] = S[i / 32][i % 32];
    } else {
#pragma unroll
      for (int i = 0; i < 64; i += 2) {
        float* const pair = to + (row + i % 4 / 2 * 8) * D + column + i / 4 * 8;
        *reinterpret_cast<float2*>(pair) = make_float2(S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
      }
    }
  };
  // Half of a checkpoint's rows, eight of sixteen, by way of shared memory, from where TMA takes them while products go on.
  const auto hand_out = [&](float* to, int half) {
    const int warp = anew(threadIdx.x / 32), lane = lane_here();  // nothing of this is kept over chunks
    const int row = work.slice + 16 * warp + 8 * half;
    if constexpr (kHandsOut) {
      const uint32_t rows_at = shared_address(&s) + sizeof s + warp * kRowsBytes;
      stored_read();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int i = 4 * j + 2 * half;
        store_pair(rows_at + lane / 4 * kRowBytes + lane % 4 * 8 + 32 * j, S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
      }
      fence_async();
      __syncwarp();
      store_bytes_if(lane < 8, to + (row + lane) * D, rows_at + lane * kRowBytes, 4 * D);
    } else {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int i = 4 * j + 2 * half;
        float* const pair = to + (row + lane / 4) * D + 2 * (lane % 4) + 8 * j;
        *reinterpret_cast<float2*>(pair) = make_float2(S[i / 32][i % 32], S[i / 32][i % 32 + 1]);
      }
    }
  };
  // Where the state behind so many of these chunks is to go; null: it is no checkpoint.
  const auto checkpoint = [&](int chunks) -> float* {
    const int done = work.before + chunks;
    if (done % p.every != 0 || work.start + static_cast<int64_t>(chunks) * kChunk > work.end) return nullptr;
    const int64_t place = p.checkpoint_starts[work.n] + done / p.every - 1;
    return place < 0 || place >= p.num_checkpoints ? nullptr : p.checkpoints + (place * p.H + work.h) * D * D;
  };
  float* owed = nullptr;  // where S is to go, before it becomes the next
  if (Output && p.length != 0 && !p.firsts) wait_for_last();  // which has the state
  load(work.from, work.from_k_first);
  if constexpr (Output) {
    if (work.joins > 0) join(p, s, row, column, S);
  }
  constexpr uint32_t kStageBytes = sizeof(s.boxes[0]);
  constexpr uint32_t kTileBytes = sizeof(s.tile[0]), kDecays = kTerms * kTriangle, kP = kDecays + sizeof(Decays);
  constexpr uint32_t kFromStart = kDecays + offsetof(Decays, from_start), kToEnd = kDecays + offsetof(Decays, to_end);
  constexpr uint32_t kReadOut = kDecays + offsetof(Decays, read_out), kV = (Output ? 4 : 2) * kBoxBytes;
  // In a box of v, or of the output, whose rows are tokens, for ldmatrix and stmatrix; and of the lane's four tokens of 16.
  // Read anew, so that they are kept and not found from the thread's index in every chunk.
  const uint32_t of_lane = anew(wg * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
  const uint32_t of_column = anew(8 * column);
  // Of gamma_C. Lanes are not known to agree about it: else it would come to a uniform register, and be waited for at once.
  const uint32_t of_all = anew(kFromStart + 4 * (kChunk - 1) + (lane * (lane + 1) & 1));
  const int leaves = anew(lane < kLeavers);  // says for its warp that it has left a place
  // Where the chunk is: carried over the loop, so that a chunk's first product waits for no addresses.
  uint32_t box = shared_address(s.boxes), tile = shared_address(s.tile), full = shared_address(s.full);
  const uint32_t to_v_full = shared_address(s.v_full) - full, to_ready = shared_address(s.ready) - full;
  const uint32_t to_empty = shared_address(s.empty) - full;
  uint32_t parity = 0, stage = 0, left = 0;  // left: the barrier of the place that is left next
  const auto next_stage = [&] {
    const bool around = stage == kStages - 1;
    box = around ? box - (kStages - 1) * kStageBytes : box + kStageBytes;
    tile = around ? tile - (kStages - 1) * kTileBytes : tile + kTileBytes;
    full = around ? full - 8 * (kStages - 1) : full + 8;
    stage = around ? 0 : stage + 1, parity ^= around;
  };

  uint32_t state_bits[8][4];
  const auto pack_state = [&](int half) {
#pragma unroll
    for (int k = 4 * half; k < 4 * half + 4; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        state_bits[k][e] = pack<E>(S[half][k % 4 * 8 + 2 * e], S[half][k % 4 * 8 + 2 * e + 1]);
      }
    }
    keep(state_bits);  // packed here, and not where they are needed
  };
  const uint32_t v_mask = work.identity ? 0 : ~0u;
  // At a sequence's end threads read what others wrote, without TMA or wgmma: there all of them meet, with one warp that feeds.
  const int meeting = 32 + 128 * (Groups == 1 ? 1 : work.groups), chunks = work.chunks;
  const int64_t tokens = work.end - work.start;
  const int cut_short = tokens < static_cast<int64_t>(chunks) * kChunk ? chunks - 1 : -1;
  const int one = min(work.groups, 1);  // which the compiler does not know
  float x[32], o[32], y[2][16];         // S K^T; S Q^T, then O^T; V'^T: tokens 0 to 31, 32 to 63
  float all;                            // gamma_C
  float4 gammas[4], rests[4];           // gamma, gamma_C / gamma
  uint32_t bits[4][4];                  // V^T, the fragments of a left operand; then X^T; then V'^T
  int v_here = 0, p_here = 0;           // v of the chunk has been seen to have landed, its P to have been found
  const auto load_decays = [&](float4(&to)[4], uint32_t decays, int from, int end) {
#pragma unroll
    for (int k = from; k < end; ++k) to[k] = load_four(tile + decays + of_column + 64 * k);
  };
  // Of the next chunk, before the output is written: behind that they come late. Where two slices are advanced registers are
  // short: later, and half of the gammas once x is there.
  constexpr bool kShort = Groups == 2 && Output;
  constexpr int kAtOnce = kShort ? 2 : 4;
  const auto load_gammas = [&] {
    all = load_one(tile + of_all);
    load_decays(gammas, kFromStart, 0, kAtOnce);
  };
  // S K^T, of one half of the key channels after the other.
  const auto begin = [&](auto half) {
    wgmma_fence();
    multiply<E, 4 * half, 4 * half + 4>(x, state_bits, box);
    wgmma_commit();
  };
  constexpr std::integral_constant<int, 0> kFirst;
  constexpr std::integral_constant<int, 1> kSecond;
  // Two parts of a chunk, so that no product is under way where the loop begins anew: the compiler would wait for it.
  //
  // Chunk c up to V', while its S K^T is under way.
  const auto find_v = [&](int c) {
    GDN_STAMP(wg, c, 0);
    if (Checkpoints && owed != nullptr) hand_out(owed, 0);
    if constexpr (kShort) load_gammas();
    barrier_wait_unless(v_here, full + to_v_full, parity);
    if (c == cut_short) named_barrier(kCleared, meeting);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_transposed(bits[k], box + kV + of_lane + 2048 * k);
      if constexpr (!Output) {
#pragma unroll
        for (int e = 0; e < 4; ++e) bits[k][e] &= v_mask;
      }
    }
    GDN_STAMP(wg, c, 1);
    if constexpr (Output) {
      wgmma_fence();
      multiply<E, 0, 8>(o, state_bits, box + 2 * kBoxBytes);  // S Q^T
      wgmma_commit();
    }
    GDN_STAMP(wg, c, 2);
    if (Checkpoints && owed != nullptr) hand_out(owed, 1);
    settle(S[0]), settle(S[1]);  // lest they are scaled before products are on their way
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] *= all, S[1][e] *= all;
    if constexpr (Output) {
      __syncwarp();
      barrier_arrive_if(leaves && c > 0, left);
    }
    wgmma_wait<Output ? 1 : 0>();
    settle(x);
    if constexpr (!Output) keep(state_bits);
    load_decays(gammas, kFromStart, kAtOnce, 4);
    GDN_STAMP(wg, c, 3);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = k * 8 + 2 * e;  // in x
        const float2 value = unpack<E>(bits[k][e]);
        const float first = e < 2 ? gammas[k].x : gammas[k].z, second = e < 2 ? gammas[k].y : gammas[k].w;
        bits[k][e] = pack<E>(fmaf(-first, x[at], value.x), fmaf(-second, x[at + 1], value.y));
      }
    }
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_lower<E>(y[0], y[1], bits, tile + term * kTriangle, term > 0);
    wgmma_commit();
    load_decays(rests, kToEnd, 0, 4);
    if (Output && finds_p(Groups)) p_here = barrier_test(full + to_ready, parity);
    GDN_STAMP(wg, c, 4);
    wgmma_wait<0>();
    if constexpr (Output) {
      settle(o);
      keep(state_bits);
    }
    settle(y[0]);
    settle(y[1]);
    keep(bits);
    GDN_STAMP(wg, c, 5);
  };
  // State and output; in the end S K^T of the next chunk is under way, if there is one.
  const auto use_v = [&](int c, auto is_last) {
    [[maybe_unused]] float4 reads[4];  // scale gamma
    if constexpr (Output) load_decays(reads, kReadOut, 0, 4);
    uint32_t decayed[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = k * 8 + 2 * e;
        const float first = e < 2 ? rests[k].x : rests[k].z, second = e < 2 ? rests[k].y : rests[k].w;
        decayed[k][e] = pack<E>(y[at / 16][at % 16] * first, y[at / 16][at % 16 + 1] * second);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // tokens are rows of the box: 16 of them are 2048 bytes
        wgmma<E, 1>(S[half], decayed[k], descriptor(box, half * kBoxBytes + 2048 * k), 1);
      }
      wgmma_commit();
    }
    if constexpr (Output) {  // while the update is under way
      if (finds_p(Groups)) barrier_wait_unless(p_here, full + to_ready, parity);
      // In a loop, which turns but once: else the compiler has the update wait for all of this.
      int turns = one;
      do {
        turns = anew(turns - 1);
        settle(y[0]), settle(y[1]), settle(o);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int at = k * 8 + 2 * e;
            bits[k][e] = pack<E>(y[at / 16][at % 16], y[at / 16][at % 16 + 1]);
            o[at] *= e < 2 ? reads[k].x : reads[k].z, o[at + 1] *= e < 2 ? reads[k].y : reads[k].w;
          }
        }
      } while (turns > 0);
      wgmma_fence();
      multiply_square<E>(o, bits, tile + kP);  // + V'^T P^T
      wgmma_commit();
    }
    [[maybe_unused]] const uint32_t v_of_this = box + kV;
    left = full + to_empty;
    next_stage();
    int here = 0;
    if constexpr (!is_last) here = barrier_test(full, parity), v_here = barrier_test(full + to_v_full, parity);
    // The next chunk waits for the state, for one half of it after the other, and not for the output.
    constexpr int kBehind = Output ? 1 : 0;  // P's product
    wgmma_wait<1 + kBehind>();
    settle(S[0]);
    if constexpr (!is_last) {
      pack_state(0);
      barrier_wait_unless(here, full, parity);
      begin(kFirst);
    }
    wgmma_wait<(is_last ? 0 : 1) + kBehind>();
    settle(S[1]);
    keep(decayed);
    GDN_STAMP(wg, c, 6);
    if constexpr (!Output) {
      __syncwarp();
      barrier_arrive_if(leaves, left);
    }
    if constexpr (!is_last) {
      pack_state(1);
      begin(kSecond);
      if constexpr (!kShort) load_gammas();
    }
    if constexpr (Output) {
      wgmma_wait<is_last ? 0 : 2>();
      settle(o);
      keep(bits);
      // O^T to the box of v, of which this warp has read the same channels; from there it goes to memory (feed.cuh).
      uint32_t o_bits[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o_bits[k][e] = pack<E>(o[8 * k + 2 * e], o[8 * k + 2 * e + 1]);
        stmatrix_transposed(v_of_this + of_lane + 2048 * k, o_bits[k]);
      }
      if constexpr (Checkpoints) owed = checkpoint(c + 1);
    }
  };
  if (chunks > 0) {
    pack_state(0), pack_state(1);
    barrier_wait(full, parity);
    begin(kFirst), begin(kSecond);
    if constexpr (!kShort) load_gammas();
    if constexpr (!Output) wgmma_wait<0>();  // else the compiler has it wait, as it scales S
    find_v(0);
#pragma unroll 1
    for (int c = 1; c < chunks; ++c) {
      use_v(c - 1, std::false_type{});
      find_v(c);
    }
    use_v(chunks - 1, std::true_type{});
    if constexpr (Output) {
      __syncwarp();
      barrier_arrive_if(leaves, left);
      if (cut_short >= 0) named_arrive(kWritten, meeting);
    }
  }
  if (!Output && work.identity) {
    save_transfer(work.to, work.slice, warp, lane, S);
  } else if (work.to != nullptr) {
    save(work.to, work.to_k_first);
  }
  if (Checkpoints && owed != nullptr) hand_out(owed, 0), hand_out(owed, 1);
  if constexpr (kHandsOut) stored_all();
}

}  // namespace
