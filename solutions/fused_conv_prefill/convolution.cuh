// The convolution of a lane's channels, and its state.
#pragma once
#include "words.cuh"

namespace {

// One row, or one place of a state, of a lane's channels.
struct Row {
  uint32_t words[kPer / 2];

  __device__ __forceinline__ Row() : words{} {}
  __device__ __forceinline__ explicit Row(const uint4& x) : words{x.x, x.y, x.z, x.w} {}
};

// The weights, and the sums that rows so far have begun: `begun[i]` is of the token i on, but for its own row and those
// between. Each row goes to W sums at once, so that none of them is kept, and nothing moves from register to register.
template <int W, bool Bias>
struct Convolution {
  float weight[W][kPer], begun[W - 1][kPer];
  Row bias;  // packed: there are registers for the weights alone

  __device__ __forceinline__ Convolution(const Problem& p, int64_t channel, bool live) {
    uint32_t words[W * kPer / 2] = {};
    if (live) {
#pragma unroll
      for (int i = 0; i < W; ++i) {
        const uint4 x = load16(p.weight + channel * W + i * kPer);
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
      }
    }
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
#pragma unroll
      for (int j = 0; j < W; ++j) weight[j][c] = kept(element(words, c * W + j));
    }
    if (Bias && live) bias = Row(load16(p.bias + channel));
  }

  // Whatever was begun is not needed again: W - 1 rows follow, of which no sum is.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < W - 1; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) begun[i][c] = 0.f;
    }
  }

  // Takes a row in; `y`: the token's sum, now whole.
  __device__ __forceinline__ void take(const float (&x)[kPer], float (&y)[kPer]) {
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
      y[c] = fmaf(weight[W - 1][c], x[c], begun[0][c]);
#pragma unroll
      for (int i = 0; i < W - 2; ++i) begun[i][c] = fmaf(weight[W - 2 - i][c], x[c], begun[i + 1][c]);
      begun[W - 2][c] = Bias ? fmaf(weight[0][c], x[c], element(bias.words, c)) : weight[0][c] * x[c];
    }
  }

  __device__ __forceinline__ void take(const Row& row, float (&y)[kPer]) {
    float x[kPer];
#pragma unroll
    for (int c = 0; c < kPer; ++c) x[c] = element(row.words, c);
    take(x, y);
  }
};

// The state of a lane's channels, as it lies in its slot: [channel, W - 1].
template <int W>
struct State {
  static constexpr int kPlaces = W - 1, kWords = kPlaces * kPer / 2;
  uint32_t words[kWords];

  __device__ __forceinline__ State(const bf16* from, bool carried) : words{} {
    if (!carried) return;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      const uint4 x = load16(from + i * kPer);
      words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
    }
  }

  __device__ __forceinline__ void place(int i, float (&to)[kPer]) const {
#pragma unroll
    for (int c = 0; c < kPer; ++c) to[c] = element(words, c * kPlaces + i);
  }

  // One token on: its row comes last, the oldest goes.
  __device__ __forceinline__ void push(const Row& row) {
    uint32_t moved[kWords];
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      uint32_t half[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 2 * word + i;
        half[i] = at % kPlaces == kPlaces - 1 ? bits(row.words, at / kPlaces) : bits(words, at + 1);
      }
      moved[word] = half[0] | half[1] << 16;
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) words[word] = moved[word];
  }

  __device__ __forceinline__ void store(bf16* to) const {
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
  }
};

}  // namespace
