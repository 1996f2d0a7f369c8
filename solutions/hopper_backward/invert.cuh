// M = (I + A)^-1 for A = strict_lower(diag(beta) (Gamma * K K^T)), 64 x 64; E = diag(beta)^-1 M diag(beta); and P = scale
// lower(Gamma * Q K^T), of a chunk and head: by one warp, to memory. Warps wait for nobody.
//
// Blocks of 16 by substitution in float32, then row of blocks by row of blocks, by products of two bfloat16 terms each; of one
// term, as M and E have in the end, where no two keys are alike. The inverse is found transposed, Y_wr = M_rw^T, so that what one product leaves in registers is the next one's left operand,
// and A as it is found a right operand:
//   Y_ww = M_ww^T,   Y_wr = (sum over m from w to r - 1 of Y_wm (-A_rm)^T) M_rr^T
#pragma once
#include "terms.cuh"

namespace {

constexpr float kAlike = 0.5f;  // |k_i . k_j| gamma_i / gamma_j of tokens in a block from which on keys are alike
constexpr int kColumns = 20, kDiagonal = 16 * kColumns + 4;  // floats: rows of 16, apart so that no banks are met twice

// What a warp works in.
union Scratch {
  float diagonal[4][kDiagonal];  // blocks of -A, transposed
  struct {
    unsigned char inverse[2][4 * kBlock];      // of the diagonal blocks of I + A, in one term or two
    unsigned char staged[2][kTerms * kBlock];  // blocks of E on their way
  };
};

// Number j of row i of the inverse of I less a 16 x 16 block, strictly lower, by substitution; `row` is row j of the block,
// transposed. The first eight rows have but eight columns.
template <int Columns>
__device__ __forceinline__ void substitute(float (&x)[Columns], const float (&row)[16], int i, int j) {
  float sum = i == j ? 1.f : 0.f;
#pragma unroll
  for (int m = Columns - 1; m > j; --m) sum = fmaf(x[m], row[m], sum);
  x[j] = sum;
}

// Where a lane's row of a 16 x 16 block lies: the second and third of its four cores in turns.
__device__ __forceinline__ uint32_t turned(int lane) { return (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16; }

// `products`: K K^T and, behind it, K Q^T.
template <class E>
struct Inverter {
  const unsigned char* products;
  const Rows& rows;
  Scratch& s;
  unsigned char *e_tile, *m_tile;  // in memory
  float scale;
  int lane;

  __device__ __forceinline__ void find() const {
    const bool alike = find_diagonal();
    find_scores();
    if (kTerms > 1 || std::is_same_v<E, __half> || alike) {
      invert<2>();
    } else {
      invert<1>();
    }
  }
  template <int N>
  __device__ __forceinline__ void invert() const {
    invert_diagonal<N>();
    find_left_of_inverse<N>();
  }

  __device__ __forceinline__ static int e_at(int term) { return term * kTriangle; }
  __device__ __forceinline__ static int m_at(int term) { return term * kTriangle; }

  // A block as a product leaves it, to its place in memory: a core is 32 pairs.
  __device__ __forceinline__ void put(int at, const uint32_t (&words)[4]) const {
    uint32_t* const to = reinterpret_cast<uint32_t*>(m_tile + at) + lane;
    to[0] = words[0], to[64] = words[1], to[32] = words[2], to[96] = words[3];
  }

  // P transposed: rows are tokens j, columns i.
  __device__ __forceinline__ void find_scores() const {
    const auto write = [&](float (&x)[8], int r, int s) {
      put(kPAt + block_of_upper(r, s), {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])});
    };
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      float weights[8], logs[4], x[8];
      weigh_diagonal<true>(weights, rows.log, s, lane);
      read_products(x, products + kProducts, s, s, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= scale * weights[e];
      write(x, s, s);
      columns_of(logs, rows.log, s, lane);
#pragma unroll
      for (int r = 0; r < s; ++r) {
        const float end = rows.log[16 * r + 15];
        const float factor[2] = {scale * rows.factor[16 * r + lane / 4], scale * rows.factor[16 * r + lane / 4 + 8]};
        read_products(x, products + kProducts, s, r, lane);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] *= factor[e / 2 % 2] * exp2_fast(logs[e / 4 * 2 + e % 2] - end);
        write(x, r, s);
      }
    }
  }

  // Blocks on the diagonal, of -A; and whether any of their keys are alike.
  __device__ __forceinline__ bool find_diagonal() const {
    bool alike = false;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float weights[8], x[8];
      const float beta[2] = {rows.beta[16 * r + lane / 4], rows.beta[16 * r + lane / 4 + 8]};
      weigh_diagonal<false>(weights, rows.log, r, lane);
      read_products(x, products, r, r, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) {  // what lies on the diagonal is not looked at
        const int column = e / 4 * 8 + 2 * (lane % 4) + e % 2, row = lane / 4 + e / 2 % 2 * 8;
        x[e] *= weights[e];
        s.diagonal[r][kColumns * column + row] = -beta[e / 2 % 2] * x[e];
        alike |= row > column && !(fabsf(x[e]) < kAlike);
      }
    }
    return __ballot_sync(kAllLanes, alike) != 0;
  }

  // Their inverses: eight lanes have a block, two rows each, so that what is read of it serves both.
  template <int N>
  __device__ __forceinline__ void invert_diagonal() const {
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
    float x[3][8];  // what is not zero: of the first of both rows, of the second
#pragma unroll
    for (int j = 0; j < 8; ++j) x[0][j] = upper[j], x[1][j] = lower[j], x[2][j] = lower[8 + j];
    const uint32_t to = shared_address(s.inverse) + r * kBlock + 16 * i;
    const auto keep = [&](int core) {
      return [=](int term, uint4 words) { store_shared(to + term * static_cast<int>(sizeof(Scratch::inverse[0])) + 128 * core, words); };
    };
    give_row<__nv_bfloat16, N>(x[0], keep(0));
    give_row<__nv_bfloat16, N>(x[1], keep(1));
    give_row<__nv_bfloat16, N>(x[2], keep(3));
#pragma unroll
    for (int term = 0; term < N; ++term) keep(2)(term, make_uint4(0, 0, 0, 0));
    // E, whose cores lie row by row.
    const float inverse[2] = {rows.inverse[16 * r + i], rows.inverse[16 * r + i + 8]};
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&rows.beta[16 * r + j]);
      const float beta[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (j < 8) x[0][j + e] *= beta[e] * inverse[0];
        x[1 + j / 8][j % 8 + e] *= beta[e] * inverse[1];
      }
    }
    unsigned char* const own = e_tile + block_of_lower(r, r) + 16 * i;
    const auto give = [=](int core) {
      return [=](int term, uint4 words) { *reinterpret_cast<uint4*>(own + e_at(term) + 128 * core) = words; };
    };
    give_row<E, kTerms>(x[0], give(0));
    give_row<E, kTerms>(x[1], give(2));
    give_row<E, kTerms>(x[2], give(3));
