// What the kernels are run on.
#pragma once
#include "numbers.h"

#ifndef HEAD_SIZE
#define HEAD_SIZE 128
#endif
constexpr int kSize = HEAD_SIZE;
constexpr int kTokens = 64;  // of a chunk

struct Case {
  const char* name;
  std::vector<int> lengths;
  int query_heads = 1, key_heads = 1, value_heads = 1;
  Type type = Type::bfloat16;
  bool gates = true, initial_state = true;
  bool k_first = false;  // and gates are logs
  bool repeated_keys = false;
  float resets = 0.f;  // this part of the tokens, and one where the second chunk begins
  float least_alpha = 0.5f, least_beta = 0.f, largest_beta = 1.f;
  int checkpoint_every = 1;  // chunks

  int heads() const { return std::max(query_heads, value_heads); }
  int sequences() const { return static_cast<int>(lengths.size()); }
  int chunks() const { return (*std::max_element(lengths.begin(), lengths.end()) + kTokens - 1) / kTokens; }
};

// NaNs all over, and before and behind, where nobody may write.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t size = 0) : all_(size + 2 * kMargin) {
    std::memset(all_.data(), 0xff, all_.size() * sizeof(T));
  }
  T* data() { return all_.data() + kMargin; }
  const T* data() const { return all_.data() + kMargin; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return all_.data() + all_.size() - kMargin; }
  bool has_bits_of(const Guarded& other) const {
    return all_.size() == other.all_.size() && std::memcmp(all_.data(), other.all_.data(), all_.size() * sizeof(T)) == 0;
  }
  bool intact() const {
    const auto is_nan = [](T x) {
      constexpr uint32_t kOnes = ~0u;
      return std::memcmp(&x, &kOnes, sizeof x) == 0;
    };
    const auto begin = all_.begin(), end = all_.end();
    return std::all_of(begin, begin + kMargin, is_nan) && std::all_of(end - kMargin, end, is_nan);
  }

 private:
  static constexpr ptrdiff_t kMargin = 4096;
  std::vector<T> all_;
};

struct Inputs {
  std::vector<int64_t> bounds = {0}, checkpoint_bounds = {0};
  std::vector<uint16_t> q, k, v;  // [tokens, heads, kSize]
  std::vector<float> alpha;       // [tokens, heads]
  Guarded<float> g, beta;         // [tokens, heads]
  Guarded<float> initial_state;   // [sequences, heads, kSize, kSize]
};

inline Inputs draw(const Case& c) {
  Inputs x;
  for (const int length : c.lengths) {
    x.bounds.push_back(x.bounds.back() + length);
    const int checkpoints = c.checkpoint_every == 0 ? 0 : length / (kTokens * c.checkpoint_every);
    x.checkpoint_bounds.push_back(x.checkpoint_bounds.back() + checkpoints);
  }
  const size_t tokens = x.bounds.back(), heads = c.heads();
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  const auto vectors = [&](size_t count, float size) {
    std::vector<uint16_t> drawn(count * kSize);
    for (uint16_t& number : drawn) number = to_bits(size * normal(generator), c.type);
    return drawn;
  };
  x.q = vectors(tokens * c.query_heads, 1.f);
  x.k = vectors(tokens * c.key_heads, 1.f / std::sqrt(float{kSize}));
  x.v = vectors(tokens * c.value_heads, 1.f);
  if (c.repeated_keys) {  // one, of length 1: with beta near 2 errors hardly decay
    double squares = 0;
    for (int i = 0; i < kSize; ++i) squares += std::pow(to_float(x.k[i], c.type), 2.);
    const float factor = static_cast<float>(1. / std::sqrt(squares));
    for (int i = 0; i < kSize; ++i) x.k[i] = to_bits(factor * to_float(x.k[i], c.type), c.type);
    for (size_t i = kSize; i < x.k.size(); ++i) x.k[i] = x.k[i - kSize];
  }
  x.g = x.beta = Guarded<float>(tokens * heads);
  x.initial_state = Guarded<float>(c.sequences() * heads * kSize * kSize);
  for (size_t i = 0; i < tokens * heads; ++i) {
    const bool reset = uniform(generator) < c.resets || (c.resets > 0.f && i / heads == kTokens);
    x.alpha.push_back(reset ? 0.f : c.least_alpha + (1.f - c.least_alpha) * uniform(generator));
    x.g[i] = c.k_first ? std::log(x.alpha[i]) : x.alpha[i];
    x.beta[i] = c.least_beta + (c.largest_beta - c.least_beta) * uniform(generator);
  }
  for (float& number : x.initial_state) number = normal(generator);
  return x;
}
