// Figures of a GPU from which follows how a call is cut up, and what a batch moves: on the host.
#pragma once
#include <algorithm>

#include "shared.cuh"

namespace {

// Costs in cycles are alike on all Hopper GPUs. What memory gives per cycle is not.
struct Device {
  int multiprocessors;
  double bytes;  // that a copy moves in a cycle, those read and those written
};

// Of what the driver says: kHz of the multiprocessors and of memory, at most; bits of the bus. A copy gets kOfMemory of what the
// bus could carry (H100: 3.0 of 3.35 TB/s, H200: 4.2 of 4.92), and power leaves kOfClock of the clock (1.7 of 1.98 GHz).
constexpr Device device_of(int multiprocessors, int clock, int memory_clock, int bus) {
  constexpr double kOfMemory = 0.87, kOfClock = 0.86;
  if (clock <= 0 || memory_clock <= 0 || bus <= 0) return {multiprocessors, 1730};  // not said: as an H100
  return {multiprocessors, 2. * memory_clock * bus / 8 * kOfMemory / (clock * kOfClock)};
}

// A batch. How long each sequence is, the host does not know.
struct Batch {
  int64_t tokens, sequences, heads, q_heads, k_heads, v_heads, D;
  bool checkpoints, k_first = false;

  constexpr int64_t pairs() const { return sequences * heads; }
  constexpr int64_t places() const { return tokens / kChunk + sequences; }  // for chunks: there are no more
  // As many as if all sequences were as long.
  constexpr int64_t chunks_of_one() const { return (tokens + sequences * kChunk - 1) / (sequences * kChunk); }
  constexpr int64_t chunks() const { return chunks_of_one() * sequences; }
  constexpr int64_t places_of_one() const { return (places() + sequences - 1) / sequences; }
};

// Bytes that a batch moves per chunk, of all heads; and in states. Chunks that are not whole count for less.
struct Traffic {
  const Batch& batch;

  constexpr double rows(int64_t heads) const { return 2. * batch.D * heads * batch.tokens / std::max<int64_t>(1, batch.chunks()); }
  constexpr double all_rows() const { return rows(batch.q_heads + batch.k_heads + batch.v_heads + batch.heads); }
  constexpr double gates() const { return 8. * kChunk * batch.heads; }
  constexpr double tiles(bool with_p) const { return static_cast<double>(batch.heads) * tile_bytes(with_p); }
  // Of the first kernel; of the second one; of one that has states alone, of all slices; of one that prepares, too.
  constexpr double prepares(bool with_p) const { return rows(batch.k_heads + with_p * batch.q_heads) + gates() + tiles(with_p); }
  constexpr double outputs(bool with_p) const { return all_rows() + tiles(with_p); }
  constexpr double states() const { return rows(batch.k_heads + batch.v_heads) + static_cast<double>(batch.heads) * kPAt; }
  constexpr double prepares_and_outputs() const { return all_rows() + gates(); }
  // Of (sequence, head), in or out.
  constexpr double of_states(int64_t pairs) const { return 4. * batch.D * batch.D * pairs; }
};

}  // namespace
