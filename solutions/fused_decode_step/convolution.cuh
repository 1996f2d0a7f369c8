// The convolution of two neighbouring channels, and its state.
#pragma once
#include "problem.cuh"

namespace {

// Channels 2 i and 2 i + 1 of the convolution: their inputs, as they are in memory, in 32-bit words of two.
template <int W>
struct ChannelPair {
  uint32_t x, bias, weight[W], state[W - 1];

  __device__ __forceinline__ void load_inputs(const Arguments& p, int64_t row, int channel) {
    x = load_words<1>(p.qkv + row * p.conv_dim + channel).word[0];
    bias = p.conv_bias == nullptr ? 0u : load_words<1>(p.conv_bias + channel).word[0];
    copy(load_words<W>(p.conv_weight + static_cast<int64_t>(channel) * W), weight);
  }

  __device__ __forceinline__ void load_state(const bf16* slot, int channel) {
    copy(load_words<W - 1>(slot + static_cast<int64_t>(channel) * (W - 1)), state);
  }

  // The inputs but the oldest, and the token's.
  __device__ __forceinline__ void store_state(bf16* slot, int channel) const {
    Words<W - 1> next;
#pragma unroll
    for (int n = 0; n < W - 1; ++n) next.word[n] = input(2 * n) | input(2 * n + 1) << 16;
    store_words(slot + static_cast<int64_t>(channel) * (W - 1), next);
  }

  __device__ __forceinline__ float2 convolved() const { return make_float2(one(0), one(1)); }

 private:
  template <int N>
  static __device__ __forceinline__ void copy(const Words<N>& from, uint32_t (&to)[N]) {
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = from.word[n];
  }

  // Element n of the next state: W - 1 inputs of the first channel, then of the second.
  __device__ __forceinline__ uint32_t input(int n) const {
    const int channel = n / (W - 1), j = n % (W - 1) + 1;
    return j < W - 1 ? bits_of(state, channel * (W - 1) + j) : x >> 16 * channel & 0xffffu;
  }

  __device__ __forceinline__ float one(int channel) const {
    float y = widened(bias, channel);
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int at = channel * W + j, from = channel * (W - 1) + j;
      y = fmaf(widened(weight[at / 2], at % 2), widened(state[from / 2], from % 2), y);
    }
    constexpr int kLast = W - 1;
    const int at = channel * W + kLast;
    return silu(fmaf(widened(weight[at / 2], at % 2), widened(x, channel), y));
  }
};

}  // namespace
