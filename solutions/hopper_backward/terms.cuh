// Operands of one term or two of 16 bits, for mma.sync, and products of a chunk in shared memory.
#pragma once
#include "decays.cuh"

namespace {

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

// Numbers of a row in so many terms, and where they go.
template <class E, int Terms, class Store>
__device__ __forceinline__ void give_row(const float (&x)[8], Store store) {
  uint32_t high[4], low[4];
  split<E>(x, high, low);
  store(0, make_uint4(high[0], high[1], high[2], high[3]));
  if constexpr (Terms > 1) store(1, make_uint4(low[0], low[1], low[2], low[3]));
}

// An operand of one bfloat16 term or two, 16 x 16, as a product leaves it: a left operand, or a right one transposed.
template <int N>
struct Operand16 {
  uint32_t term[N][4];
  __device__ __forceinline__ Operand16() {}
  __device__ __forceinline__ explicit Operand16(const float (&x)[8]) {
    uint32_t low[4];
    split<__nv_bfloat16>(x, term[0], N > 1 ? term[N - 1] : low);
  }
};

// y [16, 16] += a b^T: of two terms the product of both low ones is left out.
template <int N>
__device__ __forceinline__ void multiply_terms(float (&y)[8], const Operand16<N>& a, const Operand16<N>& b) {
  float(&columns)[2][4] = reinterpret_cast<float(&)[2][4]>(y);
  const auto multiply = [&](const uint32_t(&left)[4], const uint32_t(&right)[4]) {
#pragma unroll
    for (int t = 0; t < 2; ++t) mma<__nv_bfloat16>(columns[t], left, right[t], right[t + 2]);
  };
  if constexpr (N > 1) multiply(a.term[1], b.term[0]), multiply(a.term[0], b.term[1]);
  multiply(a.term[0], b.term[0]);
}

// Products of a chunk, as wgmma leaves them, by blocks of 16 x 16 at or below the diagonal: of each a lane has eight numbers,
// of two rows and four columns, in the order of an operand.
constexpr int kFragments = 1024, kProducts = 10 * kFragments;  // bytes

__device__ __forceinline__ int fragments_of(int r, int m) { return (r * (r + 1) / 2 + m) * kFragments; }

// Upper: of a product that is transposed, blocks on the other side of the diagonal, in the place of those on this one.
template <bool Upper>
__device__ __forceinline__ void write_products(const float (&products)[32], unsigned char* to, int warp, int lane) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (Upper ? m < warp : m > warp) continue;
    float4* const at = reinterpret_cast<float4*>(to + (Upper ? fragments_of(m, warp) : fragments_of(warp, m))) + lane;
    at[0] = make_float4(products[8 * m], products[8 * m + 1], products[8 * m + 2], products[8 * m + 3]);
    at[32] = make_float4(products[8 * m + 4], products[8 * m + 5], products[8 * m + 6], products[8 * m + 7]);
  }
}

__device__ __forceinline__ void read_products(float (&x)[8], const unsigned char* from, int r, int m, int lane) {
  const float4* const at = reinterpret_cast<const float4*>(from + fragments_of(r, m)) + lane;
  const float4 left = at[0], right = at[32];
  x[0] = left.x, x[1] = left.y, x[2] = left.z, x[3] = left.w, x[4] = right.x, x[5] = right.y, x[6] = right.z, x[7] = right.w;
}

}  // namespace
