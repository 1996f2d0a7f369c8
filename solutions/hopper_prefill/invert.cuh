// T = (I + A)^-1 diag(beta), A = strict_lower(diag(beta) (Gamma * K K^T)), 64 x 64, and if asked for P = scale (Gamma *
// Q K^T), of a chunk and head: by one warp, to memory. Warps share nothing and wait for nobody.
//
// The inverse, whose precision decides what becomes of repeated keys: blocks of 16 by substitution in float32, then row of
// blocks by row of blocks, by products of two bfloat16 terms each, the product of the low ones left out; of one term, as T
// has in the end, where keys are not alike. It is found transposed, Y_wr = X_rw^T of X = (I + A)^-1, so that what one product
// leaves in registers is the next one's left operand, and A as it is found a right operand:
//   Y_ww = X_ww^T,   Y_wr = (sum over m from w to r - 1 of Y_wm (-A_rm)^T) X_rr^T
#pragma once
#include "decays.cuh"

namespace {

// Two terms of four pairs: what a left operand, and stmatrix, take.
template <class E>
__device__ __forceinline__ void split(const float (&x)[8], uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    high[i] = pack<E>(x[2 * i], x[2 * i + 1]);
    const float2 rounded = unpack<E>(high[i]);
    low[i] = pack<E>(x[2 * i] - rounded.x, x[2 * i + 1] - rounded.y);
  }
}

// An operand of N terms of type E, 16 x 16, as a product leaves it: a left operand, or a right one transposed.
template <class E, int N>
struct Terms {
  uint32_t term[N][4];
  __device__ __forceinline__ Terms() {}
  __device__ __forceinline__ explicit Terms(const float (&x)[8]) {
    uint32_t low[4];
    split<E>(x, term[0], N > 1 ? term[N - 1] : low);
  }
};

// y [16, 16] += a b^T: of two terms the product of both low ones is left out.
template <class E, int N>
__device__ __forceinline__ void multiply_terms(float (&y)[8], const Terms<E, N>& a, const Terms<E, N>& b) {
  float(&columns)[2][4] = reinterpret_cast<float(&)[2][4]>(y);
  const auto multiply = [&](const uint32_t(&left)[4], const uint32_t(&right)[4]) {
#pragma unroll
    for (int t = 0; t < 2; ++t) mma<E>(columns[t], left, right[t], right[t + 2]);
  };
  if constexpr (N > 1) multiply(a.term[1], b.term[0]), multiply(a.term[0], b.term[1]);
  multiply(a.term[0], b.term[0]);
}

constexpr float kAlike = 0.8f;  // k_i . k_j alpha_i of neighbours from which on they are alike
constexpr int kColumns = 20, kDiagonal = 16 * kColumns + 4;  // floats: rows of 16, apart so that no banks are met twice

// What a warp works in.
union Scratch {
  float diagonal[4][kDiagonal];  // blocks of -A, transposed
  struct {
    unsigned char inverse[2][4 * kBlock];      // of the diagonal blocks of I + A, in one term or two
    unsigned char staged[2][kTerms * kBlock];  // blocks of T on their way
  };
};

// Row i of the inverse of I less a 16 x 16 block, strictly lower, by substitution; `a` is the block transposed. The first
// eight rows have but eight columns.
template <int Columns>
__device__ __forceinline__ void substitute(float (&x)[Columns], const float (&row)[16], int i, int j) {
  float sum = i == j ? 1.f : 0.f;
#pragma unroll
  for (int m = Columns - 1; m > j; --m) sum = fmaf(x[m], row[m], sum);
  x[j] = sum;
}

// Eight numbers of a row in two terms, and where they go.
template <class E, int Terms, class Store>
__device__ __forceinline__ void give_row(const float* x, Store store) {
  uint32_t high[4], low[4];
  split<E>(*reinterpret_cast<const float(*)[8]>(x), high, low);
  store(0, make_uint4(high[0], high[1], high[2], high[3]));
  if constexpr (Terms > 1) store(1, make_uint4(low[0], low[1], low[2], low[3]));
}

