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
  float sums[kJoinRows][kJoinThreads / 2];               // of the upper half of the key channels
  alignas(8) uint64_t landed[2];
};
static_assert(sizeof(JoinShared) <= kMostShared);

// A thread has two key channels of a state, eight value channels and the sum over half of the key channels before. The grid is
// (2 directions x blocks of value channels, H, sequences).
__global__ void __launch_bounds__(kJoinThreads) gdn_join_kernel(const __grid_constant__ Problem p) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<JoinShared*>(memory);
  constexpr int kRows = kJoinRows / 2;
  const Segments& all = p.segments;
  const bool back = blockIdx.x >= kJoinBlocks;
  const int h = blockIdx.y, first = all.firsts[blockIdx.z], count = all.firsts[blockIdx.z + 1] - first;
  const int column = threadIdx.x % (kHeadSize / 2) * 2, part = threadIdx.x / (kHeadSize / 2) % 2 * kRows, half = threadIdx.x / kHeadSize;
  const int row = blockIdx.x % kJoinBlocks * kJoinRows + part, own = threadIdx.x % kHeadSize;
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
  const auto load = [&](float2 (&to)[kRows], int nth) {
    const StateAt at = state_of(nth);
    const float* const from = number_of(at, row, column);
#pragma unroll
    for (int i = 0; i < kRows; ++i) to[i] = *reinterpret_cast<const float2*>(from + i * at.row);
  };
  float2 x[kRows], next[kRows];  // the state, and what it is added to
  if (half == 0) load(x, 1), load(next, 2);
  __syncthreads();
#pragma unroll 1
  for (int nth = 1; nth <= steps; ++nth) {
    if (half == 0) {
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
        *reinterpret_cast<float4*>(&s.state[column][part + i]) = make_float4(x[i].x, x[i + 1].x, x[i + 2].x, x[i + 3].x);
        *reinterpret_cast<float4*>(&s.state[column + 1][part + i]) = make_float4(x[i].y, x[i + 1].y, x[i + 2].y, x[i + 3].y);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] = half == 0 ? next[i] : make_float2(0.f, 0.f);
    if (half == 0 && nth < steps) load(next, nth + 2);
    __syncthreads();
    barrier_wait(shared_address(&s.landed[nth % 2]), (nth - 1) / 2 & 1);
#pragma unroll 8
    for (int k = 0; k < kHeadSize / 2; ++k) {
      const int of = k + half * (kHeadSize / 2);
      const float2 transfer = *reinterpret_cast<const float2*>(&s.transfer[nth % 2][of][column]);
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&s.state[of][part + i]);
        const float rows[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) x[i + e].x = fmaf(rows[e], transfer.x, x[i + e].x), x[i + e].y = fmaf(rows[e], transfer.y, x[i + e].y);
      }
    }
    if (half == 1) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) s.sums[2 * i][own] = x[i].x, s.sums[2 * i + 1][own] = x[i].y;
    }
    __syncthreads();
    if (threadIdx.x == 0 && nth + 2 <= steps) ask(nth + 2);
    if (half == 1) continue;
    const StateAt at = state_of(nth + 1);
    float* const to = number_of(at, row, column);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      x[i].x += s.sums[2 * i][own], x[i].y += s.sums[2 * i + 1][own];
      *reinterpret_cast<float2*>(to + i * at.row) = x[i];
    }
  }
}

}  // namespace
