// What becomes of states over the segments of a sequence, all side by side: forward from zeros and from the identity, and
// backward from zeros. A first segment begins forward with the state that is given, a last one backward with the gradient.
#pragma once
#include "forward.cuh"
#include "reverse.cuh"

namespace {

constexpr int kCarryBytes = static_cast<int>(sizeof(ForwardShared<2>) > sizeof(ReverseShared<2>) ? sizeof(ForwardShared<2>) : sizeof(ReverseShared<2>));
enum Kind { kBackward, kForward, kTransfer };

// The grid is (kinds, H, segments).
template <class E>
__global__ void __launch_bounds__(kWalkThreads<2>, 1) gdn_carry_kernel(const __grid_constant__ Problem p,
                                                                       const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  auto& forward = *reinterpret_cast<ForwardShared<2>*>(memory);
  auto& reverse = *reinterpret_cast<ReverseShared<2>*>(memory);
  const Segments& all = p.segments;
  const int kind = blockIdx.x, h = blockIdx.y, n = blockIdx.z, owner = all.owners[n];
  if (owner < 0) return;
  const bool is_first = all.firsts[owner] == n, is_last = all.firsts[owner + 1] == n + 1;
  if (kind == kBackward ? is_first : kind == kForward ? is_last : is_first || is_last) return;
  const int64_t nth = at_place(p, n, h);
  Carried carried{{}, {}, nullptr, kind == kTransfer};
  if (kind == kBackward) {
    if (is_last) carried.from = gradient_behind(p, n, h);
    carried.to = state_behind(p, n - 1, h, true);
    prepare_walk_back<2>(reverse);
  } else {
    if (is_first) carried.from = state_before(p, n, h);
    carried.to = kind == kTransfer ? whole_state(all.transfers, nth, false) : state_behind(p, n, h, false);
    if (kind == kTransfer) carried.turned = whole_state(all.turned, nth, true).first;
    prepare_places<ForwardShared<2>, 2, kForwardStages<2>>(forward, [](ForwardStage<2>& stage) {
      clear_squares(shared_address(stage.tile.E), kTerms);
      for (int i = 0; i < kHalves; ++i) clear_rows(shared_address(stage.v) + i * kBoxBytes, 0, threadIdx.x, blockDim.x);
    }, [] {});
  }
  if (threadIdx.x == 0) {
    (kind == kBackward ? reverse.work : forward.work) = work_of_sequence(p, n, h, 0);
    (kind == kBackward ? reverse.carried : forward.carried) = carried;
  }
  __syncthreads();
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (wg < kHalves) {
    registers_up<kWalkRegisters>();
    int turns = 0, place = 0, parity = 0;
    if (kind == kBackward) {
      walk_back<E, 2, true>(p, reverse, wg, turns, place, parity);
    } else {
      walk_forward<E, 2, true>(p, forward, wg);
    }
  } else {
    registers_down<kFeedRegisters>();
    if (threadIdx.x / 32 % 4 != 0) return;
    Behind behind;
    if (kind == kBackward) {
      feed<ReverseWay<E, 2>, ReverseShared<2>, 2, kReverseStages<2>>(p, reverse, {maps, reverse, false}, behind);
    } else {
      feed<ForwardWay<2>, ForwardShared<2>, 2, kForwardStages<2>>(p, forward, {maps, forward, false, kind == kForward}, behind);
    }
  }
}

}  // namespace
