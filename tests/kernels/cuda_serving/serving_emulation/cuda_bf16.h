// bfloat16 on a processor: rounded to nearest, ties to even.
#pragma once
#include "cuda_runtime.h"

struct __nv_bfloat16 { uint16_t word; };

inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.word; }
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.word) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  const uint32_t word = __float_as_uint(x);
  return {static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16)};
}
