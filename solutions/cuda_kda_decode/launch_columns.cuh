// Which tile a call is launched with: k_first. The place to tune.
#pragma once
#include "columns.cuh"
#include "start.cuh"

namespace {

template <class E, int D, int Lanes, int Loads, bool Ahead, bool Early>
void launch_columns(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  using Tile = ColumnTile<E, D, Lanes, Loads, Ahead, Early>;
  start<E>(kda_decode_k_first_kernel<E, D, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
}

constexpr int64_t kMiB = int64_t{1} << 20;

// Lanes in a row, loads a thread, whether the state is brought near, whether the kernel behind may start early: not where a
// multiprocessor gets several large blocks, in whose way it would be.
template <class E, int D>
void launch_k_first(int64_t bytes, const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  if constexpr (sizeof(E) == 2) {
    if (bytes <= 4 * kMiB) {
      launch_columns<E, D, 8, 8, true, true>(p, heads, stream);
    } else if (bytes <= 8 * kMiB) {
      launch_columns<E, D, 8, 8, true, false>(p, heads, stream);
    } else {
      launch_columns<E, D, 8, 8, false, false>(p, heads, stream);
    }
  } else if (bytes <= 8 * kMiB) {
    launch_columns<E, D, 16, 16, true, true>(p, heads, stream);
  } else if (bytes <= 64 * kMiB) {
    launch_columns<E, D, 16, 16, false, false>(p, heads, stream);
  } else {
    launch_columns<E, D, 16, 8, true, true>(p, heads, stream);
  }
}

}  // namespace
