// Decays of a chunk, and products that decay: x_ij gamma_i / gamma_j for i >= j, by warps of 16 rows each.
#pragma once
#include "shared.cuh"

namespace {

// The least log2 of alpha: of alpha = 0 too, which resets the state. Whatever reaches over such a token has a log of less
// than the least of a float, and is exactly 0. A sum of 64 such logs is known to 2^-10, so ratios of others to less than
// 0.1%, less than bfloat16 rounds, where every token resets; to 1e-5 or so where one does.
constexpr float kLeastLog = -160.f;

// What a lane has of a chunk's gates: of tokens 2 lane and 2 lane + 1.
struct Gates {
  float g[2], beta[2];
};

// Those of the first `valid` tokens from `first` on. Behind them: alpha 1, beta 0.
__device__ __forceinline__ Gates load_gates(const Problem& p, int64_t first, int valid, int h, int lane) {
  Gates x;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int t = 2 * lane + e;
    const int64_t at = (first + t) * p.H + h;
    x.g[e] = t < valid && p.g != nullptr ? __ldg(p.g + at) : p.log_gates ? 0.f : 1.f;
    x.beta[e] = t < valid ? p.beta != nullptr ? __ldg(p.beta + at) : 1.f : 0.f;
  }
  return x;
}

// By a warp.
__device__ __forceinline__ void find_decays(const Problem& p, const Gates& gates, Decays& d, float (&beta)[kChunk], int lane) {
  float own[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float log = p.log_gates ? 1.4426950408889634f * gates.g[e] : log2f(gates.g[e]);
    own[e] = log < kLeastLog ? kLeastLog : log;  // a NaN stays one
  }
  float sum = own[0] + own[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += x;
  }
  const float logs[2] = {sum - own[1], sum};
  const float block_end = __shfl_sync(kAllLanes, sum, lane | 7), end = __shfl_sync(kAllLanes, sum, 31);
  const auto write = [&](float (&to)[kChunk], float x, float y) {
    *reinterpret_cast<float2*>(&to[2 * lane]) = make_float2(x, y);
  };
  write(beta, gates.beta[0], gates.beta[1]);
  write(d.log, logs[0], logs[1]);
  write(d.factor, exp2_fast(block_end - logs[0]), exp2_fast(block_end - logs[1]));
  write(d.to_end, exp2_fast(end - logs[0]), exp2_fast(end - logs[1]));
  write(d.from_start, exp2_fast(logs[0]), exp2_fast(logs[1]));
}

// What a lane multiplies products by. It has rows 16 warp + lane / 4, and eight further, and columns 16 m + 2 (lane % 4),
// one and 8 and 9 further, in the order of a left operand: two of the first row, of the second, of the next eight columns.
struct Weights {
  float diagonal[8];  // of the block on the diagonal: zeros above it
  float rows[3][2];   // of those left of it: gamma_i over gamma at the end of block m
};

__device__ __forceinline__ Weights weigh(const Decays& d, const float (&by_row)[2], int warp, int lane) {
  const int row = 16 * warp + lane / 4;
  const float log[2] = {d.log[row], d.log[row + 8]};
  Weights w;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = 8 * half + 2 * (lane % 4);
    const float2 logs = *reinterpret_cast<const float2*>(&d.log[16 * warp + column]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float ratio = exp2_fast(log[e / 2] - (e % 2 == 0 ? logs.x : logs.y));
      w.diagonal[4 * half + e] = column + e % 2 <= lane / 4 + e / 2 * 8 ? by_row[e / 2] * ratio : 0.f;
    }
  }
#pragma unroll
  for (int m = 0; m < 3; ++m) {  // of no use from m = warp on
    const float end = d.log[16 * m + 15];
#pragma unroll
    for (int r = 0; r < 2; ++r) w.rows[m][r] = by_row[r] * exp2_fast(log[r] - end);
  }
  return w;
}

// x: products of the block on the diagonal. Which they are is found here, and not kept in registers over a loop.
__device__ __forceinline__ void weigh_diagonal(const Weights& w, const float (&products)[32], int warp, float (&x)[8]) {
  const int m = anew(warp);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float low = m == 0 ? products[e] : products[8 + e], high = m == 2 ? products[16 + e] : products[24 + e];
    x[e] = w.diagonal[e] * (m < 2 ? low : high);
  }
}

// x: those of block m, left of it.
__device__ __forceinline__ void weigh_left(const Decays& d, const Weights& w, const float (&products)[32], int m, int lane,
                                           float (&x)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 columns = *reinterpret_cast<const float2*>(&d.factor[16 * m + 8 * half + 2 * (lane % 4)]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[4 * half + e] = w.rows[m][e / 2] * (e % 2 == 0 ? columns.x : columns.y) * products[8 * m + 4 * half + e];
    }
  }
}

// Where a lane's row of a 16 x 16 block lies: the second and third of its four cores in turns.
__device__ __forceinline__ uint32_t turned(int lane) { return (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16; }

// P = scale (Gamma * Q K^T) of a chunk, from `products` = Q K^T; by four warps.
template <class E>
__device__ __forceinline__ void write_p(const float (&products)[32], const Decays& d, const Weights& w, uint32_t to, int warp,
                                        int lane) {
  const auto write = [&](const float (&x)[8], int m) {
    const uint32_t words[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
    stmatrix(to + block_of_square(warp, m) + turned(lane), words);
  };
  float x[8];
  weigh_diagonal(w, products, warp, x);
  write(x, warp);
#pragma unroll
  for (int m = 0; m < 3; ++m) {
    if (m >= warp) break;
    weigh_left(d, w, products, m, lane, x);
    write(x, m);
  }
}

// The blocks of P above the diagonal, which stay zero; by four warps.
__device__ __forceinline__ void clear_p(uint32_t to, int warp, int lane) {
  for (int i = warp; i < 6; i += 4) {
    const int r = i < 3 ? 0 : i < 5 ? 1 : 2, column = i < 3 ? i + 1 : i < 5 ? i - 1 : 3;
    store_shared(to + block_of_square(r, column) + 16 * lane, make_uint4(0, 0, 0, 0));
  }
}

// products [64, 64] = a b^T, of boxes of 64 rows and 128 channels.
template <class E>
__device__ __forceinline__ void multiply_boxes(float (&products)[32], uint32_t a, uint32_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int at = k / 4 * kBoxBytes + k % 4 * 32;
    wgmma_shared<E>(products, descriptor(a, at), descriptor(b, at), k > 0);
  }
  wgmma_commit();
}

}  // namespace
