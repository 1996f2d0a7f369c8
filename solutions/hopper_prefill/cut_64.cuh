// How a call with heads of 64 is cut up, on the host: into segments of sequences, or not at all. A state is one slice, so
// there is nothing else to decide.
#pragma once
#include "cut.cuh"

namespace {

// The least time in cycles, as by `cut`, of the same steps; what memory takes has not been measured, and is left
// out. Two blocks share a multiprocessor where there are more than multiprocessors.
Cut cut_64(const Batch& batch, int64_t room, const Device& device) {
#ifdef GDN_CLOCKS
  if (given("GDN_GROUPS", 0) != 0) return {1, given("GDN_FIRST", 0), given("GDN_LENGTH", 0), given("GDN_ALONE", 0) != 0};
#endif
  // Cycles, predicted from those of heads of 128 by the products that a step has fewer of (LOG.md). Of a chunk with output in a
  // block alone, and in one of two; without output, likewise; besides its chunks, of a block; the others as in `cut`.
  constexpr int64_t kChunkAlone = 1250, kChunkOfTwo = 1700, kAlone = 930, kOfTwo = 1150, kBlock = 5500;
  constexpr int64_t kAround = 4, kLater = 9000, kSecond = 5500, kJoin = 2500;
  const int64_t pairs = batch.pairs(), each = batch.places_of_one(), multiprocessors = device.multiprocessors;
  const auto waves = [](int64_t blocks, int64_t places) { return (blocks + places - 1) / places; };
  const auto outputs = [&](int64_t blocks, int64_t length) {
    const bool alone = blocks <= multiprocessors;
    const int64_t time = length * (alone ? kChunkAlone : kChunkOfTwo) + kBlock;
    return time * waves(blocks, alone ? multiprocessors : 2 * multiprocessors);
  };
  Cut best{1, 0, 0, false};
  if (batch.sequences >= 8) return best;  // of which a few may be longer than the others, and hide them
  int64_t least = outputs(pairs, each);
  const int64_t left = multiprocessors - pairs;  // by first segments
  for (int64_t count = 3; left > 0 && count <= 16 && each >= 4 * count; ++count) {
    const int64_t others = 2 * pairs * (count - 2);  // of zeros and of the identity
    const bool alone = others <= left;
    const int64_t states = alone ? kAlone : waves(others, 2 * left) * kOfTwo;
    const int64_t even = each * kChunkAlone + kBlock - kAround * states - kLater;  // as long as first segments take
    const int64_t length = std::clamp<int64_t>(even / (states + (count - 1) * kChunkAlone), 1, each / count);
    const Cut how{1, each - (count - 1) * length, length, alone};
    if (workspace_of(how, batch).all() > room) continue;
    const int64_t first = std::max(how.first * kChunkAlone + kBlock, (length + kAround) * states + kLater);
    const int64_t time = first + kSecond + (count - 2) * kJoin + outputs(pairs * (count - 1), length);
    if (time < least) least = time, best = how;
  }
  return best;
}

}  // namespace
