// cuda_kda_decode's kernels on this CPU, as a library: the test builds it and calls it.
#include "decode_words.h"

#include "launch_rows.cuh"
#undef blockIdx

enum Kind { kDense, kPooled };

template <class E, int D, class Tile, class Kernel>
void start(int group, int key_heads, int rows, Kernel kernel) {
  launch({static_cast<unsigned>(group * Tile::kTiles), static_cast<unsigned>(key_heads), static_cast<unsigned>(rows)},
         Tile::kThreads, kernel);
}

template <class E, int D>
void call(const Arguments<E>& p, Kind kind, int group, int key_heads, int rows) {
  if (kind == kDense) {
    using Tile = typename TileOf<E, D, Slots::kNone>::Type;
    start<E, D, Tile>(group, key_heads, rows, [&] { kda_decode_k_last_kernel<E, D, Slots::kNone, Tile>(p); });
  } else {
    using Tile = typename TileOf<E, D, Slots::kPool>::Type;
    start<E, D, Tile>(group, key_heads, rows, [&] { kda_decode_k_last_kernel<E, D, Slots::kPool, Tile>(p); });
  }
}

template <class E>
void by_size(const void* p, int D, Kind kind, int group, int key_heads, int rows) {
  const auto& given = *static_cast<const Arguments<E>*>(p);
  if (D == 64) call<E, 64>(given, kind, group, key_heads, rows);
  if (D == 128) call<E, 128>(given, kind, group, key_heads, rows);
}

extern "C" void kda_decode(const void* p, int halves, int D, int kind, int group, int key_heads, int rows) {
  schedule.seed(1);
  const auto call = halves ? by_size<bf16> : by_size<float>;
  call(p, D, static_cast<Kind>(kind), group, key_heads, rows);
}
