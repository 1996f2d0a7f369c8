// What comes before the walk back, or before the gradients, side by side: some blocks prepare chunks, those that are needed first before
// the others, and others walk forward behind them. Where (sequence, head) are few, still others walk back meanwhile. That needs nothing of
// the walk forward but at both ends of a sequence, and where a beta is small: there it waits. What is found of the last chunk comes last.
//
// Whoever is waited for comes first: blocks that prepare, those that walk forward, those that walk back. So nobody waits forever.
#pragma once
#include <algorithm>

#include "forward.cuh"
#include "prepare.cuh"
#include "reverse.cuh"

namespace {

constexpr int kFirstThreads = 384;  // three warpgroups that prepare; or those that walk, and one that feeds, stores and tells
constexpr int kBesideRegisters = 96;  // of that beside one that walks: what is left of 168 for each
constexpr int kJobs = 4;  // a named barrier of those. Behind those of warpgroups that prepare, 1 to 3
constexpr int kMostOrdered = 64;  // sequences
constexpr int kPrepareBytes = prepare_bytes(2);
constexpr size_t kOrderAt = (std::max({3 * size_t{kPrepareBytes}, sizeof(ForwardShared<1>), sizeof(ForwardShared<2>), sizeof(ReverseShared<1>)}) + 15) / 16 * 16;
constexpr size_t kFirstBytes = kOrderAt + 2 * kMostOrdered * sizeof(int);
static_assert(kFirstBytes <= kMostShared);

// Blocks of each kind: `walks` that walk forward, and as many back where both walks are in this kernel. And sequences whose heads are
// walked over at a time.
struct First {
  Group group;
  int prepare, walks, at_once;
};

// What a block prepares; by all of its warpgroups, each for itself. `order`: of sequences, longest first.
template <class E, bool Both>
__device__ __forceinline__ void prepare_some(const Problem& p, const Maps& maps, const First& first, int block, const int* order,
                                             unsigned char* memory) {
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0), units = p.H / (first.group.units * first.group.heads);
  unsigned char* const own = memory + wg * kPrepareBytes;
  const auto meet = [&] { named_barrier(1 + wg, 128); };
  if (threadIdx.x % 128 == 0) {
    barrier_init(shared_address(&reinterpret_cast<Front*>(own)->landed), 1);
    barrier_init_done();
  }
  int job = wg * first.prepare + block, from = 0, parity = 0;
#pragma unroll 1
  for (int round = 0; round < p.N; round += first.at_once) {
    const int count = min(first.at_once, p.N - round), until = from + count_chunks(p, order[round]) * count * units;
#pragma unroll 1
    for (; job < until; job += 3 * first.prepare) {
      const int at = (job - from) / units, n = order[round + at % count], nth = at / count, chunks = count_chunks(p, n);
      if (nth >= chunks) continue;
      const int c = !Both ? nth : nth % 2 == 0 ? nth / 2 : chunks - 1 - nth / 2;  // from both ends
      const int64_t token = bound(p, n) + static_cast<int64_t>(c) * kChunk;
      const Chunk chunk{token, static_cast<int>(min(int64_t{kChunk}, bound(p, n + 1) - token)), n, c == 0, c == chunks - 1};
      fence_async();
      meet();  // nobody looks at the chunk before any more
      prepare_chunk<E>(p, &maps.q, &maps.k, first.group, chunk, first_chunk(p, n) + c, (job - from) % units, own, parity, meet);
      parity ^= 1;
    }
    from = until;
  }
}

