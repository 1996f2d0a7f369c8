// What needs no state, by a warpgroup of its own, a chunk ahead: T = (I + A)^-1 diag(beta), P = scale (Gamma * Q K^T), decays.
//
// A = strict_lower(diag(beta) (Gamma * K K^T)), 64 x 64. The inverse, whose precision decides what becomes of repeated keys:
// blocks of 16 by substitution in float32, then by products of two bfloat16 terms each, the product of the low ones left out.
#pragma once
#include "shared.cuh"

namespace {

using bf16 = __nv_bfloat16;

// --- gates ------------------------------------------------------------------------------------------------------

constexpr float kResets = -104.f;  // exponentials of less are 0: a huge log must not drown its neighbours' in the sums

// What a lane has of them: g of tokens 2 lane and 2 lane + 1, beta of its two rows.
struct Gates {
  float g[2], beta[2];
};

// Asks for those of a chunk, by a warpgroup, a chunk ahead.
__device__ __forceinline__ void ask_gates(const Problem& p, int64_t token, int valid, int h, float (&gates)[2][kChunk],
                                          int warp) {
  const int t = 32 * (warp % 2) + lane_here();
  const float* from = warp < 2 ? p.g : p.beta;
  if (t < valid && from != nullptr) copy_word(shared_address(&gates[warp / 2][t]), from + (token + t) * p.H + h);
}

// Behind the end: alpha 1, beta 0.
__device__ __forceinline__ Gates load_gates(const Problem& p, int valid, const float (&gates)[2][kChunk], int warp) {
  const int lane = lane_here();
  Gates x;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e, row = 16 * warp + lane / 4 + 8 * e;
    x.g[e] = t < valid && p.g != nullptr ? gates[0][t] : p.log_gates ? 0.f : 1.f;
    x.beta[e] = row >= valid ? 0.f : p.beta != nullptr ? gates[1][row] : 1.f;
  }
  return x;
}

// --- prepare ----------------------------------------------------------------------------------------------------

// Two terms of four pairs: what a left operand, and stmatrix, take.
template <class E>
__device__ __forceinline__ void split(const float (&x)[8], uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    high[i] = pack<E>(x[2 * i], x[2 * i + 1]);
    const float2 rounded = unpack<E>(high[i]);
    low[i] = pack<E>(x[2 * i] - rounded.x, x[2 * i + 1] - rounded.y);
  }
}

// y [16, 16] += a b^T, for operands of two bfloat16 terms: the product of both low ones is left out. b by blocks of 16 x 16.
__device__ __forceinline__ void multiply_split(float (&y)[2][4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                                               uint32_t b_high, uint32_t b_low) {
  const int lane = lane_here();
  uint32_t bh[4], bl[4];
  ldmatrix(bh, b_high + lane * 16);
  ldmatrix(bl, b_low + lane * 16);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    mma_bf16(y[t], low, bh[t], bh[t + 2]);
    mma_bf16(y[t], high, bl[t], bl[t + 2]);
    mma_bf16(y[t], high, bh[t], bh[t + 2]);
  }
}

// The inverse of I + a 16 x 16 block of A, strictly lower, by substitution: lane i % 16 has row i. `a` is A transposed.
__device__ __forceinline__ void invert_block(const float (&a)[16][20], uint32_t high, uint32_t low) {
  const int lane = lane_here(), i = lane % 16;
  float x[16];
#pragma unroll
  for (int j = 15; j >= 0; --j) {
    float row[16];  // A[m][j], m from 4 floor((j + 1) / 4)
#pragma unroll
    for (int m = (j + 1) / 4 * 4; m < 16; m += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&a[j][m]);
      row[m] = four.x, row[m + 1] = four.y, row[m + 2] = four.z, row[m + 3] = four.w;
    }
    float sum = i == j ? 1.f : 0.f;
#pragma unroll
    for (int m = 15; m > j; --m) sum = fmaf(-x[m], row[m], sum);
    x[j] = sum;
  }
  uint32_t words[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    words[e] = pack<bf16>(x[2 * e], x[2 * e + 1]);
    const float2 rounded = unpack<bf16>(words[e]);
    const uint32_t rest = pack<bf16>(x[2 * e] - rounded.x, x[2 * e + 1] - rounded.y);
    if (lane >= 16) words[e] = rest;
  }
  const uint32_t at = (lane < 16 ? high : low) + i * 16;  // rows 8 to 15 are the second core
  store_shared(at, make_uint4(words[0], words[1], words[2], words[3]));
  store_shared(at + 256, make_uint4(words[4], words[5], words[6], words[7]));
}

