// The shared memory of a block that prepares the chunks of long sequences itself: this one and the next two, and no state.
#pragma once
#include "short_shared.cuh"

namespace {

#ifndef LONG_AHEAD
#define LONG_AHEAD 2
#endif
// Of a chunk, as ShortPlace; what a warp inverts in is its own, and not the place's.
struct LongPlace {
  unsigned char k[2 * kBoxBytes], q[2 * kBoxBytes], v[2 * kBoxBytes];  // the output comes where v is
  StateTile tile;
  unsigned char P[kSquare];
  Rows rows;
};

struct Room {
  alignas(128) unsigned char products[kProductsBelow];  // K K^T
  alignas(16) Scratch scratch;
};

// Barriers as those of Short, but for `told`: what the block has next stands in `work`; and `taken`: all know it.
struct Long {
  static constexpr int kPlaces = kLongPlaces, kInverters = 3, kParts = 3;
  static constexpr bool kStates = false;
  struct alignas(1024) Place : LongPlace {};
  Place places[kLongPlaces];
  Room rooms[kInverters];
  alignas(16) uint64_t asked[kLongPlaces], landed[kLongPlaces], v_landed[kLongPlaces], full[kLongPlaces], v_full[kLongPlaces];
  uint64_t inverted[kLongPlaces], found[kLongPlaces], keys_empty[kLongPlaces], empty[kLongPlaces];
  uint64_t told, taken;
  Work work[kShortTurns];
  Going going[kLongPlaces];
  Asked asks[kLongPlaces];
  __device__ __forceinline__ Room& room_of(int, int warp) { return rooms[warp]; }
};
static_assert(kTerms > 1 || sizeof(Long) <= kMostShared);

}  // namespace
