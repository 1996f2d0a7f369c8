// What a block keeps in shared memory.
#pragma once
#include "problem.cuh"

namespace {

constexpr int kStages = 3;           // chunks: one is advanced, one prepared, one on its way
constexpr int kTiles = 2;            // of them, those that have been prepared or are
constexpr int kTerms = 2;            // of T, of 16 bits each
constexpr int kBoxBytes = 64 * 128;  // 64 rows of 64 numbers, swizzled: what wgmma and TMA call SW128

// 16-byte piece `piece` of a row of 128 bytes, in a swizzled box.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// --- a lower triangle of 64 x 64, packed ------------------------------------------------------------------------
//
// Rows are tokens i, columns j <= i. Panels of 16 columns, of cores of 8 rows of 16 bytes, two side by side: the first
// two panels have all rows, the last two rows 32 to 63. What is above the diagonal in them is zero.

constexpr int kTriangle = 6144;
__device__ __forceinline__ constexpr int panel(int s) { return s < 2 ? 2048 * s : 2048 + 1024 * s; }
// The 16 x 16 block of rows 16 r and columns 16 s: its four cores are contiguous.
__device__ __forceinline__ int block_of(int r, int s) { return panel(s) + (s < 2 ? r : r - 2) * 512; }

struct Tile {
  unsigned char T[kTerms][kTriangle], P[kTriangle];
  float to_end[kChunk], from_start[kChunk];  // gamma_C / gamma, gamma
};

template <int Groups>
struct Boxes {
  unsigned char k[2 * kBoxBytes], q[2 * kBoxBytes], v[Groups * kBoxBytes];
};

constexpr int kBlock = 512;  // bytes of 16 x 16 bfloat16: four cores, in the order of a left operand's registers

struct Scratch {
  unsigned char A[2][6 * kBlock];        // two terms; block (r, m), m < r, at r (r - 1) / 2 + m
  unsigned char inverse[2][4 * kBlock];  // of the diagonal blocks of I + A
};

// What a warp knows of the decays of a chunk. alpha = 0 resets the state: it is counted and not multiplied, so that ratios
// between two resets come from sums of logs alone, each at most 1; tokens of different runs have none.
struct Decays {
  float log[kChunk];     // log2 of gamma, resets left out
  float factor[kChunk];  // gamma of the last of 16 tokens over gamma of this one
  alignas(4) unsigned char run[kChunk];  // resets so far
};

template <int Groups>
struct Shared {
  alignas(1024) Boxes<Groups> boxes[kStages];
  alignas(128) Tile tile[kTiles];
  alignas(128) Scratch scratch[2];
  alignas(16) float diagonal[4][16][20];  // of a warp: its block of A, transposed
  Decays decays[4];
  float gates[2][2][kChunk];  // of this chunk and the next: g, beta
  alignas(8) uint64_t full[kStages], ready[kTiles], empty[kStages], tail;
  Work work;
  int found;
  bool busy;
};

}  // namespace
