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
// that; for it all of them do, and so on (README.md).
#ifdef GDN_EVERY_LANE
constexpr bool kEveryLane = true;
#else
constexpr bool kEveryLane = false;
#endif
constexpr int kSpeakers = kEveryLane ? 32 : 1;
__device__ __forceinline__ void warp_arrive(int lane, uint32_t bar) { barrier_arrive_if(kSpeakers > 1 || lane == 0, bar); }
// The others' part, where the first lane does more than arrive.
__device__ __forceinline__ void others_arrive(int lane, uint32_t bar) {
  if (kSpeakers > 1 && lane != 0) barrier_arrive(bar);
}

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
  float end[2];                                                      // gamma_C
  float small_beta[2];                                               // 1 where Decays::small_beta is not 0
};
// The first two of the four; the others are those of eight tokens further.
__device__ __forceinline__ constexpr int place_of_pair(int token) {
  return token / 16 * 16 + token % 8 * 2 + token / 8 % 2 * 2;
}
constexpr float kSteep = 0x1p-64f;  // a gate below that is not divided by
// By tokens, one after the other: log2 of gamma, beta; and what a gate's gradient is divided by: alpha, 1 where gates are logs, 0 where it
// is too steep. Whether any is; and whether any beta is too small to be divided by.
struct Decays {
  float log[kChunk], beta[kChunk], alpha[kChunk];
  int any_steep[2], small_beta[2];
};
static_assert(sizeof(Decays) % 16 == 0);
// dbeta is dv . r / beta, of the last kernel's products, where dv keeps what x has: in bfloat16, which has exponents for that, if no
// beta of the chunk is small. Elsewhere the reverse walk finds it, and at both ends of a sequence, where r has two terms.
template <class E>
constexpr bool kDivides = std::is_same_v<E, __nv_bfloat16>;

struct alignas(128) ForwardTile {
  unsigned char E[kTerms][kSquare];
  ForwardDecays decays;
};
struct alignas(16) ReverseTile {  // as it lies in memory
  unsigned char M[kTerms][kTriangle], P[kTriangle];  // transposed
  ReverseDecays decays;
};
constexpr int kWalkers = 8;  // warps that walk over a (sequence, head)
// What each of them finds in the reverse walk: of dbeta, and of <S, dS> of chunks at a sequence's ends.
struct WalkSums {
  float of_beta[kWalkers][kChunk], of_states[kWalkers];
};
// In memory, from sectors on: M, P and their decays, or E and its own.
constexpr int to_sectors(int bytes) { return (bytes + 127) / 128 * 128; }
constexpr int kForwardBytes = kTerms * kTriangle + static_cast<int>(sizeof(ForwardDecays));
constexpr int kReverseBytes = (kTerms + 1) * kTriangle + static_cast<int>(sizeof(ReverseDecays));
constexpr int kPAt = kTerms * kTriangle, kReverseAt = kPAt + kTriangle;
// One behind the other, where nothing else lies there.
constexpr int kForwardAt = to_sectors(kReverseBytes), kTileBytes = kForwardAt + to_sectors(kForwardBytes);
static_assert(kForwardBytes % 16 == 0 && kReverseBytes % 16 == 0 && sizeof(ReverseTile) == kReverseBytes);

// Of a chunk and head: a state, [V, K]: boxes of value channels 0 to 63, of key channels 0 to 63 and the others; then those
// of the other value channels. Of tokens' values: a box for each half of the channels.
constexpr int kStateBytes = 4 * kBoxBytes, kValueBytes = 2 * kBoxBytes;

__device__ __forceinline__ int64_t at_place(const Problem& p, int64_t place, int h) { return place * p.H + h; }
// The tile of a slice, from value channel `slice` on.
__device__ __forceinline__ unsigned char* tile_at(const Tiles& tiles, int64_t at, int slice) {
  return tiles.first + at * tiles.step + (slice > 0 ? tiles.second : 0);
}
__device__ __forceinline__ Decays& decays_at(const Problem& p, int64_t at) { return reinterpret_cast<Decays*>(p.decays)[at]; }

// Where warps that walk leave what they find. Of the first chunk of a sequence, or the last one:
__device__ __forceinline__ WalkSums& ends_at(const Problem& p, int n, int h, bool is_last) {
  return reinterpret_cast<WalkSums*>(p.of_ends)[at_place(p, n, h) * 2 + is_last];
}
// Of another one, which is whole, 64 numbers a warp, `step` apart: rows of dq, which nobody has written yet, are as long. `first`: its
// first token.
constexpr bool in_rows_of_queries(const Problem& p) { return p.q_group * kWalkers <= kChunk; }
struct Betas {
  const float* first;
  int64_t step;
};
__device__ __forceinline__ Betas betas_at(const Problem& p, int64_t at, int64_t first, int h) {
  if (p.of_betas != nullptr) return {p.of_betas + at * kWalkers * kChunk, kChunk};
  const int64_t row = (first + h % p.q_group * kWalkers) * p.q_heads + h / p.q_group;
  return {static_cast<const float*>(p.dq) + row * kChunk, int64_t{kChunk} * p.q_heads};
}
static_assert(kChunk * sizeof(float) == kHeadSize * sizeof(uint16_t));

}  // namespace
