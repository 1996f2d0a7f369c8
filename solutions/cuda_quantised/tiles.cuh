// Which kernel a call takes, and its tile: the place to tune.
#pragma once
#include "in_turn.cuh"
#include "whole_heads.cuh"

namespace {

// Rows at once: lanes in a row, 16-byte loads a thread, warps a block.
template <class E, int D, Slots slots>
struct CodeTile {
  using Type = RowTile<E, D, 8, 4, 4, true>;
};
template <class E, int D>
struct CodeTile<E, D, Slots::kVerify> {
  using Type = RowTile<E, D, 8, 2, 8, true>;
};

// Rows in turn, and whole heads at once; how many blocks a multiprocessor holds at least: measured for heads of 128 alone.
template <class E, int D>
struct HeadTile : RowTile<E, D, 8, 2, 4, true, true> {
  static constexpr int kBlocks = 5;
};
// Heads of all rows from which on the one, or the other, is faster.
constexpr int64_t kManyHeads = 512;
#ifdef GDN_INVARIANT
constexpr int64_t kVeryManyHeads = INT64_MAX;  // the sums of tensor cores have another order
#else
constexpr int64_t kVeryManyHeads = 1024;
#endif

}  // namespace
