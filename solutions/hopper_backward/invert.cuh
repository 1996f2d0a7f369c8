// M = (I + A)^-1 for A = strict_lower(diag(beta) (Gamma * K K^T)), 64 x 64; E = diag(beta)^-1 M diag(beta); and P = scale
// lower(Gamma * Q K^T), of a chunk and head: by one warp, or P by another, to memory. Warps wait for nobody.
//
// Blocks of 16 by substitution in float32, then row of blocks by row of blocks, by products of two bfloat16 terms each. The
// inverse is found transposed, Y_wr = M_rw^T, so that what one product leaves in registers is the next one's left operand,
// and A as it is found a right operand:
//   Y_ww = M_ww^T,   Y_wr = (sum over m from w to r - 1 of Y_wm (-A_rm)^T) M_rr^T
#pragma once
#include "terms.cuh"

namespace {

constexpr int kBlock = 512;  // bytes of 16 x 16 numbers: four cores of 8 rows of 16 bytes
constexpr int kColumns = 20, kDiagonal = 16 * kColumns + 4;  // floats: rows of 16, apart so that no banks are met twice

// What a warp works in.
union Scratch {
  float diagonal[4][kDiagonal];  // blocks of -A, transposed
  struct {
    unsigned char inverse[2][4 * kBlock];      // of the diagonal blocks of I + A, in two terms
    unsigned char staged[2][kTerms * kBlock];  // blocks of M or E on their way
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

// `products`: K K^T and, behind it, Q K^T.
template <class E>
struct Inverter {
  const unsigned char* products;
  const Rows& rows;
  Scratch& s;
  unsigned char* tile;  // in memory
  float scale;
  int lane;

  __device__ __forceinline__ void find_inverses() const {
    find_diagonal();
    invert_diagonal();
    find_left_of_inverse();
  }

  // P, and what is zero.
  __device__ __forceinline__ void find_scores() const {
    clear_upper();
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 16 * r + lane / 4;
      const float log[2] = {rows.log[row], rows.log[row + 8]};
      float weights[8], x[8];
      weigh_diagonal(weights, rows.log, r, lane);
      read_products(x, products + kProducts, r, r, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= scale * weights[e];
      write_p(x, r, r);
#pragma unroll
      for (int m = 0; m < r; ++m) {
        const float end = rows.log[16 * m + 15];
        const float decay[2] = {scale * exp2_fast(log[0] - end), scale * exp2_fast(log[1] - end)};
        float factors[4];
        columns_of(factors, rows.factor, m, lane);
        read_products(x, products + kProducts, r, m, lane);
#pragma unroll
        for (int e = 0; e < 8; ++e) x[e] *= decay[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
        write_p(x, r, m);
      }
    }
  }

  // 16 bytes of a box in memory.
  __device__ __forceinline__ void put(int box, int row, int piece, uint4 words) const {
    *reinterpret_cast<uint4*>(tile + box + swizzled(row, piece)) = words;
  }
  __device__ __forceinline__ static int e_at(int term) { return term * kBoxBytes; }
  __device__ __forceinline__ static int m_at(int term) { return kMAt + term * kBoxBytes; }

  // Above the blocks on the diagonal.
  __device__ __forceinline__ void clear_upper() const {
#pragma unroll 1
    for (int at = lane; at < 6 * 32; at += 32) {
      const int i = at / 32, r = i < 3 ? 0 : i < 5 ? 1 : 2, m = i < 3 ? i + 1 : i < 5 ? i - 1 : 3;
      const int row = 16 * r + lane / 2, piece = 2 * m + lane % 2;
      const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int term = 0; term < kTerms; ++term) put(e_at(term), row, piece, zeros), put(m_at(term), row, piece, zeros);
      put(kPAt, row, piece, zeros);
    }
  }

  __device__ __forceinline__ void write_p(const float (&x)[8], int r, int m) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * r + lane / 4 + i % 2 * 8, piece = 2 * m + i / 2;
      *reinterpret_cast<uint32_t*>(tile + kPAt + swizzled(row, piece) + lane % 4 * 4) = pack<E>(x[2 * i], x[2 * i + 1]);
    }
  }

  // Blocks on the diagonal, of -A.
  __device__ __forceinline__ void find_diagonal() const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float weights[8], x[8];
      const float beta[2] = {rows.beta[16 * r + lane / 4], rows.beta[16 * r + lane / 4 + 8]};
      weigh_diagonal(weights, rows.log, r, lane);
      read_products(x, products, r, r, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) {  // what lies on the diagonal is not looked at
        const int column = e / 4 * 8 + 2 * (lane % 4) + e % 2, row = lane / 4 + e / 2 % 2 * 8;
        s.diagonal[r][kColumns * column + row] = -beta[e / 2 % 2] * weights[e] * x[e];
      }
    }
  }

  // Their inverses: eight lanes have a block, two rows each, so that what is read of it serves both.
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
      return [=](int term, uint4 words) { store_shared(to + term * sizeof s.inverse[0] + 128 * core, words); };
    };
    give_row<__nv_bfloat16, 2>(x[0], keep(0));
    give_row<__nv_bfloat16, 2>(x[1], keep(1));
    give_row<__nv_bfloat16, 2>(x[2], keep(3));
