// As advance.cuh has it, of blocks that prepare their own chunks: both slices of a state, which comes by way of shared memory
// while the one before is advanced. Nothing of a chunk is under way before the one before is done: sequences are short.
#pragma once
#include "operands.cuh"
#include "products.cuh"
#include "short_shared.cuh"

namespace {

// This thread's part of a slice that has landed in boxes of 32 columns, whose rows are 64 value channels, or 128 key channels.
__device__ __forceinline__ void take_state(Slice<kStaySize>& S, const unsigned char* boxes, bool k_first) {
  const int lane = lane_here(), column = 2 * (lane % 4);  // found again, and not kept over chunks
  const int row = 16 * (anew(threadIdx.x / 32) % 4) + lane / 4;
  const auto at = [&](int r, int c) {
    return boxes + c / 32 * ((k_first ? kStaySize : kSlice) * 128) + swizzled(r, c % 32 / 4) + c % 4 * 4;
  };
  if (k_first) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      S[i / 32][i % 32] = *reinterpret_cast<const float*>(at(column + i / 4 * 8 + i % 2, row + i % 4 / 2 * 8));
    }
  } else {
    // Of two groups of eight columns, 16 apart, odd rows take the second first: else they would meet even ones in the same banks.
    const bool odd = row % 2 != 0;
    const int first = odd ? column + 16 : column, second = odd ? column : column + 16;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
      const int group = i / 4;
      if (group % 4 >= 2) continue;
      const int r = row + i % 4 / 2 * 8;
      const float2 x = *reinterpret_cast<const float2*>(at(r, first + 8 * group));
      const float2 y = *reinterpret_cast<const float2*>(at(r, second + 8 * group));
      S[i / 32][i % 32] = odd ? y.x : x.x, S[i / 32][i % 32 + 1] = odd ? y.y : x.y;
      S[i / 32][i % 32 + 8] = odd ? x.x : y.x, S[i / 32][i % 32 + 9] = odd ? x.y : y.y;
    }
  }
}

// Rows of a last chunk's output that is not whole, of this warp's 16 channels, from v's place: those behind the end are the next
// sequence's.
__device__ __forceinline__ void write_tail(const Problem& p, const Work& work, int rows, uint32_t v) {
  const int warp = anew(threadIdx.x / 32), lane = lane_here();  // of eight
  auto* const to = static_cast<uint16_t*>(p.output) + ((work.end - rows) * p.H + work.h) * kStaySize + 16 * warp;
#pragma unroll 1
  for (int at = lane; at < 2 * rows; at += 32) {
    *reinterpret_cast<uint4*>(to + static_cast<int64_t>(at / 2) * p.H * kStaySize + at % 2 * 8) =
        load_shared(v + warp / 4 * kBoxBytes + swizzled(at / 2, 2 * (warp % 4) + at % 2));
  }
}

// scale (S Q^T) diag(gamma), `reads` = scale gamma.
__device__ __forceinline__ void scale(float (&o)[32], const float4 (&reads)[4]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) o[i] *= i % 8 < 4 ? (i % 2 == 0 ? reads[i / 8].x : reads[i / 8].y) : i % 2 == 0 ? reads[i / 8].z : reads[i / 8].w;
}

