// cuda_quantised's kernels on this CPU, as a library: the test builds it and calls it.
#include <cstddef>

#include "launch.h"
#include "numbers.h"

inline float __uint_as_float(uint32_t x) { return same_bits<float>(x); }
inline uint32_t __float_as_uint(float x) { return same_bits<uint32_t>(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return to_float(x.bits, Type::bfloat16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {to_bits(x, Type::bfloat16)}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline void __stcs(uint4* to, uint4 x) { *to = x; }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t found = 0;
  for (int n = 0; n < 4; ++n) found |= static_cast<uint32_t>(bytes >> 8 * (which >> 4 * n & 7) & 0xff) << 8 * n;
  return found;
}
inline bool __all_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) == ~0u; }
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(int) {}
#define __shared__ static  // one block at a time

#include "tiles.cuh"

enum Kernel { kAtOnce, kInTurn, kWhole, kVerify };

template <class E>
struct Call {
  const CodeArguments<E>& p;
  unsigned group, key_heads, rows;

  template <class Tile, class F>
  void start(F kernel, size_t shared_bytes = 0) const {
    launch({group * Tile::kTiles, key_heads, rows}, Tile::kThreads, shared_bytes, [&] { kernel(p); });
  }
};

template <class E, int D>
void by_kernel(const Call<E>& call, Kernel which) {
  if (which == kVerify) {
    using Tile = typename CodeTile<E, D, Slots::kVerify>::Type;
    call.template start<Tile>(gdn_quantised_k_last_kernel<E, D, Slots::kVerify, Tile>);
  } else if (which == kAtOnce) {
    using Tile = typename CodeTile<E, D, Slots::kPool>::Type;
    call.template start<Tile>(gdn_quantised_k_last_kernel<E, D, Slots::kPool, Tile>);
  } else if constexpr (D == 128) {
    if (which == kInTurn) {
      using Tile = HeadTile<E, D>;
      call.template start<Tile>(gdn_quantised_in_turn_kernel<E, D, Tile>);
    } else {
      using Tile = WholeTile<D, 4, 4>;
      call.template start<Tile>(gdn_quantised_whole_heads_kernel<E, D, Tile>, Tile::kShared);
    }
  }
}

template <class E>
void by_size(const void* p, int D, Kernel which, unsigned group, unsigned key_heads, unsigned rows) {
  const Call<E> call{*static_cast<const CodeArguments<E>*>(p), group, key_heads, rows};
  if (D == 64) by_kernel<E, 64>(call, which);
  if (D == 128) by_kernel<E, 128>(call, which);
  if (D == 256) by_kernel<E, 256>(call, which);
}

extern "C" void call_codes(const void* p, int bytes, int D, int which, int group, int key_heads, int rows) {
  schedule.seed(1);
  (bytes ? by_size<int8_t> : by_size<e4m3>)(p, D, static_cast<Kernel>(which), group, key_heads, rows);
}
