// Blocks that stay and prepare their own chunks, of long sequences: one kernel instead of two, so that nothing that is prepared
// goes to memory, and k comes once. As in advance.cuh a chunk's first product is under way before the output of the one before is
// written. One block on each multiprocessor. The states come from L2, into which they are asked for ahead.
//
//   feed, 1 warp           invert, 2 warps in turns     find P, 1 warp        advance, a warpgroup per slice
//   asks for k ───────────> zeros behind the end ─ full ─────────────────────> K K^T of chunk c + 2, Q K^T of c + 1
//    │ and for gates ─────> decays ─ decayed ───────────────────────────────>   │ multiplied           │ scored
//    │                      T of chunk c + 2 <──────────────────────────────────┘                      │
//    │                       └ inverted ──────────────────────────────────────> X, V', S               │
//    │                                                   P of chunk c + 1 <────────────────────────────┘
//   asks for v and q ─────> zeros behind v's end          └ found ────────────> V' P^T
//   takes the output <──────────────────────────────────────────────────────── O is in v's place: empty
//
// What all these warps run through in a chunk has to be little code: it does not fit into the caches for instructions, and where
// it is fetched anew in each chunk a warp takes 8 to 9 cycles per instruction (LOG.md, "one kernel, T in halves").
#pragma once
#include "choose.cuh"
#include "long_advance.cuh"
#include "long_feed.cuh"
#include "long_prepare.cuh"
#include "short.cuh"

namespace {

constexpr int kLongThreads = 384;
constexpr int kLongAdvanceRegisters = 216, kLongPrepareRegisters = 72;
static_assert(2 * kLongAdvanceRegisters + kLongPrepareRegisters <= 65536 / kLongThreads / 8 * 8 * 3);

// As many blocks as stay, in x.
template <class E>
__global__ void __launch_bounds__(kLongThreads, 1)
    gdn_long_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  let_next_begin();
  if (p.one_up_to > 0 && !one_has_it(p)) {  // two kernels have it: the second waits for this one, and so for the first
    if (blockIdx.x == 0) wait_for_last();
    return;
  }
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Long*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    const auto init = [](auto& barriers, int count) {
      for (auto& barrier : barriers) barrier_init(shared_address(&barrier), count);
    };
    init(s.asked, 1), init(s.k_landed, 1), init(s.q_landed, 1), init(s.v_landed, 1), init(s.told, 1);
    init(s.full, kLeavers), init(s.v_full, kLeavers);
    init(s.gated, 32), init(s.decayed, kLeavers), init(s.inverted, kLeavers), init(s.found, kLeavers);
    init(s.keys_empty, 8 * kLeavers), init(s.q_empty, 8 * kLeavers), init(s.empty, 8 * kLeavers);
    init(s.multiplied, 8 * kLeavers), init(s.taken, 8 * kLeavers);
    barrier_init(shared_address(&s.scored), 8 * kLeavers);
    barrier_init_done();
  }
  for (auto& keys : s.keys) clear_triangles<kTerms>(shared_address(keys.tile.T), threadIdx.x, kLongThreads);
  for (auto& queries : s.queries) clear_p<kStaySize>(shared_address(queries.P), threadIdx.x, kLongThreads);
  fence_async();  // wgmma reads them
  __syncthreads();
  if (wg < 2) {
    registers_up<kLongAdvanceRegisters>();
    advance_long<E>(p, s, maps.states, wg);
  } else {
    registers_down<kLongPrepareRegisters>();
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0);
    if (warp == 0) LongFeeder(p, s, maps).run();
    else if (warp <= kInverters) invert_long<E>(p, s, warp - 1);
    else find_p_long<E>(p, s);
  }
}

}  // namespace
