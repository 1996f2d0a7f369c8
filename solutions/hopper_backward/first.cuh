// Where (sequence, head) are few: what comes before the gradients, side by side. Some blocks prepare chunks, from both ends of a sequence.
// Others walk behind them, forward or back, each with a slice of a (sequence, head). The walk back needs nothing of the other one but at
// both ends of a sequence, and where a beta is small: there it waits. What is found of the last chunk comes last.
//
// Whoever is waited for comes first: blocks that prepare, those that walk forward, those that walk back. So nobody waits forever.
#pragma once
#include <algorithm>

#include "forward.cuh"
#include "prepare.cuh"
#include "reverse.cuh"

namespace {

constexpr int kFirstThreads = 384;  // three warpgroups that prepare; or one that walks, and one that feeds, stores and tells
constexpr int kBesideRegisters = 96;  // of that beside one that walks: what is left of 168 for each
constexpr int kOfWalk = 256, kWalkOver = 4;  // threads of a walk; a named barrier, behind those of warpgroups that prepare, 1 to 3
constexpr int kTellers = 2 * kHalves;  // blocks that leave something of a chunk and head: both slices, both walks
constexpr int kPrepareBytes = prepare_bytes(2);
constexpr size_t kFirstBytes = std::max({3 * size_t{kPrepareBytes}, sizeof(ForwardShared<1>), sizeof(ReverseShared<1>)});
static_assert(kFirstBytes <= kMostShared);

// Blocks that prepare; and that walk, as many forward as back.
struct First {
  Group group;
  int prepare, walks;
};

// By all warpgroups of a block, each for itself.
template <class E>
__device__ __forceinline__ void prepare_some(const Problem& p, const Maps& maps, const First& first, int block, unsigned char* memory) {
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0), units = p.H / (first.group.units * first.group.heads);
  unsigned char* const own = memory + wg * kPrepareBytes;
  const auto meet = [&] { named_barrier(1 + wg, 128); };
  if (threadIdx.x % 128 == 0) {
    barrier_init(shared_address(&reinterpret_cast<Front*>(own)->landed), 1);
    barrier_init_done();
  }
  int most = 0, parity = 0;
  for (int n = 0; n < p.N; ++n) most = max(most, count_chunks(p, n));
#pragma unroll 1
  for (int job = wg * first.prepare + block; job < most * p.N * units; job += 3 * first.prepare) {
    const int n = job / units % p.N, nth = job / units / p.N, chunks = count_chunks(p, n);
    if (nth >= chunks) continue;
    const int c = nth % 2 == 0 ? nth / 2 : chunks - 1 - nth / 2;
    const int64_t token = bound(p, n) + static_cast<int64_t>(c) * kChunk;
    const Chunk chunk{token, static_cast<int>(min(int64_t{kChunk}, bound(p, n + 1) - token)), n, c == 0, c == chunks - 1};
    fence_async();
    meet();  // nobody looks at the chunk before any more
    prepare_chunk<E>(p, &maps.q, &maps.k, first.group, chunk, first_chunk(p, n) + c, job % units, own, parity, meet);
    parity ^= 1;
  }
}

// What a block walks over: a slice of a (sequence, head).
__device__ __forceinline__ Work work_of_job(const Problem& p, int job) {
  return work_of_sequence(p, job / kHalves / p.H, job / kHalves % p.H, job % kHalves * kSlice);
}

template <class E>
__device__ __forceinline__ void walk_forward_beside(const Problem& p, const Maps& maps, int job, unsigned char* memory) {
  auto& s = *reinterpret_cast<ForwardShared<1>*>(memory);
  prepare_places<ForwardShared<1>, 1, kForwardStages<1>>(
      s, [](ForwardStage<1>& stage) { clear_squares(shared_address(stage.tile.E), kTerms); }, [&] {
        barrier_init(shared_address(&s.passed_on), 4 * kSpeakers);
        barrier_init(shared_address(&s.taken), 1);
        s.states_there = s.values_there = 0;
      });
  if (threadIdx.x == 0) s.work = work_of_job(p, job);
  __syncthreads();
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  if (of_block >= kOfWalk / 32) return;
  int turns = 0;
  if (of_block < 4) {
    registers_up<kWalkRegisters>();
    walk_forward<E, 1, false, 1, true>(p, s, 0);
  } else {
    registers_down<kBesideRegisters>();
    if (of_block == 4) {
      Behind behind;
      feed<ForwardWay<1, 1, true>, ForwardShared<1>, 1, kForwardStages<1>>(p, s, {maps, s}, behind);
    } else if (of_block == 6) {
      store_states_forward<1, 1, true>(p, s, turns);
    } else if (of_block == 7) {
      const int at = static_cast<int>(s.work.place) * p.k_heads + s.work.k_head;
      tell_turns<1>(p, s, at, 0, s.work.chunks, turns);
    }
  }
  named_barrier(kWalkOver, kOfWalk);  // all that is left is there
  if (threadIdx.x == 0) store_released(forward_over(p, s.work), 1);
}

template <class E>
__device__ __forceinline__ void walk_back_beside(const Problem& p, const Maps& maps, int job, unsigned char* memory) {
  auto& s = *reinterpret_cast<ReverseShared<1>*>(memory);
  prepare_walk_back<1>(s);
  if (threadIdx.x == 0) s.work = work_of_job(p, job);
  __syncthreads();
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  if (of_block >= kOfWalk / 32) return;
  const int last = static_cast<int>(s.work.place + s.work.chunks - 1) * p.k_heads + s.work.k_head;
  int turns = 0;
  if (of_block < 4) {
    registers_up<kWalkRegisters>();
    int place = 0, parity = 0;
    walk_back<E, 1, false, true>(p, s, 0, turns, place, parity);
  } else {
    registers_down<kBesideRegisters>();
    if (of_block == 4) {
      Behind behind;
      feed<ReverseWay<E, 1, true>, ReverseShared<1>, 1, kReverseStages<1>>(p, s, {maps, s}, behind);
    } else if (of_block == 6) {
      store_states_back<1>(p, s, turns);
    } else if (of_block == 7) {
      tell_turns<-1>(p, s, last, 1, s.work.chunks, turns);
    }
  }
  named_barrier(kWalkOver, kOfWalk);
  if (threadIdx.x == 0 && s.work.chunks > 0) tell(p, last);
}

// Blocks from `from` on.
template <class E>
__global__ void __launch_bounds__(kFirstThreads, 1) gdn_first_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps,
                                                                     const __grid_constant__ First first, int from) {
  DYNAMIC_SHARED(memory);
  let_next_begin();  // once all blocks of this one have begun: whom the next one waits for is there
  const int block = from + blockIdx.x;
  if (block == 0 && threadIdx.x == 0) {
    int chunks = 0;
    for (int n = 0; n < p.N; ++n) chunks += count_chunks(p, n);
    store_released(&p.queue->all, 1 + chunks * p.k_heads);
  }
  if (block < first.prepare) {
    prepare_some<E>(p, maps, first, block, memory);
  } else if (block < first.prepare + first.walks) {
    walk_forward_beside<E>(p, maps, block - first.prepare, memory);
  } else {
    walk_back_beside<E>(p, maps, block - first.prepare - first.walks, memory);
  }
}

}  // namespace
