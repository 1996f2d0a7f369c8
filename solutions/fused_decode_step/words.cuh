// Words of memory, and sums over lanes.
#pragma once

#include <cstdint>

using bf16 = __nv_bfloat16;

// --- words of two bfloat16 ----------------------------------------------------------------------------------------

template <int N>
struct Words {
  uint32_t word[N];
};

template <int N>
__device__ __forceinline__ Words<N> load_words(const bf16* from) {
  Words<N> x;
  if constexpr (N == 4) {
    const uint4 y = *reinterpret_cast<const uint4*>(from);
    x.word[0] = y.x, x.word[1] = y.y, x.word[2] = y.z, x.word[3] = y.w;
  } else if constexpr (N == 2) {
    const uint2 y = *reinterpret_cast<const uint2*>(from);
    x.word[0] = y.x, x.word[1] = y.y;
  } else {
#pragma unroll
    for (int n = 0; n < N; ++n) x.word[n] = reinterpret_cast<const uint32_t*>(from)[n];
  }
  return x;
}

template <int N>
__device__ __forceinline__ void store_words(bf16* to, const Words<N>& x) {
  if constexpr (N == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(x.word[0], x.word[1]);
  } else {
#pragma unroll
    for (int n = 0; n < N; ++n) reinterpret_cast<uint32_t*>(to)[n] = x.word[n];
  }
}

// A bfloat16 is the upper half of a float32.
__device__ __forceinline__ float widened(uint32_t pair, int which) {
  return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

__device__ __forceinline__ uint32_t bits_of(const uint32_t* words, int n) {
  return words[n / 2] >> 16 * (n % 2) & 0xffffu;
}

__device__ __forceinline__ void store_pair(bf16* to, float low, float high) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(low, high);
}

// --- floats ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

__device__ __forceinline__ void load_shared(const float* from, float (&to)[4]) {
  const float4 x = load4(from);
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

// Each of N sums over the lanes that differ in the bits from `First` up to, and without, `End`. Level by level over all
// of them: shuffles stay in order, and a sum at a time would wait for every one of its own.
template <int First, int End, int N>
__device__ __forceinline__ void sum_lanes(float (&x)[N]) {
#pragma unroll
  for (int offset = First; offset < End; offset *= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] += __shfl_xor_sync(0xffffffffu, x[n], offset);
  }
}

__device__ __forceinline__ bool is_slot(int slot, int num_slots) {
  return static_cast<unsigned>(slot) < static_cast<unsigned>(num_slots);
}
