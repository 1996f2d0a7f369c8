// Which tile a call is launched with: k_last. The place to tune: lanes in a row, loads a thread, warps a block, whether a
// thread's rows are neighbours. One tile serves all batches: blocks of 4 to 8 KiB of a state, so that no multiprocessor gets
// much more than its share.
#pragma once
#include "rows.cuh"
#include "start.cuh"

namespace {

template <class E, int D, Slots slots>
struct TileOf {
  using Type = RowTile<E, D, 16, 4, 4, true>;
};
template <int D>
struct TileOf<float, D, Slots::kPool> {
  using Type = RowTile<float, D, 32, 4, 4, true>;
};
template <int D>
struct TileOf<bf16, D, Slots::kPool> {
  using Type = RowTile<bf16, D, 8, 8, 4, true>;
};
template <int D>
struct TileOf<float, D, Slots::kVerify> {
  using Type = RowTile<float, D, 16, 4, 8, false>;  // the warps of a block share the tokens that it stages
};

template <class E, int D, Slots slots>
void launch_k_last(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = typename TileOf<E, D, slots>::Type;
  start<E>(gdn_decode_k_last_kernel<E, D, slots, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

}  // namespace
