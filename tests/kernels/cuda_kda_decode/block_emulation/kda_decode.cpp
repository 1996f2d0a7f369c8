// cuda_kda_decode's kernels on this CPU, as a library: the test builds it and calls it.
#include <optional>
#include <vector>

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

// A row finds other slots until it waits: the kernel ahead writes its own last.
template <class E>
struct LateSlots {
  int32_t *const read, *const write;
  const std::vector<int32_t> then_read, then_write;

  LateSlots(const Arguments<E>& p, int rows)
      : read(const_cast<int32_t*>(p.read)),
        write(const_cast<int32_t*>(p.write)),
        then_read(read, read + rows),
        then_write(write, write + rows) {
    constexpr int32_t kBefore[] = {1, 3, -1};
    for (int row = 0; row < rows; ++row) read[row] = kBefore[row % 3], write[row] = p.num_slots;
    kernel_ahead = [this] {
      read[::blockIdx.z] = then_read[::blockIdx.z];
      write[::blockIdx.z] = then_write[::blockIdx.z];
    };
  }
  ~LateSlots() { kernel_ahead = [] {}; }
};

template <class E>
void by_size(const void* p, int D, Kind kind, int group, int key_heads, int rows) {
  const auto& given = *static_cast<const Arguments<E>*>(p);
  std::optional<LateSlots<E>> late;
  if (kind == kPooled) late.emplace(given, rows);
  if (D == 64) call<E, 64>(given, kind, group, key_heads, rows);
  if (D == 128) call<E, 128>(given, kind, group, key_heads, rows);
  if (D == 256) call<E, 256>(given, kind, group, key_heads, rows);
}

extern "C" void kda_decode(const void* p, int halves, int D, int kind, int group, int key_heads, int rows) {
  schedule.seed(1);
  const auto call = halves ? by_size<bf16> : by_size<float>;
  call(p, D, static_cast<Kind>(kind), group, key_heads, rows);
}