// One chunk, by a warpgroup: K and Q in shared memory. Warp w has rows 16 w to 16 w + 15 of A and P, and these columns of T.
template <class E>
__device__ __forceinline__ void prepare(const Problem& p, const Gates& gates, uint32_t k_at, uint32_t q_at, Tile& tile,
                                        Scratch& scratch, float (&diagonal)[16][20], Decays& decays, int warp, int wg,
                                        int c) {
  const int lane = lane_here(), group = lane / 4, quad = lane % 4;
  float products[32];  // K K^T, later Q K^T
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint32_t at = k / 4 * kBoxBytes + k % 4 * 32;
    wgmma_shared<E>(products, descriptor(k_at + at), descriptor(k_at + at), k > 0);
  }
  wgmma_commit();

  float own[2];
  unsigned resets[2];  // of the even tokens, of the odd ones
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const bool reset = p.log_gates ? gates.g[e] < kResets : gates.g[e] == 0.f;
    own[e] = reset ? 0.f : p.log_gates ? 1.4426950408889634f * gates.g[e] : log2f(gates.g[e]);
    resets[e] = __ballot_sync(kAllLanes, reset);
  }
  float sum = own[0] + own[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += x;
  }
  const float block_end = __shfl_sync(kAllLanes, sum, lane | 7), chunk_end = __shfl_sync(kAllLanes, sum, 31);
  const auto runs = [&](int pairs) {  // resets in the first tokens, two a pair
    const unsigned mask = pairs == 32 ? ~0u : (1u << pairs) - 1;
    return __popc(resets[0] & mask) + __popc(resets[1] & mask);
  };
  const int run_before = runs(lane), run_block = runs((lane | 7) + 1), run_end = runs(32);
  const int run_odd = runs(lane + 1), run_even = run_before + (resets[0] >> lane & 1);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e, run = e == 0 ? run_even : run_odd;
    const float log = e == 0 ? sum - own[1] : sum;
    decays.log[t] = log;
    decays.run[t] = static_cast<unsigned char>(run);
    decays.factor[t] = run == run_block ? exp2_fast(block_end - log) : 0.f;
    if (warp == 0) {
      tile.to_end[t] = run == run_end ? exp2_fast(chunk_end - log) : 0.f;
      tile.from_start[t] = run == 0 ? exp2_fast(log) : 0.f;
    }
  }
  __syncwarp();
  const uint32_t core = lane * 16;  // of four that are contiguous: the row that this lane gives stmatrix
  const uint32_t turned = (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16;  // the second and third in turns

  // Columns 16 m to 16 m + 15 of `products`, times row factors and gamma_i / gamma_j, in the order of a left operand: two
  // of row 0, of row 1, of the next eight columns. Above the diagonal: zeros.
  const auto decayed = [&](int m, float first, float second, float (&x)[8]) {
    const float by_row[2] = {first, second};
    const int row = 16 * warp + group;
    const float row_log[2] = {decays.log[row], decays.log[row + 8]};
    const int row_run[2] = {decays.run[row], decays.run[row + 8]};
    if (m < warp) {
      const float end_log = decays.log[16 * m + 15];
      const int end_run = decays.run[16 * m + 15];
      float rows[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) rows[r] = row_run[r] == end_run ? by_row[r] * exp2_fast(row_log[r] - end_log) : 0.f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 columns = *reinterpret_cast<const float2*>(&decays.factor[16 * m + 8 * half + 2 * quad]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[4 * half + e] = rows[e / 2] * (e % 2 == 0 ? columns.x : columns.y) * products[8 * m + 4 * half + e];
        }
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = 16 * m + 8 * half + 2 * quad;
        const float2 logs = *reinterpret_cast<const float2*>(&decays.log[column]);
        const uchar2 run = *reinterpret_cast<const uchar2*>(&decays.run[column]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = e / 2;
          const bool together = column + e % 2 <= row + 8 * r && (e % 2 == 0 ? run.x : run.y) == row_run[r];
          const float ratio = exp2_fast(row_log[r] - (e % 2 == 0 ? logs.x : logs.y));
          x[4 * half + e] = together ? by_row[r] * ratio * products[8 * m + 4 * half + e] : 0.f;
        }
      }
    }
  };

  GDN_STAMP(wg, c, 2);
  wgmma_wait<0>();
  settle(products);
  GDN_STAMP(wg, c, 3);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (m > warp) continue;
    float a[8];
    decayed(m, gates.beta[0], gates.beta[1], a);
    if (m < warp) {
      uint32_t high[4], low[4];
      split<bf16>(a, high, low);
      const int at = (warp * (warp - 1) / 2 + m) * kBlock;
      stmatrix(shared_address(scratch.A[0]) + at + core, high);
      stmatrix(shared_address(scratch.A[1]) + at + core, low);
    } else {  // what lies on the diagonal is not looked at
#pragma unroll
      for (int e = 0; e < 8; ++e) diagonal[e / 4 * 8 + 2 * quad + e % 2][group + e / 2 % 2 * 8] = a[e];
    }
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint32_t at = k / 4 * kBoxBytes + k % 4 * 32;
    wgmma_shared<E>(products, descriptor(q_at + at), descriptor(k_at + at), k > 0);
  }
  wgmma_commit();
  __syncwarp();
  GDN_STAMP(wg, c, 4);
  const uint32_t inverse_high = shared_address(scratch.inverse[0]), inverse_low = shared_address(scratch.inverse[1]);
  invert_block(diagonal, inverse_high + warp * kBlock, inverse_low + warp * kBlock);
  GDN_STAMP(wg, c, 5);
  wgmma_wait<0>();
  settle(products);
  copies_wait();  // of the gates of the next chunk, which the barrier shows to all
  named_barrier(1, 128);
  GDN_STAMP(wg, c, 6);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (m > warp) continue;
    float b[8];
    decayed(m, p.scale, p.scale, b);
    const uint32_t words[4] = {pack<E>(b[0], b[1]), pack<E>(b[2], b[3]), pack<E>(b[4], b[5]), pack<E>(b[6], b[7])};
    stmatrix(shared_address(tile.P) + block_of(warp, m) + turned, words);
  }
  GDN_STAMP(wg, c, 7);

  // Columns 16 w to 16 w + 15 of the inverse, transposed: Y_w = I_w^T, Y_r = - (sum over m < r of Y_m A_rm^T) I_r^T.
  const auto give = [&](const float (&y)[8], int r) {
    float scaled[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) scaled[e] = y[e] * gates.beta[e / 2 % 2];
    uint32_t words[kTerms][4];
    split<E>(scaled, words[0], words[1]);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      stmatrix_transposed(shared_address(tile.T[term]) + block_of(r, warp) + core, words[term]);
    }
  };
  uint32_t high[4], low[4];  // Y_m
  ldmatrix_transposed(high, inverse_high + warp * kBlock + turned);
  ldmatrix_transposed(low, inverse_low + warp * kBlock + turned);
  float y[8];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 first = unpack<bf16>(high[e]), second = unpack<bf16>(low[e]);
    y[2 * e] = first.x + second.x, y[2 * e + 1] = first.y + second.y;
  }
  float sums[4][2][4] = {};
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (m < warp) continue;
#pragma unroll
    for (int r = m + 1; r < 4; ++r) {
      const uint32_t at = (r * (r - 1) / 2 + m) * kBlock;
      multiply_split(sums[r], high, low, shared_address(scratch.A[0]) + at, shared_address(scratch.A[1]) + at);
    }
    give(y, m);
    if (m == 3) break;
    float negated[8], next[2][4] = {};
