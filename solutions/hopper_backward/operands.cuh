// What a thread that walks makes of its parts of products. Value channels are rows: a thread has two of them, 16 warp + lane
// / 4 and eight further. By tokens, which are columns, it has four of every 16, whose decays lie side by side.
#pragma once
#include "products.cuh"

namespace {

using Slice = float[kHalves][32];  // of a state [V, K], 64 value channels: key channels 0 to 63, and the others
using Tokens = uint32_t[4][4];     // [64 value channels, 64 tokens] as a left operand

// The decay of pair e of 16 tokens.
__device__ __forceinline__ float2 pair_of(const float4& four, int e) {
  return e < 2 ? make_float2(four.x, four.y) : make_float2(four.z, four.w);
}

__device__ __forceinline__ void load_decays(float4 (&to)[4], uint32_t from, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = load_four(from + 16 * (lane % 4) + 64 * k);
}

// bits + x diag(decay), of 16-bit numbers and sums.
template <class E>
__device__ __forceinline__ void add_decayed(Tokens& bits, const float (&x)[32], const float4 (&decays)[4], float sign) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * k + 2 * e;
      const float2 value = unpack<E>(bits[k][e]), decay = pair_of(decays[k], e);
      bits[k][e] = pack<E>(fmaf(sign * decay.x, x[i], value.x), fmaf(sign * decay.y, x[i + 1], value.y));
    }
  }
}

// y + x diag(decay), of sums.
template <class E>
__device__ __forceinline__ void pack_sum(Tokens& bits, const float (&y)[32], const float (&x)[32], const float4 (&decays)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * k + 2 * e;
      const float2 decay = pair_of(decays[k], e);
      bits[k][e] = pack<E>(fmaf(decay.x, x[i], y[i]), fmaf(decay.y, x[i + 1], y[i + 1]));
    }
  }
}

template <class E>
__device__ __forceinline__ void pack_decayed(Tokens& bits, const float (&x)[32], const float4 (&decays)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 8 * k + 2 * e;
      const float2 decay = pair_of(decays[k], e);
      bits[k][e] = pack<E>(decay.x * x[i], decay.y * x[i + 1]);
    }
  }
}

// bits diag(decay), of 16-bit numbers; the decays are read where they are needed, which takes fewer registers.
template <class E>
__device__ __forceinline__ void decay_tokens(Tokens& to, const Tokens& bits, uint32_t decays, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float4 four = load_four(decays + 16 * (lane % 4) + 64 * k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 x = unpack<E>(bits[k][e]), decay = pair_of(four, e);
      to[k][e] = pack<E>(decay.x * x.x, decay.y * x.y);
    }
  }
  keep(to);
}

// S += x^T k, of what tokens write or erase and boxes whose rows are tokens: a product for each half of the key channels.
template <class E>
__device__ __forceinline__ void update_state(Slice& S, const Tokens& x, uint32_t boxes) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) multiply_by<E>(S[half], x, boxes + half * kBoxBytes, true);
}

__device__ __forceinline__ void settle_state(Slice& S) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) settle(S[half]);
}

// Here, and not where ptxas would: behind the wait for the products under way, between others that wait for it. It leaves alone what is in
// a branch. By one there is nothing to do.
__device__ __forceinline__ void scale_state(Slice& S, float factor) {
  if (factor == 1.f) return;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int i = 0; i < 32; ++i) S[half][i] *= factor;
  }
  settle_state(S);
}

// S as a left operand, and what that loses.
template <class E>
__device__ __forceinline__ void pack_state(uint32_t (&bits)[8][4], const Slice& S) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) bits[k][e] = pack<E>(S[k / 4][k % 4 * 8 + 2 * e], S[k / 4][k % 4 * 8 + 2 * e + 1]);
  }
  keep(bits);
}
template <class E>
__device__ __forceinline__ void pack_rest(uint32_t (&bits)[8][4], const Slice& S) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float x = S[k / 4][k % 4 * 8 + 2 * e], y = S[k / 4][k % 4 * 8 + 2 * e + 1];
      const float2 rounded = unpack<E>(pack<E>(x, y));
      bits[k][e] = pack<E>(x - rounded.x, y - rounded.y);
    }
  }
  keep(bits);
}

// What a thread has of tokens' values in a box whose rows are tokens: to there, as it is or times a decay; from there. A warp has 16
// channels.
template <class E>
__device__ __forceinline__ void store_tokens(const float (&x)[32], uint32_t box, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t bits[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) bits[e] = pack<E>(x[8 * k + 2 * e], x[8 * k + 2 * e + 1]);
    stmatrix_transposed(box + turned_place_of_lane(k, warp, lane), bits);
  }
}
// Of 16 tokens, 16 k to 16 k + 15.
template <class E>
__device__ __forceinline__ void store_decayed_tokens(int k, const float (&x)[32], const float4& decays, uint32_t box, int warp, int lane) {
  uint32_t bits[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 decay = pair_of(decays, e);
    bits[e] = pack<E>(decay.x * x[8 * k + 2 * e], decay.y * x[8 * k + 2 * e + 1]);
  }
  stmatrix_transposed(box + turned_place_of_lane(k, warp, lane), bits);
}
template <class E>
__device__ __forceinline__ void store_decayed(const float (&x)[32], const float4 (&decays)[4], uint32_t box, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) store_decayed_tokens<E>(k, x, decays[k], box, warp, lane);
}
__device__ __forceinline__ void load_tokens(Tokens& bits, uint32_t box, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) ldmatrix_transposed(bits[k], box + turned_place_of_lane(k, warp, lane));
}

