// dg and dbeta of a chunk and head, of what others have found.
#pragma once
#include "between.cuh"

namespace {

// Whether the reverse walk has found a chunk's dbeta.
template <class E>
__device__ __forceinline__ bool walk_finds_betas(const Decays& d, bool at_end) {
  return !kDivides<E> || at_end || d.small_beta[0] != 0;
}

// What that is, summed over its warps. By one warp.
__device__ __forceinline__ void write_betas(const Problem& p, const Betas& betas, int64_t first, int valid, int h, int lane) {
#pragma unroll 1
  for (int e = 0; e < 2; ++e) {
    const int t = lane + 32 * e;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWalkers; ++i) sum += betas.first[i * betas.step + t];
    if (t < valid) p.dbeta[(first + t) * p.H + h] = sum;
  }
}

// What the reverse walk has found of r . dS k, with the factor beta, in the place of what was found from rounded factors; `from`:
// of the head. By one warp.
__device__ __forceinline__ void take_end(GateSums& sums, const float* from, const Decays& d, int lane) {
#pragma unroll
  for (int t = lane; t < kChunk; t += 32) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kWalkers; ++i) sum += from[i * kChunk + t];
    sums.of_end[0][t] = d.beta[t] * sum, sums.of_end[1][t] = 0.f;
  }
  __syncwarp();
}

// What reaches each gate through the decays between the tokens and the states on both ends of the chunk, and from the one to
// the other; added to what does through those between tokens. By one warp: a lane has tokens 2 lane and 2 lane + 1. `of_states`: of
// kWalkers warps. With betas: dbeta, too.
__device__ __forceinline__ void write_gates(const Problem& p, GateSums& sums, const Decays& d, const float* of_states, const float* exact_end,
                                            bool with_betas, int64_t first, int valid, int h, int lane) {
  const float end = exp2_fast(d.log[kChunk - 1]);
  if (exact_end != nullptr) take_end(sums, exact_end, d, lane);
  float through = 0.f, start[2], until[2], between[2] = {};
#pragma unroll
  for (int i = 0; i < kWalkers; ++i) through += of_states[i];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    start[e] = exp2_fast(d.log[t]) * (sums.of_start[0][t] + sums.of_start[1][t]);
    until[e] = exp2_fast(d.log[kChunk - 1] - d.log[t]) * (sums.of_end[0][t] + sums.of_end[1][t]);
#pragma unroll
    for (int i = 0; i < 8; ++i) between[e] += sums.between[i][t];
  }
  if (with_betas) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int t = 2 * lane + e;
      if (t < valid) p.dbeta[(first + t) * p.H + h] = sums.of_beta[t] / d.beta[t];
    }
  }
  float later = start[0] + start[1], earlier = until[0] + until[1];  // from the lane's first token on, up to its second
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_sync(kAllLanes, later, (lane + step) % 32), y = __shfl_up_sync(kAllLanes, earlier, step);
    if (lane + step < 32) later += x;
    if (lane >= step) earlier += y;
  }
  const float before = __shfl_up_sync(kAllLanes, earlier, 1), behind = __shfl_sync(kAllLanes, later, (lane + 1) % 32);
  const float from[2] = {later, start[1] + (lane < 31 ? behind : 0.f)};
  const float to[2] = {lane > 0 ? before : 0.f, (lane > 0 ? before : 0.f) + until[0]};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    if (t >= valid) break;
    const float alpha = d.alpha[t];
    float dg = between[e] + from[e] + to[e] + end * through;
    if (alpha != 0.f) {
      dg /= alpha;
    } else {  // too steep: both parts of each decay are formed without it
      const float before_it = t > 0 ? d.log[t - 1] : 0.f, last = exp2_fast(fminf(d.log[kChunk - 1] - d.log[t], 0.f));
      float after = 0.f, until_it = 0.f;
      dg = between[e];
      for (int i = t; i < kChunk; ++i) after += exp2_fast(fminf(d.log[i] - d.log[t], 0.f)) * (sums.of_start[0][i] + sums.of_start[1][i]);
      for (int j = 0; j < t; ++j) until_it += exp2_fast(fminf(before_it - d.log[j], 0.f)) * (sums.of_end[0][j] + sums.of_end[1][j]);
      const float from_start = exp2_fast(before_it);
      dg += from_start * after + last * until_it + from_start * last * through;
    }
    p.dg[(first + t) * p.H + h] = dg;
  }
}