// A warpgroup's 64 value channels.
template <class E>
__device__ __forceinline__ void advance_short(const Problem& p, Short& s, int wg) {
  constexpr uint32_t kPlaceBytes = sizeof(s.places[0]);
  constexpr uint32_t kQ = offsetof(ShortPlace, q), kV = offsetof(ShortPlace, v), kTile = offsetof(ShortPlace, tile);
  constexpr uint32_t kP = offsetof(ShortPlace, P), kDecays = kTile + offsetof(StateTile, decays);
  constexpr uint32_t kFromStart = kDecays + offsetof(Decays, from_start), kToEnd = kDecays + offsetof(Decays, to_end);
  constexpr uint32_t kReadOut = kDecays + offsetof(Decays, read_out);
  // In a box of v, or of the output, whose rows are tokens, for ldmatrix and stmatrix; and of the lane's four tokens of 16. Found
  // in every chunk, and not kept.
  const auto of_lane = [] {
    const int lane = lane_here(), warp = anew(threadIdx.x / 32);  // of eight
    return kV + warp / 4 * kBoxBytes + swizzled(lane % 8 + lane / 16 * 8, 2 * (warp % 4) + lane / 8 % 2);
  };
  const auto of_column = [] { return 16 * (lane_here() % 4); };
  const auto leaves = [] { return static_cast<int>(lane_here() < kLeavers); };  // says for its warp that it has left a place
  uint32_t place = shared_address(s.places), asked = shared_address(s.asked);  // the barrier, by which the others are found
  const auto barrier = [&](const uint64_t* barriers) { return asked + (shared_address(barriers) - shared_address(s.asked)); };
  uint32_t parity = 0, turn = 0;  // of the barriers of the place; the number of the turn
  Slice<kStaySize> S;
  const auto load_decays = [&](float4(&to)[4], uint32_t decays) {
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = load_four(place + decays + of_column() + 64 * k);
  };
  const auto advance_chunk = [&](bool is_last) {
    uint32_t state_bits[8][4];
    pack_channels<E>(&state_bits[0], S[0]), pack_channels<E>(&state_bits[4], S[1]);
    keep(state_bits);
    barrier_wait(barrier(s.full), parity);
    // Here, where nothing is under way: S is what products of the chunk before have left, and the compiler would wait for these.
    const float all = load_one(place + kFromStart + 4 * (kChunk - 1));  // gamma_C
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] *= all, S[1][e] *= all;
    settle(S[0]), settle(S[1]);
    float o[32], y[2][16];  // S K^T, then S Q^T, then O^T; V'^T: tokens 0 to 31, 32 to 63
    uint32_t bits[4][4];           // V^T, the fragments of a left operand; then X^T; then V'^T
    wgmma_fence();
    multiply<E, 0, 8>(o, state_bits, place);
    wgmma_commit();
    barrier_wait(barrier(s.v_full), parity);
    wgmma_wait<0>();
    settle(o);
    // V^T becomes X^T by 16 tokens, for want of registers.
    const uint32_t v = place + of_lane(), gammas = place + kFromStart + of_column();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_transposed(bits[k], v + 2048 * k);
      subtract_read_of<E>(bits[k], &o[8 * k], load_four(gammas + 64 * k));
    }
    // Not before, and over before V' is begun, for want of registers.
    settle(o);
    wgmma_fence();
    multiply<E, 0, 8>(o, state_bits, place + kQ);
    wgmma_commit();
    float4 reads[4];  // scale gamma
    load_decays(reads, kReadOut);
    barrier_wait(barrier(s.inverted), parity);
    wgmma_wait<0>();
    settle(o);
    keep(state_bits);
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      multiply_lower<E>(y[0], y[1], bits, place + kTile + term * kTriangle, term > 0);
    }
    wgmma_commit();
    scale(o, reads);
    settle(o);
    float4 rests[4];  // gamma_C / gamma
    load_decays(rests, kToEnd);
    wgmma_wait<0>();
    settle(y[0]), settle(y[1]);
    keep(bits);
    uint32_t decayed[4][4];
    decay_v<E>(decayed, y, rests);
    pack_v<E>(bits, y);
    wgmma_fence();
    update_state<E, kStaySize>(S, decayed, place);
    barrier_wait(barrier(s.found), parity);
    wgmma_fence();
    multiply_square<E>(o, bits, place + kP);  // + V'^T P^T
    wgmma_commit();
    wgmma_wait<1>();
    settle(S[0]), settle(S[1]);
    keep(decayed);
    __syncwarp();
    barrier_arrive_if(leaves(), barrier(s.keys_empty));
    wgmma_wait<0>();
    settle(o);
    keep(bits);
    // O^T is where v was, of which this warp has read the same channels. From there it goes to memory (short_feed.cuh).
    store_output<E>(o, place + of_lane());
    if (is_last) {
      const Work& work = s.work[turn % kShortTurns];
      const int rows = static_cast<int>(work.end - work.start) - (work.chunks - 1) * kChunk;
      if (rows < kChunk) {
        __syncwarp();
        write_tail(p, work, rows, place + kV);
      }
    }
    __syncwarp();
    barrier_arrive_if(leaves(), barrier(s.empty));
    const bool first = (asked & 8) == 0;
    place = first ? place + kPlaceBytes : place - kPlaceBytes;
    asked ^= 8, parity ^= !first;
  };
#pragma unroll 1
  for (;; ++turn) {
    barrier_wait(shared_address(&s.state_full[wg]), turn & 1);
    const Work& work = s.work[turn % kShortTurns];
    const int chunks = __shfl_sync(kAllLanes, work.chunks, 0);
    if (chunks < 0) break;
    if (p.initial_state == nullptr) {
#pragma unroll
      for (int i = 0; i < 64; ++i) S[i / 32][i % 32] = 0.f;
    } else {
      take_state(S, s.state[wg], p.k_first);
    }
    __syncwarp();
    barrier_arrive_if(leaves(), shared_address(&s.state_empty[wg]));
#pragma unroll 1
    for (int left = chunks; left > 0; --left) advance_chunk(left == 1);
    save_state<kStaySize>(S, work, work.to, p.k_first);
  }
}

}  // namespace
