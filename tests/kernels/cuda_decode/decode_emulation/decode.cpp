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

template <class Tile, class Kernel>
void start(int group, int key_heads, int rows, Kernel kernel) {
  launch({static_cast<unsigned>(group * Tile::kTiles), static_cast<unsigned>(key_heads), static_cast<unsigned>(rows)},
         Tile::kThreads, kernel);
}

template <class E, int D>
void call(const Arguments<E>& p, Kind kind, int group, int key_heads, int rows) {
  if (kind == kDense) {
    using Tile = typename TileOf<E, D, Slots::kNone>::Type;
    start<Tile>(group, key_heads, rows, [&] { gdn_decode_k_last_kernel<E, D, Slots::kNone, Tile>(p); });
  } else {
    using Tile = typename TileOf<E, D, Slots::kPool>::Type;
    start<Tile>(group, key_heads, rows, [&] { gdn_decode_k_last_kernel<E, D, Slots::kPool, Tile>(p); });
  }
}

template <class E>
void by_size(const void* p, int D, Kind kind, int group, int key_heads, int rows) {
  const auto& given = *static_cast<const Arguments<E>*>(p);
  if (D == 64) call<E, 64>(given, kind, group, key_heads, rows);
  if (D == 128) call<E, 128>(given, kind, group, key_heads, rows);
  if (D == 256) call<E, 256>(given, kind, group, key_heads, rows);
}

extern "C" void decode(const void* p, int halves, int D, int kind, int group, int key_heads, int rows, int seed) {
  schedule.seed(seed);
  const auto call = halves ? by_size<bf16> : by_size<float>;
  call(p, D, static_cast<Kind>(kind), group, key_heads, rows);
}
