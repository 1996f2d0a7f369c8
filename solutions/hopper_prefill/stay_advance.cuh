// As advance.cuh has it, of blocks that stay: one (sequence, head) after the other, both slices of a state, which comes by way
// of shared memory while the one before is advanced. A chunk's products are those of advance.cuh, written once more: here places,
// barriers and the turn are kept in as few registers as 208 leave, and a chunk that is not whole leaves from here.
#pragma once
#include "operands.cuh"
#include "products.cuh"
#include "stay_shared.cuh"

namespace {

// This thread's part of a state that has landed in boxes of 32 columns, whose rows are value channels, or key channels.
__device__ __forceinline__ void read_state(Slice<kStaySize>& S, const unsigned char* boxes, bool k_first) {
  const int lane = lane_here(), column = 2 * (lane % 4);  // found again, and not kept over chunks
  const int row = 16 * anew(threadIdx.x / 32) + lane / 4;
  const auto at = [&](int r, int c) { return boxes + c / 32 * (kStaySize * 128) + swizzled(r, c % 32 / 4) + c % 4 * 4; };
  if (k_first) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      S[i / 32][i % 32] = *reinterpret_cast<const float*>(at(column + i / 4 * 8 + i % 2, row + i % 4 / 2 * 8));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(at(row + i % 4 / 2 * 8, column + i / 4 * 8));
      S[i / 32][i % 32] = pair.x, S[i / 32][i % 32 + 1] = pair.y;
    }
  }
}

