// The conversions of CUDA's file of this name.
#pragma once
#include "numbers.h"

struct __nv_fp8_e4m3 {
  uint8_t bits;
};
using __nv_fp8x2_storage_t = uint16_t;
enum { __NV_E4M3, __NV_SATFINITE };
struct __half2 {
  uint32_t bits;
};

// Of a number of e4m3, one with its sign bit out of the way.
inline float of_e4m3(uint32_t bits) {
  const uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), static_cast<int>(exponent) - 10);
  return bits & 0x80 ? -size : size;
}

// To the nearest, ties to even, at most 448.
inline uint32_t to_e4m3(float x) {
  const float size = std::min(std::fabs(x), 448.f);
  const uint32_t sign = std::signbit(x) ? 0x80 : 0;
  if (size < 0x1p-6f) return sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 9)));
  const int exponent = std::ilogb(size);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 3 - exponent)));  // 8 to 16
  return sign | std::min((static_cast<uint32_t>(exponent + 7) << 3) + steps - 8, 0x7eu);
}

inline __half2 __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t two, int) {
  return {pack<__half>(of_e4m3(two & 0xff), of_e4m3(two >> 8))};
}
inline float2 __half22float2(__half2 x) { return unpack<__half>(x.bits); }
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, int, int) {
  return static_cast<uint16_t>(to_e4m3(x.x) | to_e4m3(x.y) << 8);
}
