// Decays of a chunk, and products that decay: x_ij gamma_i / gamma_j for i >= j, by warps of 16 rows each.
#pragma once
#include "shared.cuh"

namespace {

// The least log2 of alpha: of alpha = 0 too, which resets the state. Whatever reaches over such a token has a log of less
// than the least of a float, and is exactly 0. A sum of 64 such logs is known to 2^-10, so ratios of others to less than
// 0.1%, less than bfloat16 rounds, where every token resets; to 1e-5 or so where one does.
constexpr float kLeastLog = -160.f;

// What a warp keeps of a chunk's decays to prepare it.
struct Rows {
  float log[kChunk], factor[kChunk], beta[kChunk];  // the first two as in Logs; at first g is where log will be
};

// A token's g or beta, of heads from h on, by a block of 128 threads: g by the first half. On their way from `load_gates` on;
// `write` has them in their rows.
struct Gates {
  const float* from;
  float4 four;
  float otherwise;  // behind the tokens: alpha 1, beta 0
  bool given;
};

// Whether heads from h on can be read four at a time: h is a multiple of four, too.
__device__ __forceinline__ bool by_fours(const Problem& p, int heads) { return heads == 4 && p.H % 4 == 0; }

// Of `valid` tokens from `first` on.
__device__ __forceinline__ Gates load_gates(const Problem& p, int64_t first, int valid, int h, int heads) {
  const int t = threadIdx.x % kChunk;
  const bool is_g = threadIdx.x < kChunk, inside = t < valid;
  const float* const gates = is_g ? p.g : p.beta;
  Gates x;
  x.from = gates + (first + t) * p.H + h;
  x.given = inside && gates != nullptr;
  x.otherwise = is_g ? p.log_gates ? 0.f : 1.f : inside ? 1.f : 0.f;
  x.four = make_float4(x.otherwise, x.otherwise, x.otherwise, x.otherwise);
  if (x.given && by_fours(p, heads)) x.four = __ldg(reinterpret_cast<const float4*>(x.from));
  return x;
}

__device__ __forceinline__ void write_gates(const Problem& p, const Gates& x, int heads, Rows* rows) {
  const auto write = [&](int i, float value) {
    float* const to = threadIdx.x < kChunk ? rows[i].log : rows[i].beta;
    to[threadIdx.x % kChunk] = value;
  };
  if (by_fours(p, heads)) {
    write(0, x.four.x), write(1, x.four.y), write(2, x.four.z), write(3, x.four.w);
  } else {
    for (int i = 0; i < heads; ++i) write(i, x.given ? __ldg(x.from + i) : x.otherwise);
  }
}

// By a warp. `logs`: null where P is prepared.
__device__ __forceinline__ void find_decays(const Problem& p, Rows& rows, Decays& d, Logs* logs, int lane, float* inverse = nullptr) {
  const float2 g = *reinterpret_cast<const float2*>(&rows.log[2 * lane]);
  float own[2];
#ifdef LONG_LOOPS
  float x = g.x;
#pragma unroll 1
  for (int e = 0; e < 2; ++e) {  // the other one comes into its place
    const float log = p.log_gates ? 1.4426950408889634f * x : log2f(x);
    own[0] = own[1], own[1] = log < kLeastLog ? kLeastLog : log, x = g.y;
  }
#else
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float x = e == 0 ? g.x : g.y, log = p.log_gates ? 1.4426950408889634f * x : log2f(x);
    own[e] = log < kLeastLog ? kLeastLog : log;  // a NaN stays one
  }
#endif
  float sum = own[0] + own[1];
#ifdef LONG_LOOPS
#pragma unroll 1
#else
#pragma unroll
#endif
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += x;
  }
  const float log[2] = {sum - own[1], sum};
  const float end = __shfl_sync(kAllLanes, sum, 31);
  const auto write = [](float* to, float x, float y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); };
  write(&rows.log[2 * lane], log[0], log[1]);
#ifndef LONG_LOOPS
  const float block_end = __shfl_sync(kAllLanes, sum, lane | 7);
  const float factors[2] = {exp2_fast(block_end - log[0]), exp2_fast(block_end - log[1])};
  write(&rows.factor[2 * lane], factors[0], factors[1]);
#endif
  __syncwarp();
#ifndef LONG_LOOPS
  if (logs != nullptr) {
    write(&logs->log[2 * lane], log[0], log[1]);
    write(&logs->factor[2 * lane], factors[0], factors[1]);
  }
#endif
#ifdef LONG_LOOPS
  const unsigned at = lane, place = at / 8 * 16 + at % 4 * 4 + at / 4 % 2 * 2;  // place_of_pair(2 * lane)
#else
  const int place = place_of_pair(2 * lane);
#endif
  const float gammas[2] = {exp2_fast(log[0]), exp2_fast(log[1])};
  write(&d.from_start[place], gammas[0], gammas[1]);
  write(&d.to_end[place], exp2_fast(end - log[0]), exp2_fast(end - log[1]));
  write(&d.read_out[place], p.scale * gammas[0], p.scale * gammas[1]);
