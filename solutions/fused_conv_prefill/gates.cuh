// Decay and step size of each token and value head.
#pragma once
#include "problem.cuh"

namespace {

// Of all value heads of a block, from head `first` on, for tokens from .. to. Tokens that are skipped do nothing to a state.
__device__ __forceinline__ void write_gates(const Problem& p, int first, int count, int from, int to, bool live) {
#pragma unroll 1
  for (int i = threadIdx.x; i < (to - from) * count; i += kThreads) {
    const int h = first + i % count;
    const int64_t at = static_cast<int64_t>(from + i / count) * p.H + h;
    float alpha = 1.f, beta = 0.f;
    if (live) {
      const float x = __bfloat162float(p.a[at]) + __bfloat162float(p.dt_bias[h]);
      const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
      alpha = expf(-expf(p.A_log[h]) * softplus);
      beta = reciprocal(1.f + expf(-__bfloat162float(p.b[at])));
    }
    p.g[at] = alpha, p.beta[at] = beta;
  }
}

}  // namespace
