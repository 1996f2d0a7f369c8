// Of one token: its gates, what its key and query amount to, and one value channel of the rule.
#pragma once
#include "instructions.cuh"

namespace {

// As they are in memory: asked for with the rest of a token, so that nothing is waited for twice.
struct RawGates {
  float A_log;
  bf16 a, dt_bias, b;

  template <class E>
  __device__ __forceinline__ RawGates(const Arguments<E>& p, int64_t token, int h)
      : A_log(p.A_log[h]), a(p.a[token * p.H + h]), dt_bias(p.dt_bias[h]), b(p.b[token * p.H + h]) {}
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

// What a token's key and query amount to, from |q|^2, |k|^2 and q . k as they are in memory.
struct Factors {
  float q, k, product;

  __device__ __forceinline__ Factors(bool normalise, float q_square, float k_square, float dot)
      : q(normalise ? rsqrtf(q_square + kNormEpsilon) : 1.f),
        k(normalise ? rsqrtf(k_square + kNormEpsilon) : 1.f),
        product(dot * q * k) {}
};

// One value channel. `held` and `seen` are S k and S q of the state before its decay, k and q as they are in memory.
// Returns the output; u becomes the factor of k in the write.
__device__ __forceinline__ float read_out(float held, float seen, float v, const Gates& gate, const Factors& factor,
                                          float scale, float& u) {
  u = gate.beta * fmaf(-gate.alpha, held * factor.k, v);  // the error, of the decayed state
  const float o = scale * fmaf(u, factor.product, gate.alpha * (seen * factor.q));
  u *= factor.k;
  return o;
}

}  // namespace
