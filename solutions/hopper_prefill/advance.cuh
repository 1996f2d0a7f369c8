// A state over its chunks in order, 64 value channels a warpgroup, in registers.
//
// One chunk of 64 tokens, S [V, K] the state before it:
//   X^T  = V^T - (S K^T) diag(gamma)
//   V'^T = X^T T^T
//   O^T  = scale (S Q^T) diag(gamma) + V'^T P^T
//   S   <- gamma_C S + V'^T diag(gamma_C / gamma) K
// and O only where it is asked for. Transposed throughout, so that S and what depends on it stay in registers, as left operands; all right operands come from
// shared memory as they lie there.
#pragma once
#include "shared.cuh"

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
template <class E, int Groups, bool Output>
__device__ __forceinline__ void advance(const Problem& p, Shared<Groups, Output>& s, int wg) {
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
  if (Output && p.length != 0) wait_for_last();  // which has the state
  load(work.from, work.from_k_first);
  const int v_token = lane % 8 + lane / 16 * 8;  // of ldmatrix and stmatrix: rows of v and of the output are tokens
  const int v_piece = 2 * warp + lane / 8 % 2;
  uint32_t o_bits[4][4];

  // O^T of chunk c in registers to the box of v, of which this warp has read the same channels; from there it goes to memory
  // (feed.cuh).
  const auto give = [&](int c) {
    const uint32_t box = shared_address(s.boxes[c % kStages].v) + wg * kBoxBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) stmatrix_transposed(box + swizzled(16 * k + v_token, v_piece), o_bits[k]);
    fence_async();
    __syncwarp();
    if (lane < kLeavers) barrier_arrive(shared_address(&s.empty[c % kStages]));
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
  // Two warpgroups take turns: one has products of S under way while the other has work of its own.
  constexpr bool kTurns = Output && Groups == 2;
  if (kTurns && wg == 1 && work.chunks > 0) named_arrive(kTurnOf0, 256);
  const uint32_t v_mask = work.identity ? 0 : ~0u;
  // At a sequence's end threads read what others wrote, without TMA or wgmma: there all of them meet.
  const int64_t tokens = work.end - work.start;
  const int cut_short = tokens < static_cast<int64_t>(work.chunks) * kChunk ? work.chunks - 1 : -1;
#pragma unroll 1
  for (int c = 0; c < work.chunks; ++c) {
    const int i = c % kStages, parity = c / kStages & 1;
    auto& boxes = s.boxes[i];
    auto& tile = s.tile[i];
    GDN_STAMP(wg, c, 0);
    barrier_wait(shared_address(&s.full[i]), parity);
    if (kTurns) named_barrier(kTurnOf0 + wg, 256);
    GDN_STAMP(wg, c, 1);
    float x[32], o[32];
    wgmma_fence();
    multiply<E, 8>(x, state_bits, shared_address(boxes.k));  // S K^T
    wgmma_commit();
    if constexpr (Output) {
      if (c > 0) give(c - 1);
      GDN_STAMP(wg, c, 2);
      wgmma_fence();
      multiply<E, 8>(o, state_bits, shared_address(boxes.q));  // S Q^T
      wgmma_commit();
    }
    if (kTurns && (wg == 0 || c + 1 < work.chunks)) named_arrive(kTurnOf0 + 1 - wg, 256);

    uint32_t bits[4][4];  // V^T, the fragments of a left operand; then X^T
    const auto load_v = [&](int k) {
      ldmatrix_transposed(bits[k], shared_address(boxes.v) + wg * kBoxBytes + swizzled(16 * k + v_token, v_piece));
      if constexpr (!Output) {
#pragma unroll
        for (int e = 0; e < 4; ++e) bits[k][e] &= v_mask;
      }
    };
    const auto subtract = [&](int k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = k * 8 + 2 * e;  // in x; its token is ..
        const float2 gamma = *reinterpret_cast<const float2*>(tile.decays.from_start + 16 * k + e / 2 * 8 + column);
        const float2 value = unpack<E>(bits[k][e]);
        bits[k][e] = pack<E>(fmaf(-gamma.x, x[at], value.x), fmaf(-gamma.y, x[at + 1], value.y));
      }
    };
    barrier_wait(shared_address(&s.v_full[i]), parity);
    if (c == cut_short) named_barrier(kCleared, 32 + 128 * Groups);
#pragma unroll
    for (int k = 0; k < 4; ++k) load_v(k);
    GDN_STAMP(wg, c, 3);
    wgmma_wait<Output ? 1 : 0>();
    settle(x);
    GDN_STAMP(wg, c, 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) subtract(k);
    float y[2][16];  // V'^T: tokens 0 to 31, 32 to 63
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) multiply_lower<E>(y[0], y[1], bits, shared_address(tile.T[term]), term > 0);
    wgmma_commit();
    const float all = tile.decays.from_start[kChunk - 1];  // loaded here, lest S is scaled before T is on its way
