// Prefill of the gated delta rule, chunk by chunk, for sm_90a.
//
// A first kernel finds what needs no state, of every chunk and head on its own (prepare.cuh). In the second a block has one
// (sequence, head), or one slice of its value channels, and advances the state over its chunks in order (advance.cuh),
// which a warp asks for ahead (feed.cuh).
//
// Where few sequences and heads would leave the GPU empty, a sequence is cut into segments, exactly. A first pass has the first
// segment with its outputs, and beside it, without, what each but the last makes of a state of zeros and of the identity; a
// second pass has the outputs of all but the first, and begins with the state before each from those (join.cuh).
#pragma once
#include "advance.cuh"
#include "choose.cuh"
#include "feed.cuh"
#include "prepare.cuh"

namespace {

// Of a thread. At launch each has 128 where two slices are advanced, by four warpgroups, or where two blocks share a
// multiprocessor.
constexpr int kAdvanceRegisters = 208, kFindRegisters = 64, kFeedRegisters = 32, kFeedRegistersOfTwo = 40;

// Warpgroups: those that advance, one that finds P where that is not prepared, one that feeds.
constexpr int threads_of(int groups) { return 128 * (groups + (finds_p(groups) ? 2 : 1)); }
static_assert(sizeof(Shared<128, 2, true>) <= kMostShared && kBlocksTogether<128, 1, false> == 2);

// The grid is (slices, H, N), where blocks decide with as many more as they may need; or (slices, and without output those of
// the identity, H, places of segments behind the first).
template <class E, int D, int Groups, bool Output, bool Checkpoints>
__global__ void __launch_bounds__(threads_of(Groups), kBlocksTogether<D, Groups, Output>)
    gdn_prefill_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  constexpr bool kOfTwo = kBlocksTogether<D, Groups, Output> == 2;
  if constexpr (!Output) let_next_begin();
  if constexpr (D == kStaySize && Groups == 2 && Output && !Checkpoints) {
    if (p.one_up_to > 0 && one_has_it(p)) {  // that kernel comes before this one: who waits for this waits for that
      if (blockIdx.y + blockIdx.z == 0) wait_for_last();
      return;
    }
  }
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Block<D, Groups, Output, Checkpoints>*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  // The bounds are an input: the kernel before does not write them, and has waited for who might have.
  int n = blockIdx.z, x = blockIdx.x, h = blockIdx.y, groups = Groups;
  if (Groups == 2 && p.decides) {
    if (threadIdx.x < 32) {  // the warp that asks for it
      const int block = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
      const Share share = find_share(p, block, reinterpret_cast<float*>(s.boxes));
      n = share.n, h = share.h, x = share.slice, groups = share.groups;
    }
  } else if (p.N > 1 && p.N <= kSorted && (p.length == 0 || p.firsts)) {
    n = find_ranked(p, n, reinterpret_cast<int*>(s.boxes), &s.found);
  }
  Segment segment{n, 0, 0, 0};
  if (p.length != 0) segment = p.firsts ? find_segment(p, 0, 0, n) : find_segment(p, blockIdx.z, Output ? 0 : 1);
  const bool one = blockIdx.x + blockIdx.y + blockIdx.z == 0;
  if (threadIdx.x == 0) {
    s.busy = n >= 0 && find_work<D, Output>(p, groups, segment, x, h, s.work);
#pragma unroll
    for (int i = 0; i < kStagesOf<D, Groups, Output, Checkpoints>; ++i) {
      barrier_init(shared_address(&s.full[i]), 1);
      barrier_init(shared_address(&s.v_full[i]), 1);
      barrier_init(shared_address(&s.empty[i]), 4 * groups * kLeavers);
      barrier_init(shared_address(&s.ready[i]), 4 * kLeavers);
    }
    barrier_init(shared_address(&s.tail), 1);
    for (auto& half : s.joining) barrier_init(shared_address(&half), 1);
    barrier_init_done();
  }
  for (auto& tile : s.tile) {
    clear_triangles<kTerms>(shared_address(tile.T), threadIdx.x, threads_of(Groups));
    if constexpr (Output) clear_p<D>(shared_address(tile.P), threadIdx.x, threads_of(Groups));
  }
  fence_async();  // wgmma reads them, and lengths have been written where TMA will
  __syncthreads();
  // Whoever waits for this kernel is to wait for that before it, too: if nobody else here does, one block.
  if (Output && !s.busy) {
    if (one) wait_for_last();
    return;
  }
  if (Groups == 2) groups = s.work.groups;
  if (s.busy && wg < groups) {
    if constexpr (Groups == 2 || kOfTwo) registers_up<kAdvanceRegisters>();
    advance<E, D, Groups, Output, Checkpoints>(p, s, wg);
  } else if (s.busy && wg == Groups && finds_p(Groups)) {
    if constexpr (finds_p(Groups)) {
      registers_down<kFindRegisters>();
      find_p<E, D>(p, s);
    }
  } else if (s.busy && wg >= Groups) {
    if constexpr (finds_p(Groups)) registers_down<kFeedRegisters>();
    if constexpr (kOfTwo) registers_down<kFeedRegistersOfTwo>();
    if (threadIdx.x / 32 % 4 == 0) feed<D>(p, s, maps);
  }
  // Nobody has, where it began beside the first segments, or has no chunk to ask for.
  if (one && (!Output || s.work.chunks == 0)) wait_for_last();
}

}  // namespace
