// Words of two bfloat16.
#pragma once
#include "problem.cuh"

namespace {

__device__ __forceinline__ uint4 load16(const bf16* from) { return *reinterpret_cast<const uint4*>(from); }

// A bfloat16 is the upper half of a float32. Element i of what lies in words.
template <int N>
__device__ __forceinline__ float element(const uint32_t (&words)[N], int i) {
  const uint32_t word = words[i / 2];
  return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

template <int N>
__device__ __forceinline__ uint32_t bits(const uint32_t (&words)[N], int i) {
  return i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
}

__device__ __forceinline__ float silu(float x) { return x * reciprocal(1.f + power_of_two(x * -1.442695041f)); }

}  // namespace