#pragma unroll
    for (int e = 0; e < 32; ++e) S[0][e] *= all, S[1][e] *= all;
    if constexpr (Output) {
      wgmma_wait<1>();  // S Q^T
      settle(o);
      keep(state_bits);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float2 gamma = *reinterpret_cast<const float2*>(tile.decays.from_start + 8 * k + column);
#pragma unroll
        for (int e = 0; e < 4; ++e) o[4 * k + e] *= p.scale * (e % 2 == 0 ? gamma.x : gamma.y);
      }
    }
    wgmma_wait<0>();
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
        const float2 rest = *reinterpret_cast<const float2*>(tile.decays.to_end + 16 * k + e / 2 * 8 + column);
        const float2 pair = make_float2(y[at / 16][at % 16], y[at / 16][at % 16 + 1]);
        if constexpr (Output) bits[k][e] = pack<E>(pair.x, pair.y);
        decayed[k][e] = pack<E>(pair.x * rest.x, pair.y * rest.y);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // tokens are rows of the box: 16 of them are 2048 bytes
      wgmma<E, 1>(S[0], decayed[k], descriptor(shared_address(boxes.k), 2048 * k), 1);
      wgmma<E, 1>(S[1], decayed[k], descriptor(shared_address(boxes.k), kBoxBytes + 2048 * k), 1);
    }
    wgmma_commit();
    if constexpr (Output) {
      if (finds_p(Groups)) {
        barrier_wait(shared_address(&s.ready[i]), parity);
        wgmma_fence();
      }
      multiply_square<E>(o, bits, shared_address(tile.P));  // + V'^T P^T
      wgmma_commit();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    settle(S[0]);
    settle(S[1]);
    keep(decayed);
    pack_state();  // the next chunk waits for it, and not for the output
    keep(state_bits);
    if constexpr (!Output) {
      __syncwarp();
      if (lane < kLeavers) barrier_arrive(shared_address(&s.empty[i]));
    } else {
      wgmma_wait<0>();
      settle(o);
      keep(bits);
      GDN_STAMP(wg, c, 6);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o_bits[k][e] = pack<E>(o[8 * k + 2 * e], o[8 * k + 2 * e + 1]);
      }
      if (p.every != 0) {
        const int done = work.before + c + 1;
        if (done % p.every == 0 && work.start + static_cast<int64_t>(c + 1) * kChunk <= work.end) {
          const int64_t place = p.checkpoint_starts[work.n] + done / p.every - 1;
          if (place >= 0 && place < p.num_checkpoints) save(p.checkpoints + (place * p.H + work.h) * D * D, false);
        }
      }
    }
  }
  if (Output && work.chunks > 0) give(work.chunks - 1);
  if (Output && cut_short >= 0) named_arrive(kWritten, 32 + 128 * Groups);
  if (work.to != nullptr) save(work.to, work.to_k_first);
}

}  // namespace
