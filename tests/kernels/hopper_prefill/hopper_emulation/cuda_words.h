// The words of CUDA C++ that the kernels use, for a C++ compiler.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "warps.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

using std::max;
using std::min;

inline Place thread_index() { return {static_cast<unsigned>(running)}; }
#define threadIdx thread_index()

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(2) uchar2 {
  unsigned char x, y;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uchar2 make_uchar2(unsigned char x, unsigned char y) { return {x, y}; }
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline int atomicAdd(int* to, int x) { return std::exchange(*to, *to + x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }

inline void require_all_lanes(unsigned mask) { require(mask == ~0u, "a part of a warp is not emulated"); }

inline void __syncwarp() { together("__syncwarp", 0); }

template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  require_all_lanes(mask);
  return together("__shfl_sync", value)[lane % kLanes];
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int mask_of_lanes) {
  require_all_lanes(mask);
  const int lane = running % kLanes;
  return together("__shfl_xor_sync", value)[lane ^ mask_of_lanes];
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  require_all_lanes(mask);
  const int lane = running % kLanes;
  return together("__shfl_up_sync", value)[lane < distance ? lane : lane - distance];
}

inline unsigned __ballot_sync(unsigned mask, bool mine) {
  require_all_lanes(mask);
  const bool* all = together("__ballot_sync", mine);
  unsigned votes = 0;
  for (int lane = 0; lane < kLanes; ++lane) votes |= static_cast<unsigned>(all[lane]) << lane;
  return votes;
}
