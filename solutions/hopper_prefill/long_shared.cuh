// The shared memory of a block that prepares the chunks of long sequences itself. From asking for keys to T it takes three chunks'
// time: there is room for four. Queries come later and go earlier, and so does P; an output leaves from where v was.
#pragma once
#include "short_shared.cuh"

namespace {

constexpr int kLongKeys = 4, kLongQueries = 2, kLongValues = 3, kLongTurns = 4;
// Warps that invert, in turns. K K^T of a chunk is found so many chunks ahead, Q K^T one.
constexpr int kInverters = 2, kAhead = 2;
static_assert(kAhead < kLongKeys && kAhead <= kInverters && kLongQueries == 2);

struct LongKeys {
  unsigned char k[2 * kBoxBytes];
  StateTile tile;
  Rows rows;
#ifdef LONG_PFAST
  float inverse[kChunk];  // 1 / gamma, in the order of Decays
#endif
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

struct LongHeads {
  int q, k, v;
};

// Barriers of a place for keys: it stands in `asks` what comes; gates are where its rows are; keys are there, rows behind the end zeros; decays are; T is; nobody
// needs keys, T and decays. Of one for queries: they have landed; P is there; nobody needs them. Of one for values: they are there;
// nobody needs them, and the output is there. Of keys and of values besides: they have landed and rows are to be cleared, or there is
// nothing to be cleared. Of a warp that inverts: K K^T is there; of the one that finds P: Q K^T is. Of a turn: what the block has stands in `work`; all know it.
struct Long {
  struct alignas(1024) Keys : LongKeys {};
  struct alignas(1024) Queries : LongQueries {};
  Keys keys[kLongKeys];
  Queries queries[kLongQueries];
  alignas(1024) unsigned char values[kLongValues][2 * kBoxBytes];
  Room rooms[kInverters];
  alignas(128) unsigned char scores[kProducts];  // Q K^T, for the warp that makes P of it
  alignas(32) uint64_t asked[kLongKeys], gated[kLongKeys], full[kLongKeys], decayed[kLongKeys], inverted[kLongKeys], keys_empty[kLongKeys];
  uint64_t told[kLongTurns], taken[kLongTurns];
  uint64_t q_landed[kLongQueries], found[kLongQueries], q_empty[kLongQueries];
  uint64_t v_full[kLongValues], empty[kLongValues];
  uint64_t k_landed[kLongKeys], v_landed[kLongValues], multiplied[kInverters], scored;
  Work work[kLongTurns];
  Going going[kLongValues];
  Asked asks[kLongKeys];
};
constexpr bool kLongFits = sizeof(Long) <= kMostShared;
static_assert(kLongFits == (kTerms == 1));

}  // namespace
