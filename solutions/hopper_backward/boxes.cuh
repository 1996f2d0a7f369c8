// How matrices lie in shared memory, and what is prepared of a chunk.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kBoxBytes = 64 * 128;  // 64 rows of 64 numbers, swizzled: what wgmma and TMA call SW128
constexpr int kHalves = kHeadSize / 64;  // boxes of a head's row, side by side
constexpr size_t kMostShared = 227 * 1024;

// 16-byte piece `piece` of a row of 128 bytes, in a box.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Where a lane begins, of 16 x 16 numbers from row 16 `rows` and column 16 `columns` on, for ldmatrix and stmatrix: in the
// order of a left operand, and of one that is transposed on its way.
__device__ __forceinline__ uint32_t place_of_lane(int rows, int columns, int lane) {
  return swizzled(16 * rows + (lane & 15), 2 * columns + (lane >> 4));
}
__device__ __forceinline__ uint32_t turned_place_of_lane(int rows, int columns, int lane) {
  return swizzled(16 * rows + (lane & 7) + (lane >> 4) * 8, 2 * columns + (lane >> 3 & 1));
}

// Zeros in the rows of a box from `row` on, whole ones, so that the swizzle stays inside of them; by so many threads.
__device__ __forceinline__ void clear_rows(uint32_t box, int row, int thread, int threads) {
#pragma unroll 1
  for (int at = 128 * row + 16 * thread; at < kBoxBytes; at += 16 * threads) {
    store_shared(box + at, make_uint4(0, 0, 0, 0));
  }
}

// --- what is prepared of a chunk and head ------------------------------------------------------------------------
//
// With N = strict_lower(Gamma * K K^T):
//   E = (I + N diag(beta))^-1, M = (I + diag(beta) N)^-1, P = scale lower(Gamma * Q K^T)
// as boxes, rows are tokens. E and M in so many terms of 16 bits: one, or two in the variant `strict`.
#ifndef GDN_TERMS
#define GDN_TERMS 1
#endif
constexpr int kTerms = GDN_TERMS;

// By tokens, in the order in which whoever walks holds columns: the four of 16 that a lane has lie side by side.
struct ForwardDecays {
  float from_start[kChunk], written[kChunk];  // gamma; beta gamma_C / gamma
};
struct ReverseDecays {
  float to_end[kChunk], read[kChunk], erased[kChunk], beta[kChunk];  // gamma_C / gamma; scale gamma; -beta gamma
  float end[4];                                                      // gamma_C
};
// The first two of the four; the others are those of eight tokens further.
__device__ __forceinline__ constexpr int place_of_pair(int token) {
  return token / 16 * 16 + token % 8 * 2 + token / 8 % 2 * 2;
}
// By tokens, one after the other: log2 of gamma, gamma, gamma_C / gamma, beta.
struct Decays {
  float log[kChunk], from_start[kChunk], to_end[kChunk], beta[kChunk];
};

struct alignas(1024) ForwardTile {
  unsigned char E[kTerms][kBoxBytes];
  ForwardDecays decays;
};
struct alignas(1024) ReverseTile {
  unsigned char M[kTerms][kBoxBytes], P[kBoxBytes];
  ReverseDecays decays;
};
// In memory, one after the other.
constexpr int kForwardBytes = kTerms * kBoxBytes + static_cast<int>(sizeof(ForwardDecays));
constexpr int kReverseBytes = (kTerms + 1) * kBoxBytes + static_cast<int>(sizeof(ReverseDecays));
constexpr int kMAt = kForwardBytes, kPAt = kMAt + kTerms * kBoxBytes, kReverseAt = kPAt + kBoxBytes;
constexpr int kDecaysAt = kForwardBytes + kReverseBytes, kTileBytes = kDecaysAt + static_cast<int>(sizeof(Decays));
static_assert(kForwardBytes % 16 == 0 && kReverseBytes % 16 == 0 && kTileBytes % 16 == 0);

// Of a chunk and head: a state, [V, K]: boxes of value channels 0 to 63, of key channels 0 to 63 and the others; then those
// of the other value channels. Of tokens' values: a box for each half of the channels.
constexpr int kStateBytes = 4 * kBoxBytes, kValueBytes = 2 * kBoxBytes;
constexpr int kWalkers = 8;  // warps that walk over a (sequence, head): each finds a part of dbeta

__device__ __forceinline__ int64_t at_place(const Problem& p, int64_t place, int h) { return place * p.H + h; }

}  // namespace