// Forward over one slice of a (sequence, head) after the other, or over both. Both: another kernel of walks waits for each chunk.
template <class E, int Groups, bool Both>
__device__ __forceinline__ void walk_all_forward(const Problem& p, const Maps& maps, const First& first, int block, const int* order,
                                                 unsigned char* memory) {
  constexpr int kSlices = kHalves / Groups, kStages = kForwardStages<Groups>, kFeeder = 4 * Groups;
  constexpr int kTogether = 128 * Groups + (Both ? 128 : 32);
  auto& s = *reinterpret_cast<ForwardShared<Groups>*>(memory);
  prepare_places<ForwardShared<Groups>, Groups, kStages>(
      s, [](ForwardStage<Groups>& stage) { clear_squares(shared_address(stage.tile.E), kTerms); }, [&] {
        barrier_init(shared_address(&s.passed_on), 4 * Groups * kSpeakers);
        barrier_init(shared_address(&s.taken), 1);
        s.states_there = s.values_there = 0;
      });
  __syncthreads();
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), jobs = p.N * p.H * kSlices;
  if (of_block < kFeeder) {
    registers_up<kWalkRegisters>();
    int turns = 0, place = 0, parity = 0;
#pragma unroll 1
    for (int job = block; job < jobs; job += first.walks) {
      named_barrier(kJobs, kTogether);
      walk_forward<E, Groups, false, Both>(p, s, of_block / 4, turns, place, parity);
      named_barrier(kJobs, kTogether);  // all that is left is there
    }
    return;
  }
  if (of_block >= kFeeder + 4) return;
  registers_down<Groups == 1 ? kBesideRegisters : kFeedRegisters>();
  if (of_block == kFeeder) {
    Behind behind;
#pragma unroll 1
    for (int job = block; job < jobs; job += first.walks) {
      if (lane_here() == 0) s.work = work_of_sequence(p, order[job / kSlices / p.H], job / kSlices % p.H, job % kSlices * kSlice);
      named_barrier(kJobs, kTogether);
      feed<ForwardWay<Groups, true, Both>, ForwardShared<Groups>, Groups, kStages>(p, s, {maps, s}, behind);
      named_barrier(kJobs, kTogether);
      if (lane_here() == 0) {
        for (int i = 0; i < Groups; ++i) store_released(forward_over(p, s.work) + i, 1);
      }
    }
  } else if constexpr (Both) {
    int turns = 0;
#pragma unroll 1
    for (int job = block; job < jobs; job += first.walks) {
      named_barrier(kJobs, kTogether);
      if (of_block == kFeeder + 2) {
        unsigned char* const to = p.starts + at_place(p, s.work.place, s.work.h) * kStateBytes;
        store_states(s, to + s.work.slice / kSlice * (kHalves * kBoxBytes), static_cast<int64_t>(p.H) * kStateBytes, turns);
      } else if (of_block == kFeeder + 3) {
        const int at = static_cast<int>(s.work.place) * p.k_heads + s.work.k_head;
        tell_turns<1, 2 * kSlices>(p, s, at, 0, s.work.chunks, turns);
      }
      named_barrier(kJobs, kTogether);
    }
  }
}

// Back over a slice of a (sequence, head).
template <class E>
__device__ __forceinline__ void walk_back_beside(const Problem& p, const Maps& maps, int job, const int* order, unsigned char* memory) {
  constexpr int kTogether = 256, kTellers = 2 * kHalves;  // of a head: both slices, both walks
  auto& s = *reinterpret_cast<ReverseShared<1>*>(memory);
  prepare_walk_back<1>(s);
  if (threadIdx.x == 0) s.work = work_of_sequence(p, order[job / kHalves / p.H], job / kHalves % p.H, job % kHalves * kSlice);
  __syncthreads();
  const int of_block = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  if (of_block >= 8) return;
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
      tell_turns<-1, kTellers>(p, s, last, 1, s.work.chunks, turns);
    }
  }
  named_barrier(kJobs, kTogether);
  if (threadIdx.x == 0 && s.work.chunks > 0) tell(p, last, p.k_group * kTellers);
}

// Both: walks. Blocks from `from` on.
template <class E, int Groups, bool Both>
__global__ void __launch_bounds__(kFirstThreads, 1) gdn_first_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps,
                                                                     const __grid_constant__ First first, int from) {
  static_assert(Groups == 1 || !Both);
  DYNAMIC_SHARED(memory);
  let_next_begin();  // once all blocks of this one have begun: whom the next one waits for is there
  const int block = from + blockIdx.x;
  int* const order = reinterpret_cast<int*>(memory + kOrderAt);
  order_sequences(p, order + kMostOrdered, order);
  __syncthreads();
  if (block == 0) {
    int chunks = 0;
    for (int n = threadIdx.x; n < p.N; n += kFirstThreads) {
      if (p.order != nullptr) p.order[n] = order[n];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int n = 0; n < p.N; ++n) chunks += count_chunks(p, n);
      store_released(&p.queue->all, 1 + chunks * p.k_heads);
    }
  }
  if (block < first.prepare) {
    prepare_some<E, Both>(p, maps, first, block, order, memory);
  } else if (block < first.prepare + first.walks) {
    walk_all_forward<E, Groups, Both>(p, maps, first, block - first.prepare, order, memory);
  } else if constexpr (Both) {
    walk_back_beside<E>(p, maps, block - first.prepare - first.walks, order, memory);
  }
}

}  // namespace
