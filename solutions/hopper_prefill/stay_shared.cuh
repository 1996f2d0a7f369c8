// The shared memory of a block that stays: chunks of this (sequence, head) or the next one, and the next state.
#pragma once
#include "shared.cuh"

namespace {

constexpr int kStayStages = 2;
constexpr int kLeft = 4;  // named barrier: rows behind a sequence's end are zeros

// What of a place goes to memory, once nobody writes it any more: the output of a whole chunk, of head h from `token` on;
// token < 0: nothing.
struct Leaving {
  int token, h;
};

// Barriers as in `Shared`; `tail` is of a chunk that is not whole, which becomes full once rows behind the end are zeros.
// `state_full`: what the block has next stands in `work`, and its state has landed. `state_empty`: it has been read, and what
// the block had before is done.
struct Staying {
  alignas(1024) Stage<2, true> boxes[kStayStages];
  unsigned char state[4][D * 128];  // boxes of 32 columns, swizzled
  Tile tile[kStayStages];
  alignas(16) uint64_t full[kStayStages], v_full[kStayStages], ready[kStayStages], empty[kStayStages], tail[kStayStages];
  uint64_t state_full, state_empty;
  Work work[2];  // of turns
  Leaving leaving[kStayStages];
};
static_assert(sizeof(Staying) <= kMostShared);

}  // namespace