#pragma unroll
    for (int term = 0; term < kTerms; ++term) give(1)(term, make_uint4(0, 0, 0, 0));
    __syncwarp();
  }

  // Blocks left of it, of row r: -A_r0 to -A_r,r-1.
  template <int N>
  __device__ __forceinline__ void find_left(Operand16<N> (&a)[3], int r) const {
    const int row = 16 * r + lane / 4;
    const float log[2] = {rows.log[row], rows.log[row + 8]}, beta[2] = {rows.beta[row], rows.beta[row + 8]};
#pragma unroll
    for (int m = 0; m < 3; ++m) {
      if (m >= r) break;
      const float end = rows.log[16 * m + 15];
      const float weight[2] = {-beta[0] * exp2_fast(log[0] - end), -beta[1] * exp2_fast(log[1] - end)};
      float factors[4], x[8];
      columns_of(factors, rows.factor, m, lane);
      read_products(x, products, r, m, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= weight[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
      a[m] = Operand16<N>(x);
    }
  }

  template <int N>
  __device__ __forceinline__ Operand16<N> inverse_of(int r, bool transposed) const {
    const uint32_t at = shared_address(s.inverse) + r * kBlock + (transposed ? turned(lane) : 16 * lane);
    Operand16<N> x;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t from = at + i * static_cast<int>(sizeof s.inverse[0]);
      if (transposed) {
        ldmatrix_transposed(x.term[i], from);
      } else {
        ldmatrix(x.term[i], from);
      }
    }
    return x;
  }

  // A block of M, transposed.
  __device__ __forceinline__ void give_m(const float (&x)[8], int r, int s) const {
    uint32_t words[2][4];
    split<E>(x, words[0], words[1]);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) put(m_at(term) + block_of_upper(r, s), words[term]);
  }
  template <int N>
  __device__ __forceinline__ void give_diagonal_of_m(const Operand16<N>& block, int r) const {
    if constexpr (std::is_same_v<E, __nv_bfloat16>) {
#pragma unroll
      for (int term = 0; term < kTerms; ++term) put(m_at(term) + block_of_upper(r, r), block.term[term]);
    } else {
      float x[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 high = unpack<__nv_bfloat16>(block.term[0][i]), low = unpack<__nv_bfloat16>(block.term[N - 1][i]);
        x[2 * i] = high.x + low.x, x[2 * i + 1] = high.y + low.y;
      }
      give_m(x, r, r);
    }
  }

  // A block of E, which comes transposed. By way of shared memory, two places in turns.
  __device__ __forceinline__ void give_e(const float (&y)[8], int r, int s) const {
    uint32_t words[2][4];
    split<E>(y, words[0], words[1]);
    unsigned char* const staged = this->s.staged[(r * (r - 1) / 2 + s) % 2];  // not that of the block before
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      stmatrix_transposed(shared_address(staged) + term * kBlock + 16 * lane, words[term]);
    }
    __syncwarp();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {  // cores lie row by row
      *reinterpret_cast<uint4*>(e_tile + e_at(term) + block_of_lower(r, s) + 16 * lane) =
          *reinterpret_cast<const uint4*>(staged + term * kBlock + 16 * lane);
    }
  }

  template <int N>
  __device__ __forceinline__ void find_left_of_inverse() const {
    using Block = Operand16<N>;
    Block y[3];  // Y_01, Y_02, Y_12
    give_diagonal_of_m<N>(inverse_of<N>(3, true), 3);
#pragma unroll
    for (int r = 1; r < 4; ++r) {
      Block a[3];
      find_left<N>(a, r);
      float sums[3][8] = {}, found[3][8] = {};
#pragma unroll
      for (int m = 0; m < r; ++m) {  // side by side: no product waits for the one before
        const Block own = inverse_of<N>(m, true);
        if (m == r - 1) give_diagonal_of_m<N>(own, m);
#pragma unroll
        for (int w = 0; w <= m; ++w) multiply_terms<N>(sums[w], w == m ? own : y[w + m - 1], a[m]);
      }
      const Block inverse = inverse_of<N>(r, false);
#pragma unroll
      for (int w = 0; w < r; ++w) multiply_terms<N>(found[w], Block(sums[w]), inverse);
      float inverse_beta[4];
      columns_of(inverse_beta, rows.inverse, r, lane);
#pragma unroll
      for (int w = 0; w < r; ++w) {
        if (r < 3) y[w + r - 1] = Block(found[w]);
        give_m(found[w], w, r);
        const float beta[2] = {rows.beta[16 * w + lane / 4], rows.beta[16 * w + lane / 4 + 8]};
#pragma unroll
        for (int e = 0; e < 8; ++e) found[w][e] *= beta[e / 2 % 2] * inverse_beta[e / 4 * 2 + e % 2];
        give_e(found[w], r, w);
      }
    }
  }
};

}  // namespace
