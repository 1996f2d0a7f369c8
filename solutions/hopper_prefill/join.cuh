// From segment to segment of a sequence: the state before each, of what the first pass found.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kJoinRows = 8, kJoinParts = 4;  // value channels of a block; parts that its sums are in

// The state after segment i is that before it times its transfer, and its own, in whose place it comes. The grid is
// (D / kJoinRows, H, N).
__global__ void __launch_bounds__(kJoinParts * D) gdn_join_kernel(const __grid_constant__ Problem p) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  float(&S)[D][kJoinRows] = *reinterpret_cast<float(*)[D][kJoinRows]>(memory);
  float(&sums)[kJoinParts][kJoinRows][D] = *reinterpret_cast<float(*)[kJoinParts][kJoinRows][D]>(memory + sizeof S);
  constexpr int kPart = D / kJoinParts;  // key channels before the product
  const int n = blockIdx.z, row = blockIdx.x * kJoinRows, k = threadIdx.x % D, part = threadIdx.x / D;
  const int segments = count_segments(p, n);
  wait_for_last();
  if (segments <= 2) return;  // the first pass has all there is
  const int64_t step = static_cast<int64_t>(p.H) * D * D, first = (first_segment(p, n) * p.H + blockIdx.y) * D * D;
  float transfer[kPart], local[kJoinRows / kJoinParts];
  const auto fetch = [&](int i) {  // of segment i, ahead of the state before it
#pragma unroll
    for (int j = 0; j < kPart; ++j) transfer[j] = p.transfer[first + i * step + (part * kPart + j) * D + k];
#pragma unroll
    for (int r = 0; r < kJoinRows / kJoinParts; ++r) {
      local[r] = p.after[first + i * step + (row + part * (kJoinRows / kJoinParts) + r) * D + k];
    }
  };
  fetch(1);
  for (int r = part; r < kJoinRows; r += kJoinParts) S[k][r] = p.after[first + (row + r) * D + k];
  __syncthreads();
  for (int i = 1; i < segments - 1; ++i) {
    float sum[kJoinRows] = {};
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
#pragma unroll
      for (int r = 0; r < kJoinRows; ++r) sum[r] = fmaf(S[part * kPart + j][r], transfer[j], sum[r]);
    }
    float own[kJoinRows / kJoinParts];
#pragma unroll
    for (int r = 0; r < kJoinRows / kJoinParts; ++r) own[r] = local[r];
    if (i + 1 < segments - 1) fetch(i + 1);
#pragma unroll
    for (int r = 0; r < kJoinRows; ++r) sums[part][r][k] = sum[r];
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kJoinRows / kJoinParts; ++e) {
      const int r = part * (kJoinRows / kJoinParts) + e;
      float x = own[e];
#pragma unroll
      for (int other = 0; other < kJoinParts; ++other) x += sums[other][r][k];
      S[k][r] = x;
      p.after[first + i * step + (row + r) * D + k] = x;
    }
    __syncthreads();
  }
}

constexpr size_t kJoinBytes = sizeof(float) * (1 + kJoinParts) * kJoinRows * D;

}  // namespace
