// How a block and its threads share a state, and what a block has in shared memory.
#pragma once
#include "problem.cuh"

namespace {

// `Lanes`: side by side in a row of the state, 16 bytes each. `Loads`: 16-byte loads of a state a thread, at a time.
template <int D, int Split, int Lanes, int Loads, int Warps>
struct Tile {
  static constexpr bool kCluster = Split > 0;
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kChunks = D / (4 * Lanes);         // of a row, a thread
  static constexpr int kRows = Loads / kChunks;           // a thread, at a time
  static constexpr int kGroups = kThreads / Lanes;        // rows side by side
  static constexpr int kTileRows = kRows * kGroups;       // a block, at a time
  static constexpr int kPartRows = kCluster ? D / Split : D;  // of a head, a block
  static constexpr int kPasses = kPartRows / kTileRows;
  static constexpr int kParts = kCluster ? Split : 1;     // blocks that a norm is taken over
  static constexpr int kPairs = D + kPartRows / 2;        // of channels that a block convolves: q, k, its part of v
  static constexpr int kRounds = (kPairs + kThreads - 1) / kThreads;
  static constexpr int kOutputs = kPartRows / 2;          // pairs of outputs, one a thread
  static_assert(kChunks * 4 * Lanes == D && kRows * kChunks == Loads && kPasses * kTileRows == kPartRows);
  static_assert(kRows >= 1 && kPasses >= 1 && kOutputs <= kThreads && D / 2 <= kThreads);
};

// Of a block.
template <class Tile, int D, int Warps>
struct Shared {
  alignas(16) float vectors[2 * D + Tile::kPartRows];  // q, k, v, convolved
  alignas(16) float read[Tile::kPartRows];             // what the head reads, not normalised
  alignas(16) float squares[Tile::kParts * Warps];     // its sums of squares
  uint64_t all_squares;                                // the barrier of their arrival
};

}  // namespace
