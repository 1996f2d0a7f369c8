// Sixteen rows of S [V, K] at a time, by one warp. Four lanes hold a row, and a thread has two, eight apart: so the codes of a
// thread, as halves, are the left operand of a product on tensor cores. With k and q in turn as columns of the right one, S k and
// S q come back to the thread that has the row; with the identity, S itself does, and u k is added to it on the way.
//
//   row g, g + 8:  lane 4 g + t has channels 64 j + 16 t + i, for i below 16
#pragma once
#include "code_rows.cuh"
#include "copies.cuh"
#include "halves.cuh"

namespace {

constexpr int kTileRows = 16;

// k and q of one head as operands, times a power of two each that makes the largest 8 to 16. Halves hold all bits of elements
// down to 2^-20 of the largest.
template <int D>
struct KeyAndQuery {
  static constexpr int J = D / 64;
  static_assert(J * 64 == D);
  uint32_t columns[J][8];  // k if g is even, q if it is odd: the thread's channels
  uint32_t spread[J][8];   // of k, twice channel 64 j + 16 (g / 2) + 2 n + g % 2: where column g of a product lies
  float k_unit, q_unit;    // one over these powers
  float kk, kq, qq;

  // As they are in memory.
  struct Words {
    Packed<16> own[J], spread[J];

    __device__ __forceinline__ void load(const bf16* of_q, const bf16* of_k) {
      const int lane = threadIdx.x % 32;
      const bf16* const from = lane & 4 ? of_q : of_k;
#pragma unroll
      for (int j = 0; j < J; ++j) {
        own[j].load(from + 64 * j + 16 * (lane % 4));
        spread[j].load(of_k + 64 * j + 16 * (lane / 8));
      }
    }
  };

  __device__ __forceinline__ explicit KeyAndQuery(const Words& words) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < J; ++j) {
#pragma unroll
      for (int n = 0; n < 8; ++n) largest = larger_of_pairs(largest, words.own[j].words[n]);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      largest = larger_of_pairs(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    // The exponent's field of the largest magnitude. Vectors below 2^-63 are as good as zero.
    const uint32_t exponent = max(max(largest >> 23 & 0xffu, largest >> 7 & 0xffu), 64u);
    const float times = __uint_as_float((257u - exponent) << 23), unit = __uint_as_float((exponent - 3u) << 23);
    const float k_times = __shfl_sync(kAllLanes, times, 0);
    float products[J][4] = {};
#pragma unroll
    for (int j = 0; j < J; ++j) {
      float own[16];
      words.own[j].widen_to(own);
#pragma unroll
      for (int n = 0; n < 8; ++n) columns[j][n] = to_two_halves(own[2 * n] * times, own[2 * n + 1] * times);
#pragma unroll
      for (int n = 0; n < 8; ++n) multiply_8(products[j], columns[j][n], 0, columns[j][n], products[j]);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint32_t two = words.spread[j].words[n];
        const float one = k_times * __uint_as_float(threadIdx.x & 4 ? two & 0xffff0000u : two << 16);
        spread[j][n] = to_two_halves(one, one);
      }
    }
    float with_k = products[0][0], with_q = products[0][1];  // of lane 0: k k, k q; of lane 4: q k, q q
#pragma unroll
    for (int j = 1; j < J; ++j) with_k += products[j][0], with_q += products[j][1];
    k_unit = __shfl_sync(kAllLanes, unit, 0), q_unit = __shfl_sync(kAllLanes, unit, 4);
    kk = __shfl_sync(kAllLanes, with_k, 0) * k_unit * k_unit;
    kq = __shfl_sync(kAllLanes, with_q, 0) * k_unit * q_unit;
    qq = __shfl_sync(kAllLanes, with_q, 4) * q_unit * q_unit;
  }
};

// What gates, key and query amount to, for sums of the operands above.
struct HeadFactors {
  float alpha, beta, k, held, seen, product;

  template <int D>
  __device__ __forceinline__ HeadFactors(const Gates& gate, const KeyAndQuery<D>& x, bool normalise, float scale)
      : alpha(gate.alpha), beta(gate.beta) {
    const Factors factor(normalise, x.qq, x.kk, x.kq);
    k = factor.k;
    held = gate.alpha * (factor.k * x.k_unit), seen = scale * gate.alpha * (factor.q * x.q_unit);
    product = scale * factor.product;
  }
};

// A thread's part of two rows.
template <class E, int D>
struct TwoRows {
  static constexpr int J = D / 64;
  uint4 words[2][J];
  float unit[2];  // the row's scale; after a step, the new one
  float v[2], o[2];

  // One token on. `key()`: k's first channel in memory. `codes`, `scale`: where words and unit of the first row stay in shared
  // memory; `write`: a place for a number of it. The second row is eight rows on.
  template <class Key>
  __device__ __forceinline__ void step(const KeyAndQuery<D>& x, const HeadFactors& head, Key key, uint32_t codes,
                                       const float* scale, float* write) {
    uint32_t pairs[2][J][8];
#pragma unroll
    for (int r = 0; r < 2; ++r) to_pairs(words[r], pairs[r]);
    float sums[J][4] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int j = 0; j < J; ++j) multiply_8(sums[j], pairs[0][j][n], pairs[1][j][n], x.columns[j][n], sums[j]);
    }
    float kept[2], add[2], writes[2];
    bool all = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float held = sums[0][2 * r], seen = sums[0][2 * r + 1];
