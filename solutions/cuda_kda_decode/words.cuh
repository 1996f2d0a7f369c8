// 16-byte accesses, bfloat16 in words of two, and sums over lanes.
#pragma once
#include "problem.cuh"

namespace {

template <class E>
constexpr int kPer = 16 / sizeof(E);  // elements of a 16-byte access

__device__ __forceinline__ uint4 load16(const void* from) { return *static_cast<const uint4*>(from); }

// `Streaming`: marked as not to be kept in the cache.
template <bool Streaming>
__device__ __forceinline__ void store16(void* to, uint4 x) {
  uint4* at = static_cast<uint4*>(to);
  if (Streaming) {
    __stcs(at, x);
  } else {
    *at = x;
  }
}

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

// N = 4 or a multiple of 8 consecutive bfloat16, as they are in memory, global or shared. Widened later: to convert is
// to wait for the load, which must not stand before the next one.
template <int N>
struct Packed {
  static_assert(N == 4 || N % 8 == 0);
  static constexpr int kWords = N / 2;
  uint32_t words[kWords];

  __device__ __forceinline__ void load(const bf16* from) {
    if constexpr (N == 4) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      words[0] = x.x, words[1] = x.y;
    } else {
#pragma unroll
      for (int n = 0; n < kWords; n += 4) {
        const uint4 x = *reinterpret_cast<const uint4*>(from + 2 * n);
        words[n] = x.x, words[n + 1] = x.y, words[n + 2] = x.z, words[n + 3] = x.w;
      }
    }
  }

  __device__ __forceinline__ void widen_to(float (&to)[N]) const {
#pragma unroll
    for (int n = 0; n < kWords; ++n) widen(words[n], to[2 * n], to[2 * n + 1]);
  }
};

// N = 1, 2 or 4 consecutive bfloat16, by one access.
template <int N>
__device__ __forceinline__ void load_wide(bf16* to, const bf16* from) {
  if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
  } else if constexpr (N == 2) {
    *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
  } else {
    *to = *from;
  }
}

template <int N>
__device__ __forceinline__ void store_wide(bf16* to, const float* from) {
  if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(narrow(from[0], from[1]), narrow(from[2], from[3]));
  } else {
    static_assert(N == 2);
    *reinterpret_cast<uint32_t*>(to) = narrow(from[0], from[1]);
  }
}

// Each of N sums over the lanes that differ in the bits from `First` up to, and without, `End`. Level by level over all
// of them: shuffles stay in order, and a sum at a time would wait for every one of its own.
template <int First, int End, int N>
__device__ __forceinline__ void sum_lanes(float (&x)[N]) {
#pragma unroll
  for (int offset = First; offset < End; offset *= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] += __shfl_xor_sync(kAllLanes, x[n], offset);
  }
}

}  // namespace