// The same by several warps, in the last kernel. What reaches gates through the decays between tokens and the states on both
// ends of the chunk is a sum over tokens: of those from the gate's on, from the start; and of those before it, to the end. By
// a warp each: a lane has tokens 2 lane and 2 lane + 1. Terms are rounded before they are added, as one warp alone would.
__device__ __forceinline__ void sum_from_start(GateSums& sums, const Decays& d, int lane) {
  float start[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    start[e] = multiply_apart(exp2_fast(d.log[t]), sums.of_start[0][t] + sums.of_start[1][t]);
  }
  float later = start[0] + start[1];  // from the lane's first token on
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_sync(kAllLanes, later, (lane + step) % 32);
    if (lane + step < 32) later += x;
  }
  const float behind = __shfl_sync(kAllLanes, later, (lane + 1) % 32);
  *reinterpret_cast<float2*>(&sums.from_start[2 * lane]) = make_float2(later, start[1] + (lane < 31 ? behind : 0.f));
}
__device__ __forceinline__ void sum_to_end(GateSums& sums, const Decays& d, const float* exact_end, int lane) {
  if (exact_end != nullptr) take_end(sums, exact_end, d, lane);
  float until[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    until[e] = multiply_apart(exp2_fast(d.log[kChunk - 1] - d.log[t]), sums.of_end[0][t] + sums.of_end[1][t]);
  }
  float earlier = until[0] + until[1];  // up to the lane's second token
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float y = __shfl_up_sync(kAllLanes, earlier, step);
    if (lane >= step) earlier += y;
  }
  const float before = __shfl_up_sync(kAllLanes, earlier, 1), first = lane > 0 ? before : 0.f;
  *reinterpret_cast<float2*>(&sums.to_end[2 * lane]) = make_float2(first, first + until[0]);
}

// What passes through from the one state to the other, of so many warps; by a thread.
__device__ __forceinline__ void sum_through(GateSums& sums, const float* of_states) {
  float through = 0.f;
#pragma unroll
  for (int i = 0; i < kWalkers; ++i) through += of_states[i];
  sums.all_through = through;
}

// dg of token t: all of that, and what reaches the gate through the decays between tokens.
__device__ __forceinline__ void write_gate(const Problem& p, const GateSums& sums, const Decays& d, int64_t first, int valid, int h, int t) {
  if (t >= valid) return;
  const float through = sums.all_through, alpha = d.alpha[t];
  float between = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) between += sums.between[i][t];
  float dg = between + sums.from_start[t] + sums.to_end[t] + multiply_apart(exp2_fast(d.log[kChunk - 1]), through);
  if (alpha != 0.f) {
    dg /= alpha;
  } else {  // too steep: both parts of each decay are formed without it
    const float before_it = t > 0 ? d.log[t - 1] : 0.f, last = exp2_fast(fminf(d.log[kChunk - 1] - d.log[t], 0.f));
    float after = 0.f, until_it = 0.f;
    dg = between;
    for (int i = t; i < kChunk; ++i) after += exp2_fast(fminf(d.log[i] - d.log[t], 0.f)) * (sums.of_start[0][i] + sums.of_start[1][i]);
    for (int j = 0; j < t; ++j) until_it += exp2_fast(fminf(before_it - d.log[j], 0.f)) * (sums.of_end[0][j] + sums.of_end[1][j]);
    const float from_start = exp2_fast(before_it);
    dg += from_start * after + last * until_it + from_start * last * through;
  }
  p.dg[(first + t) * p.H + h] = dg;
}

// dbeta of token t, where the reverse walk has not found it.
__device__ __forceinline__ void write_beta(const Problem& p, const GateSums& sums, const Decays& d, int64_t first, int valid, int h, int t) {
  if (t < valid) p.dbeta[(first + t) * p.H + h] = sums.of_beta[t] / d.beta[t];
}

}  // namespace
