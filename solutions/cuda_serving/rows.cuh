// S [V, K] in registers: eight lanes hold a row, and a thread has its part of a few neighbouring rows. One token of the rule.
#pragma once
#include "words.cuh"

namespace {

template <class E, int D>
struct Tile {
  static constexpr int P = kPer<E>, C = D / (kLanes * P);  // elements of an access, and accesses of a row, a thread
  static constexpr int R = D == 256 ? 2 : 4;                // rows of a thread
  static constexpr int kChannels = kThreads / kLanes * R;   // value channels of a block
  static constexpr int kTiles = D / kChannels;
  static_assert(C * kLanes * P == D && kTiles * kChannels == D);
};

// Where a block is, and in it a thread.
template <class E, int D>
struct Place {
  using T = Tile<E, D>;
  int64_t row;   // of the batch, or the sequence
  int h, channel, key;

  __device__ __forceinline__ explicit Place(int H) {
    const int64_t pair = blockIdx.x / T::kTiles;
    row = pair / H, h = static_cast<int>(pair % H);
    channel = static_cast<int>(blockIdx.x % T::kTiles) * T::kChannels + static_cast<int>(threadIdx.x / kLanes) * T::R;
    key = static_cast<int>(threadIdx.x % kLanes) * T::P;
  }

  // Of a thread's first element, in a slot of [H, D, D].
  __device__ __forceinline__ int64_t part() const { return (static_cast<int64_t>(h) * D + channel) * D + key; }
};

// What a thread needs of a token, as it is in memory.
template <class E, int D>
struct Token {
  using T = Tile<E, D>;
  Packed<T::P> q[T::C], k[T::C];
  Packed<T::R> v;

  __device__ __forceinline__ void load(const bf16* from_q, const bf16* from_k, const bf16* from_v, const Place<E, D>& at) {
#pragma unroll
    for (int c = 0; c < T::C; ++c) {
      q[c].load(from_q + at.key + c * kLanes * T::P);
      k[c].load(from_k + at.key + c * kLanes * T::P);
    }
    v.load(from_v + at.channel);
  }
};

template <class E, int D>
struct Rows {
  using T = Tile<E, D>;
  static constexpr int R = T::R, C = T::C, P = T::P;
  float S[R][C][P];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int e = 0; e < P; ++e) S[r][c][e] = 0.f;
  }

  __device__ __forceinline__ void load(const E* from) {
    uint4 words[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < C; ++c) words[r][c] = *reinterpret_cast<const uint4*>(from + r * D + c * kLanes * P);
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < C; ++c) unpack(words[r][c], S[r][c]);
  }

  __device__ __forceinline__ void store(E* to) const {
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < C; ++c) *reinterpret_cast<uint4*>(to + r * D + c * kLanes * P) = pack(S[r][c]);
  }

  // One token on; `o`: what each row reads. All sums of a row are taken over its eight lanes at once.
  __device__ __forceinline__ void step(const Token<E, D>& token, float alpha, float beta, bool normalise, float scale,
                                       float (&o)[R]) {
    float q[C][P], k[C][P], v[R], sums[2 * R + 3] = {};
#pragma unroll
    for (int c = 0; c < C; ++c) token.q[c].widen_to(q[c]), token.k[c].widen_to(k[c]);
    token.v.widen_to(v);
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int e = 0; e < P; ++e) {
        sums[2 * R] = fmaf(q[c][e], q[c][e], sums[2 * R]);
        sums[2 * R + 1] = fmaf(k[c][e], k[c][e], sums[2 * R + 1]);
        sums[2 * R + 2] = fmaf(q[c][e], k[c][e], sums[2 * R + 2]);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          sums[2 * r] = fmaf(S[r][c][e], k[c][e], sums[2 * r]);
          sums[2 * r + 1] = fmaf(S[r][c][e], q[c][e], sums[2 * r + 1]);
        }
      }
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2)
#pragma unroll
      for (int n = 0; n < 2 * R + 3; ++n) sums[n] += __shfl_xor_sync(kAllLanes, sums[n], offset);
    const float of_q = normalise ? rsqrtf(sums[2 * R] + kNormEpsilon) : 1.f;
    const float of_k = normalise ? rsqrtf(sums[2 * R + 1] + kNormEpsilon) : 1.f;
    const float product = sums[2 * R + 2] * of_q * of_k;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float u = beta * fmaf(-alpha, sums[2 * r] * of_k, v[r]);  // the error, of the decayed state
      o[r] = scale * fmaf(u, product, alpha * (sums[2 * r + 1] * of_q));
      u *= of_k;
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int e = 0; e < P; ++e) S[r][c][e] = fmaf(u, k[c][e], alpha * S[r][c][e]);
    }
  }

  // The first lane of a row has the outputs of its rows.
  static __device__ __forceinline__ void write(bf16* to, const float (&o)[R]) {
    uint32_t words[R / 2];
#pragma unroll
    for (int r = 0; r < R; r += 2) words[r / 2] = narrow(o[r], o[r + 1]);
    if constexpr (R == 4) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<uint32_t*>(to) = words[0];
    }
  }
};

}  // namespace
