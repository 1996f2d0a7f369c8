// A block's chunks, by a warp: asks for boxes of q, k and v and for what has been prepared, once their place is free, and
// takes the output from there, where it comes in the place of v.
#pragma once
#include "shared.cuh"

namespace {

struct Maps {
  CUtensorMap q, k, v, output;
};

template <int Groups>
__device__ __forceinline__ void feed(const Problem& p, Shared<Groups>& s, const Maps& maps) {
  const Work& work = s.work;
  const int lane = lane_here();
  // The same in every lane, and known to be: what TMA is told comes from uniform registers.
  const auto uniform = [](int x) { return __shfl_sync(kAllLanes, x, 0); };
  const int chunks = uniform(work.chunks), start = uniform(static_cast<int>(work.start)), h = uniform(work.h);
  const int tokens = uniform(static_cast<int>(min(work.end - work.start, int64_t{chunks} * kChunk)));
  const int slice = uniform(work.slice);
  const bool output = uniform(work.output);
  const int64_t tile_step = static_cast<int64_t>(p.H) * sizeof(Tile);
  const unsigned char* tile = p.tiles + (work.place * p.H + h) * sizeof(Tile);
  const auto wait_empty = [&](int c) { barrier_wait(shared_address(&s.empty[c % kStages]), c / kStages & 1); };
  const auto take = [&](int c) {
    if (output && lane == 0) {
      store_boxes(&maps.output, shared_address(s.boxes[c % kStages].v), slice / kSlice, h, start + c * kChunk);
    }
  };
#pragma unroll 1
  for (int c = 0; c < chunks; ++c, tile += tile_step) {
    const int i = c % kStages, rows = tokens - c * kChunk, token = start + c * kChunk;
    auto& boxes = s.boxes[i];
    const uint32_t full = shared_address(&s.full[i]), landed = rows < kChunk ? shared_address(&s.tail) : full;
    if (c >= kStages) {
      wait_empty(c - kStages);
      take(c - kStages);
    }
    if (lane == 0) {
      barrier_expect(landed, static_cast<int>(sizeof boxes + sizeof(Tile)));
      load_boxes(shared_address(boxes.k), &maps.k, 0, h / p.k_group, token, landed);
      load_boxes(shared_address(boxes.q), &maps.q, 0, h / p.q_group, token, landed);
      if (c < kStages) load_boxes(shared_address(boxes.v), &maps.v, slice / kSlice, h / p.v_group, token, landed);
      if (c == 0) wait_for_last();  // which prepares
      load_bytes(shared_address(&s.tile[i]), tile, static_cast<int>(sizeof(Tile)), landed);
      if (c >= kStages) {
        stored_read();
        load_boxes(shared_address(boxes.v), &maps.v, slice / kSlice, h / p.v_group, token, landed);
      }
    }
    __syncwarp();
    if (rows >= kChunk) continue;
    // Rows behind the end are the next sequence's: what is in them, NaN maybe, is no business of this one's, so they become
    // zeros before anybody looks.
    barrier_wait(landed, 0);
    for (int at = 128 * rows + 16 * lane; at < kBoxBytes; at += 512) {  // whole rows: the swizzle stays inside of them
      const uint4 zeros = make_uint4(0, 0, 0, 0);
      store_shared(shared_address(boxes.k) + at, zeros);
      store_shared(shared_address(boxes.k) + kBoxBytes + at, zeros);
      store_shared(shared_address(boxes.q) + at, zeros);
      store_shared(shared_address(boxes.q) + kBoxBytes + at, zeros);
      for (int wg = 0; wg < Groups; ++wg) store_shared(shared_address(boxes.v) + wg * kBoxBytes + at, zeros);
    }
    fence_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(full);
  }
  for (int c = max(0, chunks - kStages); c < chunks; ++c) {
    wait_empty(c);
    const int rows = tokens - c * kChunk;
    if (rows >= kChunk) {
      take(c);
    } else if (output) {  // row by row: those behind the end are the next sequence's
      constexpr int kPieces = Groups * 8;  // of 16 bytes, of a row
      for (int at = lane; at < rows * kPieces; at += 32) {
        const int row = at / kPieces, piece = at % kPieces;
        const unsigned char* from = s.boxes[c % kStages].v + piece / 8 * kBoxBytes + swizzled(row, piece % 8);
        const int64_t to = (static_cast<int64_t>(start + c * kChunk + row) * p.H + h) * D + slice + 8 * piece;
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.output) + to) = *reinterpret_cast<const uint4*>(from);
      }
    }
  }
  if (lane == 0) stored_all();
}

}  // namespace
