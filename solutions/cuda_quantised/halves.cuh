// Pairs of halves: codes become such, exactly, and tensor cores add up their products in float32.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "codes.cuh"

namespace {

__device__ __forceinline__ uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
__device__ __forceinline__ __half2 halves_of(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

// The same number, of which the compiler knows nothing: what is computed from it is not kept in registers meanwhile.
__device__ __forceinline__ uint32_t anew(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Four codes, the first two and the last two.
template <class E>
__device__ __forceinline__ void codes_to_halves(uint32_t four, uint32_t& first, uint32_t& last) {
  if constexpr (std::is_same_v<E, e4m3>) {
    asm("{\n.reg .b16 x, y;\nmov.b32 {x, y}, %2;\ncvt.rn.f16x2.e4m3x2 %0, x;\ncvt.rn.f16x2.e4m3x2 %1, y;\n}"
        : "=r"(first), "=r"(last) : "r"(four));
  } else {
    // 1024 + 128 + code has the code's byte, its upper bit flipped, as the last of its mantissa.
    const uint32_t flipped = four ^ 0x80808080u;
    const __half2 offset = halves_of(0x64806480u);
    first = bits_of(__hsub2(halves_of(__byte_perm(flipped, 0x64646464u, 0x4140)), offset));
    last = bits_of(__hsub2(halves_of(__byte_perm(flipped, 0x64646464u, 0x4342)), offset));
  }
}

__device__ __forceinline__ float2 to_two_floats(uint32_t halves) { return __half22float2(halves_of(halves)); }
__device__ __forceinline__ uint32_t to_two_halves(float low, float high) { return bits_of(__floats2half2_rn(low, high)); }

// Of two pairs of bfloat16, the larger magnitudes, with some sign.
__device__ __forceinline__ uint32_t larger_of_pairs(uint32_t x, uint32_t y) {
  uint32_t larger;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  return larger;
}

// to [16, 8] = A [16, 8] B [8, 8] + sums, all in float32 but the products' halves. Lane 4 g + t has, of A, columns 2 t and 2 t + 1
// of rows g and g + 8; of B, rows 2 t and 2 t + 1 of column g; of the sums, columns 2 t and 2 t + 1 of row g, then of row g + 8.
__device__ __forceinline__ void multiply_8(float (&to)[4], uint32_t a0, uint32_t a1, uint32_t b, const float (&sums)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(a0), "r"(a1), "r"(b), "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3]));
}

}  // namespace
