// What passes between the tokens of a chunk: gradients of scores Q K^T and of keys' products K K^T, of one head, and what reaches
// each gate through the decays between tokens. By a warpgroup for scores, by another for keys.
//
// A thread has rows (tokens i) 16 warp + lane / 4 and eight further, and of every 8 columns (tokens j) two.
#pragma once
#include "decays.cuh"
#include "sums.cuh"

namespace {

// What warps find of a head's gates; summed later.
struct GateSums {
  float between[8][kChunk];   // by warp: alpha dalpha of each gate, through decays between tokens; of steep gates without the factor alpha
  float of_start[2][kChunk];  // by half of the key channels: the gradient of the decay from the chunk's start
  float of_end[2][kChunk];    // and of that to its end
  float through[kWalkers];    // by warp: <S, dS>, the gradient of that from start to end
  float of_beta[kChunk];      // dv . r of each token
};

// What reaches each gate through Gamma_ij, the decay of token i by all gates behind j: weighted = Gamma * dGamma; what is on
// the diagonal is not looked at. Gamma_ij has the factor alpha_t where j < t <= i, so alpha_t dalpha_t is the sum over these: first over j,
// then over i. Nothing is subtracted: all terms of a sum have the factor alpha_t.
__device__ __forceinline__ void gates_between_tokens(const float (&weighted)[32], float (&to)[kChunk], int warp, int lane) {
  float sums[16] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = 16 * warp + lane / 4 + 8 * r;
    float before = 0.f;  // of the columns before these eight
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float first = weighted[4 * n + 2 * r], pair = first + weighted[4 * n + 2 * r + 1];
      const float other = __shfl_xor_sync(kAllLanes, pair, 1), two = pair + other;
      const float other_two = __shfl_xor_sync(kAllLanes, two, 2);
      const float own = before + (lane & 1 ? other : 0.f) + (lane & 2 ? other_two : 0.f);
      const int t = 8 * n + 2 * (lane % 4);
      if (t <= i) sums[2 * n] += own;
      if (t + 1 <= i) sums[2 * n + 1] += own + first;
      before += two + other_two;
    }
  }
  add_rows(sums, lane);
  *reinterpret_cast<float2*>(&to[2 * lane]) = make_float2(sums[0], sums[1]);
}

// The same of gates that are too steep to be divided by: both parts of each decay are formed without them.
__device__ __forceinline__ void steep_gates_between(const float (&dGamma)[32], const Decays& d, float (&to)[kChunk], int warp, int lane) {
  __syncwarp();
#pragma unroll 1
  for (int t = 0; t < kChunk; ++t) {
    if (d.alpha[t] != 0.f) continue;  // it is divided by
    float found = 0.f;
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const int i = 16 * warp + lane / 4 + e / 2 % 2 * 8, j = e / 4 * 8 + 2 * (lane % 4) + e % 2;
      if (j < t && t <= i) found += dGamma[e] * exp2_fast(fminf(d.log[i] - d.log[t], 0.f)) * exp2_fast(fminf(d.log[t - 1] - d.log[j], 0.f));
    }
    found = add_all(found);
    if (lane == 0) to[t] = found;
  }
}

// `products`: Q K^T or K K^T; `found`: G r^T or dv r^T. What comes out, times Gamma, is the gradient of the products: as an operand
// to `box`. The same instructions for both: they find room in the cache.
template <class E>
__device__ __forceinline__ void find_between(float (&found)[32], const float (&products)[32], const Decays& d, float scale,
                                             GateSums& sums, uint32_t box, int wg, int warp, int lane) {
  const int row = 16 * warp + lane / 4;
  const float log[2] = {d.log[row], d.log[row + 8]};
  const bool of_scores = wg == 0;
  const float factor = of_scores ? scale : -1.f;  // dv has beta
  const int end = row - 2 * (lane % 4) + (of_scores ? 1 : 0);  // on the diagonal there are scores
  const int before[2] = {end, end + 8};  // the lane's columns that are there, less its own of two
  float weighted[32];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    float logs[4], betas[4], x[8];
    if (!of_scores && m == warp && lane / 8 == lane % 4) {  // the diagonal
      sums.of_beta[row] = lane & 4 ? found[8 * m + 1] : found[8 * m];
      sums.of_beta[row + 8] = lane & 4 ? found[8 * m + 7] : found[8 * m + 6];
    }
    columns_of(logs, d.log, m, lane), columns_of(betas, d.beta, m, lane);
#pragma unroll
    for (int c = 0; c < 4; ++c) betas[c] *= factor;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int r = e / 2 % 2, c = e / 4 * 2 + e % 2, j = 16 * m + e / 4 * 8 + e % 2;
      const float gradient = found[8 * m + e] * betas[c], decay = j < before[r] ? exp2_fast(log[r] - logs[c]) : 0.f;
      x[e] = gradient * decay;
      found[8 * m + e] = gradient * products[8 * m + e];
      weighted[8 * m + e] = found[8 * m + e] * decay;  // what is on the diagonal reaches no gate
    }
    const uint32_t words[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
    stmatrix(box + place_of_lane(warp, m, lane), words);
  }
  gates_between_tokens(weighted, sums.between[4 * wg + warp], warp, lane);
  if (d.any_steep[0] != 0) steep_gates_between(found, d, sums.between[4 * wg + warp], warp, lane);
}

}  // namespace
