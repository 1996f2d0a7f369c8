// A block's chunks: asks for boxes of q, k and v and for what has been prepared, once their place is free, and takes the
// output from there, where it comes in the place of v. Here, of one slice of a state; of both, stay.cuh.
#pragma once
#include "decays.cuh"

namespace {

struct Maps {
  CUtensorMap q, k, v, output, slice_of_v, slice_of_output;
};

// What the same number in every lane is known to be: TMA is told it from uniform registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

// By a thread, before it reads what was prepared, not by TMA. First segments let those between them and the last begin here,
// which then have all that is prepared without waiting for anybody.
template <bool Output>
__device__ __forceinline__ void meet_last(const Problem& p) {
  if constexpr (Output) {
    wait_for_last();
    if (p.firsts) let_next_begin();
  }
  fence_async_memory();
}

// Transfers that are to be joined, where chunks 1 and 2 will be, each half once that before it has been taken from there. By a
// warp.
template <int Groups, int Stages>
__device__ __forceinline__ void ask_transfers(const Problem& p, Shared<Groups, true, Stages>& s) {
  const Work& work = s.work[0];
  const int joins = work.joins;
  for (int i = 1; joins > 0 && i <= joins + 1; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (i > 1) named_barrier(kTaken + half, 32 + 128 * Groups);
      if (i <= joins && lane_here() == 0) {
        const uint32_t landing = shared_address(&s.joining[half]);
        const auto* from = reinterpret_cast<const unsigned char*>(work.transfer + int64_t{i} * p.H * D * D);
        barrier_expect(landing, kTransferBytes);
        load_bytes(shared_address(s.boxes[1 + half].k), from + half * kTransferBytes, kTransferBytes, landing);
      }
      __syncwarp();
    }
  }
}

// Rows behind a sequence's end are the next one's: what is in them, NaN maybe, is no business of this one's, so they become
// zeros before anybody looks. By a warp.
template <bool Output, class Boxes>
__device__ __forceinline__ void clear_behind(Boxes& boxes, int rows, int groups) {
  const int lane = lane_here();
  for (int half = 0; half < 2; ++half) {
    clear_rows(shared_address(boxes.k) + half * kBoxBytes, rows, lane, 32);
    if constexpr (Output) clear_rows(shared_address(boxes.q) + half * kBoxBytes, rows, lane, 32);
  }
  for (int wg = 0; wg < groups; ++wg) clear_rows(shared_address(boxes.v) + wg * kBoxBytes, rows, lane, 32);
  fence_async();
}

// The output of a last chunk, row by row. By a warp.
__device__ __forceinline__ void take_rows(const Problem& p, const unsigned char* box, int token, int rows, int h, int slice,
                                          int groups) {
  const int pieces = groups * 8;  // of 16 bytes, of a row
#pragma unroll 1
  for (int at = lane_here(); at < rows * pieces; at += 32) {
    const int row = at / pieces, piece = at % pieces;
    const unsigned char* from = box + piece / 8 * kBoxBytes + swizzled(row, piece % 8);
    const int64_t to = (static_cast<int64_t>(token + row) * p.H + h) * D + slice + 8 * piece;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.output) + to) = *reinterpret_cast<const uint4*>(from);
  }
}

// By a warp.
template <bool Output, int Stages>
struct Feeder {
  const Problem& p;
  Shared<1, Output, Stages>& s;
  const Maps& maps;
  int chunks, start, tokens, h, slice, q_head, k_head, v_head;
  const unsigned char* tiles;

  __device__ __forceinline__ Feeder(const Problem& p, Shared<1, Output, Stages>& s, const Maps& maps) : p(p), s(s), maps(maps) {
    const Work& work = s.work[0];
    chunks = uniform(work.chunks), start = uniform(static_cast<int>(work.start));
    tokens = uniform(static_cast<int>(min(work.end - work.start, int64_t{chunks} * kChunk)));
    h = uniform(work.h), slice = uniform(work.slice);
    q_head = uniform(work.q_head), k_head = uniform(work.k_head), v_head = uniform(work.v_head);
    tiles = p.tiles + (work.place * p.H + work.h) * p.tile_bytes;
  }

