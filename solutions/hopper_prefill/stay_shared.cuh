// The shared memory of a block that stays: chunks of this (sequence, head) or the next one, and the next state.
#pragma once
#include "shared.cuh"

namespace {

constexpr int kStayStages = 2, kStayValues = 3;
constexpr int kStayTiles = kTerms == 1 ? 3 : 2;  // more there is no room for
constexpr int kLeft = 4;  // named barrier: rows behind a sequence's end are zeros
// Threads that say that rows behind the end are zeros. One speaks for all behind that barrier, which racecheck does not follow.
constexpr int kTellers = kLeavers > 1 ? 128 : 1;

// What of a place of v goes to memory, once nobody writes it any more: the output of a whole chunk, of head h from `token` on;
// token < 0: nothing.
struct Leaving {
  int token, h;
};

// There are two places for a chunk's k and q, which are free once the state has been updated, and three for its v and its tile:
// the output comes in the place of v, and has left when the place's turn comes again.
//
// Barriers: a chunk has landed; P is found; nobody needs k and q; the output is there, and nobody needs the tile; `tail`: a chunk
// that is not whole has landed, which becomes full once rows behind its end are zeros. `state_full`: what the block has next
// stands in `work`, and its state has landed. `state_empty`: it has been read, and what the block had before is done.
struct Staying {
  struct Keys {
    unsigned char k[2 * kBoxBytes], q[2 * kBoxBytes];
  };
  alignas(1024) Keys keys[kStayStages];
  unsigned char v[kStayValues][2 * kBoxBytes];
  unsigned char state[4][kStaySize * 128];  // boxes of 32 columns, swizzled
  Tile<kStaySize> tile[kStayTiles];
  alignas(16) uint64_t full[kStayStages], ready[kStayStages], keys_empty[kStayStages], empty[kStayStages];
  uint64_t tail[kStayStages], state_full, state_empty;
  Work work[2];  // of turns
  Leaving leaving[kStayValues];
};
static_assert(sizeof(Staying) <= kMostShared);

}  // namespace