#pragma unroll
    for (int e = 0; e < 8; ++e) negated[e] = -sums[m + 1][e / 4][e % 4];
    uint32_t z_high[4], z_low[4];
    split<bf16>(negated, z_high, z_low);
    multiply_split(next, z_high, z_low, inverse_high + (m + 1) * kBlock, inverse_low + (m + 1) * kBlock);
#pragma unroll
    for (int e = 0; e < 8; ++e) y[e] = next[e / 4][e % 4];
    split<bf16>(y, high, low);
  }
  GDN_STAMP(wg, c, 8);
}

// The warpgroup that prepares: it asks for the boxes of the next chunk, then prepares this one.
template <class E, int Groups>
__device__ __forceinline__ void prepare_all(const Problem& p, Shared<Groups>& s, const CUtensorMap& q_map,
                                            const CUtensorMap& k_map, const CUtensorMap& v_map) {
  const Work& work = s.work;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
  const auto valid = [&](int c) {
    return static_cast<int>(min(int64_t{kChunk}, work.end - work.start - static_cast<int64_t>(c) * kChunk));
  };
  // For the boxes of chunk c, once its place is free; by a warp. Rows behind the end are the next sequence's: what is in
  // them, NaN maybe, is no business of this one's, so they become zeros before anybody looks.
  const auto ask = [&](int c) {
    const int i = c % kStages, token = static_cast<int>(work.start) + c * kChunk, rows = valid(c);
    auto& boxes = s.boxes[i];
    const uint32_t full = shared_address(&s.full[i]), landed = rows < kChunk ? shared_address(&s.tail) : full;
    if (lane == 0) {
      barrier_wait(shared_address(&s.empty[i]), c / kStages & 1 ^ 1);
      barrier_expect(landed, static_cast<int>(sizeof boxes));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_box(shared_address(boxes.k + half * kBoxBytes), &k_map, 64 * half, work.h / p.k_group, token, landed);
        load_box(shared_address(boxes.q + half * kBoxBytes), &q_map, 64 * half, work.h / p.q_group, token, landed);
      }
#pragma unroll
      for (int wg = 0; wg < Groups; ++wg) {
        load_box(shared_address(boxes.v + wg * kBoxBytes), &v_map, work.slice + wg * kSlice, work.h / p.v_group, token,
                 landed);
      }
    }
    __syncwarp();
    if (rows == kChunk) return;
    barrier_wait(landed, 0);
    for (int at = 128 * rows + 16 * lane; at < kBoxBytes; at += 512) {  // whole rows: the swizzle stays inside of them
      const uint4 zeros = make_uint4(0, 0, 0, 0);
      store_shared(shared_address(boxes.k) + at, zeros);
      store_shared(shared_address(boxes.k) + kBoxBytes + at, zeros);
      for (int wg = 0; wg < Groups; ++wg) store_shared(shared_address(boxes.v) + wg * kBoxBytes + at, zeros);
    }
    fence_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(full);
  };
  if (work.chunks == 0) return;
  if (warp == 1) ask(0);
  ask_gates(p, work.start, valid(0), work.h, s.gates[0], warp);
  copies_wait();
  named_barrier(1, 128);
