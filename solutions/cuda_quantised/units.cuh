// The unit of a row: `unit` times what is in registers is the state.
//
// After a load it is the row's scale. The decay is multiplied into it, and `S' = S + (u / kept) k` stays in units of what
// the decay has kept: a product less for each element than `kept S + u k`.
#pragma once
#include "codes.cuh"
#include "instructions.cuh"

namespace {

// Whether a row may have the unit `kept`, with `u` k written into it: what is in registers stays far from the ends of float32.
__device__ __forceinline__ bool is_usual(float kept, float u) {
  return kept >= 0x1p-60f && kept <= 0x1p16f && fabsf(u) <= 0x1p30f;
}

// y / x as IEEE's division gives it, but where that is within a hair of the middle of two numbers: 1 over 1, and what a
// tie between two codes needs, come out exact. x is far from the ends of float32.
__device__ __forceinline__ float divide(float y, float x) {
  float r = inverse_of(x);
  r = fmaf(fmaf(-x, r, 1.f), r, r);
  const float z = y * r;
  return fmaf(fmaf(-x, z, y), r, z);
}

// What numbers of a row are multiplied by to become codes, `largest` being the largest magnitude in units; and its new scale.
template <class E>
__device__ __forceinline__ float factor_of(float unit, float largest) {
  return unit * largest < kLeast ? 0.f : divide(kLargest<E>, largest);
}

// The largest code's inverse times the largest code is 1: a row that stays as it is keeps its scale.
template <class E>
__device__ __forceinline__ float scale_of(float unit, float largest) {
  return unit * largest < kLeast ? 0.f : unit * (largest * (1.f / kLargest<E>));
}

}  // namespace