// A warpgroup's 64 value channels.
template <class E>
__device__ __forceinline__ void advance_staying(const Problem& p, Staying& s, int wg) {
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
  // A thread holds, of every 8 columns, two neighbours of two rows: rows 16 warp + lane / 4 and eight further.
  const int column = 2 * (lane % 4);
  Slice<kStaySize> S;
  constexpr uint32_t kStageBytes = sizeof(s.keys[0]), kValueBytes = sizeof(s.v[0]);
  constexpr uint32_t kTileBytes = sizeof(s.tile[0]), kDecays = kTerms * kTriangle, kP = kDecays + sizeof(Decays);
  constexpr uint32_t kFromStart = kDecays + offsetof(Decays, from_start), kToEnd = kDecays + offsetof(Decays, to_end);
  constexpr uint32_t kReadOut = kDecays + offsetof(Decays, read_out);
  // In a box of v, or of the output, whose rows are tokens, for ldmatrix and stmatrix; and of the lane's four tokens of 16.
  // Read anew, so that they are kept and not found from the thread's index in every chunk.
  const uint32_t of_lane = anew(wg * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
  const uint32_t of_column = anew(8 * column);
  const auto leaves = [] { return static_cast<int>(lane_here() < kLeavers); };  // says for its warp that it has left a place
  // Where the chunk is: carried over the loop, so that a chunk's first product waits for no addresses.
  uint32_t box = shared_address(s.keys), tile = shared_address(s.tile), full = shared_address(s.full);
  const uint32_t to_ready = shared_address(s.ready) - full;
  const uint32_t to_empty = shared_address(s.empty) - full, to_keys_empty = shared_address(s.keys_empty) - full;
  uint32_t v = shared_address(s.v) + of_lane;  // this lane's place in that of v
  uint32_t parities = 0;  // of the barriers of the place; and, one bit up, of those of the turn, of which it is the number, too
  uint32_t state_bits[8][4];
  const auto pack_state = [&](int half) {
    pack_channels<E>(&state_bits[4 * half], S[half]);
    keep(state_bits);  // packed here, and not where they are needed
  };
  const int one = min(p.H, 1);  // which the compiler does not know
  float x[32], o[32], y[2][16];         // S K^T; S Q^T, then O^T; V'^T: tokens 0 to 31, 32 to 63
  float all;                            // gamma_C
  float4 gammas[4], rests[4];           // gamma, gamma_C / gamma
  uint32_t bits[4][4];                  // V^T, the fragments of a left operand; then X^T; then V'^T
  int p_here = 0;                       // P of the chunk has been seen to have been found
  const auto load_decays = [&](float4(&to)[4], uint32_t decays, int from, int end) {
#pragma unroll
    for (int k = from; k < end; ++k) to[k] = load_four(tile + decays + of_column + 64 * k);
  };
  // Registers are short: half of the gammas once x is there.
  constexpr int kAtOnce = 2;
  const auto load_gammas = [&] {
    // Lanes are not known to agree about it: else it would come to a uniform register, and be waited for at once.
    all = load_one(tile + kFromStart + 4 * (kChunk - 1) + (of_column >> 31));
    load_decays(gammas, kFromStart, 0, kAtOnce);
  };
  // The other place. Its barrier is the neighbour in a pair that is aligned, and the place before is always the other one.
  const auto next_place = [&] {
    const bool first = (full & 8) == 0;
    box = first ? box + kStageBytes : box - kStageBytes;
    full ^= 8, parities ^= !first;
    v = v >= shared_address(s.v[kStayValues - 1]) ? v - (kStayValues - 1) * kValueBytes : v + kValueBytes;
    tile = tile == shared_address(&s.tile[kStayTiles - 1]) ? tile - (kStayTiles - 1) * kTileBytes : tile + kTileBytes;
  };
  const auto left = [&](uint32_t to) { return (full ^ 8) + to; };
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
  // A chunk up to V', while its S K^T is under way.
  const auto find_v = [&](auto is_first) {
    load_gammas();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_transposed(bits[k], v + 2048 * k);
    }
    wgmma_fence();
    multiply<E, 0, 8>(o, state_bits, box + 2 * kBoxBytes);  // S Q^T
    wgmma_commit();
    settle(S[0]), settle(S[1]);  // lest they are scaled before products are on their way
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] *= all, S[1][e] *= all;
    __syncwarp();
    if constexpr (!is_first) barrier_arrive_if(leaves(), left(to_empty));
    wgmma_wait<1>();
    settle(x);
    load_decays(gammas, kFromStart, kAtOnce, 4);
    subtract_read<E>(bits, x, gammas);
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_lower<E>(y[0], y[1], bits, tile + term * kTriangle, term > 0);
    wgmma_commit();
    load_decays(rests, kToEnd, 0, 4);
    p_here = barrier_test(full + to_ready, parities & 1);
    wgmma_wait<0>();
    settle(o);
    keep(state_bits);
    settle(y[0]);
    settle(y[1]);
    keep(bits);
  };
  // State and output; in the end S K^T of the next chunk is under way, if there is one.
  const auto use_v = [&](auto is_last) {
    float4 reads[4];  // scale gamma
    load_decays(reads, kReadOut, 0, 4);
    uint32_t decayed[4][4];
    decay_v<E>(decayed, y, rests);
    wgmma_fence();
    update_state<E, kStaySize>(S, decayed, box);
    // While the update is under way. In a loop, which turns but once: else the compiler has the update wait for all of this.
    barrier_wait_unless(p_here, full + to_ready, parities & 1);
    int turns = one;
    do {
      turns = anew(turns - 1);
      settle(y[0]), settle(y[1]), settle(o);
      scale_read<E>(o, bits, y, reads);
    } while (turns > 0);
    wgmma_fence();
    multiply_square<E>(o, bits, tile + kP);  // + V'^T P^T
    wgmma_commit();
    const uint32_t v_of_this = v;
    next_place();
    int here = 0;
    if constexpr (!is_last) here = barrier_test(full, parities & 1);
    // The next chunk waits for the state, for one half of it after the other, and not for the output.
    wgmma_wait<2>();
    settle(S[0]);
    if constexpr (!is_last) {
      pack_state(0);
      barrier_wait_unless(here, full, parities & 1);
      begin(kFirst);
    }
    wgmma_wait<is_last ? 1 : 2>();
    settle(S[1]);
    keep(decayed);
    __syncwarp();
    barrier_arrive_if(leaves(), left(to_keys_empty));
    if constexpr (!is_last) {
      pack_state(1);
      begin(kSecond);
    }
    wgmma_wait<is_last ? 0 : 2>();
    settle(o);
    keep(bits);
    store_output<E>(o, v_of_this);
    // O^T is where v was, of which this warp has read the same channels. From there it goes to memory (stay_feed.cuh); where
    // the chunk is not whole, from here, row by row: those behind the end are the next sequence's.
    if constexpr (is_last) {
      const Work& work = s.work[parities >> 1];
      const int rows = static_cast<int>(work.end - work.start) - (work.chunks - 1) * kChunk;
      if (rows < kChunk) {
        __syncwarp();
        const int warp = anew(threadIdx.x / 32);  // of eight
        const uint32_t rows_at = v_of_this - swizzled(lane_here() % 8 + lane_here() / 16 * 8, 2 * (warp % 4) + lane_here() / 8 % 2);
        auto* const to = static_cast<uint16_t*>(p.output) + ((work.end - rows) * p.H + work.h) * kStaySize + 16 * warp;
#pragma unroll 1
        for (int at = lane_here(); at < 2 * rows; at += 32) {
          *reinterpret_cast<uint4*>(to + static_cast<int64_t>(at / 2) * p.H * kStaySize + at % 2 * 8) =
              load_shared(rows_at + swizzled(at / 2, 2 * (warp % 4) + at % 2));
        }
      }
    }
  };
#pragma unroll 1
  for (;; parities ^= 2) {
    barrier_wait(shared_address(&s.state_full), parities >> 1);
    const int chunks = __shfl_sync(kAllLanes, s.work[parities >> 1].chunks, 0);
    if (chunks < 0) break;
    if (p.initial_state == nullptr) {
#pragma unroll
      for (int i = 0; i < 64; ++i) S[i / 32][i % 32] = 0.f;
    } else {
      read_state(S, s.state[0], p.k_first);
    }
    __syncwarp();
    barrier_arrive_if(leaves(), shared_address(&s.state_empty));
    if (chunks > 0) {
      p_here = 0;
      pack_state(0), pack_state(1);
      barrier_wait(full, parities & 1);
      begin(kFirst), begin(kSecond);
      find_v(std::true_type{});
#pragma unroll 1
      for (int more = chunks - 1; more > 0; --more) {
        use_v(std::false_type{});
        find_v(std::false_type{});
      }
      use_v(std::true_type{});
      __syncwarp();
      barrier_arrive_if(leaves(), left(to_empty));
    }
    const Work& work = s.work[parities >> 1];
    save_state<kStaySize>(S, work, work.to, p.k_first);
  }
}

}  // namespace
