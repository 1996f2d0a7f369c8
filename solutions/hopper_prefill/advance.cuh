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

// acc [64, 64] (+)= a [64, 16 Steps] times boxes whose rows are the columns of the product.
template <class E, int Steps>
__device__ __forceinline__ void multiply(float (&acc)[32], const uint32_t (*a)[4], uint32_t box) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
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
__device__ __forceinline__ void advance(const Problem& p, Shared<Groups, Output>& s, int wg) {
  constexpr bool kHandsOut = Checkpoints && kStaged<Groups>;
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
  // In a box of v, or of the output, whose rows are tokens, for ldmatrix and stmatrix; and of the lane's two tokens of 8. Read
  // anew, so that they are kept and not found from the thread's index in every chunk.
  const uint32_t of_lane = anew(wg * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
  const uint32_t of_column = anew(4 * column);
  uint32_t o_bits[4][4];
  // Where the chunk is, and the one before: carried over the loop, so that a chunk's first product waits for no addresses.
  constexpr uint32_t kStageBytes = sizeof(typename Shared<Groups, Output>::Boxes);
  constexpr uint32_t kTileBytes = sizeof(s.tile[0]), kDecays = kTerms * kTriangle, kP = kDecays + sizeof(Decays);
  constexpr uint32_t kFromStart = kDecays + offsetof(Decays, from_start), kToEnd = kDecays + offsetof(Decays, to_end);
  constexpr uint32_t kV = (Output ? 4 : 2) * kBoxBytes;
  const uint32_t boxes_at = shared_address(s.boxes), tile_at = shared_address(s.tile), full_at = shared_address(s.full);
  const uint32_t to_v_full = shared_address(s.v_full) - full_at, to_ready = shared_address(s.ready) - full_at;
  const uint32_t to_empty = shared_address(s.empty) - full_at;
  uint32_t box = boxes_at, tile = tile_at, full = full_at, parity = 0, v_before = 0, empty_before = 0;

  // O^T of chunk c in registers to the box of v, of which this warp has read the same channels; from there it goes to memory
  // (feed.cuh).
  const auto give = [&] {
#pragma unroll
    for (int k = 0; k < 4; ++k) stmatrix_transposed(v_before + of_lane + 2048 * k, o_bits[k]);
    __syncwarp();
    if (lane < kLeavers) barrier_arrive(empty_before);
  };

  uint32_t state_bits[8][4];
  const auto pack_state = [&] {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        state_bits[k][e] = pack<E>(S[k / 4][k % 4 * 8 + 2 * e], S[k / 4][k % 4 * 8 + 2 * e + 1]);
      }
    }
  };
  pack_state();
  const uint32_t v_mask = work.identity ? 0 : ~0u;
  // At a sequence's end threads read what others wrote, without TMA or wgmma: there all of them meet, with one warp that feeds.
  const auto who_meet = [&] { return 32 + 128 * (Groups == 1 ? 1 : work.groups); };
  const int64_t tokens = work.end - work.start;
  const int cut_short = tokens < static_cast<int64_t>(work.chunks) * kChunk ? work.chunks - 1 : -1;
#pragma unroll 1
  for (int c = 0; c < work.chunks; ++c) {
    GDN_STAMP(wg, c, 0);
    barrier_wait(full, parity);
    GDN_STAMP(wg, c, 1);
    float x[32], o[32];
    wgmma_fence();
    multiply<E, 8>(x, state_bits, box);  // S K^T
    wgmma_commit();
    if constexpr (Output) {
      if (c > 0) give();
      GDN_STAMP(wg, c, 2);
      wgmma_fence();
      multiply<E, 8>(o, state_bits, box + 2 * kBoxBytes);  // S Q^T
      wgmma_commit();
      if (Checkpoints && owed != nullptr) hand_out(owed, 0);
    }

    uint32_t bits[4][4];  // V^T, the fragments of a left operand; then X^T
    const auto load_v = [&](int k) {
      ldmatrix_transposed(bits[k], box + kV + of_lane + 2048 * k);
      if constexpr (!Output) {
#pragma unroll
        for (int e = 0; e < 4; ++e) bits[k][e] &= v_mask;
      }
    };
    const auto two_of = [&](uint32_t decays, int k) { return load_pair(tile + decays + of_column + 32 * k); };
    float2 gammas[8];
    const auto subtract = [&](int k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = k * 8 + 2 * e;  // in x; its token is ..
        const float2 gamma = gammas[2 * k + e / 2];
        const float2 value = unpack<E>(bits[k][e]);
        bits[k][e] = pack<E>(fmaf(-gamma.x, x[at], value.x), fmaf(-gamma.y, x[at + 1], value.y));
      }
    };
    barrier_wait(full + to_v_full, parity);
    if (c == cut_short) named_barrier(kCleared, who_meet());
