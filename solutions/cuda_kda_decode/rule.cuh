// Of one token: its gates, one decay a key channel, what its key and query amount to, and one value channel of the rule.
#pragma once
#include "instructions.cuh"

namespace {

// As they are in memory: asked for with the rest of a token, so that nothing is waited for twice. Of thread t the key
// channels t, t + Threads, ..
template <int D, int Threads>
struct RawGates {
  static constexpr int kOwn = (D + Threads - 1) / Threads;
  float A_log, dt_bias[kOwn];
  bf16 a[kOwn], b;

  template <class E>
  __device__ __forceinline__ RawGates(const Arguments<E>& p, int64_t row, int h)
      : A_log(p.A_log[h]), b(p.b[row * p.H + h]) {
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int channel = min(static_cast<int>(threadIdx.x) + n * Threads, D - 1);
      a[n] = p.a[(row * p.H + h) * D + channel];
      dt_bias[n] = p.dt_bias[h * D + channel];
    }
  }

  // The decay of every key channel, for all threads of the block to read once they have met.
  __device__ __forceinline__ void share_alphas(float (&alpha)[D], bool bounded, float lower_bound) const {
    const float rate = expf(A_log);
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const float x = __bfloat162float(a[n]) + dt_bias[n];
      float g;
      if (bounded) {
        g = lower_bound / (1.f + expf(-rate * x));
      } else {
        g = -rate * (fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))));  // softplus without a threshold
      }
      const int channel = threadIdx.x + n * Threads;
      if (D % Threads == 0 || channel < D) alpha[channel] = expf(g);
    }
  }

  __device__ __forceinline__ float beta() const { return __fdividef(1.f, 1.f + expf(-__bfloat162float(b))); }
};

// What a token's key and query amount to, from |q|^2, |k|^2 and q . k as they are in memory.
struct Factors {
  float q, k, product;

  __device__ __forceinline__ Factors(bool normalise, float q_square, float k_square, float dot)
      : q(normalise ? rsqrtf(q_square + kNormEpsilon) : 1.f),
        k(normalise ? rsqrtf(k_square + kNormEpsilon) : 1.f),
        product(dot * q * k) {}
};

// One value channel. `held` and `seen` are S k and S q of the decayed state, k and q as they are in memory. Returns the
// output; u becomes the factor of k in the write.
__device__ __forceinline__ float read_out(float held, float seen, float v, float beta, const Factors& factor,
                                          float scale, float& u) {
  u = beta * fmaf(-held, factor.k, v);  // the error, of the decayed state
  const float o = scale * fmaf(u, factor.product, seen * factor.q);
  u *= factor.k;
  return o;
}

}  // namespace
