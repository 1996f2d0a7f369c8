// Both walks side by side, where (sequence, head) are few: a block has a slice of a (sequence, head), forward or back. The walk back needs
// nothing of the other one but at both ends of a sequence, and where a beta is small: there it waits. What is found of the last chunk
// comes last.
//
// Blocks that walk forward come first and wait for nobody; so whoever waits for them will not wait forever.
#pragma once
#include "forward.cuh"
#include "reverse.cuh"

namespace {

constexpr int kBesideThreads = 256;  // a warpgroup that walks, and one that feeds, stores and tells
constexpr size_t kBesideBytes = sizeof(ForwardShared<1>) > sizeof(ReverseShared<1>) ? sizeof(ForwardShared<1>) : sizeof(ReverseShared<1>);

// The grid is 2 * jobs, a job each slice of a (sequence, head); or blocks from `first` on.
template <class E>
__global__ void __launch_bounds__(kBesideThreads, 1) gdn_beside_kernel(const __grid_constant__ Problem p,
                                                                       const __grid_constant__ Maps maps, int jobs, int first) {
  DYNAMIC_SHARED(memory);
  const int block = first + blockIdx.x, job = block % jobs, nth = job / kHalves / p.H, h = job / kHalves % p.H, slice = job % kHalves * kSlice;
  const bool forward = block < jobs;
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  if (forward) {
    auto& s = *reinterpret_cast<ForwardShared<1>*>(memory);
    prepare_places<ForwardShared<1>, 1, kForwardStages<1>>(
        s, [](ForwardStage<1>& stage) { clear_squares(shared_address(stage.tile.E), kTerms); }, [] {});
    if (threadIdx.x == 0) s.work = work_of(p, nth, h, slice);
    __syncthreads();
    if (of_block < 4) {
      walk_forward<E, 1, false>(p, s, 0);
    } else if (of_block == 4) {
      Behind behind;
      feed<ForwardWay<1>, ForwardShared<1>, 1, kForwardStages<1>>(p, s, {maps, s.work}, behind);
    }
    __syncthreads();  // all that is left is there
    if (threadIdx.x == 0) store_released(forward_over(p, s.work), 1);
    return;
  }
  auto& s = *reinterpret_cast<ReverseShared<1>*>(memory);
  prepare_walk_back<1>(s);
  if (threadIdx.x == 0) s.work = work_of(p, nth, h, slice);
  __syncthreads();
  int turns = 0;
  if (of_block < 4) {
    int place = 0, parity = 0;
    walk_back<E, 1, false, true>(p, s, 0, turns, place, parity);
  } else if (of_block == 4) {
    Behind behind;
    feed<ReverseWay<E, 1, true>, ReverseShared<1>, 1, kReverseStages<1>>(p, s, {maps, s}, behind);
  } else if (of_block == 6) {
    store_states<1>(p, s, turns);
  } else if (of_block == 7) {
    const int last = static_cast<int>(s.work.place + s.work.chunks - 1) * p.k_heads + s.work.k_head;
    tell_turns<1>(p, s, last, s.work.chunks, turns);
  }
}

}  // namespace
