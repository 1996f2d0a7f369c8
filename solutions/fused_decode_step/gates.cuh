// A token's decay and step size.
#pragma once
#include "problem.cuh"

namespace {

// As they are in memory: asked for with the rest of a token, so that nothing is waited for twice.
struct RawGates {
  float A_log;
  bf16 a, dt_bias, b;

  __device__ __forceinline__ RawGates(const Arguments& p, int64_t row, int h)
      : A_log(p.A_log[h]), a(p.a[row * p.H + h]), dt_bias(p.dt_bias[h]), b(p.b[row * p.H + h]) {}
};

struct Gates {
  float alpha, beta;

  __device__ __forceinline__ explicit Gates(const RawGates& raw) {
    const float x = __bfloat162float(raw.a) + __bfloat162float(raw.dt_bias);
    const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
    alpha = expf(-expf(raw.A_log) * softplus);
    beta = __fdividef(1.f, 1.f + expf(-__bfloat162float(raw.b)));
  }
};

}  // namespace
