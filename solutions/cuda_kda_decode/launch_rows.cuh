// Which tile a call is launched with: k_last. The place to tune: lanes in a row, loads a thread, warps a block, whether a
// thread's rows are neighbours, whether a block meets before it asks for the state. Blocks have 8 to 16 KiB of a state, so that
// no multiprocessor gets much more than its share.
#pragma once
#include "rows.cuh"
#include "start.cuh"

namespace {

// `Large`: of a call with kManyPairs or more pairs of a row and a head.
template <class E, int D, Slots slots>
struct TileOf {
  using Type = RowTile<E, D, 16, 4, 4, true>;
  using Large = Type;
};
template <int D>
struct TileOf<float, D, Slots::kPool> {
  using Type = RowTile<float, D, 16, 4, 4, true>;
  using Large = RowTile<float, D, 32, 4, 4, true, true>;
};
template <int D, Slots slots>
struct TileOf<bf16, D, slots> {
  using Type = RowTile<bf16, D, 8, 8, 4, true>;
  using Large = Type;
};
template <Slots slots>
struct TileOf<bf16, 256, slots> {
  using Type = RowTile<bf16, 256, 16, 4, 4, true>;  // fewer key channels a thread: their decays are in registers, too
  using Large = Type;
};

constexpr int64_t kManyPairs = 1024;

template <class E, int D, Slots slots>
void launch_k_last(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  const auto launch = [&](auto tile) {
    using Tile = decltype(tile);
    start<E>(kda_decode_k_last_kernel<E, D, slots, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
  };
  if (int64_t{heads.x} * heads.y * heads.z < kManyPairs) {
    launch(typename TileOf<E, D, slots>::Type{});
  } else {
    launch(typename TileOf<E, D, slots>::Large{});
  }
}

}  // namespace