// Products of a chunk, as wgmma leaves them, by blocks of 16 x 16 at or below the diagonal: of each a lane has eight numbers,
// of two rows and four columns, in the order of an operand.
constexpr int kFragments = 1024, kProducts = 10 * kFragments;  // bytes

__device__ __forceinline__ int fragments_of(int r, int m) { return (r * (r + 1) / 2 + m) * kFragments; }
// The same without those on the diagonal.
constexpr int kProductsBelow = 6 * kFragments;
__device__ __forceinline__ int fragments_below(int r, int m) { return (r * (r - 1) / 2 + m) * kFragments; }

__device__ __forceinline__ void write_products(const float (&products)[32], unsigned char* to, int warp, int lane) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (m > warp) break;
    float4* const at = reinterpret_cast<float4*>(to + fragments_of(warp, m)) + lane;
    at[0] = make_float4(products[8 * m], products[8 * m + 1], products[8 * m + 2], products[8 * m + 3]);
    at[32] = make_float4(products[8 * m + 4], products[8 * m + 5], products[8 * m + 6], products[8 * m + 7]);
  }
}

__device__ __forceinline__ void read_fragments(float (&x)[8], const unsigned char* from, int lane) {
  const float4* const at = reinterpret_cast<const float4*>(from) + lane;
  const float4 left = at[0], right = at[32];
  x[0] = left.x, x[1] = left.y, x[2] = left.z, x[3] = left.w, x[4] = right.x, x[5] = right.y, x[6] = right.z, x[7] = right.w;
}
__device__ __forceinline__ void read_products(float (&x)[8], const unsigned char* from, int r, int m, int lane) {
  read_fragments(x, from + fragments_of(r, m), lane);
}

// A chunk's tile but for its decays, which are there. `products`: K K^T and, behind it, Q K^T. InPlace: where wgmma reads T.
// Apart: T in halves, of products whose blocks on the diagonal are where the warp works.
template <class E, int D, bool WithP, bool InPlace = false, bool Apart = false>
struct Inverter {
  static constexpr int kTermBytes = InPlace ? kTriangle : kBlocks * kBlock;
  __device__ __forceinline__ static constexpr int place_of(int r, int s) { return InPlace ? place_in_triangle(r, s) : block_of(r, s); }

  const unsigned char* products;
  const Rows& rows;
  Scratch& s;
  unsigned char* tile;  // in memory, or in shared memory
  float scale;
  int lane;
  float kept[4][2];  // beta of the lane's rows of each block
  // Of T in one term: whether keys are alike, and it is rounded so that sums of columns are kept; by columns of its first
  // three blocks, what rounding has taken and not yet given.
  bool keeps_sums;
  float carried[3][2];

  __device__ __forceinline__ float beta_of(int r, int e) const { return rows.beta[16 * r + lane / 4 + 8 * e]; }
  // Apart, there are no registers to keep it in.
  template <int N>
  __device__ __forceinline__ float beta(int r, int e) const {
    return Apart ? beta_of(r, e) : kept[r][e];
  }
  __device__ __forceinline__ void keep_betas() {
#pragma unroll
    for (int r = 0; r < 4; ++r) kept[r][0] = beta_of(r, 0), kept[r][1] = beta_of(r, 1);
  }
  __device__ __forceinline__ void find() {
    if constexpr (Apart) find_diagonal_apart();
    else keep_betas(), find_diagonal();
    if (kTerms > 1 || keeps_sums) {
      invert<__nv_bfloat16, 2>();
    } else {
      invert<E, 1>();
    }
  }

  template <class M, int N>
  __device__ __forceinline__ void invert() {
    invert_diagonal<M, N>();
    if constexpr (Apart) find_halves<M, N>();
    else find_left_of_inverse<M, N>();
  }

  __device__ __forceinline__ void write_p(const float (&x)[8], int r, int m) const {
    uint32_t* const to = reinterpret_cast<uint32_t*>(tile + kPAt + block_of_p<D>(r, m)) + lane;  // a core is 32 pairs
    to[0] = pack<E>(x[0], x[1]), to[64] = pack<E>(x[2], x[3]), to[32] = pack<E>(x[4], x[5]), to[96] = pack<E>(x[6], x[7]);
  }

