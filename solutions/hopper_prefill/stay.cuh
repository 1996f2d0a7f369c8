// Blocks that stay, for many short sequences: one on each multiprocessor takes (sequence, head) after (sequence, head), and the
// next state is on its way while this one is advanced.
#pragma once
#include "stay_advance.cuh"
#include "stay_feed.cuh"

namespace {

constexpr int kStayThreads = 512;
constexpr int kStayAdvanceRegisters = 208, kStayFindRegisters = 64, kStayFeedRegisters = 32;

// As many blocks as stay, in x.
template <class E>
__global__ void __launch_bounds__(kStayThreads, 1)
    gdn_stay_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Staying*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kStayStages; ++i) {
      barrier_init(shared_address(&s.full[i]), kTellers);
      barrier_init(shared_address(&s.keys_empty[i]), 8 * kLeavers);
      barrier_init(shared_address(&s.empty[i]), 8 * kLeavers);
      barrier_init(shared_address(&s.ready[i]), 4 * kLeavers);
      barrier_init(shared_address(&s.tail[i]), 1);
    }
    barrier_init(shared_address(&s.state_full), 1);
    barrier_init(shared_address(&s.state_empty), 12 * kLeavers);
    barrier_init_done();
  }
  for (auto& tile : s.tile) {
    clear_triangles<kTerms>(shared_address(tile.T), threadIdx.x, kStayThreads);
    clear_p<kStaySize>(shared_address(tile.P), threadIdx.x, kStayThreads);
  }
  fence_async();  // wgmma reads them
  __syncthreads();
  if (wg < 2) {
    registers_up<kStayAdvanceRegisters>();
    advance_staying<E>(p, s, wg);
  } else if (wg == 2) {
    registers_down<kStayFindRegisters>();
    find_p_staying<E>(p, s);
  } else {
    registers_down<kStayFeedRegisters>();
    if (threadIdx.x / 32 % 4 == 0) StayFeeder{p, s, maps}.run();
  }
}

}  // namespace
