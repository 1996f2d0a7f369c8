// What is right: the gradients of the gated delta rule token by token, in float64.
#pragma once
#include "hopper_emulation/cases.h"

using Vector = std::vector<double>;

// The inputs that a forward pass does not have.
struct Cotangents {
  std::vector<uint16_t> output;   // [tokens, heads, kSize]
  Guarded<float> final_state;     // [sequences, heads, kSize, kSize]
};

inline Cotangents draw_cotangents(const Case& c, const Inputs& x) {
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  Cotangents y{std::vector<uint16_t>(x.bounds.back() * c.heads() * kSize), Guarded<float>(c.sequences() * c.heads() * kSize * kSize)};
  for (uint16_t& number : y.output) number = to_bits(normal(generator), c.type);
  for (float& number : y.final_state) number = normal(generator);
  return y;
}

struct Gradients {
  Vector dq, dk, dv, dg, dbeta, dh0;
};

namespace recurrence {

constexpr int kState = kSize * kSize;

inline Vector vector_of(const std::vector<uint16_t>& from, int64_t row, Type type) {
  Vector x(kSize);
  for (int i = 0; i < kSize; ++i) x[i] = to_float(from[row * kSize + i], type);
  return x;
}

// [V, K], whichever way it lies.
inline Vector state_of(const float* from, bool k_first) {
  Vector S(kState);
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) S[i * kSize + j] = from[k_first ? j * kSize + i : i * kSize + j];
  }
  return S;
}

inline Vector times(const Vector& S, const Vector& k) {  // S k
  Vector y(kSize);
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) y[i] += S[i * kSize + j] * k[j];
  }
  return y;
}
inline Vector turned_times(const Vector& S, const Vector& v) {  // S^T v
  Vector y(kSize);
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) y[j] += S[i * kSize + j] * v[i];
  }
  return y;
}
inline void add_outer(Vector& S, double factor, const Vector& v, const Vector& k) {
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) S[i * kSize + j] += factor * v[i] * k[j];
  }
}
inline double dot(const Vector& x, const Vector& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}
inline void scale(Vector& x, double factor) {
  for (double& number : x) number *= factor;
}
inline void add_to(Vector& sums, int64_t row, double factor, const Vector& x) {
  for (int i = 0; i < kSize; ++i) sums[row * kSize + i] += factor * x[i];
}

}  // namespace recurrence

inline Gradients recur_back(const Case& c, const Inputs& x, const Cotangents& cotangents, double scale, bool with_output,
                            bool with_state) {
  using namespace recurrence;
  const int64_t tokens = x.bounds.back(), heads = c.heads();
  Gradients y{Vector(tokens * c.query_heads * kSize), Vector(tokens * c.key_heads * kSize), Vector(tokens * c.value_heads * kSize),
              Vector(tokens * heads), Vector(tokens * heads), Vector(c.sequences() * heads * kState)};
  for (int n = 0; n < c.sequences(); ++n) {
    for (int h = 0; h < heads; ++h) {
      const size_t place = (static_cast<size_t>(n) * heads + h) * kState;
      const auto q_row = [&](int64_t t) { return t * c.query_heads + h * c.query_heads / heads; };
      const auto k_row = [&](int64_t t) { return t * c.key_heads + h * c.key_heads / heads; };
      const auto v_row = [&](int64_t t) { return t * c.value_heads + h * c.value_heads / heads; };
      const auto alpha_of = [&](int64_t t) { return c.gates ? x.alpha[t * heads + h] : 1.; };
      const auto beta_of = [&](int64_t t) { return c.gates ? x.beta[t * heads + h] : 1.; };
      Vector S(kState), dS(kState);
      if (c.initial_state) S = state_of(x.initial_state.data() + place, c.k_first);
      if (with_state) dS = state_of(cotangents.final_state.data() + place, c.k_first);
      std::vector<Vector> before;
      for (int64_t t = x.bounds[n]; t < x.bounds[n + 1]; ++t) {
        before.push_back(S);
        const Vector k = vector_of(x.k, k_row(t), c.type), v = vector_of(x.v, v_row(t), c.type);
        recurrence::scale(S, alpha_of(t));
        Vector r = times(S, k);
        for (int i = 0; i < kSize; ++i) r[i] = v[i] - r[i];
        add_outer(S, beta_of(t), r, k);
      }
      for (int64_t t = x.bounds[n + 1] - 1; t >= x.bounds[n]; --t) {
        const double alpha = alpha_of(t), beta = beta_of(t);
        const Vector q = vector_of(x.q, q_row(t), c.type), k = vector_of(x.k, k_row(t), c.type);
        const Vector v = vector_of(x.v, v_row(t), c.type);
        Vector dO = vector_of(cotangents.output, t * heads + h, c.type);
        if (!with_output) recurrence::scale(dO, 0);
        Vector decayed = before[t - x.bounds[n]], r;
        recurrence::scale(decayed, alpha);
        r = times(decayed, k);
        for (int i = 0; i < kSize; ++i) r[i] = v[i] - r[i];
        Vector after = decayed;
        add_outer(after, beta, r, k);
        add_outer(dS, scale, dO, q);
        add_to(y.dq, q_row(t), scale, turned_times(after, dO));
        const Vector du = times(dS, k);
        y.dbeta[t * heads + h] = dot(du, r);
        add_to(y.dv, v_row(t), beta, du);
        add_to(y.dk, k_row(t), beta, turned_times(dS, r));
        add_to(y.dk, k_row(t), -beta, turned_times(decayed, du));
        add_outer(dS, -beta, du, k);
        const double dalpha = dot(before[t - x.bounds[n]], dS);
        y.dg[t * heads + h] = c.gates && c.k_first ? alpha * dalpha : dalpha;
        recurrence::scale(dS, alpha);
      }
      for (int i = 0; i < kSize; ++i) {
        for (int j = 0; j < kSize; ++j) y.dh0[place + (c.k_first ? j * kSize + i : i * kSize + j)] = dS[i * kSize + j];
      }
    }
  }
  return y;
}
