// Products whose left operand is in registers, by a warpgroup: 64 rows, which are value channels.
#pragma once
#include "shared.cuh"

namespace {

// acc [64, 64] (+)= a [64, 16 Steps] times boxes whose rows are the columns of the product; from step to step of 16.
template <class E, int From, int End, int Steps>
__device__ __forceinline__ void multiply(float (&acc)[32], const uint32_t (&a)[Steps][4], uint32_t box) {
#pragma unroll
  for (int k = From; k < End; ++k) {
    wgmma<E, 0>(acc, a[k], descriptor(box, k / 4 * kBoxBytes + k % 4 * 32), k > 0);
  }
}

template <class E>
__device__ __forceinline__ void multiply_lower_high(float (&high)[16], const uint32_t (&a)[4][4], uint32_t triangle,
                                                    bool accumulate = false) {
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<E, 0>(high, a[k], descriptor_packed(triangle, lower_rows(k)), accumulate || k > 0);
}
template <class E>
__device__ __forceinline__ void multiply_lower_low(float (&low)[16], const uint32_t (&a)[4][4], uint32_t triangle,
                                                   bool accumulate = false) {
#pragma unroll
  for (int k = 0; k < 2; ++k) wgmma<E, 0>(low, a[k], descriptor_packed(triangle, upper_rows(k)), accumulate || k > 0);
}

// low, high [64, 32] (+)= a [64, 64] times a packed lower triangle, transposed: of its rows 0 to 31, of the others.
template <class E>
__device__ __forceinline__ void multiply_lower(float (&low)[16], float (&high)[16], const uint32_t (&a)[4][4],
                                               uint32_t triangle, bool accumulate) {
  multiply_lower_high<E>(high, a, triangle, accumulate);
  multiply_lower_low<E>(low, a, triangle, accumulate);
}

// The same one after the other, where a triangle's lower left square is applied by itself: rows 32 to 63 of columns 0 to 31, and of
// the others.
template <class E>
__device__ __forceinline__ void multiply_below(float (&high)[16], const uint32_t (&a)[4][4], uint32_t triangle) {
#pragma unroll
  for (int k = 0; k < 2; ++k) wgmma<E, 0>(high, a[k], descriptor_packed(triangle, lower_rows(k)), 1);
}
template <class E>
__device__ __forceinline__ void multiply_last(float (&high)[16], const uint32_t (&a)[4][4], uint32_t triangle) {
#pragma unroll
  for (int k = 2; k < 4; ++k) wgmma<E, 0>(high, a[k], descriptor_packed(triangle, lower_rows(k)), k > 2);
}

// acc [64, 64] += a [64, 64] times a square of 16 x 16 blocks, transposed.
template <class E>
__device__ __forceinline__ void multiply_square(float (&acc)[32], const uint32_t (&a)[4][4], uint32_t square) {
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<E, 0>(acc, a[k], descriptor_packed(square, block_of_square(0, k)), 1);
}

}  // namespace
