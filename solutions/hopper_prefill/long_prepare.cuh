// Of a block that prepares the chunks of long sequences itself: warps that find decays and T, of every third chunk.
#pragma once
#include "long_shared.cuh"
#include "short_prepare.cuh"

namespace {

// By a warp.
template <class E>
__device__ __forceinline__ void invert_long(const Problem& p, Long& s, int warp) {
  const auto say = [](uint64_t* barrier) {
    __syncwarp();
    if (lane_here() < kLeavers) barrier_arrive(shared_address(barrier));
  };
  const auto clear = [&](const unsigned char* boxes, int rows, uint64_t* landed, int parity, uint64_t* full) {
    barrier_wait(shared_address(landed), parity);
    for (int half = 0; half < 2; ++half) clear_rows(shared_address(boxes) + half * kBoxBytes, rows, lane_here(), 32);
    fence_async();
    __syncwarp();
    if (lane_here() == 0) barrier_arrive(shared_address(full));
  };
#pragma unroll 1
  for (int c = warp;; c += kInverters) {
    const auto i = [&] { return anew(c) % kLongKeys; };  // found again, as what depends on it is, and not kept
    const int parity = c / kLongKeys & 1;
    barrier_wait(shared_address(&s.asked[i()]), parity);
    const Asked asked = read_asked(s.asks[i()]);
    if (asked.rows < 0) break;
    GDN_STAMP(2, c, 0);
    {
      auto& keys = s.keys[i()];
      read_gates(p, asked, keys.rows, lane_here());
      find_decays(p, keys.rows, keys.tile.decays, nullptr, lane_here());
    }
    say(&s.decayed[i()]);
    GDN_STAMP(2, c, 1);
    if (asked.rows < kChunk) clear(s.keys[i()].k, asked.rows, &s.k_landed[i()], parity, &s.full[i()]);
    barrier_wait(shared_address(&s.multiplied[warp]), c / kInverters & 1);
    GDN_STAMP(2, c, 2);
    {
      auto& keys = s.keys[i()];
      auto& room = s.rooms[warp];
#ifndef LONG_NO_T
      Inverter<E, kStaySize, false, true, true>{room.products, keys.rows, room.scratch, keys.tile.T[0], p.scale, lane_here()}.find();
#endif
    }
    const int rows = read_asked(s.asks[i()]).rows;  // before another chunk's may stand there
    fence_async();
    say(&s.inverted[i()]);
    GDN_STAMP(2, c, 3);
    if (rows < kChunk) {  // values come later
      const int v = c % kLongValues;
      clear(s.values[v], rows, &s.v_landed[v], c / kLongValues & 1, &s.v_full[v]);
    }
  }
}

}  // namespace
