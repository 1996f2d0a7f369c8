// What is right: the gated delta rule token by token, in float64.
#pragma once
#include "cases.h"

struct Expected {
  std::vector<double> output;       // [tokens, heads, kSize]
  std::vector<double> final_state;  // [sequences, heads, kSize, kSize]
  std::vector<double> checkpoints;  // [checkpoints, heads, kSize, kSize]
};

using Vector = std::vector<double>;

inline Vector vector_of(const std::vector<uint16_t>& from, int64_t row, Type type) {
  Vector x(kSize);
  for (int i = 0; i < kSize; ++i) x[i] = to_float(from[row * kSize + i], type);
  return x;
}

// S [V, K] <- alpha S + beta (v - alpha S k) k^T; the result is scale S q.
inline Vector step(Vector& S, double alpha, double beta, const Vector& q, const Vector& k, const Vector& v,
                   double scale) {
  Vector output(kSize);
  for (int i = 0; i < kSize; ++i) {
    double* row = &S[i * kSize];
    double seen = 0, sum = 0;
    for (int j = 0; j < kSize; ++j) seen += (row[j] *= alpha) * k[j];
    const double change = beta * (v[i] - seen);
    for (int j = 0; j < kSize; ++j) sum += (row[j] += change * k[j]) * q[j];
    output[i] = scale * sum;
  }
  return output;
}

template <class To, class From>
void copy_state(To* to, const From* from, bool transposed) {
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) to[i * kSize + j] = transposed ? from[j * kSize + i] : from[i * kSize + j];
  }
}

inline Expected recur(const Case& c, const Inputs& x, double scale) {
  constexpr int kState = kSize * kSize;
  const int heads = c.heads();
  Expected y;
  y.output.resize(x.bounds.back() * heads * kSize);
  y.final_state.resize(c.sequences() * heads * kState);
  y.checkpoints.resize(x.checkpoint_bounds.back() * heads * kState);
  for (int n = 0; n < c.sequences(); ++n) {
    for (int h = 0; h < heads; ++h) {
      const size_t place = (static_cast<size_t>(n) * heads + h) * kState;
      Vector S(kState);
      if (c.initial_state) copy_state(S.data(), x.initial_state.data() + place, c.k_first);
      for (int64_t t = x.bounds[n]; t < x.bounds[n + 1]; ++t) {
        const Vector q = vector_of(x.q, t * c.query_heads + h * c.query_heads / heads, c.type);
        const Vector k = vector_of(x.k, t * c.key_heads + h * c.key_heads / heads, c.type);
        const Vector v = vector_of(x.v, t * c.value_heads + h * c.value_heads / heads, c.type);
        const double alpha = c.gates ? x.alpha[t * heads + h] : 1., beta = c.gates ? x.beta[t * heads + h] : 1.;
        const Vector output = step(S, alpha, beta, q, k, v, scale);
        std::copy(output.begin(), output.end(), &y.output[(t * heads + h) * kSize]);
        const int64_t done = t + 1 - x.bounds[n], interval = kTokens * c.checkpoint_every;
        if (interval == 0 || done % interval != 0) continue;
        const int64_t checkpoint = x.checkpoint_bounds[n] + done / interval - 1;
        copy_state(&y.checkpoints[(checkpoint * heads + h) * kState], S.data(), false);
      }
      copy_state(&y.final_state[place], S.data(), c.k_first);
    }
  }
  return y;
}
