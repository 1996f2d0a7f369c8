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
  float from_start[kChunk], to_end[kChunk];  // of_start summed over the tokens from each one on, of_end over those before it
  float all_through, unused[3];              // through, summed
};

// What reaches each gate through Gamma_ij, the decay of token i by all gates behind j: weighted = Gamma * dGamma, of 16 columns; what is on
// the diagonal is not looked at. Gamma_ij has the factor alpha_t where j < t <= i, so alpha_t dalpha_t is the sum over these: first over
// columns, then over rows. Nothing is subtracted: all terms of a sum have the factor alpha_t. Of scores rows are i, and columns j, of which
// those before t are summed; `before` are the blocks before this one. Of keys' products rows are j, and columns i, those from t on.
// `all`: of these columns, by row.
__device__ __forceinline__ void gates_between_tokens(const float (&weighted)[8], float (&sums)[16], const float (&before)[2], float (&all)[2],
                                                     bool of_scores, int row, int m, int lane) {
  const int side = of_scores ? lane : ~lane;  // whose columns count
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = row + 8 * r;
    float own[2], pair[2], whole[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      pair[n] = weighted[4 * n + 2 * r] + weighted[4 * n + 2 * r + 1];
      const float other = __shfl_xor_sync(kAllLanes, pair[n], 1), two = pair[n] + other;
      const float other_two = __shfl_xor_sync(kAllLanes, two, 2);
      own[n] = (side & 1 ? other : 0.f) + (side & 2 ? other_two : 0.f), whole[n] = two + other_two;
    }
    own[0] += of_scores ? before[r] : whole[1];
    own[1] += of_scores ? before[r] + whole[0] : 0.f;
    all[r] = whole[0] + whole[1];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int t = 16 * m + 8 * n + 2 * (lane % 4);
      if ((t <= i) == of_scores) sums[4 * m + 2 * n] += own[n] + (of_scores ? 0.f : pair[n]);
      if ((t + 1 <= i) == of_scores) sums[4 * m + 2 * n + 1] += own[n] + (of_scores ? weighted[4 * n + 2 * r] : weighted[4 * n + 2 * r + 1]);
    }
  }
}

// What the columns of block m add to sums from earlier ones on, of keys' products.
__device__ __forceinline__ void add_to_earlier_blocks(float (&sums)[16], const float (&all)[2], int row, int m, int lane) {
#pragma unroll
  for (int i = 0; i < 4 * m; ++i) {
    const int t = i / 4 * 16 + i / 2 % 2 * 8 + i % 2 + 2 * (lane % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (t > row + 8 * r) sums[i] += all[r];
    }
  }
}

// The same of gates that are too steep to be divided by: both parts of each decay, by row and by column, are formed without them.
__device__ __forceinline__ void steep_gates_between(const float (&dGamma)[32], const Decays& d, float (&to)[kChunk], bool of_scores, int warp,
                                                    int lane) {
  __syncwarp();
  const int row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  const float sign = of_scores ? 1.f : -1.f;
#pragma unroll 1
  for (int t = 0; t < kChunk; ++t) {
    if (d.alpha[t] != 0.f) continue;  // it is divided by
    const float until = d.log[t], before = t > 0 ? d.log[t - 1] : 0.f, of_row = of_scores ? until : before, of_column = of_scores ? before : until;
    float rows[2], found = 0.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = (t <= row + 8 * r) == of_scores ? exp2_fast(fminf(sign * (d.log[row + 8 * r] - of_row), 0.f)) : 0.f;
    }
#pragma unroll
    for (int c = 0; c < 16; ++c) {
      const int at = column + c / 2 * 8 + c % 2;
      const float both = dGamma[4 * (c / 2) + c % 2] * rows[0] + dGamma[4 * (c / 2) + 2 + c % 2] * rows[1];
      if ((at < t) == of_scores) found = fmaf(both, exp2_fast(fminf(sign * (of_column - d.log[at]), 0.f)), found);
    }
    found = add_all(found);
    if (lane == 0) to[t] = found;
  }
}

