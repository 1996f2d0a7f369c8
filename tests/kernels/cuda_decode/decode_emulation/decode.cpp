// cuda_decode's kernels of k_last for one token on this CPU, as a library: the test builds it and calls it.
#include "decode_words.h"

// Of verify, which is not emulated.
inline bool __all_sync(unsigned, bool mine) { return mine; }
inline void __pipeline_memcpy_async(void*, const void*, size_t) { fail("a copy in the background"); }
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(size_t) {}

#include "launch_rows.cuh"
#undef blockIdx

enum Kind { kDense, kPooled };

// Of a tile: lanes in a row, loads a thread, warps a block.
struct Shape {
  int lanes, loads, warps;
};

template <class Tile>
constexpr Shape kShapeOf{Tile::kLanes, Tile::kRows * Tile::kChunks, Tile::kWarps};

template <class E, int D, Slots slots>
Shape call(const Arguments<E>* p, int64_t pairs, int group, int key_heads, int rows) {
  Shape shape;
  with_tile<E, D, slots>(pairs, [&](auto tile) {
    using Tile = decltype(tile);
    shape = kShapeOf<Tile>;
    if (p == nullptr) return;
    launch({static_cast<unsigned>(group * Tile::kTiles), static_cast<unsigned>(key_heads), static_cast<unsigned>(rows)},
           Tile::kThreads, [&] { gdn_decode_k_last_kernel<E, D, slots, Tile>(*p); });
  });
  return shape;
}

template <class E, Slots slots>
Shape by_size(const void* p, int D, int64_t pairs, int group, int key_heads, int rows) {
  const auto* given = static_cast<const Arguments<E>*>(p);
  if (D == 64) return call<E, 64, slots>(given, pairs, group, key_heads, rows);
  if (D == 128) return call<E, 128, slots>(given, pairs, group, key_heads, rows);
  return call<E, 256, slots>(given, pairs, group, key_heads, rows);
}

// With the tile for a call of so many pairs, however many there are here. Without `p` it says only which that is.
extern "C" Shape decode(const void* p, int halves, int D, int kind, int64_t pairs, int group, int key_heads, int rows,
                        int seed) {
  schedule.seed(seed);
  const bool dense = kind == kDense;
  const auto call = halves ? dense ? by_size<bf16, Slots::kNone> : by_size<bf16, Slots::kPool>
                           : dense ? by_size<float, Slots::kNone> : by_size<float, Slots::kPool>;
  return call(p, D, pairs, group, key_heads, rows);
}