#pragma unroll
    for (int term = 0; term < 2; ++term) keep(2)(term, make_uint4(0, 0, 0, 0));
    const int row = 16 * r + i;
    give_diagonal(x, m_at(0), row, 2 * r);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[0][j] *= rows.beta[16 * r + j] * rows.inverse[row];
      x[1][j] *= rows.beta[16 * r + j] * rows.inverse[row + 8];
      x[2][j] *= rows.beta[16 * r + 8 + j] * rows.inverse[row + 8];
    }
    give_diagonal(x, e_at(0), row, 2 * r);
    __syncwarp();
  }

  __device__ __forceinline__ void give_diagonal(const float (&x)[3][8], int box, int row, int piece) const {
    const auto give = [&](int row, int piece) {
      return [=](int term, uint4 words) { put(box + term * kBoxBytes, row, piece, words); };
    };
    give_row<E, kTerms>(x[0], give(row, piece));
    give_row<E, kTerms>(x[1], give(row + 8, piece));
    give_row<E, kTerms>(x[2], give(row + 8, piece + 1));
#pragma unroll
    for (int term = 0; term < kTerms; ++term) give(row, piece + 1)(term, make_uint4(0, 0, 0, 0));
  }

  // Blocks left of it, of row r: -A_r0 to -A_r,r-1.
  __device__ __forceinline__ void find_left(Operand16 (&a)[3], int r) const {
    const int row = 16 * r + lane / 4;
    const float log[2] = {rows.log[row], rows.log[row + 8]}, beta[2] = {rows.beta[row], rows.beta[row + 8]};
#pragma unroll
    for (int m = 0; m < 3; ++m) {
      if (m >= r) break;
      const float end = rows.log[16 * m + 15];
      const float decay[2] = {exp2_fast(log[0] - end), exp2_fast(log[1] - end)};
      float factors[4], x[8];
      columns_of(factors, rows.factor, m, lane);
      read_products(x, products, r, m, lane);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] *= -beta[e / 2 % 2] * decay[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
      a[m] = Operand16(x);
    }
  }

  __device__ __forceinline__ Operand16 inverse_of(int r, bool transposed) const {
    const uint32_t at = shared_address(s.inverse) + r * kBlock + (transposed ? turned(lane) : 16 * lane);
    Operand16 x;
    if (transposed) {
      ldmatrix_transposed(x.high, at), ldmatrix_transposed(x.low, at + sizeof s.inverse[0]);
    } else {
      ldmatrix(x.high, at), ldmatrix(x.low, at + sizeof s.inverse[0]);
    }
    return x;
  }

  // Y_wr, turned, to a box. By way of shared memory, two places in turns.
  __device__ __forceinline__ void give(const float (&y)[8], int r, int w, int place, int box) const {
    uint32_t words[2][4];
    split<E>(y, words[0], words[1]);
    unsigned char* const staged = s.staged[place];
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      stmatrix_transposed(shared_address(staged) + term * kBlock + 16 * lane, words[term]);
    }
    __syncwarp();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {  // cores lie row by row
      const uint4 row = *reinterpret_cast<const uint4*>(staged + term * kBlock + 16 * lane);
      put(box + term * kBoxBytes, 16 * r + lane / 16 * 8 + lane % 8, 2 * w + lane / 8 % 2, row);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void find_left_of_inverse() const {
    Operand16 y[3];  // Y_01, Y_02, Y_12
#pragma unroll
    for (int r = 1; r < 4; ++r) {
      Operand16 a[3];
      find_left(a, r);
      float sums[3][8] = {}, found[3][8] = {};
#pragma unroll
      for (int m = 0; m < r; ++m) {  // side by side: no product waits for the one before
        const Operand16 own = inverse_of(m, true);
#pragma unroll
        for (int w = 0; w <= m; ++w) multiply_terms(sums[w], w == m ? own : y[w + m - 1], a[m]);
      }
      const Operand16 inverse = inverse_of(r, false);
#pragma unroll
      for (int w = 0; w < r; ++w) multiply_terms(found[w], Operand16(sums[w]), inverse);
      float inverse_beta[4];
      columns_of(inverse_beta, rows.inverse, r, lane);
#pragma unroll
      for (int w = 0; w < r; ++w) {
        if (r < 3) y[w + r - 1] = Operand16(found[w]);
        give(found[w], r, w, 0, m_at(0));
        const float beta[2] = {rows.beta[16 * w + lane / 4], rows.beta[16 * w + lane / 4 + 8]};
#pragma unroll
        for (int e = 0; e < 8; ++e) found[w][e] *= beta[e / 2 % 2] * inverse_beta[e / 4 * 2 + e % 2];
        give(found[w], r, w, 1, e_at(0));
      }
    }
  }
};

}  // namespace
