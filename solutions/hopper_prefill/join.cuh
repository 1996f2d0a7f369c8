// From part to part of a sequence: the state behind each, of what the first pass found.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kJoinParts = 4;  // of key channels, that the sums of a block are in

// Value channels of a block: few of them where there are few blocks; many share what is read of a transfer.
template <int Rows>
struct Joined {
  float S[D][Rows + 4];  // padded: neighbours in k are in other banks
  float sums[kJoinParts][Rows][D];
};

// The state after part i is that before it times its transfer, and its own, in whose place it comes. The grid is
// (D / Rows, H, N).
template <int Rows>
__global__ void __launch_bounds__(kJoinParts * D, 1) gdn_join_kernel(const __grid_constant__ Problem p) {
  let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Joined<Rows>*>(memory);
  constexpr int kPart = D / kJoinParts, kOwn = Rows / kJoinParts;  // key channels before the product; rows of a thread behind it
  const int n = blockIdx.z, row = blockIdx.x * Rows, k = threadIdx.x % D, part = threadIdx.x / D;
  const int count = count_parts(p, n);
  wait_for_last();
  if (count < 2) return;  // the first pass has all there is
  const int64_t step = static_cast<int64_t>(p.H) * D * D, first = (first_part(p, n) * p.H + blockIdx.y) * D * D;
  float transfer[kPart], local[kOwn];
  const auto fetch = [&](int i) {  // of part i, ahead of the state before it
#pragma unroll
    for (int j = 0; j < kPart; ++j) transfer[j] = p.transfer[first + i * step + (part * kPart + j) * D + k];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) local[e] = p.after[first + i * step + (row + part * kOwn + e) * D + k];
  };
  fetch(1);
  for (int e = 0; e < kOwn; ++e) s.S[k][part * kOwn + e] = p.after[first + (row + part * kOwn + e) * D + k];
  __syncthreads();
  for (int i = 1; i < count; ++i) {
    float sum[Rows] = {};
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) sum[r] = fmaf(s.S[part * kPart + j][r], transfer[j], sum[r]);
    }
    float own[kOwn];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) own[e] = local[e];
    if (i + 1 < count) fetch(i + 1);
#pragma unroll
    for (int r = 0; r < Rows; ++r) s.sums[part][r][k] = sum[r];
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const int r = part * kOwn + e;
#pragma unroll
      for (int other = 0; other < kJoinParts; ++other) own[e] += s.sums[other][r][k];
      s.S[k][r] = own[e];
      p.after[first + i * step + (row + r) * D + k] = own[e];
    }
    __syncthreads();
  }
}

}  // namespace
