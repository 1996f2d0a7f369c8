// T in halves and P of a chunk in loops over blocks of 16 x 16, in few instructions that are fetched once: those who advance wait
// for code where others run through much of it. More instructions are executed than in a straight line (invert.cuh).
#pragma once
#include "invert.cuh"

// Steps of a substitution that a turn of a loop has.
#ifndef LONG_STEPS
#define LONG_STEPS 1
#endif

namespace {

constexpr int kSteps = LONG_STEPS;

#if defined(LONG_CALL) && defined(__CUDACC__)
#define LONG_SHARED __noinline__
#else
#define LONG_SHARED __forceinline__
#endif

// As turned().
__device__ __forceinline__ uint32_t cross(uint32_t lane) { return (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16; }

// `by` Gamma * x, of blocks one after the other in `from`, whose rows and columns stand in tables, two bits each, to where wgmma
// reads them: rows one after the other, columns so many blocks apart. One code for P and for what T has below its diagonal.
template <class E>
__device__ LONG_SHARED void decay_blocks(const unsigned char* from, const Rows& rows, float by, uint32_t to, uint32_t r_table,
                                         uint32_t m_table, uint32_t apart) {
  const uint32_t lane = lane_here();
  to += cross(lane);
  from += 16 * lane;
#pragma unroll 1
  do {
    const uint32_t r = r_table & 3, m = m_table & 3;
    float x[8];
    read_fragments(x, from, 0);
    decay_block(x, rows, r, m, lane);
    if (m == r) {
      const int below = static_cast<int>(lane / 4) - static_cast<int>(2 * (lane % 4));
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = e / 4 * 8 + e % 2 - e / 2 % 2 * 8 <= below ? x[e] : 0.f;
    }
    uint32_t words[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) words[e] = pack<E>(by * x[2 * e], by * x[2 * e + 1]);
    stmatrix(to + (r + apart * m) * kBlock, words);
    from += kFragments, r_table >>= 2, m_table >>= 2;
  } while (r_table != 0);
}

// T where keys are not alike, in one term. Of row j of -A on a diagonal column c lies at c + 15 - j, so that what is left of a row
// under substitution can be moved by one place a step; behind it beta.
template <class E>
struct LoopInverter {
  const unsigned char* products;
  const Rows& rows;
  Scratch& s;
  unsigned char* tile;

  // Blocks on the diagonal, from the last one on: a block does not lie where products of those before it do. Whether keys are alike.
  __device__ __forceinline__ bool find_diagonal() {
    const unsigned lane = lane_here();
    const int row = lane / 4, column = 2 * (lane % 4);
    const bool first = row == column + 1, second = row == column + 2, corner = lane == 3;
    bool alike = true;
#pragma unroll 1
    for (int r = 3; r >= 0; --r) {
      const unsigned char* const own = reinterpret_cast<const unsigned char*>(&s) + r * kFragments;
      const float4 left = reinterpret_cast<const float4*>(own)[lane];
      const float2 right = reinterpret_cast<const float2*>(own + kFragments / 2)[2 * lane + 1];
      const float* const of_row = &rows.log[16 * r + row];
      const float* const of_column = &rows.log[16 * r + column];
      const float logs[2] = {of_row[0], of_row[8]}, betas[2] = {rows.beta[16 * r + row], rows.beta[16 * r + row + 8]};
      const float2 low = *reinterpret_cast<const float2*>(of_column), high = *reinterpret_cast<const float2*>(of_column + 8);
      __syncwarp();
      float* const to = &s.diagonal[r][(kColumns - 1) * row + column + 15];
      const auto give = [&](bool below, int rest, int half, float log, float x) {
        const float product = exp2_fast(logs[half] - log) * x;
        if (below) to[(kColumns - 1) * 8 * half + rest] = -betas[half] * product;
        return product;
      };
      const bool one = column < row, two = column + 1 < row;
      const float upper[2] = {give(one, 0, 0, low.x, left.x), give(two, 1, 0, low.y, left.y)};
      give(true, 0, 1, low.x, left.z);
      const float beside = give(true, 1, 1, low.y, left.w);
      const float lower[2] = {give(one, 8, 1, high.x, right.x), give(two, 9, 1, high.y, right.y)};
      // Of row `row` place 15 is that of column `row`.
      to[row - column] = betas[0], to[(kColumns - 1) * 8 + row + 8 - column] = betas[1];
      const float above = first ? upper[0] : upper[1], under = corner ? beside : first ? lower[0] : lower[1];
      alike &= betas[0] == 0.f || above >= kAlike || !(first || second);
      alike &= betas[1] == 0.f || under >= kAlike || !(first || second || corner);
    }
    return __ballot_sync(kAllLanes, alike) == kAllLanes;
  }

  // T on the diagonal: eight lanes have a block, rows i and i + 8. Above it there are zeros from the beginning (long.cuh).
  __device__ __forceinline__ void invert_diagonal() const {
    const unsigned lane = lane_here();
    const int r = lane / 8, i = lane % 8;
    const float* a = &s.diagonal[r][15 * kColumns];
    // place_in_triangle(r, r): 2, 1, 8 and 11 blocks.
    unsigned char* T = tile + (0xb812u >> 4 * r & 15) * kBlock + 16 * i + 2 * 7;
    const auto give = [](unsigned char* to, float x) { *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(pack<E>(x, 0.f)); };
    float lower[16] = {}, upper[8] = {};
    __syncwarp();
    const auto load = [&](float(&row)[16], int from) {
#pragma unroll
      for (int k = from; k < 16; k += 4) {
        const float4 four = *reinterpret_cast<const float4*>(a + k);
        row[k] = four.x, row[k + 1] = four.y, row[k + 2] = four.z, row[k + 3] = four.w;
      }
    };
#pragma unroll kSteps
    for (int j = 15; j >= 8; --j) {
      float row[16];
      load(row, 0);
      const float found = j == i + 8 ? 1.f : lower[15];
#pragma unroll
      for (int k = 15; k > 0; --k) lower[k] = fmaf(found, row[k - 1], lower[k - 1]);
      give(T + 128 * 3, found * row[15]);
      a -= kColumns, T -= 2;
    }
    T += 16;
#pragma unroll kSteps
    for (int j = 7; j >= 0; --j) {
      float row[16];
      load(row, 8);
      const float found[2] = {lower[15], j == i ? 1.f : upper[7]};
#pragma unroll
      for (int k = 7; k > 0; --k) {
        lower[k + 8] = fmaf(found[0], row[k + 7], lower[k + 7]);
        upper[k] = fmaf(found[1], row[k + 7], upper[k - 1]);
      }
      give(T + 128 * 2, found[0] * row[15]);
      give(T, found[1] * row[15]);
      a -= kColumns, T -= 2;
    }
    __syncwarp();
  }

  // Below it: -G between the halves. T_10 = T_11 (-G_10) T_00, and T_32 as well, since T_rr has beta in its columns and
  // A_rm = diag(beta) G_rm.
  __device__ __forceinline__ void find_below() const {
    decay_blocks<E>(products, rows, -1.f, shared_address(tile) + 2 * kBlock, 0xfe9, 0x910, 2);  // 1 2 2 3 3 3, 0 0 1 0 1 2
    __syncwarp();
    const uint32_t lane = lane_here(), straight = 16 * lane, crossed = cross(lane);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = shared_address(tile) + (half == 0 ? 3 : 9) * kBlock;
      Terms<E, 1> own, last, below;
      ldmatrix(below.term[0], at + crossed);
      ldmatrix_transposed(own.term[0], at - kBlock + straight);
      ldmatrix(last.term[0], at + (half == 0 ? -2 : 2) * kBlock + crossed);
      float sums[8] = {}, found[8] = {};
      multiply_terms<E, 1>(sums, own, below);
      multiply_terms<E, 1>(found, Terms<E, 1>(sums), last);
      uint32_t words[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) words[e] = pack<E>(found[2 * e], found[2 * e + 1]);
      stmatrix_transposed(at + straight, words);
    }
  }
};

}  // namespace
