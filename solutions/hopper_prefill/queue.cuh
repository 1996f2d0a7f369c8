// The order in which blocks that stay take (sequence, head): longest sequences first, from a counter, all heads of one after
// the other. A block of the first kernel finds the order, once a call.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kBins = 256;  // by chunks: sequences of 255 and more are alike
constexpr int kQueued = 2;  // behind the counter and how many sequences there are, the order

// In units of 4 bytes.
inline int64_t queue_size(int64_t sequences) { return sequences + kQueued; }

__device__ __forceinline__ int bin_of_sequence(const Problem& p, int n) { return kBins - 1 - min(count_chunks(p, n), kBins - 1); }

// Whether the sequence is not in the queue: others advance it token by token.
__device__ __forceinline__ bool is_few(const Problem& p, int n) { return bound(p, n + 1) - bound(p, n) <= p.few && p.few > 0; }

// By a warp: each bin becomes the number of sequences in those before it.
__device__ __forceinline__ void add_up_bins(int* bins) {
  constexpr int kOfLane = kBins / 32;
  const int lane = lane_here();
  int mine = 0;
  for (int i = 0; i < kOfLane; ++i) mine += bins[lane * kOfLane + i];
  int before = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  before -= mine;
  for (int i = 0; i < kOfLane; ++i) {
    const int count = bins[lane * kOfLane + i];
    bins[lane * kOfLane + i] = before;
    before += count;
  }
}

// By a block; `bins` are shared. Sequences of one bin come in any order, which no result depends on.
__device__ __forceinline__ void order_sequences(const Problem& p, int* bins) {
  const auto bin_of = [&](int n) { return bin_of_sequence(p, n); };
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) atomicAdd(&bins[bin_of(n)], 1);
  __syncthreads();
  if (threadIdx.x < 32) add_up_bins(bins);
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) p.queue[kQueued + atomicAdd(&bins[bin_of(n)], 1)] = n;
  if (threadIdx.x == 0) p.queue[0] = p.stays;  // each block's first is its own number
}

// The same where others wait for it and lengths may be alike: lanes of a warp that have a bin in common add to it once.
__device__ __forceinline__ void order_alike_sequences(const Problem& p, int* bins) {
  // Calls use(n, place) for each sequence, where `place` is what its bin has counted before.
  const auto count = [&](auto use) {
    const int lane = lane_here();
    for (int first = threadIdx.x - lane; first < p.N; first += blockDim.x) {
      const int n = first + lane, bin = n < p.N && !is_few(p, n) ? bin_of_sequence(p, n) : -1;
      unsigned left = __ballot_sync(kAllLanes, bin >= 0);
      while (left != 0) {
        const int leader = __ffs(left) - 1, its = __shfl_sync(kAllLanes, bin, leader);
        const unsigned same = __ballot_sync(kAllLanes, bin == its);
        const int before = __shfl_sync(kAllLanes, lane == leader ? atomicAdd(&bins[its], __popc(same)) : 0, leader);
        if (bin == its) use(n, before + __popc(same & ((1u << lane) - 1)));
        left &= ~same;
      }
    }
  };
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  count([](int, int) {});
  __syncthreads();
  if (threadIdx.x < 32) add_up_bins(bins);
  __syncthreads();
  count([&](int n, int place) { p.queue[kQueued + place] = n; });
  __syncthreads();
  if (threadIdx.x == 0) p.queue[0] = p.stays, p.queue[1] = bins[kBins - 1];  // each block's first is its own number
}

}  // namespace
