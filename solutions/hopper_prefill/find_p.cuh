// P of each chunk of a block with both slices of a state, which is not prepared for it.
#pragma once
#include "decays.cuh"

namespace {

// Of the chunk that was the count-th of this block; by a warpgroup.
template <class E>
__device__ __forceinline__ void find_p(const Problem& p, Shared<2, true>& s, int count, int warp, int lane) {
  const int i = count % kStages;
  auto& boxes = s.boxes[i];
  barrier_wait(shared_address(&s.full[i]), count / kStages & 1);
  float products[32];
  multiply_boxes<E>(products, shared_address(boxes.q), shared_address(boxes.k));
  const Logs& logs = s.tile[i].logs;
  const Weights weights = weigh(logs, p.scale, warp, lane);
  wgmma_wait<0>();
  settle(products);
  write_p<E>(products, logs, weights, shared_address(s.tile[i].P), warp, lane);
  fence_async();
  __syncwarp();
  if (lane == 0 || kLeavers > 1) barrier_arrive(shared_address(&s.ready[i]));
}

// Of all of them.
template <class E>
__device__ __forceinline__ void find_p(const Problem& p, Shared<2, true>& s) {
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here();
  int count = 0;
#pragma unroll 1
  for (int turn = 0;; ++turn) {
    barrier_wait(shared_address(&s.told[turn & 1]), turn / 2 & 1);
    const int chunks = __shfl_sync(kAllLanes, s.work[turn & 1].chunks, 0);
    if (chunks < 0) return;
#pragma unroll 1
    for (const int all = count + chunks; count < all; ++count) find_p<E>(p, s, count, warp, lane);
    if (!p.stays) return;
    __syncwarp();
    barrier_arrive_if(lane < kLeavers, shared_address(&s.left[turn & 1]));
  }
}

}  // namespace
