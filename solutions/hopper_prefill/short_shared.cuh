// The shared memory of a block that prepares its own chunks: this one and the next, and the next state.
#pragma once
#include "invert.cuh"

namespace {

constexpr int kShortPlaces = 2;
constexpr int kShortTurns = 4;  // whose work is kept: the next one's is written when one warpgroup may be a turn behind the other
constexpr int kShortRows = 16;  // of the boxes that are asked for where a chunk is not whole: no more than it has

// What of a place of v goes to memory, once nobody writes it any more: the output of a whole chunk, of head h from `token` on;
// token < 0: nothing.
struct Going {
  int token, h;
};

// What is asked for of a chunk: so many tokens of head h from `first` on; rows < 0: there is no more.
struct Asked {
  int first, rows, h;
};

// Of a chunk. A warp has each of the two places, and inverts T there; Logs of the tile are Rows here.
struct ShortPlace {
  unsigned char k[2 * kBoxBytes], q[2 * kBoxBytes], v[2 * kBoxBytes];  // the output comes where v is
  StateTile tile;
  unsigned char P[kSquare];
  alignas(128) unsigned char products[kProducts];  // K K^T
  alignas(16) Scratch scratch;
  Rows rows;
};

// Barriers of a place, in the order in which they become full: `asked`: it stands in `asks` what comes; k and q have landed; v
// has; rows of k and q behind the end are zeros, and decays are there; those of v are; T is there; P is; nobody needs k, q, T and
// decays; nobody needs the place, and the output is there. `state_full`: what the block has next stands in `work`, and that slice of
// its state has landed. `state_empty`: it has been read, and what the warpgroup had before is done.
struct Short {
  struct alignas(1024) Place : ShortPlace {};
  Place places[kShortPlaces];
  unsigned char state[2][kSlice * kStaySize * 4];  // slices, in boxes of 32 columns, swizzled
  alignas(16) uint64_t asked[kShortPlaces], landed[kShortPlaces], v_landed[kShortPlaces], full[kShortPlaces], v_full[kShortPlaces];
  uint64_t inverted[kShortPlaces], found[kShortPlaces], keys_empty[kShortPlaces], empty[kShortPlaces];
  uint64_t state_full[2], state_empty[2];  // of slices
  Work work[kShortTurns];
  Going going[kShortPlaces];
  Asked asks[kShortPlaces];
};
// T in two terms leaves no room for it.
constexpr bool kShortFits = sizeof(Short) <= kMostShared;
static_assert(kShortFits == (kTerms == 1));

}  // namespace
