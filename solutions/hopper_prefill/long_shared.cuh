// The shared memory of a block that prepares the chunks of long sequences itself. From asking for keys to T it takes three chunks'
// time: there is room for four. Queries come later and go earlier, and so does P; an output leaves from where v was.
#pragma once
#include "short_shared.cuh"

namespace {

constexpr int kLongKeys = 4, kLongQueries = 2, kLongValues = 3;

struct LongKeys {
  unsigned char k[2 * kBoxBytes];
  StateTile tile;
  Rows rows;
};

struct LongQueries {
  unsigned char q[2 * kBoxBytes];
  unsigned char P[kSquare];
};

// What a warp inverts in.
struct Room {
  alignas(128) unsigned char products[kProductsBelow];  // K K^T
  alignas(16) Scratch scratch;
};

// Barriers as those of Short, of a place for keys, for queries or for values. Of queries: they have landed; P is there; nobody needs
// them. `told`: what the block has next stands in `work`; `taken`: all know it.
struct Long {
  static constexpr int kPlaces = kLongKeys, kInverters = 3, kParts = 3;
  static constexpr bool kClearsQueries = false, kClearsValues = true;
  struct alignas(1024) Keys : LongKeys {};
  struct alignas(1024) Queries : LongQueries {};
  Keys keys[kLongKeys];
  Queries queries[kLongQueries];
  alignas(1024) unsigned char values[kLongValues][2 * kBoxBytes];
  Room rooms[kInverters];
  alignas(32) uint64_t asked[kLongKeys], landed[kLongKeys], full[kLongKeys], inverted[kLongKeys], keys_empty[kLongKeys];
  uint64_t q_landed[kLongQueries], found[kLongQueries], q_empty[kLongQueries];
  uint64_t v_landed[kLongValues], v_full[kLongValues], empty[kLongValues];
  uint64_t told, taken;
  Work work[kShortTurns];
  Going going[kLongValues];
  Asked asks[kLongKeys];
  __device__ __forceinline__ Keys& keys_of(int place) { return keys[place]; }
  __device__ __forceinline__ Room& room_of(int, int warp) { return rooms[warp]; }
};
static_assert(Long::kInverters == kLongValues);  // a warp has a place of values for itself
constexpr bool kLongFits = sizeof(Long) <= kMostShared;
static_assert(kLongFits == (kTerms == 1));

}  // namespace
