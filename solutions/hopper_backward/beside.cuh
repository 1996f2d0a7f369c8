// What passes through the states on both ends of a chunk, of one head: by two warpgroups, each with half of the key channels.
//
// A thread has rows (tokens) 16 warp + lane / 4 and eight further, and of every 8 key channels two.
#pragma once
#include "between.cuh"
#include "products.cuh"

namespace {

// A head's share in shared memory, by half of its value channels: G = do, dv and r by token, and the states [V, K].
struct alignas(1024) Part {
  unsigned char g[kBoxBytes], dv[kBoxBytes], r[kBoxBytes], S[kHalves * kBoxBytes], dS[kHalves * kBoxBytes];
};

// Sums over both halves: G S, dv S and r dS, of the warpgroup's key channels; and G r^T or r dv^T, the warpgroup's.
struct Products {
  float read[32], erased[32], written[32], between[32];
};

// `between`: what a warp does meanwhile. A warp waits for room ahead of each product, so that takes no time there.
template <class E, class Between>
__device__ __forceinline__ void multiply_part(Products& to, const Part& part, bool accumulate, int wg, Between between) {
  const uint32_t g = shared_address(part.g), dv = shared_address(part.dv), r = shared_address(part.r);
  const uint32_t S = shared_address(part.S) + wg * kBoxBytes, dS = shared_address(part.dS) + wg * kBoxBytes;
  wgmma_fence();
  multiply_boxes<E>(to.read, g, S, accumulate);
  between(0);
  multiply_boxes<E>(to.erased, dv, S, accumulate);
  between(1);
  multiply_boxes<E>(to.written, r, dS, accumulate);
  multiply_rows<E, 4>(to.between, wg == 0 ? g : r, wg == 0 ? r : dv, accumulate);
  wgmma_commit();
}

__device__ __forceinline__ void settle_products(Products& x) {
  settle(x.read), settle(x.erased), settle(x.written), settle(x.between);
}

// <S, dS> by warps, of 16 value channels and half of the key channels each: products S dS^T of 16 rows have it on their diagonals.
struct Diagonals {
  float upper[4] = {}, lower[4] = {};  // of the first eight rows of dS, of the others

  // Adds 32 of the key channels, of one half of the value channels.
  template <class E>
  __device__ __forceinline__ void add(const Part& part, int nth, int of_block, int lane) {
    const uint32_t S = shared_address(part.S) + of_block / 4 * kBoxBytes, dS = shared_address(part.dS) + of_block / 4 * kBoxBytes;
#pragma unroll
    for (int k = 2 * nth; k < 2 * nth + 2; ++k) {
      uint32_t left[4], right[4];
      ldmatrix(left, S + place_of_lane(of_block % 4, k, lane));
      ldmatrix(right, dS + place_of_lane(of_block % 4, k, lane));
      mma<E>(upper, left, right[0], right[2]);
      mma<E>(lower, left, right[1], right[3]);
    }
  }

  // A lane's part of the sum.
  __device__ __forceinline__ float of_lane(int lane) const {
    const int column = lane / 4 - 2 * (lane % 4);  // of the diagonal, among the lane's two
    return column == 0 ? upper[0] + lower[2] : column == 1 ? upper[1] + lower[3] : 0.f;
  }
};

// The products' parts in dQ and dK; and, summed over the warpgroup's key channels, what they are in decays. `q`, `k`: boxes of
// these channels.
template <class E>
__device__ __forceinline__ void add_states(float (&dQ)[32], float (&dK)[32], const Products& of, const Decays& d, float scale,
                                           GateSums& sums, uint32_t q, uint32_t k, int wg, int warp, int lane) {
  const int row = 16 * warp + lane / 4;
  float start[2] = {}, end[2] = {}, written[2], gamma[2], to_end[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    gamma[r] = exp2_fast(d.log[row + 8 * r]), to_end[r] = exp2_fast(d.log[kChunk - 1] - d.log[row + 8 * r]);
    written[r] = d.beta[row + 8 * r];
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    uint32_t q_bits[4], k_bits[4];
    ldmatrix(q_bits, q + place_of_lane(warp, m, lane));
    ldmatrix(k_bits, k + place_of_lane(warp, m, lane));
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int r = e / 2 % 2, i = 8 * m + e;
      const float2 qs = unpack<E>(q_bits[e / 2]), ks = unpack<E>(k_bits[e / 2]);
      const float q = e % 2 == 0 ? qs.x : qs.y, k = e % 2 == 0 ? ks.x : ks.y;
      const float of_read = scale * of.read[i], of_erased = -of.erased[i], of_written = written[r] * of.written[i];
      start[r] = fmaf(of_read, q, fmaf(of_erased, k, start[r]));
      end[r] = fmaf(of_written, k, end[r]);
      dQ[i] = fmaf(gamma[r], of_read, dQ[i]);
      dK[i] = fmaf(gamma[r], of_erased, fmaf(to_end[r], of_written, dK[i]));
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    start[r] = add_row(start[r]), end[r] = add_row(end[r]);
    if (lane % 4 == 0) sums.of_start[wg][row + 8 * r] = start[r], sums.of_end[wg][row + 8 * r] = end[r];
  }
}

}  // namespace
