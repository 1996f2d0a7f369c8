// Which slots of a pool a row reads and writes.
#pragma once
#include "rule.cuh"

namespace {

__device__ __forceinline__ bool is_slot(int slot, int num_slots) {
  return static_cast<unsigned>(slot) < static_cast<unsigned>(num_slots);
}

// A row's slots.
template <Slots slots>
struct RowSlots {
  int source, target;

  template <class E>
  __device__ __forceinline__ explicit RowSlots(const Arguments<E>& p) : source(blockIdx.z), target(blockIdx.z) {
    if constexpr (slots == Slots::kPool) source = p.read[blockIdx.z], target = p.write[blockIdx.z];
  }
};

// What a row will read, if the kernel ahead writes no slots any more: a guess, for `bring_near`. Out of range: no guess.
template <Slots slots, class E>
__device__ __forceinline__ int guess_slot(const Arguments<E>& p) {
  const int64_t row = blockIdx.z;
  if constexpr (slots == Slots::kNone) return static_cast<int>(row);
  const auto peek = [](const int32_t* at) { return *const_cast<const volatile int32_t*>(at); };
  return peek(p.read + row);
}

}  // namespace
