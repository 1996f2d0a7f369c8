// Sums over the lanes of a warp, in one order.
#pragma once
#include "boxes.cuh"

namespace {

// Of both numbers that two lanes have of a place each keeps one sum: the upper half of the places where `Other` is in the lane.
template <int Width, int Other>
__device__ __forceinline__ void add_halves(float (&x)[16], int lane) {
  const bool high = lane & Other;
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    const float given = __shfl_xor_sync(kAllLanes, high ? x[i] : x[i + Width], Other);
    x[i] = (high ? x[i + Width] : x[i]) + given;
  }
}

// x[2 n], x[2 n + 1] are a lane's of columns 8 n + 2 (lane % 4) and the next, summed over its own rows. In the end a lane has in
// the first two those of columns 2 lane and 2 lane + 1, summed over the rows of the warp.
__device__ __forceinline__ void add_rows(float (&x)[16], int lane) {
  add_halves<8, 16>(x, lane), add_halves<4, 8>(x, lane), add_halves<2, 4>(x, lane);
}

// Over the four lanes that have a row.
__device__ __forceinline__ float add_row(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

__device__ __forceinline__ float add_all(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

}  // namespace