  // Blocks on the diagonal: of -A, and of P.
  __device__ __forceinline__ void find_diagonal() {
    bool alike = true;  // all neighbours, but for those behind a sequence's end
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float weights[8], x[8];
      weigh_diagonal(weights, rows.log, r, lane);
      read_products(x, products, r, r, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) {  // what lies on the diagonal is not looked at
        const int column = e / 4 * 8 + 2 * (lane % 4) + e % 2, row = lane / 4 + e / 2 % 2 * 8;
        s.diagonal[r][kColumns * column + row] = -kept[r][e / 2 % 2] * weights[e] * x[e];
        if (kTerms == 1 && row == column + 1 && kept[r][e / 2 % 2] != 0.f) alike &= weights[e] * x[e] >= kAlike;
      }
      if constexpr (WithP) {
        read_products(x, products + kProducts, r, r, lane);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] *= scale * weights[e];
        write_p(x, r, r);
      }
    }
    keeps_sums = kTerms == 1 && __ballot_sync(kAllLanes, alike) == kAllLanes;
  }

  // The same where products on the diagonal are where the warp works. Beside wgmma a load takes 100 to 150 cycles, so all of them
  // come before the first store, which the compiler would not move them over. What lies above the diagonal is not looked at either:
  // of the last eight columns a lane has numbers of one row, and what it has above the diagonal of others is anything.
  __device__ __forceinline__ void find_diagonal_apart() {
    static_assert(!Apart || (kTerms == 1 && !WithP));
    const unsigned char* const own = reinterpret_cast<const unsigned char*>(&s);
    float4 left[4];
    float2 right[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      left[r] = reinterpret_cast<const float4*>(own + r * kFragments)[lane];
      right[r] = reinterpret_cast<const float2*>(own + r * kFragments + kFragments / 2)[2 * lane + 1];
    }
    struct Sums {
      float2 columns[2];
      float rows[2], betas[2];
    };
    Sums next;
    const auto load = [&](int r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        next.columns[half] = *reinterpret_cast<const float2*>(&rows.log[16 * r + 8 * half + 2 * (lane % 4)]);
        next.rows[half] = rows.log[16 * r + 8 * half + lane / 4], next.betas[half] = beta_of(r, half);
      }
    };
    load(0);
    __syncwarp();
    // Neighbours: which of a lane's numbers have a row that is the next one to their column.
    const bool first = lane / 4 == 2 * (lane % 4) + 1, second = lane / 4 == 2 * (lane % 4) + 2, corner = lane == 3;
    bool alike = true;  // all neighbours, but for those behind a sequence's end
    float* const to = &s.diagonal[0][kColumns * 2 * (lane % 4) + lane / 4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Sums logs = next;
      if (r < 3) load(r + 1);
      float* const block = to + r * kDiagonal;
      const auto give = [&](int column, int row, float log_of_column, float x) {  // a half of the columns, of the rows
        const float weight = exp2_fast(logs.rows[row] - log_of_column);
        block[kColumns * column + 8 * row] = -logs.betas[row] * weight * x;
        return weight * x;
      };
      const float upper[2] = {give(0, 0, logs.columns[0].x, left[r].x), give(1, 0, logs.columns[0].y, left[r].y)};
      give(0, 1, logs.columns[0].x, left[r].z);
      const float beside = give(1, 1, logs.columns[0].y, left[r].w);
      const float lower[2] = {give(8, 1, logs.columns[1].x, right[r].x), give(9, 1, logs.columns[1].y, right[r].y)};
      const float high = first ? upper[0] : upper[1], low = corner ? beside : first ? lower[0] : lower[1];
      alike &= logs.betas[0] == 0.f || high >= kAlike || !(first || second);
      alike &= logs.betas[1] == 0.f || low >= kAlike || !(first || second || corner);
    }
    keeps_sums = __ballot_sync(kAllLanes, alike) == kAllLanes;
  }

  // Their inverses: eight lanes have a block, two rows each, so that what is read of it serves both.
  template <class M, int N>
  __device__ __forceinline__ void invert_diagonal() {
    const int r = lane / 8, i = lane % 8;
    const float* const a = s.diagonal[r];
    float upper[8], lower[16];
    __syncwarp();
#pragma unroll
    for (int j = 15; j >= 0; --j) {
      float row[16];  // of m, from 4 floor((j + 1) / 4)
#pragma unroll
      for (int m = (j + 1) / 4 * 4; m < 16; m += 4) {
        const float4 four = *reinterpret_cast<const float4*>(a + kColumns * j + m);
        row[m] = four.x, row[m + 1] = four.y, row[m + 2] = four.z, row[m + 3] = four.w;
      }
      substitute(lower, row, i + 8, j);
      if (j < 8) substitute(upper, row, i, j);
    }
    __syncwarp();  // the inverses go where the blocks are
    const uint32_t to = shared_address(s.inverse) + r * kBlock + 16 * i;
    const auto keep = [&](int core) {
      return [=](int term, uint4 words) { store_shared(to + term * sizeof s.inverse[0] + 128 * core, words); };
    };
    give_row<M, N>(upper, keep(0));
    give_row<M, N>(lower, keep(1));
    give_row<M, N>(lower + 8, keep(3));
#pragma unroll
    for (int term = 0; term < N; ++term) keep(2)(term, make_uint4(0, 0, 0, 0));
    // And times beta: T, whose cores lie row by row.
    unsigned char* const T = tile + place_of(r, r) + 16 * i;
    const auto give = [&](int core) {
      return [=](int term, uint4 words) { *reinterpret_cast<uint4*>(T + term * kTermBytes + 128 * core) = words; };
    };
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&rows.beta[16 * r + j]);
      lower[j] *= four.x, lower[j + 1] *= four.y, lower[j + 2] *= four.z, lower[j + 3] *= four.w;
      if (j < 8) upper[j] *= four.x, upper[j + 1] *= four.y, upper[j + 2] *= four.z, upper[j + 3] *= four.w;
    }
    if (N > 1 && keeps_sums) round_diagonal(upper, lower);
    give_row<E, kTerms>(upper, give(0));
    give_row<E, kTerms>(lower, give(2));
    give_row<E, kTerms>(lower + 8, give(3));
