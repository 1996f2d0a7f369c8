// Products by a warpgroup: 64 rows, and 64 columns.
#pragma once
#include "boxes.cuh"

namespace {

// Operands of 16 x 64 numbers along the rows of a box, and along its columns: step k of 16.
__device__ __forceinline__ constexpr int along_row(int k) { return k / 4 * kBoxBytes + k % 4 * 32; }
__device__ __forceinline__ constexpr int along_column(int k) { return 2048 * k; }

// The left operand is in registers. acc (+)= a b^T, for boxes whose rows are the columns of the product.
template <class E, int Steps>
__device__ __forceinline__ void multiply(float (&acc)[32], const uint32_t (&a)[Steps][4], uint32_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) wgmma<E, 0>(acc, a[k], descriptor(b, along_row(k)), accumulate || k > 0);
}
// acc (+)= a b, for one box.
template <class E>
__device__ __forceinline__ void multiply_by(float (&acc)[32], const uint32_t (&a)[4][4], uint32_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<E, 1>(acc, a[k], descriptor(b, along_column(k)), accumulate || k > 0);
}

// acc (+)= a b^T, for a square of packed blocks.
template <class E>
__device__ __forceinline__ void multiply_square(float (&acc)[32], const uint32_t (&a)[4][4], uint32_t square, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma<E, 0>(acc, a[k], descriptor_packed(square, block_of_square(0, k)), accumulate || k > 0);
}

// The same for an upper triangle: step k of 16 reaches only the first 16 (k + 1) columns.
template <class E>
__device__ __forceinline__ void multiply_upper(float (&acc)[32], const uint32_t (&a)[4][4], uint32_t triangle, bool accumulate) {
  wgmma<E, 0>(acc, a[3], descriptor_packed(triangle, block_of_upper(0, 3)), accumulate);
  wgmma_part<E, 48>(acc, a[2], descriptor_packed(triangle, block_of_upper(0, 2)));
  wgmma_part<E, 32>(acc, a[1], descriptor_packed(triangle, block_of_upper(0, 1)));
  wgmma_part<E, 16>(acc, a[0], descriptor_packed(triangle, block_of_upper(0, 0)));
}

// Both operands are in boxes. acc (+)= a b^T.
template <class E, int Steps>
__device__ __forceinline__ void multiply_rows(float (&acc)[32], uint32_t a, uint32_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
    wgmma_shared<E, 0, 0>(acc, descriptor(a, along_row(k)), descriptor(b, along_row(k)), accumulate || k > 0);
  }
}
// acc (+)= a b, for one box each.
template <class E>
__device__ __forceinline__ void multiply_boxes(float (&acc)[32], uint32_t a, uint32_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    wgmma_shared<E, 1, 0>(acc, descriptor(a, along_row(k)), descriptor(b, along_column(k)), accumulate || k > 0);
  }
}
// acc (+)= a^T b.
template <class E>
__device__ __forceinline__ void multiply_turned(float (&acc)[32], uint32_t a, uint32_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    wgmma_shared<E, 1, 1>(acc, descriptor(a, along_column(k)), descriptor(b, along_column(k)), accumulate || k > 0);
  }
}

}  // namespace