#pragma unroll
    for (int k = 0; k < 4; ++k) load_v(k);
    GDN_STAMP(wg, c, 3);
    // Half of them before x is waited for, which registers have room for.
#pragma unroll
    for (int k = 0; k < 4; ++k) gammas[k] = two_of(kFromStart, k);
    wgmma_wait<Output ? 1 : 0>();
    settle(x);
#pragma unroll
    for (int k = 4; k < 8; ++k) gammas[k] = two_of(kFromStart, k);
    GDN_STAMP(wg, c, 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) subtract(k);
    float y[2][16];  // V'^T: tokens 0 to 31, 32 to 63
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_lower<E>(y[0], y[1], bits, tile + term * kTriangle, term > 0);
    wgmma_commit();
    if (Checkpoints && owed != nullptr) hand_out(owed, 1);
    // Loaded here, lest S is scaled before T is on its way.
    const float all = load_pair(tile + kFromStart + 4 * (kChunk - 2)).y;
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] *= all, S[1][e] *= all;
    float2 rests[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) rests[k] = two_of(kToEnd, k);
    wgmma_wait<0>();
    if constexpr (Output) {
      settle(o);
      keep(state_bits);
    }
    settle(y[0]);
    settle(y[1]);
    GDN_STAMP(wg, c, 5);
    keep(bits);
    uint32_t decayed[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = k * 8 + 2 * e;
        const float2 rest = rests[2 * k + e / 2];
        decayed[k][e] = pack<E>(y[at / 16][at % 16] * rest.x, y[at / 16][at % 16 + 1] * rest.y);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // tokens are rows of the box: 16 of them are 2048 bytes
      wgmma<E, 1>(S[0], decayed[k], descriptor(box, 2048 * k), 1);
      wgmma<E, 1>(S[1], decayed[k], descriptor(box, kBoxBytes + 2048 * k), 1);
    }
    wgmma_commit();
    if constexpr (Output) {  // while the update is under way
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float2 gamma = two_of(kFromStart, k);
#pragma unroll
        for (int e = 0; e < 4; ++e) o[4 * k + e] *= p.scale * (e % 2 == 0 ? gamma.x : gamma.y);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at = k * 8 + 2 * e;
          bits[k][e] = pack<E>(y[at / 16][at % 16], y[at / 16][at % 16 + 1]);
        }
      }
      if (finds_p(Groups)) barrier_wait(full + to_ready, parity);
      wgmma_fence();
      multiply_square<E>(o, bits, tile + kP);  // + V'^T P^T
      wgmma_commit();
    }
    v_before = box + kV, empty_before = full + to_empty;
    const bool around = full == full_at + 8 * (kStages - 1);
    box = around ? boxes_at : box + kStageBytes, tile = around ? tile_at : tile + kTileBytes;
    full = around ? full_at : full + 8, parity ^= around;
    wgmma_wait<Output ? 1 : 0>();
    settle(S[0]);
    settle(S[1]);
    keep(decayed);
    pack_state();  // the next chunk waits for it, and not for the output
    keep(state_bits);
    if constexpr (!Output) {
      __syncwarp();
      if (lane < kLeavers) barrier_arrive(empty_before);
    } else {
      GDN_STAMP(wg, c, 6);
      wgmma_wait<0>();
      settle(o);
      keep(bits);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o_bits[k][e] = pack<E>(o[8 * k + 2 * e], o[8 * k + 2 * e + 1]);
      }
      if constexpr (Checkpoints) owed = checkpoint(c + 1);
    }
  }
  if (Output && work.chunks > 0) give();
  if (Output && cut_short >= 0) named_arrive(kWritten, who_meet());
  if (!Output && work.identity) {
    save_transfer(work.to, work.slice, warp, lane, S);
  } else if (work.to != nullptr) {
    save(work.to, work.to_k_first);
  }
  if (Checkpoints && owed != nullptr) hand_out(owed, 0), hand_out(owed, 1);
  if constexpr (kHandsOut) stored_all();
}

}  // namespace