  static constexpr int kBytes = bytes_to_load(Output, Output), kBoxes = Output ? 4 : 2;  // of k and q

  __device__ __forceinline__ void wait_empty(int c) const {
    barrier_wait(shared_address(&s.empty[c % Stages]), c / Stages & 1);
  }

  __device__ __forceinline__ void take(int c) const {
    if (lane_here() == 0) {
      fence_async();  // for warps that advance, which have written it: there it would hold them up
      store_boxes(&maps.output, shared_address(s.boxes[c % Stages].v), slice / kSlice, h, start + c * kChunk);
    }
  }

  // Else it is the last one, and its boxes hold rows of another sequence.
  __device__ __forceinline__ bool whole(int c) const { return tokens - c * kChunk >= kChunk; }
  // What says that chunk c has landed, or its v.
  __device__ __forceinline__ uint32_t landed(int c) const {
    return shared_address(whole(c) ? &s.full[c % Stages] : &s.tail);
  }
  __device__ __forceinline__ uint32_t v_landed(int c) const {
    return shared_address(whole(c) ? &s.v_full[c % Stages] : &s.tail);
  }

  // All of chunk c but v, whose place the output of another may be leaving still.
  __device__ __forceinline__ void ask(int c) const {
    const int i = c % Stages, token = start + c * kChunk;
    auto& boxes = s.boxes[i];
    if constexpr (Output) {
      if (c == 1) ask_transfers(p, s);
    }
    if (c >= Stages) {
      wait_empty(c - Stages);
      if constexpr (Output) take(c - Stages);
    }
    if (lane_here() == 0) {
      barrier_expect(landed(c), kBoxes * kBoxBytes + (whole(c) ? 0 : kBoxBytes) + kBytes);
      load_boxes(shared_address(boxes.k), &maps.k, 0, k_head, token, landed(c));
      if constexpr (Output) load_boxes(shared_address(boxes.q), &maps.q, 0, q_head, token, landed(c));
      if (c == 0) meet_last<Output>(p);
      load_tile<Output, Output>(s.tile[i], tiles + static_cast<int64_t>(c) * p.H * p.tile_bytes, landed(c));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_v(int c) const {
    const int i = c % Stages, rows = tokens - c * kChunk, lane = lane_here();
    auto& boxes = s.boxes[i];
    if (lane == 0) {
      if constexpr (Output) stored_read();
      if (whole(c)) barrier_expect(v_landed(c), kBoxBytes);
      load_boxes(shared_address(boxes.v), &maps.slice_of_v, slice / kSlice, v_head, start + c * kChunk, v_landed(c));
    }
    __syncwarp();
    if (whole(c)) return;
    barrier_wait(landed(c), 0);
    clear_behind<Output>(boxes, rows, 1);
    named_arrive(kCleared, 32 + 128);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.full[i])), barrier_arrive(shared_address(&s.v_full[i]));
  }

  // The output of the last chunks.
  __device__ __forceinline__ void finish() const {
    if constexpr (Output) {
      if (chunks == 1) ask_transfers(p, s);
    }
    for (int c = max(0, chunks - Stages); c < chunks; ++c) {
      wait_empty(c);
      if (whole(c)) {
        take(c);
      } else {
        named_barrier(kWritten, 32 + 128);
        take_rows(p, s.boxes[c % Stages].v, start + c * kChunk, tokens - c * kChunk, h, slice, 1);
      }
    }
    if (lane_here() == 0) stored_all();
  }
};

// By one warp.
template <bool Output, int Stages>
__device__ __forceinline__ void feed(const Problem& p, Shared<1, Output, Stages>& s, const Maps& maps) {
  const Feeder<Output, Stages> feeder(p, s, maps);
#pragma unroll 1
  for (int c = 0; c < feeder.chunks; ++c) feeder.ask(c), feeder.ask_v(c);
  if constexpr (Output) feeder.finish();
}

}  // namespace