constexpr int kSideBySide = 2;

// `products`: Q K^T or K K^T; `found`: G r^T or r dv^T, the latter transposed. What comes out, times Gamma, is the gradient of the products: as an operand
// to `box`. The same instructions for both: they find room in the cache. A warp looks at the blocks of 16 columns up to its own, or from
// its own on: so the two warps of a scheduler, one of each warpgroup, look at five of eight. It takes two of them side by side, because
// it waits for its own results otherwise; one that is not there becomes zeros.
template <class E>
__device__ __forceinline__ void find_between(float (&found)[32], const float (&products)[32], const Decays& d, float scale,
                                             GateSums& sums, uint32_t box, int wg, int warp, int lane) {
  const int row = 16 * warp + lane / 4;
  const bool of_scores = wg == 0;
  const float sign = of_scores ? 1.f : -1.f, log[2] = {sign * d.log[row], sign * d.log[row + 8]};
  const float factors[2] = {of_scores ? scale : -d.beta[row], of_scores ? scale : -d.beta[row + 8]};  // dv has beta
  const int end = row - 2 * (lane % 4) + 1;  // on the diagonal there are scores
  const int until[2] = {end, end + 8};  // the lane's columns that are there of scores, less its own of two; of others those that are not
  float of_gates[16] = {}, before[2] = {};
#pragma unroll
  for (int first = 0; first < 4; first += kSideBySide) {
    if (of_scores ? first > warp : first + kSideBySide <= warp) continue;
    float all[kSideBySide][2];
#pragma unroll
    for (int m = first; m < first + kSideBySide; ++m) {
      if (of_scores || m != warp || lane / 8 != lane % 4) continue;  // the diagonal
      sums.of_beta[row] = lane & 4 ? found[8 * m + 1] : found[8 * m];
      sums.of_beta[row + 8] = lane & 4 ? found[8 * m + 7] : found[8 * m + 6];
    }
#pragma unroll
    for (int m = first; m < first + kSideBySide; ++m) {
      float logs[4], betas[4], x[8], weighted[8];
      columns_of(logs, d.log, m, lane), columns_of(betas, d.beta, m, lane);
#pragma unroll
      for (int c = 0; c < 4; ++c) logs[c] *= sign, betas[c] = of_scores ? betas[c] : 1.f;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int r = e / 2 % 2, c = e / 4 * 2 + e % 2, j = 16 * m + e / 4 * 8 + e % 2;
        const float gradient = found[8 * m + e] * (factors[r] * betas[c]), decay = (j < until[r]) == of_scores ? exp2_fast(log[r] - logs[c]) : 0.f;
        x[e] = gradient * decay;
        found[8 * m + e] = gradient * products[8 * m + e];
        weighted[e] = found[8 * m + e] * decay;  // what is on the diagonal reaches no gate
      }
      const uint32_t words[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
      stmatrix(box + place_of_lane(warp, m, lane), words);
      gates_between_tokens(weighted, of_gates, before, all[m - first], of_scores, row, m, lane);
#pragma unroll
      for (int r = 0; r < 2; ++r) before[r] += all[m - first][r];
    }
    if (of_scores) continue;
#pragma unroll
    for (int m = first; m < first + kSideBySide; ++m) add_to_earlier_blocks(of_gates, all[m - first], row, m, lane);
  }
  add_rows(of_gates, lane);
  *reinterpret_cast<float2*>(&sums.between[4 * wg + warp][2 * lane]) = make_float2(of_gates[0], of_gates[1]);
  if (d.any_steep[0] != 0) steep_gates_between(found, d, sums.between[4 * wg + warp], of_scores, warp, lane);
}

// Zeros where nobody else writes.
__device__ __forceinline__ void clear_others(uint32_t box, int wg, int warp, int lane) {
  const uint32_t zeros[4] = {};
#pragma unroll 1
  for (int m = 0; m < 4; ++m) {
    if (wg == 0 ? m > warp : m < warp) stmatrix(box + place_of_lane(warp, m, lane), zeros);
  }
}

}  // namespace
