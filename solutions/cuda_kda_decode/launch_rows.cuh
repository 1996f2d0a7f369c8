// Which tile a call is launched with: k_last. The place to tune: lanes in a row, loads a thread, warps a block, whether a
// thread's rows are neighbours. One tile serves all batches, so a row has the same bits in each: blocks of 8 to 16 KiB of a
// state, so that no multiprocessor gets much more than its share.
#pragma once
#include "rows.cuh"
#include "start.cuh"

namespace {

template <class E, int D, Slots slots>
struct TileOf {
  using Type = RowTile<E, D, 16, 4, 4, true>;
};
template <int D, Slots slots>
struct TileOf<bf16, D, slots> {
  using Type = RowTile<bf16, D, 8, 8, 2, true>;
};
template <Slots slots>
struct TileOf<bf16, 256, slots> {
  using Type = RowTile<bf16, 256, 16, 4, 2, true>;  // fewer key channels a thread: their decays are in registers, too
};

template <class E, int D, Slots slots>
void launch_k_last(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = typename TileOf<E, D, slots>::Type;
  start<E>(kda_decode_k_last_kernel<E, D, slots, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

}  // namespace
