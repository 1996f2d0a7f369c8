// The last kernel: the reverse walk, and beside it the gradients of chunks that it has left. A block walks until there are no more
// sequences, or does not, and finds gradients from then on, chunk after chunk as they become ready. So of what the walk writes much
// is in the cache still when it is read, and no multiprocessor waits for the longest sequence.
//
// Blocks that walk come first and wait for nobody; so whoever waits for them will not wait forever.
#pragma once
#include "gradients.cuh"
#include "reverse.cuh"

namespace {

constexpr int kWalk = 3, kWalked = 4;  // named barriers: of those that walk, feed and store; and of those that tell, too

// The walk's places lie where parts and the rest of what the gradients need will, but for their barriers.
template <int Groups>
constexpr bool kShares = offsetof(ReverseShared<Groups>, carried) + sizeof(Carried) <= offsetof(GradientShared, landed);

// Whether all sequences have as many chunks; by a warp.
__device__ __forceinline__ bool are_even(const Problem& p) {
  bool even = true;
#pragma unroll 1
  for (int n = lane_here(); n < p.N; n += 32) even &= count_chunks(p, n) == count_chunks(p, 0);
  return __ballot_sync(kAllLanes, even) == kAllLanes;
}

// So many blocks as there is room for, or fewer; the first `most` of them walk. Beside: the forward walk is not over yet maybe, and tells,
// too. Even: where all sequences have as many chunks, `even` walk. That is a kernel of its own, so that others have the code that they had.
template <class E, int Groups, bool Beside, bool Even = false>
__global__ void __launch_bounds__(kGradientBlock, 1) gdn_together_kernel(const __grid_constant__ Problem p,
                                                                         const __grid_constant__ Maps maps, int most, int even) {
  static_assert(kShares<Groups>);
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<GradientShared*>(memory);
  auto& walk = *reinterpret_cast<ReverseShared<Groups>*>(memory);
  if constexpr (Beside) let_next_begin();
  write_all_zeros(p);
  const auto walkers = [&] {
    if constexpr (Even) {
      return s.walkers;  // read anew where it is needed: there is no room for it
    } else {
      return most;
    }
  };
  const auto walks = [&] { return static_cast<int>(blockIdx.x) < walkers(); };
  if constexpr (Even) {
    if (threadIdx.x < 32) {
      const int found = are_even(p) ? even : most;
      if (threadIdx.x == 0) s.walkers = found;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    prepare_parts(s);
    if (p.prepared != nullptr) wait_for_number(&p.queue->all);  // beside the kernel that says how many there are
  }
  if (walks()) {
    prepare_walk_back<Groups>(walk);
  } else if (threadIdx.x == 0) {
    barrier_init_done();
  }
  __syncthreads();
  constexpr int kSlices = kHalves / Groups, kTogether = 128 * Groups + 64;
  constexpr int kLeaving = kEveryLane ? kGradientBlock : kTogether + 32;  // the others learn of it from those
  // Found anew by each role, and not kept.
  const auto first_job = [&] { return anew(walks() ? blockIdx.x : p.N * p.H * kSlices); };
  const auto more_jobs = [&](int job) { return job < (p.brief > 0 ? p.queue->sequences : p.N) * p.H * kSlices; };
  const GradientBlock block{p, s, maps};
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), wg = of_block / 4;
  if (of_block >= kGradientThreads / 32) {
    registers_down<kFeedRegisters>();
    if (of_block == 8) {
      Behind of_walks;
      using Way = ReverseWay<E, Groups, Beside, false>;
      const Way way{maps, walk};
#pragma unroll 1
      for (int job = first_job(); more_jobs(job); job += walkers()) {
        if (lane_here() == 0) walk.work = work_of(p, job / kSlices / p.H, job / kSlices % p.H, job % kSlices * kSlice);
        named_barrier(kWalk, kTogether);
        feed<Way, ReverseShared<Groups>, Groups, kReverseStages<Groups>>(p, walk, way, of_walks);
        named_barrier(kWalk, kTogether);
        if (Beside && lane_here() == 0 && walk.work.chunks > 0) {  // what is found of a last chunk comes last
          tell(p, static_cast<int>(walk.work.place + walk.work.chunks - 1) * p.k_heads + walk.work.k_head);
        }
        if (Beside) __syncwarp();
      }
      if (walks()) {
        named_barrier(kWalked, kLeaving);
        if (lane_here() == 0) end_walk_back<Groups>(walk);
        __syncwarp();
      }
      block.feed_heads();
    } else if (of_block == 9) {
      if (kEveryLane && walks()) named_barrier(kWalked, kLeaving);
      block.feed_queries<E>();
    } else if (of_block == 10) {
      int turns = 0;
#pragma unroll 1
      for (int job = first_job(); more_jobs(job); job += walkers()) {
        named_barrier(kWalk, kTogether);
        store_states_back<Groups>(p, walk, turns);
        named_barrier(kWalk, kTogether);
      }
      if (walks()) named_barrier(kWalked, kLeaving);
    } else {
      int turns = 0;
#pragma unroll 1
      for (int job = first_job(); more_jobs(job); job += walkers()) {
        const int h = job / kSlices % p.H, n = nth_sequence(p, job / kSlices / p.H), chunks = count_chunks(p, n);
        const int last = (static_cast<int>(first_chunk(p, n)) + chunks - 1) * p.k_heads + h / p.k_group;
        tell_turns<-1>(p, walk, last, Beside && chunks > 0 ? 1 : 0, chunks, turns);
      }
      if (walks()) named_barrier(kWalked, kLeaving);
    }
    wait_for_last();  // this kernel may have begun beside the one before, and does not end before that
    return;
  }
  registers_up<kWalkRegisters>();
  if (wg < Groups) {
    int turns = 0, place = 0, parity = 0;
#pragma unroll 1
    for (int job = first_job(); more_jobs(job); job += walkers()) {
      named_barrier(kWalk, kTogether);
      walk_back<E, Groups, false, Beside>(p, walk, wg, turns, place, parity);
      named_barrier(kWalk, kTogether);
    }
    if (walks()) named_barrier(kWalked, kLeaving);  // nobody looks at the walk's memory any more
  } else if (kEveryLane && walks()) {
    named_barrier(kWalked, kLeaving);
  }
  find_all_gradients<E>(block);
}

}  // namespace
