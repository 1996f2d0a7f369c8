// 16-byte accesses, bfloat16 in words of two. As in cuda_decode.
#pragma once
#include "problem.cuh"

namespace {

template <class E>
constexpr int kPer = 16 / sizeof(E);  // elements of a 16-byte access

// A bfloat16 is the upper half of a float32.
__device__ __forceinline__ void widen(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ void unpack(const uint4& x, float (&y)[4]) {
  y[0] = __uint_as_float(x.x), y[1] = __uint_as_float(x.y), y[2] = __uint_as_float(x.z), y[3] = __uint_as_float(x.w);
}

__device__ __forceinline__ void unpack(const uint4& x, float (&y)[8]) {
  widen(x.x, y[0], y[1]), widen(x.y, y[2], y[3]), widen(x.z, y[4], y[5]), widen(x.w, y[6], y[7]);
}

__device__ __forceinline__ uint32_t narrow(float low, float high) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(low))) |
         static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

__device__ __forceinline__ uint4 pack(const float (&y)[4]) {
  return make_uint4(__float_as_uint(y[0]), __float_as_uint(y[1]), __float_as_uint(y[2]), __float_as_uint(y[3]));
}

__device__ __forceinline__ uint4 pack(const float (&y)[8]) {
  return make_uint4(narrow(y[0], y[1]), narrow(y[2], y[3]), narrow(y[4], y[5]), narrow(y[6], y[7]));
}

// N consecutive bfloat16 as they are in memory, N = 2, 4 or 8. Widened later: to convert is to wait for the load.
template <int N>
struct Packed {
  uint32_t words[N / 2];

  __device__ __forceinline__ void load(const bf16* from) {
    if constexpr (N == 8) {
      const uint4 x = *reinterpret_cast<const uint4*>(from);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (N == 4) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      words[0] = x.x, words[1] = x.y;
    } else {
      words[0] = *reinterpret_cast<const uint32_t*>(from);
    }
  }

  __device__ __forceinline__ void widen_to(float (&to)[N]) const {
#pragma unroll
    for (int n = 0; n < N / 2; ++n) widen(words[n], to[2 * n], to[2 * n + 1]);
  }
};

}  // namespace
