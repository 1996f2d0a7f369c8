// Words of CUDA that kernels of one-token decode use, and where a thread is.
#pragma once

#include "cluster.h"
#include "cuda_words.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __uint_as_float(uint32_t x) {
  float y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t bits = __float_as_uint(x);
  return {std::isnan(x) ? uint16_t{0x7fff} : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline void __stcs(uint4* to, uint4 x) { *to = x; }

#undef threadIdx
#define threadIdx (Place{static_cast<unsigned>(running) % blockDim.x})
#define blockIdx (Place{static_cast<unsigned>(block_of(running)), ::blockIdx.y, ::blockIdx.z})
#define gridDim grid_dim