#pragma unroll 1
  for (int c = 0; c < work.chunks; ++c) {
    const int i = c % kStages, next = (c + 1) % kStages;
    const Gates gates = load_gates(p, valid(c), s.gates[c % 2], warp);
    if (c + 1 < work.chunks) {
      if (warp == 1) ask(c + 1);
      ask_gates(p, work.start + static_cast<int64_t>(c + 1) * kChunk, valid(c + 1), work.h, s.gates[(c + 1) % 2], warp);
    }
    GDN_STAMP(Groups, c, 0);
    // The others have done with chunk c - 2: its boxes are free for chunk c + 1, its tile for this one.
    barrier_wait(shared_address(&s.empty[next]), (c + 1) / kStages & 1 ^ 1);
    barrier_wait(shared_address(&s.full[i]), c / kStages & 1);
    GDN_STAMP(Groups, c, 1);
    auto& boxes = s.boxes[i];
    prepare<E>(p, gates, shared_address(boxes.k), shared_address(boxes.q), s.tile[c % kTiles], s.scratch[c % 2],
               s.diagonal[warp], s.decays[warp], warp, Groups, c);
    GDN_STAMP(Groups, c, 9);
    fence_async();  // the other warpgroups' products read the tile
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.ready[c % kTiles]));
  }
}

}  // namespace
