// Which slots of a pool a row reads and writes.
#pragma once
#include "rule.cuh"

namespace {

__device__ __forceinline__ bool is_slot(int slot, int num_slots) {
  return static_cast<unsigned>(slot) < static_cast<unsigned>(num_slots);
}

// A row's slots. Lane t of every warp knows `mine`, where the state after token t goes; lanes past T know the last.
template <Slots slots>
struct RowSlots {
  int source, mine, accepted;

  template <class E>
  __device__ __forceinline__ RowSlots(const Arguments<E>& p, int T)
      : source(blockIdx.z), mine(blockIdx.z), accepted(0) {
    const int64_t row = blockIdx.z;
    if constexpr (slots != Slots::kNone) {
      source = p.read[row];
      mine = p.write[row * T + min(static_cast<int>(threadIdx.x % 32), T - 1)];
    }
    if constexpr (slots == Slots::kVerify) accepted = p.accepted[row];
  }

  // Whether the row may be live; if so, `source` is what it reads. -1 skips a row, and so does a slot that is none. All
  // lanes call it. In a pool it waits for the slot to read alone: the state is asked for before the slot to write is known.
  __device__ __forceinline__ bool finds_source(int T, int num_slots) {
    if constexpr (slots == Slots::kNone) return true;
    if constexpr (slots == Slots::kPool) return is_slot(source, num_slots);
    const bool live = __all_sync(kAllLanes, is_slot(mine, num_slots) && is_slot(source, num_slots));
    const int reached = __shfl_sync(kAllLanes, mine, (accepted - 1) & 31);
    if (accepted != 0) source = reached;
    return live && accepted >= 0 && accepted <= T;
  }

  // Whether a row of a pool, which has one slot to write, is live.
  __device__ __forceinline__ bool finds_target(int num_slots) const { return is_slot(mine, num_slots); }

  __device__ __forceinline__ int target(int t) const {
    return slots == Slots::kVerify ? __shfl_sync(kAllLanes, mine, t) : mine;
  }
};

// What a row will read, if the kernel ahead writes no slots any more: a guess, for `bring_near`. Out of range: no guess.
template <Slots slots, class E>
__device__ __forceinline__ int guess_slot(const Arguments<E>& p, int T) {
  const int64_t row = blockIdx.z;
  if constexpr (slots == Slots::kNone) return static_cast<int>(row);
  const auto peek = [](const int32_t* at) { return *const_cast<const volatile int32_t*>(at); };
  if constexpr (slots == Slots::kVerify) {
    const int accepted = peek(p.accepted + row);
    if (accepted > 0 && accepted <= T) return peek(p.write + row * T + accepted - 1);
  }
  return peek(p.read + row);
}

}  // namespace