#pragma unroll
    for (int term = 0; term < kTerms; ++term) give(1)(term, make_uint4(0, 0, 0, 0));
    __syncwarp();
  }

  // T in one term, where the chunk's keys are alike and hardly decay. What rounding takes from a number goes to one below in
  // its column, so that the sum of each column is kept: what the chunk adds to the state depends on that sum then, and the
  // errors of each number would add up. Of other keys it would add to each number's error that of another. A lane has
  // numbers of each block for itself; what it cannot give there any more it gives in the block below.
  __device__ __forceinline__ static float round(float x) { return unpack<E>(pack<E>(x, 0.f)).x; }

  // Sums over pairs of lanes, of which each keeps one half.
  template <int Width>
  __device__ __forceinline__ void halve(float (&x)[16]) const {
    const bool high = lane & Width / 2;
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      const float given = __shfl_xor_sync(kAllLanes, high ? x[j] : x[j + Width], Width / 2);
      x[j] = (high ? x[j + Width] : x[j]) + given;
    }
  }

  // Rows i and i + 8 of a block on the diagonal, and what is left to the blocks below.
  __device__ __forceinline__ void round_diagonal(float (&upper)[8], float (&lower)[16]) {
    float left[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      if (j < 8) {
        const float rounded = round(upper[j]);
        lower[j] += upper[j] - rounded, upper[j] = rounded;
      }
      const float rounded = round(lower[j]);
      left[j] = lower[j] - rounded, lower[j] = rounded;
    }
    // Their sums over eight lanes: lane i has columns 2 i and 2 i + 1 in the end.
    halve<8>(left), halve<4>(left), halve<2>(left);
#pragma unroll
    for (int j = 0; j < 16; ++j) {  // given back in row i + 8, which reaches as far as these columns
      if (j / 2 == lane % 8) {
        const float number = lower[j] + left[j % 2], rounded = round(number);
        lower[j] = rounded, left[j % 2] = number - rounded;
      }
    }
    // To four lanes each, which have a column of the blocks below.
#pragma unroll
    for (int w = 0; w < 3; ++w) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int from = 8 * w + 4 * half + lane / 8;
        const float even = __shfl_sync(kAllLanes, left[0], from), odd = __shfl_sync(kAllLanes, left[1], from);
        carried[w][half] = 0.25f * (lane / 4 % 2 == 0 ? even : odd);
      }
    }
  }

  // Y_wr, the lane's numbers of two columns of T; in pairs. In the last row of blocks one lane of four takes what the others
  // have left.
  __device__ __forceinline__ void round_columns(const float (&x)[8], uint32_t (&words)[4], int r, int w) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = half; i < 4; i += 2) {
        const float first = x[2 * i] + carried[w][half];
        float second = x[2 * i + 1] + (first - round(first));
        if ((Apart || r == 3) && i >= 2) {
          const float left = lane % 4 == 3 ? 0.f : second - round(second);
          const float pair = left + __shfl_xor_sync(kAllLanes, left, 1), all = pair + __shfl_xor_sync(kAllLanes, pair, 2);
          if (lane % 4 == 3) second += all;
        }
        words[i] = pack<E>(first, second);
        carried[w][half] = second - unpack<E>(words[i]).y;
      }
    }
  }

  // Blocks left of it, of row r: -A_r0 to -A_r,r-1, and of P.
  template <class M, int N>
  __device__ __forceinline__ void find_left(Terms<M, N> (&a)[3], int r) const {
    const int row = 16 * r + lane / 4;
    const float log[2] = {rows.log[row], rows.log[row + 8]};
#pragma unroll
    for (int m = 0; m < 3; ++m) {
      if (m >= r) break;
      const float end = rows.log[16 * m + 15];
      const float decay[2] = {exp2_fast(log[0] - end), exp2_fast(log[1] - end)};
      const float weight[2] = {-beta<N>(r, 0) * decay[0], -beta<N>(r, 1) * decay[1]};
      float factors[4], x[8];
      column_factors(factors, rows.factor, m, lane);
      read_fragments(x, products + fragments_of(r, m), lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= weight[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
      a[m] = Terms<M, N>(x);
      if constexpr (WithP) {
        read_products(x, products + kProducts, r, m, lane);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] *= scale * decay[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
        write_p(x, r, m);
      }
    }
  }

  template <class M, int N>
  __device__ __forceinline__ Terms<M, N> inverse_of(int r) const {
    const uint32_t at = shared_address(s.inverse) + r * kBlock + 16 * lane;
    Terms<M, N> x;
#pragma unroll
    for (int i = 0; i < N; ++i) ldmatrix(x.term[i], at + i * sizeof s.inverse[0]);
    return x;
  }
  template <class M, int N>
  __device__ __forceinline__ Terms<M, N> inverse_of_transposed(int r) const {
    const uint32_t at = shared_address(s.inverse) + r * kBlock + turned(lane);
    Terms<M, N> x;
#pragma unroll
    for (int i = 0; i < N; ++i) ldmatrix_transposed(x.term[i], at + i * sizeof s.inverse[0]);
    return x;
  }

  // Y_wr, times beta, turned: T_rw. To memory by way of shared memory, two places in turns.
  template <int N>
  __device__ __forceinline__ void give(const float (&y)[8], int r, int w) {
    float x[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = y[e] * beta<N>(w, e / 2 % 2);
    uint32_t words[2][4];
    if (N > 1 && keeps_sums) {
      round_columns(x, words[0], r, w);
    } else {
      split<E>(x, words[0], words[1]);
    }
    if constexpr (InPlace) {
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        stmatrix_transposed(shared_address(tile) + term * kTermBytes + place_of(r, w) + 16 * lane, words[term]);
      }
      return;
    }
    unsigned char* const staged = s.staged[(r * (r - 1) / 2 + w) % 2];  // not that of the block before
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      stmatrix_transposed(shared_address(staged) + term * kBlock + 16 * lane, words[term]);
    }
    __syncwarp();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      *reinterpret_cast<uint4*>(tile + term * kBlocks * kBlock + block_of(r, w) + 16 * lane) =
          *reinterpret_cast<const uint4*>(staged + term * kBlock + 16 * lane);
    }
  }

  template <class M, int N>
  __device__ __forceinline__ void find_left_of_inverse() {
    using Block = Terms<M, N>;
    Block y[3];  // Y_01, Y_02, Y_12
#pragma unroll
    for (int r = 1; r < 4; ++r) {
      Block a[3];
      find_left<M, N>(a, r);
      float sums[3][8] = {}, found[3][8] = {};
#pragma unroll
      for (int m = 0; m < r; ++m) {  // side by side: no product waits for the one before
        const Block own = inverse_of_transposed<M, N>(m);
#pragma unroll
        for (int w = 0; w <= m; ++w) multiply_terms<M, N>(sums[w], w == m ? own : y[w + m - 1], a[m]);
      }
      const Block inverse = inverse_of<M, N>(r);
#pragma unroll
      for (int w = 0; w < r; ++w) multiply_terms<M, N>(found[w], Block(sums[w]), inverse);
#pragma unroll
      for (int w = 0; w < r; ++w) {
        if (r < 3) y[w + r - 1] = Block(found[w]);
        give<N>(found[w], r, w);
      }
    }
  }

  // T of the first 32 tokens and of the others, T_11 and T_22, and between them -(Gamma * K K^T)_21, which whoever advances applies
  // by itself: V'_2 = T_22 (X_2 - (Gamma * K K^T)_21 V'_1). Products by mma.sync wait for those of others by wgmma: here are two
  // in a row.
  template <class M, int N>
  __device__ __forceinline__ void find_halves() {
    using Block = Terms<M, N>;
    const auto give_below = [&](int r, int m) {
      float x[8];
      decayed_products(x, r, m);
      uint32_t words[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) words[e] = pack<E>(-x[2 * e], -x[2 * e + 1]);
      stmatrix(shared_address(tile) + place_of(r, m) + turned(lane), words);
    };
    const auto prepare = [&](Block& a, int r) {
      float x[8];
      decayed_products(x, r, r - 1);
      const float by[2] = {-beta_of(r, 0), -beta_of(r, 1)};
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= by[e / 2 % 2];
      a = Block(x);
    };
    if constexpr (N == 1) {
      Block a[2], own[2], inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 2 * half + 1;
        prepare(a[half], r);
        own[half] = inverse_of_transposed<M, N>(r - 1), inverse[half] = inverse_of<M, N>(r);
      }
      float sums[2][8] = {}, found[2][8] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply_terms<M, N>(sums[half], own[half], a[half]);
      give_below(2, 0), give_below(2, 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply_terms<M, N>(found[half], Block(sums[half]), inverse[half]);
      give_below(3, 0), give_below(3, 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) give<N>(found[half], 2 * half + 1, 2 * half);
    } else {  // one after the other: registers are short
#pragma unroll
      for (int r = 1; r < 4; r += 2) {
        Block a;
        prepare(a, r);
        float sums[8] = {}, found[8] = {};
        multiply_terms<M, N>(sums, inverse_of_transposed<M, N>(r - 1), a);
        multiply_terms<M, N>(found, Block(sums), inverse_of<M, N>(r));
        give<N>(found, r, r - 1);
      }
      give_below(2, 0), give_below(2, 1), give_below(3, 0), give_below(3, 1);
    }
  }
  // Block m of row r of Gamma * K K^T, left of the diagonal.
  __device__ __forceinline__ void decayed_products(float (&x)[8], int r, int m) const {
    read_fragments(x, products + fragments_below(r, m), lane);
    const int row = 16 * r + lane / 4;
    const float end = rows.log[16 * m + 15];
    const float decay[2] = {exp2_fast(rows.log[row] - end), exp2_fast(rows.log[row + 8] - end)};
    float factors[4];
    column_factors(factors, rows.factor, m, lane);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= decay[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
  }
};

}  // namespace