// What tokens' values lose in 16 bits, to memory as a warp holds them.
template <class E>
__device__ __forceinline__ void write_rests(const float (&x)[32], uint4* to, int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t bits[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float first = x[8 * k + 2 * e], second = x[8 * k + 2 * e + 1];
      const float2 rounded = unpack<E>(pack<E>(first, second));
      bits[e] = pack<E>(first - rounded.x, second - rounded.y);
    }
    to[32 * k + lane] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
  }
}

// Two neighbouring key channels of a state in memory, [V, K] or [K, V].
__device__ __forceinline__ float2 load_pair(const float* from, bool k_first, int r, int c) {
  return k_first ? make_float2(from[r + c * kHeadSize], from[r + (c + 1) * kHeadSize])
                 : *reinterpret_cast<const float2*>(from + r * kHeadSize + c);
}

// Where a state lies, [V, K] or [K, V]; null: it is zeros. In the former, numbers of the other slice lie `slice` further, those of the next
// value channel `row`, and those of 32 key channels further `piece`.
struct StateAt {
  float* first;
  int slice, row, piece;
  bool k_first;
};
__device__ __forceinline__ StateAt whole_state(const float* states, int64_t nth, bool k_first) {
  float* const first = states == nullptr ? nullptr : const_cast<float*>(states) + nth * kHeadSize * kHeadSize;
  return {first, kSlice * kHeadSize, kHeadSize, 32, k_first};
}

// That behind segment n, or its gradient.
constexpr int kRowNumbers = kHeadSize / 2;  // in a row of dv: 32 of each slice
constexpr int kStateRows = kHeadSize * kHeadSize / kRowNumbers;
static_assert(2 * kStateRows <= kLeastOfSegment * kChunk);
__device__ __forceinline__ StateAt state_behind(const Problem& p, int n, int h, bool gradient) {
  const int64_t token = bound(p, n) + (gradient ? kStateRows : 0);
  return {p.segments.states + (token * p.H + h) * kRowNumbers, 32, 4 * p.H * kRowNumbers, p.H * kRowNumbers, false};
}
__device__ __forceinline__ float* number_of(const StateAt& at, int row, int column) {
  return at.first + row / kSlice * at.slice + row % kSlice * at.row + column / 32 * at.piece + column % 32;
}

// The state before a sequence, or a segment, and the gradient of that behind it.
__device__ __forceinline__ StateAt state_before(const Problem& p, int n, int h) {
  const Segments& all = p.segments;
  if (all.owners == nullptr) return whole_state(p.initial_state, at_place(p, n, h), p.k_first);
  const int owner = all.owners[n];
  if (owner < 0) return {};
  return all.firsts[owner] == n ? whole_state(all.initial_state, at_place(p, owner, h), all.k_first) : state_behind(p, n - 1, h, false);
}
__device__ __forceinline__ StateAt gradient_behind(const Problem& p, int n, int h) {
  const Segments& all = p.segments;
  if (all.owners == nullptr) return whole_state(p.dht, at_place(p, n, h), p.k_first);
  const int owner = all.owners[n];
  if (owner < 0) return {};
  return all.firsts[owner + 1] == n + 1 ? whole_state(all.dht, at_place(p, owner, h), all.k_first) : state_behind(p, n, h, true);
}

// A thread's part of a state.
__device__ __forceinline__ void load_state(Slice& S, const StateAt& at, int row, int column) {
  const float* const from = number_of(at, row, column);
#pragma unroll
  for (int i = 0; i < kHeadSize / 2; i += 2) {
    const int r = i % 4 / 2 * 8, c = i / 4 * 8;
    float2 pair = make_float2(0.f, 0.f);
    if (at.first != nullptr) {
      pair = at.k_first ? load_pair(at.first, true, row + r, column + c) : *reinterpret_cast<const float2*>(from + r * at.row + c / 32 * at.piece + c % 32);
    }
    S[i / 32][i % 32] = pair.x, S[i / 32][i % 32 + 1] = pair.y;
  }
}
__device__ __forceinline__ void begin_identity(Slice& S, int row, int column) {
#pragma unroll
  for (int i = 0; i < kHeadSize / 2; ++i) S[i / 32][i % 32] = row + i % 4 / 2 * 8 == column + i / 4 * 8 + i % 2 ? 1.f : 0.f;
}
__device__ __forceinline__ void save_state(const Slice& S, const StateAt& at, int row, int column) {
  float* const to = number_of(at, row, column);
#pragma unroll
  for (int i = 0; i < kHeadSize / 2; i += 2) {
    const int r = i % 4 / 2 * 8, c = i / 4 * 8;
    const float x = S[i / 32][i % 32], y = S[i / 32][i % 32 + 1];
    if (at.k_first) {
      float* const turned = at.first + row + r + (column + c) * kHeadSize;
      turned[0] = x, turned[kHeadSize] = y;
    } else {
      *reinterpret_cast<float2*>(to + r * at.row + c / 32 * at.piece + c % 32) = make_float2(x, y);
    }
  }
}

}  // namespace