#ifdef LONG_PFAST
  if (inverse != nullptr) write(&inverse[place], exp2_fast(-log[0]), exp2_fast(-log[1]));
#endif
}

// A lane has of a 16 x 16 block of products rows lane / 4 and eight further, columns 2 (lane % 4), one and 8 and 9 further, in
// the order of a left operand: two of the first row, of the second, of the next eight columns.

// What decays the block on the diagonal whose first row is 16 r: zeros above it.
__device__ __forceinline__ void weigh_diagonal(float (&weights)[8], const float (&log)[kChunk], int r, int lane) {
  const int row = 16 * r + lane / 4;
  const float rows[2] = {log[row], log[row + 8]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = 8 * half + 2 * (lane % 4);
    const float2 columns = *reinterpret_cast<const float2*>(&log[16 * r + column]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float ratio = exp2_fast(rows[e / 2] - (e % 2 == 0 ? columns.x : columns.y));
      weights[4 * half + e] = column + e % 2 <= lane / 4 + e / 2 * 8 ? ratio : 0.f;
    }
  }
}

// Block m of row r of Gamma * x. Above a diagonal it may be anything.
__device__ __forceinline__ void decay_block(float (&x)[8], const Rows& rows, int r, int m, int lane) {
  const unsigned at = lane;
  const float* const of_row = &rows.log[16 * r + at / 4];
  const float* const of_column = &rows.log[16 * m + 2 * (at % 4)];
  const float row[2] = {of_row[0], of_row[8]};
  const float2 left = *reinterpret_cast<const float2*>(of_column), right = *reinterpret_cast<const float2*>(of_column + 8);
  const float column[4] = {left.x, left.y, right.x, right.y};
#pragma unroll
  for (int e = 0; e < 8; ++e) x[e] *= exp2_fast(row[e / 2 % 2] - column[e / 4 * 2 + e % 2]);
}

// What decays the columns of block m, left of the diagonal, to its end: the lane's four.
__device__ __forceinline__ void column_factors(float (&factors)[4], const float (&factor)[kChunk], int m, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 two = *reinterpret_cast<const float2*>(&factor[16 * m + 8 * half + 2 * (lane % 4)]);
    factors[2 * half] = two.x, factors[2 * half + 1] = two.y;
  }
}

// What a warp that has 16 rows of a product multiplies them by.
struct Weights {
  float diagonal[8];  // of the block on the diagonal
  float rows[3][2];   // of those left of it: gamma_i over gamma at the end of block m
};

__device__ __forceinline__ Weights weigh(const Logs& logs, float scale, int warp, int lane) {
  const int row = 16 * warp + lane / 4;
  Weights w;
  weigh_diagonal(w.diagonal, logs.log, warp, lane);
#pragma unroll
  for (int e = 0; e < 8; ++e) w.diagonal[e] *= scale;
#pragma unroll
  for (int m = 0; m < 3; ++m) {  // of no use from m = warp on
    const float end = logs.log[16 * m + 15];
#pragma unroll
    for (int r = 0; r < 2; ++r) w.rows[m][r] = scale * exp2_fast(logs.log[row + 8 * r] - end);
  }
  return w;
}

// Where a lane's row of a 16 x 16 block lies: the second and third of its four cores in turns.
__device__ __forceinline__ uint32_t turned(int lane) { return (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16; }

// P = scale (Gamma * Q K^T) of a chunk, from `products` = Q K^T; by four warps.
template <class E>
__device__ __forceinline__ void write_p(const float (&products)[32], const Logs& logs, const Weights& w, uint32_t to, int warp,
                                        int lane) {
  const auto write = [&](const float (&x)[8], int m) {
    const uint32_t words[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
    stmatrix(to + block_of_square(warp, m) + turned(lane), words);
  };
  float x[8];
  const int m = anew(warp);  // which they are is found here, and not kept in registers over a loop
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float low = m == 0 ? products[e] : products[8 + e], high = m == 2 ? products[16 + e] : products[24 + e];
    x[e] = w.diagonal[e] * (m < 2 ? low : high);
  }
  write(x, warp);
#pragma unroll
  for (int m = 0; m < 3; ++m) {
    if (m >= warp) break;
    float factors[4];
    column_factors(factors, logs.factor, m, lane);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = w.rows[m][e / 2 % 2] * factors[e / 4 * 2 + e % 2] * products[8 * m + e];
    write(x, m);
  }
}

// products [64, 64] = a b^T, of boxes of 64 rows and D channels.
template <class E, int D>
__device__ __forceinline__ void multiply_boxes(float (&products)[32], uint32_t a, uint32_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const int at = k / 4 * kBoxBytes + k % 4 * 32;
    wgmma_shared<E>(products, descriptor(a, at), descriptor(b, at), k > 0);
  }
  wgmma_commit();
}

}  // namespace
