// What a call needs beside its inputs and outputs: one piece of memory, by the shapes that the host knows.
#pragma once
#include <algorithm>

#include "boxes.cuh"

namespace {

// Chunks of a segment; 0: sequences are not cut. That is worth it for few heads, and so many segments that the walks which find what
// becomes of states, three for each but those at the ends, fill the multiprocessors.
int64_t segment_of(const Problem& p) {
  const int64_t pairs = int64_t{p.N} * p.H, each = (p.tokens + int64_t{kChunk} * p.N - 1) / (int64_t{kChunk} * p.N);
  constexpr int64_t kMostPairs = 12, kLeast = 64, kLeastChunks = 4;
  if (pairs > kMostPairs || each < kLeast) return 0;
  const int64_t count = std::min((p.multiprocessors / pairs + 4) / 3, each / kLeastChunks);
  return count < 3 ? 0 : (each + count - 1) / count;
}

// Its parts, as they lie one after the other; Problem says what they are.
enum WorkPart {
  kStartsPart, kErrorsPart, kEndsPart, kTilesPart, kWritesPart, kZerosPart, kEndPart, kBetaPart, kStatesPart, kRestsPart, kOrderPart,
  kQueuePart, kSegmentsPart, kTransfersPart, kBoundsPart, kWorkParts
};

struct Workspace {
  int64_t places;  // of chunks
  bool room;       // transfers lie where the forward walk's S and r will: they are over before it begins
  int64_t bytes[kWorkParts];

  int64_t before(int part) const {
    int64_t sum = 0;
    for (int i = 0; i < part; ++i) sum += bytes[i];
    return sum;
  }
  int64_t all() const { return before(kWorkParts); }
};

// `p`: with as many sequences as there are with all segments. Parts end at 16 bytes.
Workspace workspace_of(const Problem& p, bool has_output) {
  const bool cut = p.segments.length > 0;
  const int64_t places = places_of(p), of_head = places * p.H, of_sequences = int64_t{p.N} * p.H;
  const int64_t of_values = p.tokens * p.H * kHeadSize * 2, of_state = kHeadSize * kHeadSize * 4, of_walkers = kWalkers * 4;
  const int64_t of_segments = cut ? 2 * of_sequences * of_state : 0;
  const bool room = of_segments <= of_head * (kStateBytes + kValueBytes);
  Workspace x{places, room, {}};
  x.bytes[kStartsPart] = x.bytes[kEndsPart] = of_head * kStateBytes;
  x.bytes[kErrorsPart] = of_head * kValueBytes;
  x.bytes[kTilesPart] = of_head * kTileBytes;
  x.bytes[kWritesPart] = p.v_group > 1 ? of_values : 0;
  x.bytes[kZerosPart] = has_output ? 0 : of_values;  // in the place of do
  x.bytes[kEndPart] = of_sequences * of_walkers * kChunk;
  x.bytes[kBetaPart] = (in_rows_of_keys(p) ? of_sequences : of_head) * of_walkers * kChunk;
  x.bytes[kStatesPart] = of_sequences * 2 * of_walkers;
  x.bytes[kRestsPart] = of_sequences * 2 * kWalkers * 4 * 32 * static_cast<int64_t>(sizeof(uint4));
  x.bytes[kOrderPart] = (p.N + 3) / 4 * 16;
  x.bytes[kQueuePart] = 16 + (2 * places * p.k_heads + 3) / 4 * 16;
  x.bytes[kSegmentsPart] = of_segments;
  x.bytes[kTransfersPart] = room ? 0 : of_segments;
  x.bytes[kBoundsPart] = cut ? (4 * int64_t{p.N} + 8) * 4 : 0;
  return x;
}

}  // namespace
