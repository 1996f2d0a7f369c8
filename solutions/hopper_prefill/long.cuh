// Blocks that stay and prepare their own chunks, of long sequences: as short.cuh has it, with three places for chunks, of which
// the next one's first product is under way before this one's output is written. A state comes from L2.
#pragma once
#include "long_advance.cuh"
#include "long_feed.cuh"
#include "long_prepare.cuh"
#include "short.cuh"

namespace {

constexpr int kLongThreads = 384;
#ifndef LONG_ADV
#define LONG_ADV 216
#define LONG_PREP 72
#endif
constexpr int kLongAdvanceRegisters = LONG_ADV, kLongPrepareRegisters = LONG_PREP;
#ifndef LONG_ANY
static_assert(2 * kLongAdvanceRegisters + kLongPrepareRegisters <= 65536 / kLongThreads / 8 * 8 * 3);
#endif

// As many blocks as stay, in x.
template <class E>
__global__ void __launch_bounds__(kLongThreads, 1)
    gdn_long_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps, const __grid_constant__ ShortMaps parts) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Long*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    const auto init = [](auto& barriers, int count) {
      for (auto& barrier : barriers) barrier_init(shared_address(&barrier), count);
    };
    init(s.asked, 1), init(s.full, 1), init(s.told, 1), init(s.q_landed, 1), init(s.v_full, 1), init(s.k_landed, 1), init(s.v_landed, 1);
    init(s.gated, 32), init(s.decayed, kLeavers), init(s.inverted, kLeavers);
    init(s.keys_empty, 8 * kLeavers), init(s.q_empty, 8 * kLeavers), init(s.empty, 8 * kLeavers);
    init(s.found, kLeavers), init(s.multiplied, 8 * kLeavers), init(s.taken, 8 * kLeavers);
    barrier_init(shared_address(&s.scored), 8 * kLeavers);
    barrier_init_done();
  }
  for (auto& keys : s.keys) clear_triangles<kTerms>(shared_address(keys.tile.T), threadIdx.x, kLongThreads);
#ifdef LONG_LOOPS
  // All of them, for the upper right quarters of blocks on the diagonal.
  for (auto& keys : s.keys) {
    for (int at = 16 * threadIdx.x; at < kTriangle; at += 16 * kLongThreads) store_shared(shared_address(keys.tile.T) + at, make_uint4(0, 0, 0, 0));
  }
#endif
  for (auto& queries : s.queries) clear_p<kStaySize>(shared_address(queries.P), threadIdx.x, kLongThreads);
  fence_async();  // wgmma reads them
  __syncthreads();
  if (wg < 2) {
    registers_up<kLongAdvanceRegisters>();
    advance_long<E>(p, s, wg);
  } else {
    registers_down<kLongPrepareRegisters>();
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0);
    if (warp == 0) LongFeeder(p, s, maps, parts).run();
    else if (warp <= kInverters) invert_long<E>(p, s, warp - 1);
    else find_p_long<E>(p, s);
  }
}

}  // namespace
