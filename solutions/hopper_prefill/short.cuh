// Blocks that stay and prepare their own chunks, for many sequences of one or two chunks: one kernel instead of two, so that
// nothing of what is prepared goes to memory, and k comes once. One block on each multiprocessor:
//
//   feed, 1 warp         invert, a warp per place     find P, 1 warp            advance, a warpgroup per slice
//   asks for k and q ──> zeros behind the end ──────> Q K^T ─> P ─┐ found       state to registers
//    │ landed            decays       │ full                      │             S K^T, S Q^T
//    │                   K K^T, T ────│───────────────────────────│─ inverted ─> X, V', S <─ update ──> keys_empty
//   asks for v ──────────────────────────────────────> zeros ─────│─ v_full     V' P^T <─ found
//   takes the output <────────────────────────────────────────────────────────── O is in v's place: empty
#pragma once
#include "short_advance.cuh"
#include "short_feed.cuh"
#include "short_prepare.cuh"

namespace {

constexpr int kShortThreads = 384, kOrderThreads = 1024;
constexpr int kShortAdvanceRegisters = 192, kShortPrepareRegisters = 120;
static_assert(2 * kShortAdvanceRegisters + kShortPrepareRegisters <= 65536 / kShortThreads / 8 * 8 * 3);

// By one block: what the first kernel has a block for where there is one (prepare.cuh).
template <int Threads>
__global__ void __launch_bounds__(Threads) gdn_order_kernel(const __grid_constant__ Problem p) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  order_alike_sequences(p, reinterpret_cast<int*>(memory));
}

// As many blocks as stay, in x.
template <class E>
__global__ void __launch_bounds__(kShortThreads, 1)
    gdn_short_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps, const __grid_constant__ ShortMaps parts) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Short*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kShortPlaces; ++i) {
      for (auto* barriers : {s.asked, s.landed, s.v_landed}) barrier_init(shared_address(&barriers[i]), 1);
      for (auto* barriers : {s.full, s.v_full, s.inverted, s.found}) barrier_init(shared_address(&barriers[i]), kLeavers);
      for (auto* barriers : {s.keys_empty, s.empty}) barrier_init(shared_address(&barriers[i]), 8 * kLeavers);
    }
    for (auto& slice : s.state_full) barrier_init(shared_address(&slice), 1);
    for (auto& slice : s.state_empty) barrier_init(shared_address(&slice), 4 * kLeavers);
    barrier_init_done();
  }
  for (auto& place : s.places) {
    clear_triangles<kTerms>(shared_address(place.tile.T), threadIdx.x, kShortThreads);
    clear_p<kStaySize>(shared_address(place.P), threadIdx.x, kShortThreads);
  }
  fence_async();  // wgmma reads them
  __syncthreads();
  if (wg < 2) {
    registers_up<kShortAdvanceRegisters>();
    advance_short<E>(p, s, wg);
  } else {
    registers_down<kShortPrepareRegisters>();
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0);
    if (warp == 0) ShortFeeder(p, s, maps, parts).run();
    else if (warp == 1) find_p_short<E>(p, s);
    else invert_short<E>(p, s, warp - 2);
  }
}

}  // namespace
