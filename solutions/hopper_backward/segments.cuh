// Where sequences are cut, and what the states between their segments are, from what the segments make of zeros and of the identity:
//   S <- S Tr + L             over the segments in order, L what becomes of zeros, Tr of the identity
//   dS <- dS Tr^T + L         from the last one, L what becomes of zeros there
#pragma once
#include "operands.cuh"

namespace {

constexpr int kCutThreads = 256;

// By one block.
__global__ void __launch_bounds__(kCutThreads) gdn_cut_kernel(const __grid_constant__ Problem p, int64_t* bounds) {
  const Segments& all = p.segments;
  Problem whole = p;  // the sequences
  whole.cu_seqlens = all.cu_seqlens, whole.N = all.N;
  const auto count = [&](int n) { return max(1, (count_chunks(whole, n) + all.length - 1) / all.length); };
  const int64_t end = bound(whole, all.N);
  int first = 0;  // there are few sequences
  for (int n = 0; n < all.N; ++n) {
    const int segments = min(count(n), p.N - first - (all.N - 1 - n));  // whatever the bounds are
    for (int i = threadIdx.x; i < segments; i += kCutThreads) {
      bounds[first + i] = bound(whole, n) + static_cast<int64_t>(i) * all.length * kChunk;
      all.owners[first + i] = n;
    }
    if (threadIdx.x == 0) all.firsts[n] = first;
    first += segments;
  }
  if (threadIdx.x == 0) all.firsts[all.N] = first;
  for (int i = first + threadIdx.x; i <= p.N; i += kCutThreads) {
    bounds[i] = end;
    if (i < p.N) all.owners[i] = -1;
  }
}

constexpr int kJoinThreads = 256, kJoinRows = 16, kJoinBlocks = kHeadSize / kJoinRows;  // value channels of a block

struct JoinShared {
  alignas(128) float transfer[2][kHeadSize][kHeadSize];  // [from, to], of segments in turns
  alignas(16) float state[kHeadSize][kJoinRows];         // [key channel, value channel]
  alignas(8) uint64_t landed[2];
};
static_assert(sizeof(JoinShared) <= kMostShared);

// Back: of gradients. The grid is (blocks of value channels, H, sequences).
__global__ void __launch_bounds__(kJoinThreads) gdn_join_kernel(const __grid_constant__ Problem p, bool back) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<JoinShared*>(memory);
  const Segments& all = p.segments;
  const int h = blockIdx.y, first = all.firsts[blockIdx.z], count = all.firsts[blockIdx.z + 1] - first;
  const int column = threadIdx.x % kHeadSize, part = threadIdx.x / kHeadSize * (kJoinRows / 2);
  const int row = blockIdx.x * kJoinRows + part;
  constexpr int64_t kSize = kHeadSize * kHeadSize;
  // The nth state that is walked into, from 1 on, and the nth transfer.
  const auto state_of = [&](int nth) { return state_behind(p, back ? first + count - 1 - nth : first + nth - 1, h, back); };
  const auto transfer_of = [&](int nth) {
    return (back ? all.turned : all.transfers) + at_place(p, back ? first + count - 1 - nth : first + nth, h) * kSize;
  };
  const int steps = count - 2;  // transfers 1 to steps
  if (steps < 1) return;
  const auto ask = [&](int nth) {
    const uint32_t landed = shared_address(&s.landed[nth % 2]);
    barrier_expect(landed, sizeof s.transfer[0]);
    load_bytes(shared_address(s.transfer[nth % 2]), transfer_of(nth), sizeof s.transfer[0], landed);
  };
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&s.landed[0]), 1), barrier_init(shared_address(&s.landed[1]), 1);
    barrier_init_done();
    for (int nth = 1; nth <= min(2, steps); ++nth) ask(nth);
  }
  float x[kJoinRows / 2];
  {
    const StateAt from = state_of(1);
    const float* const own = number_of(from, row, column);
#pragma unroll
    for (int i = 0; i < kJoinRows / 2; ++i) x[i] = own[i * from.row];
  }
  __syncthreads();
#pragma unroll 1
  for (int nth = 1; nth <= steps; ++nth) {
#pragma unroll
    for (int i = 0; i < kJoinRows / 2; i += 4) {
      *reinterpret_cast<float4*>(&s.state[column][part + i]) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
    const StateAt next = state_of(nth + 1);
    float* const to = number_of(next, row, column);
#pragma unroll
    for (int i = 0; i < kJoinRows / 2; ++i) x[i] = to[i * next.row];
    __syncthreads();
    barrier_wait(shared_address(&s.landed[nth % 2]), (nth - 1) / 2 & 1);
#pragma unroll 8
    for (int k = 0; k < kHeadSize; ++k) {
      const float transfer = s.transfer[nth % 2][k][column];
#pragma unroll
      for (int i = 0; i < kJoinRows / 2; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&s.state[k][part + i]);
        x[i] = fmaf(four.x, transfer, x[i]), x[i + 1] = fmaf(four.y, transfer, x[i + 1]);
        x[i + 2] = fmaf(four.z, transfer, x[i + 2]), x[i + 3] = fmaf(four.w, transfer, x[i + 3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kJoinRows / 2; ++i) to[i * next.row] = x[i];
    __syncthreads();
    if (threadIdx.x == 0 && nth + 2 <= steps) ask(nth + 2);
  }
}

}  // namespace
