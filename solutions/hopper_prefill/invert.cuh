// T = (I + A)^-1 diag(beta), A = strict_lower(diag(beta) (Gamma * K K^T)), 64 x 64; by four warps.
//
// The inverse, whose precision decides what becomes of repeated keys: blocks of 16 by substitution in float32, then by
// products of two bfloat16 terms each, the product of the low ones left out. Warp w has rows 16 w to 16 w + 15 of A, and
// these columns of T.
#pragma once
#include "decays.cuh"

namespace {

using bf16 = __nv_bfloat16;

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

// An operand of two bfloat16 terms.
struct Terms {
  uint32_t high[4], low[4];
};

__device__ __forceinline__ Terms split(const float (&x)[2][4], float sign) {
  float y[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) y[e] = sign * x[e / 4][e % 4];
  Terms terms;
  split<bf16>(y, terms.high, terms.low);
  return terms;
}

// y [16, 16] += a b^T: the product of both low terms is left out. b by blocks of 16 x 16, its low term `low` bytes further.
__device__ __forceinline__ void multiply_split(float (&y)[2][4], const Terms& a, uint32_t b, uint32_t low, int lane) {
  uint32_t bh[4], bl[4];
  ldmatrix(bh, b + turned(lane));
  ldmatrix(bl, b + low + turned(lane));
#pragma unroll
  for (int t = 0; t < 2; ++t) mma_bf16(y[t], a.low, bh[2 * t], bh[2 * t + 1]);
#pragma unroll
  for (int t = 0; t < 2; ++t) mma_bf16(y[t], a.high, bl[2 * t], bl[2 * t + 1]);
#pragma unroll
  for (int t = 0; t < 2; ++t) mma_bf16(y[t], a.high, bh[2 * t], bh[2 * t + 1]);
}

// The inverse of I + a 16 x 16 block of A, strictly lower, by substitution: lane i of a half warp has row i. `a` is A
// transposed.
__device__ __forceinline__ void invert_block(const float (&a)[16][20], uint32_t high, uint32_t low, int i) {
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
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t h[4], l[4];
    const float(&eight)[8] = reinterpret_cast<const float(&)[8]>(x[8 * half]);
    split<bf16>(eight, h, l);
    store_shared(high + i * 16 + half * 256, make_uint4(h[0], h[1], h[2], h[3]));  // rows 8 to 15 are the second core
    store_shared(low + i * 16 + half * 256, make_uint4(l[0], l[1], l[2], l[3]));
  }
}

constexpr int kTurned = 1;  // the named barrier of who needs M

// A of a chunk, from `products` = K K^T: blocks left of the diagonal in two terms, those on it inverted. Warps 0 and 1,
// which have few of the former, invert two each.
__device__ __forceinline__ void write_a(const float (&products)[32], const Decays& d, const Weights& w, Scratch& scratch,
                                        float (&diagonal)[4][16][20], int warp, int lane) {
  float a[8];
  weigh_diagonal(w, products, warp, a);
#pragma unroll
  for (int e = 0; e < 8; ++e) {  // what lies on the diagonal is not looked at
    diagonal[warp][e / 4 * 8 + 2 * (lane % 4) + e % 2][lane / 4 + e / 2 % 2 * 8] = a[e];
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 3; ++m) {
    if (m >= warp) break;
    weigh_left(d, w, products, m, lane, a);
    uint32_t high[4], low[4];
    split<bf16>(a, high, low);
    const uint32_t to = shared_address(scratch.A) + (warp * (warp - 1) / 2 + m) * kBlock + lane * 16;
    stmatrix(to, high);
    stmatrix(to + sizeof scratch.A[0], low);
  }
  if (warp < 2) {
    const int block = 2 * warp + lane / 16;
    const uint32_t inverse = shared_address(scratch.inverse) + block * kBlock;
    invert_block(diagonal[block], inverse, inverse + sizeof scratch.inverse[0], lane % 16);
  }
}

// Columns 16 w to 16 w + 15 of the inverse, transposed, blocks Y_r of rows 16 r and on: times beta they are T, in two terms.
// With I_r the inverses on the diagonal: Y_w = I_w^T, for w = 0 and 2 Y_w+1 = - (Y_w A_w+1,w^T) I_w+1^T; that of w = 2,
// turned, is M. For w = 0 and 1, with U_r = Y_0 A_r0^T + Y_1 A_r1^T: Y_2 = - U_2 I_2^T, Y_3 = - (U_3 I_3^T + U_2 M^T).
template <class E>
__device__ __forceinline__ void write_t(Scratch& scratch, uint32_t to, const float (&beta)[2], int warp, int lane) {
  const uint32_t A = shared_address(scratch.A), inverse = shared_address(scratch.inverse), M = A + 5 * kBlock;  // M: on A_32
  constexpr uint32_t kLowA = sizeof scratch.A[0], kLowInverse = sizeof scratch.inverse[0];
  const auto give = [&](const float (&y)[2][4], int r) {
    float scaled[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) scaled[e] = y[e / 4][e % 4] * beta[e / 2 % 2];
    uint32_t words[kTerms][4];
    split<E>(scaled, words[0], words[1]);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      stmatrix_transposed(to + term * kTriangle + block_of(r, warp) + lane * 16, words[term]);
    }
  };
  const auto times_a = [&](float (&y)[2][4], const Terms& a, int r, int m) {
    multiply_split(y, a, A + (r * (r - 1) / 2 + m) * kBlock, kLowA, lane);
  };
  Terms own, next;  // Y_w, Y_w+1
  ldmatrix_transposed(own.high, inverse + warp * kBlock + turned(lane));
  ldmatrix_transposed(own.low, inverse + kLowInverse + warp * kBlock + turned(lane));
  if (warp % 2 == 0) {
    float sum[2][4] = {}, y[2][4] = {};
    times_a(sum, own, warp + 1, warp);
    multiply_split(y, split(sum, -1.f), inverse + (warp + 1) * kBlock, kLowInverse, lane);
    next = split(y, 1.f);
    if (warp == 2) {
      __syncwarp();  // A_32 is read no more
      stmatrix_transposed(M + turned(lane), next.high);
      stmatrix_transposed(M + kLowA + turned(lane), next.low);
      __syncwarp();
      named_arrive(kTurned, 96);
    }
    give(y, warp + 1);
  }
  {
    float y[2][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 first = unpack<bf16>(own.high[e]), second = unpack<bf16>(own.low[e]);
      y[e / 2][e % 2 * 2] = first.x + second.x, y[e / 2][e % 2 * 2 + 1] = first.y + second.y;
    }
    give(y, warp);
  }
  if (warp >= 2) return;
  Terms left;
  {
    float u2[2][4] = {}, y2[2][4] = {};
    times_a(u2, own, 2, warp);
    if (warp == 0) times_a(u2, next, 2, 1);
    left = split(u2, -1.f);
    multiply_split(y2, left, inverse + 2 * kBlock, kLowInverse, lane);
    give(y2, 2);
  }
  float u3[2][4] = {}, y3[2][4] = {};
  times_a(u3, own, 3, warp);
  if (warp == 0) times_a(u3, next, 3, 1);
  multiply_split(y3, split(u3, -1.f), inverse + 3 * kBlock, kLowInverse, lane);
  named_barrier(kTurned, 96);
  multiply_split(y3, left, M, kLowA, lane);
  give(y3, 3);
}

}  // namespace
