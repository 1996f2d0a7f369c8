// The order in which blocks that stay take (sequence, head): longest sequences first, from a counter, all heads of one after
// the other. A block of the first kernel finds the order, once a call.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kBins = 256;  // by chunks: sequences of 255 and more are alike
constexpr int kQueued = 1;  // behind the counter, the order

// In units of 4 bytes.
inline int64_t queue_size(int64_t sequences) { return sequences + kQueued; }

// By a block; `bins` are shared. Sequences of one bin come in any order, which no result depends on.
__device__ __forceinline__ void order_sequences(const Problem& p, int* bins) {
  const auto bin_of = [&](int n) { return kBins - 1 - min(count_chunks(p, n), kBins - 1); };
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) atomicAdd(&bins[bin_of(n)], 1);
  __syncthreads();
  if (threadIdx.x < 32) {  // each becomes the number of sequences in those before it
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
  __syncthreads();
  for (int n = threadIdx.x; n < p.N; n += blockDim.x) p.queue[kQueued + atomicAdd(&bins[bin_of(n)], 1)] = n;
  if (threadIdx.x == 0) p.queue[0] = p.stays;  // each block's first is its own number
}

}  // namespace
