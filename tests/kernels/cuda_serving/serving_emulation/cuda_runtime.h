// What cuda_serving's device code takes from CUDA, for a processor: words, and eight lanes that add up.
#pragma once
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

template <class To, class From>
To bits_of(From x) {
  To y;
  std::memcpy(&y, &x, sizeof(To));
  return y;
}
inline uint32_t __float_as_uint(float x) { return bits_of<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return bits_of<float>(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
using std::max;
using std::min;

struct Index { unsigned x, y, z; };
inline thread_local Index threadIdx, blockIdx;

// Eight lanes that hold a row. The kernels shuffle within these alone.
struct Lanes {
  std::barrier<> all{8};
  float shown[8];
};
inline thread_local Lanes* lanes;

inline float __shfl_xor_sync(unsigned, float x, int offset) {
  const unsigned lane = threadIdx.x % 8;
  lanes->shown[lane] = x;
  lanes->all.arrive_and_wait();
  const float y = lanes->shown[lane ^ offset];
  lanes->all.arrive_and_wait();
  return y;
}
