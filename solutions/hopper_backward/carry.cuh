// What becomes of states over the segments of a sequence, all side by side: forward from zeros and from the identity, and
// backward from zeros. A first segment begins forward with the state that is given, a last one backward with the gradient.
#pragma once
#include <algorithm>

#include "forward.cuh"
#include "reverse.cuh"

namespace {

template <int Groups>
constexpr int kCarryBytes = static_cast<int>(std::max(sizeof(ForwardShared<Groups>), sizeof(ReverseShared<Groups>)));
constexpr int kKinds = 3;
enum Kind { kBackward, kForward, kTransfer };

// The grid is (kinds x blocks of slices, H, segments).
template <class E, int Groups>
__global__ void __launch_bounds__(kWalkThreads<Groups>, 1) gdn_carry_kernel(const __grid_constant__ Problem p,
                                                                            const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  auto& forward = *reinterpret_cast<ForwardShared<Groups>*>(memory);
  auto& reverse = *reinterpret_cast<ReverseShared<Groups>*>(memory);
  const Segments& all = p.segments;
  const int kind = blockIdx.x % kKinds, slice = blockIdx.x / kKinds * kSlice, h = blockIdx.y, n = blockIdx.z, owner = all.owners[n];
  if (owner < 0) return;
  const bool is_first = all.firsts[owner] == n, is_last = all.firsts[owner + 1] == n + 1;
  if (kind == kBackward ? is_first : kind == kForward ? is_last : is_first || is_last) return;
  constexpr int64_t kSize = kHeadSize * kHeadSize;
  const auto state_of = [&](auto* states, int i) { return states == nullptr ? nullptr : states + at_place(p, i, h) * kSize; };
  Carried carried{nullptr, nullptr, nullptr, all.k_first, kind == kTransfer};
  if (kind == kBackward) {
    if (is_last) carried.from = state_of(all.dht, owner);
    carried.to = state_of(all.ends, n - 1);
    prepare_walk_back<Groups>(reverse);
  } else {
    if (is_first) carried.from = state_of(all.initial_state, owner);
    carried.to = kind == kTransfer ? state_of(all.transfers, n) : state_of(all.starts, n + 1);
    if (kind == kTransfer) carried.turned = state_of(all.turned, n);
    prepare_places<ForwardShared<Groups>, Groups, kForwardStages<Groups>>(forward, [](ForwardStage<Groups>& stage) {
      clear_squares(shared_address(stage.tile.E), kTerms);
      for (int i = 0; i < Groups; ++i) clear_rows(shared_address(stage.v) + i * kBoxBytes, 0, threadIdx.x, blockDim.x);
    }, [] {});
  }
  if (threadIdx.x == 0) {
    (kind == kBackward ? reverse.work : forward.work) = work_of_sequence(p, n, h, slice);
    (kind == kBackward ? reverse.carried : forward.carried) = carried;
  }
  __syncthreads();
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (wg < Groups) {
    if constexpr (Groups > 1) registers_up<kWalkRegisters>();
    int turns = 0, place = 0, parity = 0;
    if (kind == kBackward) {
      walk_back<E, Groups, true>(p, reverse, wg, turns, place, parity);
    } else {
      walk_forward<E, Groups, true>(p, forward, wg, turns, place, parity);
    }
  } else {
    if constexpr (Groups > 1) registers_down<kFeedRegisters>();
    if (threadIdx.x / 32 % 4 != 0) return;
    Behind behind;
    if (kind == kBackward) {
      feed<ReverseWay<E, Groups>, ReverseShared<Groups>, Groups, kReverseStages<Groups>>(p, reverse, {maps, reverse, false}, behind);
    } else {
      feed<ForwardWay<Groups>, ForwardShared<Groups>, Groups, kForwardStages<Groups>>(p, forward, {maps, forward, false, kind == kForward}, behind);
    }
  }
}

}  // namespace
