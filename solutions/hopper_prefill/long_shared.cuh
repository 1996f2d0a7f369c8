// The shared memory of a block that prepares the chunks of long sequences itself. From asking for keys to T it takes three chunks'
// time: there is room for four. Queries come later and go earlier, and so does P; an output leaves from where v was.
#pragma once
#include "short_shared.cuh"

namespace {

constexpr int kLongKeys = 4, kLongQueries = 2, kLongValues = 3;
constexpr int kLongTurns = 4;  // whose work is kept
// Warps that invert, in turns. K K^T of a chunk is found so many chunks ahead, Q K^T one.
constexpr int kInverters = 2, kAhead = 2;
static_assert(kAhead < kLongKeys && kAhead <= kInverters && kLongQueries == 2);

struct LongKeys {
  unsigned char k[2 * kBoxBytes];
  StateTile tile;
  Rows rows;
  float inverse[kChunk];  // 1 / gamma, in the order of Decays
};

struct LongQueries {
  unsigned char q[2 * kBoxBytes];
  unsigned char P[kSquare];
};

// What a warp inverts: K K^T comes from those who advance, blocks on the diagonal to where the warp works.
struct Room {
  alignas(128) unsigned char products[kProductsBelow];
  alignas(16) Scratch scratch;
};

// Barriers, by what they count:
// - of a place for keys: `asked`: it stands in `rows` what comes; `gated`: g and beta are there; `k_landed`: keys have landed and
//   their rows behind the end are to be cleared, or need not be; `full`: keys are there; `decayed`: decays are; `inverted`: T is;
//   `keys_empty`: nobody needs keys, T and decays;
// - of one for queries: `q_landed`; `found`: P is there; `q_empty`: nobody needs the queries;
// - of one for values: `v_landed` and `v_full`, as for keys; `empty`: nobody needs the place, and the output is there;
// - of a warp that inverts, `multiplied`: K K^T is there; of the one that finds P, `scored`: Q K^T is;
// - of a turn: `told`: what the block has stands in `work`; `taken`: all know it.
struct Long {
  struct alignas(1024) Keys : LongKeys {};
  struct alignas(1024) Queries : LongQueries {};
  Keys keys[kLongKeys];
  Queries queries[kLongQueries];
  alignas(1024) unsigned char values[kLongValues][2 * kBoxBytes];
  Room rooms[kInverters];
  alignas(128) unsigned char scores[kProducts];  // Q K^T
  alignas(32) uint64_t asked[kLongKeys], gated[kLongKeys], k_landed[kLongKeys], full[kLongKeys], decayed[kLongKeys];
  uint64_t inverted[kLongKeys], keys_empty[kLongKeys];
  uint64_t q_landed[kLongQueries], found[kLongQueries], q_empty[kLongQueries];
  uint64_t v_landed[kLongValues], v_full[kLongValues], empty[kLongValues];
  uint64_t multiplied[kInverters], scored, told[kLongTurns], taken[kLongTurns];
  Work work[kLongTurns];
  Going going[kLongValues];
  int rows[kLongKeys];  // of the chunk that comes: tokens; < 0: there is no more
};
// T in two terms leaves no room for it.
constexpr bool kLongFits = sizeof(Long) <= kMostShared;
static_assert(kLongFits == (kTerms == 1));

}  // namespace
