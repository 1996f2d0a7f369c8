// Which tile a call is launched with: k_last. The place to tune: lanes in a row, loads a thread, warps a block, whether a
// thread's rows are neighbours. Blocks have 4 to 16 KiB of a state, so that no multiprocessor gets much more than its share.
#pragma once
#include "rows.cuh"
#include "start.cuh"

namespace {

constexpr bool within(int64_t low, int64_t pairs, int64_t high) { return low <= pairs && pairs <= high; }

// Calls `f` with the tile for `pairs` of a row and a value head. The last tile of a kind of states serves all calls, but for
// those at head size 128 where another was faster on an H200, and on no row slower by more than the noise. In float32 pools 16
// lanes need fewer shuffles, and in bfloat16 pools blocks of two warps are evener. Elsewhere only the clock told. The choice
// changes no bit, because all tiles add in the same order (`Rows::sum`).
template <class E, int D, Slots slots, class F>
void with_tile(int64_t pairs, F f) {
  [[maybe_unused]] constexpr bool kHalves = sizeof(E) == 2;
  [[maybe_unused]] const bool many = pairs >= 1024;
  if constexpr (slots == Slots::kVerify) {
    f(RowTile<E, D, 16, 4, 8, false>{});  // the warps of a block share the tokens that it stages
  } else if constexpr (slots == Slots::kPool && kHalves) {
    if constexpr (D == 128) {
      if (many) return f(RowTile<E, D, 8, 8, 2, true>{});
    }
    f(RowTile<E, D, 8, 8, 4, true>{});
  } else if constexpr (slots == Slots::kPool) {
    if constexpr (D == 128) {
      if (many) return f(RowTile<E, D, 16, 4, 4, true>{});
    }
    f(RowTile<E, D, 32, 4, 4, true>{});
  } else {
    if constexpr (D == 128 && kHalves) {
      if (many || within(240, pairs, 256) || within(64, pairs, 96)) return f(RowTile<E, D, 8, 8, 4, true>{});
    } else if constexpr (D == 128) {
      if (within(160, pairs, 256)) return f(RowTile<E, D, 16, 2, 4, true>{});
    }
    f(RowTile<E, D, 16, 4, 4, true>{});
  }
}

template <class E, int D, Slots slots>
void launch_k_last(const Arguments<E>& p, dim3 heads, cudaStream_t stream) {
  with_tile<E, D, slots>(static_cast<int64_t>(heads.z) * p.H, [&](auto tile) {
    using Tile = decltype(tile);
    start<E>(gdn_decode_k_last_kernel<E, D, slots, Tile>, p, grid_of<Tile>(heads), Tile::kThreads, stream);
  });
}

}  // namespace
