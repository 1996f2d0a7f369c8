// Codes of one byte, sixteen in a 16-byte word: to numbers and back.
#pragma once
#include <cuda_fp8.h>

#include "words.cuh"

namespace {

using e4m3 = __nv_fp8_e4m3;

template <class E>
constexpr float kLargest = 0.f;
template <>
constexpr float kLargest<e4m3> = 448.f;
template <>
constexpr float kLargest<int8_t> = 127.f;

constexpr float kLeast = 0x1p-100f;  // a row of smaller numbers is kept as zeros, with scale 0

// Two numbers of e4m3 by way of two halves, which hold them exactly.
template <class E>
__device__ __forceinline__ void codes_to_floats(uint32_t four, float* to) {
  if constexpr (std::is_same_v<E, e4m3>) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(n == 0 ? four & 0xffffu : four >> 16);
      const float2 x = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      to[2 * n] = x.x, to[2 * n + 1] = x.y;
    }
  } else {
    // 2^23 + 128 + code has the code's byte, its upper bit flipped, as the last of its mantissa.
    const uint32_t flipped = four ^ 0x80808080u;
#pragma unroll
    for (int n = 0; n < 4; ++n) to[n] = __uint_as_float(__byte_perm(flipped, 0x4b000000u, 0x7440u + n)) - 8388736.f;
  }
}

// Numbers that are at most the largest code, but for a rounding: to nearest, ties to even.
template <class E>
__device__ __forceinline__ uint32_t floats_to_codes(const float* x) {
  if constexpr (std::is_same_v<E, e4m3>) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
  } else {
    // Added to 1.5 * 2^23 a number is rounded to a whole one, whose byte is the last of the sum's mantissa.
    uint32_t bits[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) bits[n] = __float_as_uint(__fadd_rn(x[n], 12582912.f));
    return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
  }
}

template <class E>
__device__ __forceinline__ void to_floats(const uint4& word, float (&to)[16]) {
  codes_to_floats<E>(word.x, to), codes_to_floats<E>(word.y, to + 4);
  codes_to_floats<E>(word.z, to + 8), codes_to_floats<E>(word.w, to + 12);
}

template <class E>
__device__ __forceinline__ uint4 to_codes(const float (&x)[16]) {
  return make_uint4(floats_to_codes<E>(x), floats_to_codes<E>(x + 4), floats_to_codes<E>(x + 8),
                    floats_to_codes<E>(x + 12));
}

// Each of N maxima over the lanes that differ in the bits up to, and without, `End`.
template <int End, int N>
__device__ __forceinline__ void max_of_lanes(float (&x)[N]) {
#pragma unroll
  for (int offset = 1; offset < End; offset *= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] = fmaxf(x[n], __shfl_xor_sync(kAllLanes, x[n], offset));
  }
}

}  // namespace
