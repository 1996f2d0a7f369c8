// Decays of a chunk.
#pragma once
#include "boxes.cuh"

namespace {

// The least log2 of alpha: of alpha = 0 too, which resets the state. Whatever reaches over such a token has a log of less
// than the least of a float, and is exactly 0. A sum of 64 such logs is known to 2^-10, so ratios of others to less than
// 0.1%, less than bfloat16 rounds, where every token resets; to 1e-5 or so where one does.
constexpr float kLeastLog = -160.f;
// Beside an error of its size a write is nothing in float32: inverses have such a beta instead of a smaller one, so that both
// can be had from one.
constexpr float kLeastBeta = 0x1p-40f;

constexpr int kMostHeads = 4;  // of a warpgroup that prepares

// What a warp keeps of a chunk's decays to prepare it.
struct Rows {
  float log[kChunk];     // log2 of gamma; at first g
  float factor[kChunk];  // gamma of the last of 16 tokens over gamma of this one
  float beta[kChunk];    // no smaller than kLeastBeta
  float inverse[kChunk]; // 1 / beta
};

// A token's g or beta of `heads` heads from h on, by a warpgroup: g by its first half. Four at a time where h is a
// multiple of four, too. Asked for before anything else is, and kept once they are there.
struct Gates {
  float of_head[kMostHeads];
};
__device__ __forceinline__ Gates ask_gates(const Problem& p, int64_t first, int valid, int h, int heads) {
  const int t = threadIdx.x % kChunk;
  const bool is_g = threadIdx.x % 128 < kChunk, inside = t < valid;
  const float* const gates = is_g ? p.g : p.beta;
  const float otherwise = is_g ? p.log_gates ? 0.f : 1.f : inside ? 1.f : 0.f;  // behind the tokens: alpha 1, beta 0
  const float* const from = gates + (first + t) * p.H + h;
  const bool given = inside && gates != nullptr;
  Gates found;
#pragma unroll
  for (float& x : found.of_head) x = otherwise;
  if (!given) return found;
  if (heads == kMostHeads && p.H % kMostHeads == 0) {
    const float4 four = load_soon(reinterpret_cast<const float4*>(from));
    found = {four.x, four.y, four.z, four.w};
  } else {
#pragma unroll
    for (int i = 0; i < kMostHeads; ++i) {
      if (i < heads) found.of_head[i] = __ldg(from + i);
    }
  }
  return found;
}
__device__ __forceinline__ void keep_gates(const Gates& gates, int heads, Rows* rows) {
  const int t = threadIdx.x % kChunk;
  const bool is_g = threadIdx.x % 128 < kChunk;
#pragma unroll
  for (int i = 0; i < kMostHeads; ++i) {
    if (i < heads) (is_g ? rows[i].log : rows[i].beta)[t] = gates.of_head[i];
  }
}

// By a warp; to memory, but for what the warp keeps.
__device__ __forceinline__ void find_decays(const Problem& p, Rows& rows, int64_t at, int lane) {
  auto& forward = *reinterpret_cast<ForwardDecays*>(tile_at(p.forward_tiles, at, 0) + kTerms * kTriangle);
  auto& reverse = *reinterpret_cast<ReverseDecays*>(tile_at(p.reverse_tiles, at, 0) + kReverseAt);
  auto& plain = decays_at(p, at);
  const float2 g = *reinterpret_cast<const float2*>(&rows.log[2 * lane]);
  const float2 beta = *reinterpret_cast<const float2*>(&rows.beta[2 * lane]);
  float own[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float x = e == 0 ? g.x : g.y, log = p.log_gates ? 1.4426950408889634f * x : log2f(x);
    own[e] = log < kLeastLog ? kLeastLog : log;  // a NaN stays one
  }
  float sum = own[0] + own[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float x = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += x;
  }
  const float log[2] = {sum - own[1], sum};
  const float block_end = __shfl_sync(kAllLanes, sum, lane | 7), end = __shfl_sync(kAllLanes, sum, 31);
  const auto write = [](float* to, float x, float y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); };
  const auto least = [](float x) { return x < kLeastBeta ? kLeastBeta : x; };
  write(&rows.log[2 * lane], log[0], log[1]);
  write(&rows.factor[2 * lane], exp2_fast(block_end - log[0]), exp2_fast(block_end - log[1]));
  write(&rows.beta[2 * lane], least(beta.x), least(beta.y));
  write(&rows.inverse[2 * lane], 1.f / least(beta.x), 1.f / least(beta.y));
  __syncwarp();
  const int place = place_of_pair(2 * lane);
  const float gamma[2] = {exp2_fast(log[0]), exp2_fast(log[1])};
  const float to_end[2] = {exp2_fast(end - log[0]), exp2_fast(end - log[1])};
  write(&forward.from_start[place], gamma[0], gamma[1]);
  write(&forward.written[place], beta.x * to_end[0], beta.y * to_end[1]);
  write(&reverse.to_end[place], to_end[0], to_end[1]);
  write(&reverse.read[place], p.scale * gamma[0], p.scale * gamma[1]);
  write(&reverse.erased[place], -beta.x * gamma[0], -beta.y * gamma[1]);
  write(&reverse.beta[place], beta.x, beta.y);
  const bool small = __ballot_sync(kAllLanes, beta.x < kLeastBeta || beta.y < kLeastBeta) != 0;
  if (lane < 2) reverse.end[lane] = exp2_fast(end), reverse.small_beta[lane] = small ? 1.f : 0.f;
  write(&plain.log[2 * lane], log[0], log[1]);
  write(&plain.beta[2 * lane], beta.x, beta.y);
  const auto divided_by = [&](float g) { return p.log_gates || p.g == nullptr ? 1.f : g < kSteep ? 0.f : g; };
  const float alpha[2] = {divided_by(g.x), divided_by(g.y)};
  write(&plain.alpha[2 * lane], alpha[0], alpha[1]);
  const bool some = __ballot_sync(kAllLanes, alpha[0] == 0.f || alpha[1] == 0.f) != 0;
  if (lane < 2) plain.any_steep[lane] = some, plain.small_beta[lane] = small;
}

// A lane has of a 16 x 16 block of products rows lane / 4 and eight further, columns 2 (lane % 4), one and 8 and 9 further, in
// the order of a left operand: two of the first row, of the second, of the next eight columns.

// What decays the block on the diagonal whose first row is 16 r: zeros above it. Turned: of rows j and columns i, zeros below it.
template <bool Turned>
__device__ __forceinline__ void weigh_diagonal(float (&weights)[8], const float (&log)[kChunk], int r, int lane) {
  const int row = 16 * r + lane / 4;
  const float rows[2] = {log[row], log[row + 8]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = 8 * half + 2 * (lane % 4);
    const float2 columns = *reinterpret_cast<const float2*>(&log[16 * r + column]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float log = rows[e / 2] - (e % 2 == 0 ? columns.x : columns.y);
      const int above = column + e % 2 - (lane / 4 + e / 2 * 8);
      weights[4 * half + e] = (Turned ? above >= 0 : above <= 0) ? exp2_fast(Turned ? -log : log) : 0.f;
    }
  }
}

// The lane's four of numbers by token, of block m.
__device__ __forceinline__ void columns_of(float (&four)[4], const float (&from)[kChunk], int m, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 two = *reinterpret_cast<const float2*>(&from[16 * m + 8 * half + 2 * (lane % 4)]);
    four[2 * half] = two.x, four[2 * half + 1] = two.y;
  }
}

}  // namespace
