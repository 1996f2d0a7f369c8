// How matrices lie in shared memory, and what is prepared of a chunk.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kBoxBytes = 64 * 128;  // 64 rows of 64 numbers, swizzled: what wgmma and TMA call SW128
constexpr int kHalves = kHeadSize / 64;  // boxes of a head's row, side by side
constexpr size_t kMostShared = 227 * 1024;
// Registers of a thread where two warpgroups multiply: of those, and of the one that feeds.
constexpr int kWalkRegisters = 240, kFeedRegisters = 24;
// Lanes of a warp that say what it has left, or passed on: one is enough for all behind __syncwarp. racecheck does not follow
// that; for it all of them do (README.md).
#ifdef GDN_EVERY_LANE
constexpr int kSpeakers = 32;
#else
constexpr int kSpeakers = 1;
#endif
__device__ __forceinline__ void warp_arrive(int lane, uint32_t bar) { barrier_arrive_if(kSpeakers > 1 || lane == 0, bar); }

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

// --- triangles of 64 x 64 ----------------------------------------------------------------------------------------
//
// Of 16 x 16 blocks, column by column: four cores of 8 rows of 16 bytes, two side by side. In memory there are ten blocks, those on
// the diagonal and on one side of it; so do upper ones lie in shared memory, of which wgmma reads what there is of a column of blocks.
// Of lower ones it reads a whole square there, without a swizzle: zeros stand in the others.
constexpr int kBlock = 512, kTriangle = 10 * kBlock, kSquare = 16 * kBlock;  // bytes

// The block of rows 16 r and columns 16 s: in a square, and in memory of a lower and an upper triangle.
__device__ __forceinline__ constexpr int block_of_square(int r, int s) { return kBlock * (4 * s + r); }
__device__ __forceinline__ constexpr int block_of_lower(int r, int s) { return kBlock * (r + 3 * s - s * (s - 1) / 2); }
__device__ __forceinline__ constexpr int block_of_upper(int r, int s) { return kBlock * (s * (s + 1) / 2 + r); }

// From memory to a square, and `behind` bytes that follow in both; by one thread.
__device__ __forceinline__ void load_lower(uint32_t to, const unsigned char* from, int behind, uint32_t landed) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    load_bytes(to + block_of_square(s, s), from + block_of_lower(s, s), (4 - s) * kBlock + (s == 3 ? behind : 0), landed);
  }
}

// The zeros of squares, one behind the other, of lower triangles; by a block.
__device__ __forceinline__ void clear_squares(uint32_t to, int count) {
  for (int at = threadIdx.x; at < count * kSquare / 16; at += blockDim.x) {
    const int block = at / (kBlock / 16) % 16, r = block % 4, s = block / 4;
    if (r < s) store_shared(to + 16 * at, make_uint4(0, 0, 0, 0));
  }
}

// --- what is prepared of a chunk and head ------------------------------------------------------------------------
//
// With N = strict_lower(Gamma * K K^T):
//   E = (I + N diag(beta))^-1, M = (I + diag(beta) N)^-1, P = scale lower(Gamma * Q K^T)
// E as a lower triangle, M and P transposed, as upper ones. E and M in so many terms of 16 bits: one, or two in the variant `two_terms`.
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
constexpr float kSteep = 0x1p-64f;  // a gate below that is not divided by
// By tokens, one after the other: log2 of gamma, gamma, gamma_C / gamma, beta; and what a gate's gradient is divided by: alpha, 1 where
// gates are logs, 0 where it is too steep. Whether any is.
struct Decays {
  float log[kChunk], from_start[kChunk], to_end[kChunk], beta[kChunk], alpha[kChunk];
  int any_steep[4];
};

struct alignas(128) ForwardTile {
  unsigned char E[kTerms][kSquare];
  ForwardDecays decays;
};
struct alignas(16) ReverseTile {  // as it lies in memory
  unsigned char M[kTerms][kTriangle], P[kTriangle];  // transposed
  ReverseDecays decays;
};
// Of a chunk and head: a state, [V, K]: boxes of value channels 0 to 63, of key channels 0 to 63 and the others; then those
// of the other value channels. Of tokens' values: a box for each half of the channels.
constexpr int kStateBytes = 4 * kBoxBytes, kValueBytes = 2 * kBoxBytes;
__device__ __forceinline__ int64_t at_place(const Problem& p, int64_t place, int h) { return place * p.H + h; }

// In memory the tile of the reverse walk comes first, then that of the forward walk, both at sectors. They lie where dS will: whoever
// walks back has his tile in shared memory before he leaves the chunk's dS. A block for each slice of dS would find only the other's
// dS there, so each has a tile of its own in its half. Two terms are too long for that: there tiles have memory of their own.
constexpr int to_sectors(int bytes) { return (bytes + 127) / 128 * 128; }
constexpr int kForwardBytes = kTerms * kTriangle + static_cast<int>(sizeof(ForwardDecays));
constexpr int kReverseBytes = (kTerms + 1) * kTriangle + static_cast<int>(sizeof(ReverseDecays));
constexpr int kPAt = kTerms * kTriangle, kReverseAt = kPAt + kTriangle;  // M is at the start
constexpr int kForwardAt = to_sectors(kReverseBytes), kSecondAt = kForwardAt + to_sectors(kForwardBytes);
constexpr bool kInStates = kTerms == 1;
static_assert(kForwardBytes % 16 == 0 && kReverseBytes % 16 == 0 && sizeof(ReverseTile) == kReverseBytes);
static_assert(!kInStates || (kReverseBytes <= kStateBytes / 2 && kSecondAt >= kStateBytes / 2 && kSecondAt + kReverseBytes <= kStateBytes));
// Whoever finds gradients needs these.
constexpr int kDecaysAt = kInStates ? 0 : kSecondAt;
constexpr int kTileBytes = to_sectors(kDecaysAt + static_cast<int>(sizeof(Decays)));
__device__ __forceinline__ unsigned char* tile_at(const Problem& p, int64_t at) {
  return kInStates ? p.ends + at * kStateBytes : p.tiles + at * kTileBytes;
}
__device__ __forceinline__ unsigned char* decays_at(const Problem& p, int64_t at) { return p.tiles + at * kTileBytes + kDecaysAt; }

constexpr int kWalkers = 8;  // warps that walk over a (sequence, head)
// Where each of them leaves what it finds of dbeta, 64 numbers. They are as long as a row of dk, which nobody has written yet where a
// chunk is whole. `at`: of the chunk; `first`: its first token.
constexpr bool in_rows_of_keys(const Problem& p) { return p.k_group * kWalkers <= kChunk; }
__device__ __forceinline__ float* betas_at(const Problem& p, int64_t at, int64_t first, bool whole, int n, int h, int k_head, int walker) {
  if (in_rows_of_keys(p) && whole) {
    const int64_t row = (first + (h - k_head * p.k_group) * kWalkers + walker) * p.k_heads + k_head;
    return reinterpret_cast<float*>(static_cast<uint16_t*>(p.dk) + row * kHeadSize);
  }
  return p.of_beta + ((in_rows_of_keys(p) ? at_place(p, n, h) : at) * kWalkers + walker) * kChunk;
}
static_assert(kChunk * sizeof(float) == kHeadSize * sizeof(uint16_t));
// And of <S, dS> of a sequence's first chunk and its last one, eight numbers.
__device__ __forceinline__ float* of_states_at(const Problem& p, int n, int h, bool is_last) {
  return p.of_states + (at_place(p, n, h) * 2 + is_last) * kWalkers;
}

}  // namespace