#pragma unroll
      for (int j = 1; j < J; ++j) held += sums[j][2 * r], seen += sums[j][2 * r + 1];
      const float u = head.beta * fmaf(-head.held, unit[r] * held, v[r]);
      o[r] = fmaf(u, head.product, head.seen * (unit[r] * seen));
      kept[r] = head.alpha * unit[r];
      writes[r] = u * head.k;
      add[r] = writes[r] * x.k_unit * inverse_of(kept[r]);
      all &= is_usual_row(kept[r], writes[r], add[r]);
    }
    all = __all_sync(kAllLanes, all);
    if (!all && threadIdx.x % 4 == 0) write[0] = writes[0], write[8] = writes[1];
    {
      float S[2][J][16];
      renew(S, pairs, add, x.spread);
#pragma unroll
      for (int r = 0; r < 2; ++r) quantise(S[r], kept[r], words[r], unit[r]);
    }
    // Only rows that are not usual themselves, not all of the warp: a row has the same bits beside any other rows. What this
    // takes is not kept in registers for it.
    if (!all) {
      __syncwarp();
      const bf16* const of_k = key();
#pragma unroll
      for (int r = 0; r < 2; ++r) renew_plainly(r, x, head.alpha * scale[8 * r], write[8 * r], of_k, codes + 8 * r * D);
    }
  }

 private:
  static __device__ __forceinline__ void to_pairs(const uint4 (&words)[J], uint32_t (&pairs)[J][8]) {
#pragma unroll
    for (int j = 0; j < J; ++j) {
      const uint32_t four[4] = {words[j].x, words[j].y, words[j].z, words[j].w};
#pragma unroll
      for (int n = 0; n < 4; ++n) codes_to_halves<E>(four[n], pairs[j][2 * n], pairs[j][2 * n + 1]);
    }
  }

  // [16, 8] at a time: S, and k times u in two halves, whose sum differs from u by 2^-22 of it at most.
  static __device__ __forceinline__ void renew(float (&S)[2][J][16], const uint32_t (&pairs)[2][J][8],
                                               const float (&add)[2], const uint32_t (&spread)[J][8]) {
    const int lane = threadIdx.x % 32, one = lane / 4 - 2 * (lane % 4);  // rows 2 t, 2 t + 1 of column g
    const uint32_t identity = one == 0 ? 0x3c00u : one == 1 ? 0x3c000000u : 0;
    uint32_t halves[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float rest = add[r] - to_two_floats(to_two_halves(add[r], 0.f)).x;
      halves[r] = lane % 4 == 0 ? to_two_halves(add[r], rest) : 0;
    }
#pragma unroll
    for (int j = 0; j < J; ++j) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float nothing[4] = {};
        float written[4], sums[4];
        multiply_8(written, halves[0], halves[1], spread[j][n], nothing);
        multiply_8(sums, pairs[0][j][n], pairs[1][j][n], identity, written);
        S[0][j][2 * n] = sums[0], S[0][j][2 * n + 1] = sums[1], S[1][j][2 * n] = sums[2], S[1][j][2 * n + 1] = sums[3];
      }
    }
  }

  // Whether a row goes by products: a half holds `add`.
  static __device__ __forceinline__ bool is_usual_row(float kept, float write, float add) {
    return is_usual(kept, write) && fabsf(add) <= 0x1p15f;
  }

  // Row r anew, unless it is usual: S' = kept S + u k.
  __device__ __forceinline__ void renew_plainly(int r, const KeyAndQuery<D>& x, float kept, float write, const bf16* of_k,
                                                uint32_t codes) {
    float S[J][16];
#pragma unroll
    for (int j = 0; j < J; ++j) {
      keep_order();  // few registers at a time
      const uint4 four = load_shared(codes + 64 * j);
      const uint32_t words_of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t pairs[2];
        codes_to_halves<E>(words_of[n], pairs[0], pairs[1]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float2 two = to_two_floats(pairs[m]);
          S[j][4 * n + 2 * m] = kept * two.x, S[j][4 * n + 2 * m + 1] = kept * two.y;
        }
      }
      keep_order();
      Packed<16> k_words;
      k_words.load(of_k + 64 * j + 16 * (threadIdx.x % 4));
      float k[16];
      k_words.widen_to(k);
#pragma unroll
      for (int i = 0; i < 16; ++i) S[j][i] = fmaf(write, k[i], S[j][i]);
    }
    uint4 after[J];
    float now;
    quantise(S, 1.f, after, now);
    if (is_usual_row(kept, write, write * x.k_unit * inverse_of(kept))) return;
    unit[r] = now;
#pragma unroll
    for (int j = 0; j < J; ++j) words[r][j] = after[j];
  }

  // S in codes, and their scale. `unit`: what S is in.
  static __device__ __forceinline__ void quantise(float (&S)[J][16], float unit, uint4 (&words)[J], float& scale) {
    float largest = 0.f;
#pragma unroll
    for (int j = 0; j < J; ++j) {
#pragma unroll
      for (int i = 0; i < 16; ++i) largest = fmaxf(largest, fabsf(S[j][i]));
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    const float factor = factor_of<E>(unit, largest);
    scale = scale_of<E>(unit, largest);
#pragma unroll
    for (int j = 0; j < J; ++j) {
#pragma unroll
      for (int i = 0; i < 16; ++i) S[j][i] = __fmul_rn(S[j][i], factor);
      words[j] = to_codes<E>(S[j]);
    }
  }
};

}  // namespace
