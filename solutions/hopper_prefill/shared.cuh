// What is prepared of a chunk, and what blocks keep in shared memory.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kStages = 3;           // chunks: one is advanced, the others are on their way
constexpr int kTurnOf0 = 1;          // named barriers: the turn of the first of two warpgroups, of the second
constexpr int kTerms = 2;            // of T, of 16 bits each
constexpr int kBoxBytes = 64 * 128;  // 64 rows of 64 numbers, swizzled: what wgmma and TMA call SW128

// 16-byte piece `piece` of a row of 128 bytes, in a swizzled box.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Zeros in the rows of a box from `row` on, whole ones, so that the swizzle stays inside of them; by so many threads.
__device__ __forceinline__ void clear_rows(uint32_t box, int row, int thread, int threads) {
  for (int at = 128 * row + 16 * thread; at < kBoxBytes; at += 16 * threads) {
    store_shared(box + at, make_uint4(0, 0, 0, 0));
  }
}

// --- a lower triangle of 64 x 64, packed ------------------------------------------------------------------------
//
// Rows are tokens i, columns j <= i. Panels of 16 columns, of cores of 8 rows of 16 bytes, two side by side: the first
// two panels have all rows, the last two rows 32 to 63. What is above the diagonal in them is zero.

constexpr int kTriangle = 6144;
__device__ __forceinline__ constexpr int panel(int s) { return s < 2 ? 2048 * s : 2048 + 1024 * s; }
// The 16 x 16 block of rows 16 r and columns 16 s: its four cores are contiguous.
__device__ __forceinline__ int block_of(int r, int s) { return panel(s) + (s < 2 ? r : r - 2) * 512; }

// P is whole, so that its product goes to the sums of another that is.
constexpr int kSquare = 8192;
__device__ __forceinline__ constexpr int block_of_square(int r, int s) { return 2048 * s + 512 * r; }

struct Decays {
  float log[kChunk];     // log2 of gamma
  float factor[kChunk];  // gamma of the last of 16 tokens over gamma of this one
  float to_end[kChunk], from_start[kChunk];  // gamma_C / gamma, gamma
};

// What is prepared of a chunk and head: what a state needs, and what its output needs besides.
struct alignas(128) StateTile {
  unsigned char T[kTerms][kTriangle];
  Decays decays;
};
struct Tile : StateTile {
  unsigned char P[kSquare];
};
// Whether a block that advances so many slices finds P, which then is not prepared.
constexpr bool finds_p(int groups) { return groups == 2; }
constexpr int tile_bytes(bool with_p) { return static_cast<int>(with_p ? sizeof(Tile) : sizeof(StateTile)); }

// Of a block that writes outputs, or of one that takes a state over a segment and no more.
template <int Groups, bool Output>
struct Stage {
  unsigned char k[2 * kBoxBytes], q[2 * kBoxBytes], v[Groups * kBoxBytes];
  using Prepared = Tile;
};
template <int Groups>
struct Stage<Groups, false> {
  unsigned char k[2 * kBoxBytes], v[Groups * kBoxBytes];
  using Prepared = StateTile;
};

constexpr int kBlock = 512;  // bytes of 16 x 16 bfloat16: four cores, in the order of a left operand's registers

struct Scratch {
  unsigned char A[2][6 * kBlock];        // two terms; block (r, m), m < r, at r (r - 1) / 2 + m
  unsigned char inverse[2][4 * kBlock];  // of the diagonal blocks of I + A
};

constexpr int kHeads = 4;  // that share their q and k, of a block that prepares: a warp each finds their decays

// Of that block. What comes of K and Q goes where they were.
template <bool WithP>
struct Prepared {
  union {
    struct {
      alignas(1024) unsigned char k[2 * kBoxBytes], q[WithP ? 2 * kBoxBytes : 16];
    };
    struct {
      alignas(128) unsigned char tile[tile_bytes(WithP)];
      Scratch scratch;
    };
  };
  alignas(16) float diagonal[4][16][20];  // blocks of A, transposed
  alignas(16) Decays decays[kHeads];
  float beta[kHeads][kChunk];
  alignas(8) uint64_t landed;
};

// Of one that advances. Barriers: a chunk has landed, but for v; v has; its P is there, where the block finds it; nobody
// needs what is in its place any more; the last chunk has landed, and its boxes hold rows of another sequence.
template <int Groups, bool Output>
struct Shared {
  using Boxes = Stage<Groups, Output>;
  alignas(1024) Boxes boxes[kStages];
  typename Boxes::Prepared tile[kStages];
  alignas(8) uint64_t full[kStages], v_full[kStages], ready[kStages], empty[kStages], tail;
  Work work;
  int found;
  bool busy;
};

}  // namespace
