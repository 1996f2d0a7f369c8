// fused_decode_step's kernel on this CPU, as a library: the test builds it and calls it.
#include "decode_words.h"

using std::size_t;

struct __nv_bfloat162 {
  uint16_t low, high;
};

inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low).bits, __float2bfloat16_rn(high).bits};
}
inline float __expf(float x) { return std::exp(x); }
inline float __shfl_xor_sync(unsigned mask, float value, int distance) {
  require_all_lanes(mask);
  return together("__shfl_xor_sync", value)[running % kLanes ^ distance];
}

#include "step.cuh"

template <int D, int W, int Split, int Lanes, int Loads, int Warps>
void start(const Arguments& p, int key_heads, int rows) {
  const auto kernel = [&] { gdn_core_decode_kernel<D, W, Split, Lanes, Loads, Warps>(p); };
#undef blockIdx
  const unsigned blocks = Split > 0 ? p.group * Split : 1;
  launch({blocks, static_cast<unsigned>(key_heads), static_cast<unsigned>(rows)},
         Tile<D, Split, Lanes, Loads, Warps>::kThreads, kernel);
}

// As the launches of the kernel's own file, at most `most` blocks a head.
template <int W>
void call(const Arguments& p, int D, int most, int key_heads, int rows) {
  if (D == 64) {
    if (most >= 2) return start<64, W, 2, 16, 4, 4>(p, key_heads, rows);
    if (most == 1) return start<64, W, 1, 16, 4, 8>(p, key_heads, rows);
    return start<64, W, 0, 16, 4, 8>(p, key_heads, rows);
  }
  if (D == 128) {
    if (most >= 4) return start<128, W, 4, 16, 4, 8>(p, key_heads, rows);
    if (most >= 2) return start<128, W, 2, 16, 8, 8>(p, key_heads, rows);
    if (most == 1) return start<128, W, 1, 16, 16, 8>(p, key_heads, rows);
    return start<128, W, 0, 16, 8, 8>(p, key_heads, rows);
  }
  if (most >= 4) return start<256, W, 4, 32, 8, 8>(p, key_heads, rows);
  start<256, W, 0, 32, 8, 8>(p, key_heads, rows);
}

extern "C" void core_decode(const Arguments* p, int D, int W, int most, int key_heads, int rows, unsigned seed) {
  schedule.seed(seed);
  if (W == 2) call<2>(*p, D, most, key_heads, rows);
  if (W == 3) call<3>(*p, D, most, key_heads, rows);
  if (W == 4) call<4>(*p, D, most, key_heads, rows);
}
