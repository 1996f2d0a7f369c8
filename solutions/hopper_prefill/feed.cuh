// A block's chunks: asks for boxes of q, k and v and for what has been prepared, once their place is free, and takes the
// output from there, where it comes in the place of v. In blocks with both slices of a state another warpgroup finds P.
#pragma once
#include "decays.cuh"

namespace {

struct Maps {
  CUtensorMap q, k, v, output, slice_of_v, slice_of_output;
  CUtensorMap states;  // initial ones, for blocks that stay; final ones, for those of long sequences
};

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

// By a warp. What TMA is told is the same in every lane, and known to be: it comes from uniform registers.
template <int D, int Groups, bool Output, int Stages>
struct Feeder {
  const Problem& p;
  Shared<D, Groups, Output, Stages>& s;
  const Maps& maps;
  int chunks, start, tokens, groups, h, slice, q_head, k_head, v_head;
  const unsigned char* first_tile;
  static constexpr bool kFeedsOnly = Output && finds_p(Groups);  // its warpgroup does nothing else, and has few registers

  __device__ __forceinline__ static int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }
  __device__ __forceinline__ Feeder(const Problem& p, Shared<D, Groups, Output, Stages>& s, const Maps& maps)
      : p(p), s(s), maps(maps) {
    const Work& work = s.work;
    chunks = uniform(work.chunks), start = uniform(static_cast<int>(work.start));
    tokens = uniform(static_cast<int>(min(work.end - work.start, int64_t{chunks} * kChunk)));
    groups = Groups == 1 ? 1 : uniform(work.groups);
    h = uniform(work.h), slice = uniform(work.slice);
    q_head = uniform(work.q_head), k_head = uniform(work.k_head), v_head = uniform(work.v_head);
    first_tile = tile_of(0);
  }
  __device__ __forceinline__ const unsigned char* tile_of(int c) const {
    return p.tiles + ((s.work.place + c) * p.H + s.work.h) * p.tile_bytes;
  }
  // What there are no registers for is looked up again.
  __device__ __forceinline__ static int now(int kept, const int& there) { return kFeedsOnly ? uniform(there) : kept; }

  static constexpr bool kWithP = Output && !finds_p(Groups);
  static constexpr int kBytes = bytes_to_load(Output, kWithP), kBoxes = (Output ? 2 : 1) * kHalves<D>;  // of k and q

  __device__ __forceinline__ void wait_empty(int c) const {
    barrier_wait(shared_address(&s.empty[c % Stages]), c / Stages & 1);
  }

  __device__ __forceinline__ void take(int c) const {
    const int h = now(this->h, s.work.h), slice = now(this->slice, s.work.slice);
    if (lane_here() == 0) {
      fence_async();  // for warps that advance, which have written it: there it would hold them up
      const CUtensorMap* const map = groups == Groups ? &maps.output : &maps.slice_of_output;
      store_boxes(map, shared_address(s.boxes[c % Stages].v), slice / kSlice, h, start + c * kChunk);
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

  // Transfers that are to be joined, where chunks 1 and 2 will be, each half once that before it has been taken from there.
  __device__ __forceinline__ void ask_transfers() const {
    if constexpr (Output) {
      const int joins = s.work.joins;
      for (int i = 1; joins > 0 && i <= joins + 1; ++i) {
#pragma unroll
        for (int half = 0; half < kHalves<D>; ++half) {
          if (i > 1) named_barrier(kTaken + half, 32 + 128 * Groups);
          if (i <= joins && lane_here() == 0) {
            const uint32_t landing = shared_address(&s.joining[half]);
            const auto* from = reinterpret_cast<const unsigned char*>(s.work.transfer + int64_t{i} * p.H * D * D);
            constexpr int kBytes = kTransferBytes<D>;
            barrier_expect(landing, kBytes);
            load_bytes(shared_address(s.boxes[1 + half].k), from + half * kBytes, kBytes, landing);
          }
          __syncwarp();
        }
      }
    }
  }

  // All of chunk c but v, whose place the output of another may be leaving still.
  __device__ __forceinline__ void ask(int c) const {
    const int i = c % Stages, token = start + c * kChunk;
    auto& boxes = s.boxes[i];
    if (c == 1) ask_transfers();
    if (c >= Stages) {
      wait_empty(c - Stages);
      if constexpr (Output) take(c - Stages);
    }
    const int k_head = now(this->k_head, s.work.k_head), q_head = Output ? now(this->q_head, s.work.q_head) : 0;
    if (lane_here() == 0) {
      barrier_expect(landed(c), kBoxes * kBoxBytes + (whole(c) ? 0 : groups * kBoxBytes) + kBytes);
      load_boxes(shared_address(boxes.k), &maps.k, 0, k_head, token, landed(c));
      if constexpr (Output) load_boxes(shared_address(boxes.q), &maps.q, 0, q_head, token, landed(c));
      if (c == 0) meet_last<Output>(p);
      const auto* const tile = kFeedsOnly ? tile_of(c) : first_tile + static_cast<int64_t>(c) * p.H * p.tile_bytes;
      load_tile<D, Output, kWithP>(s.tile[i], tile, landed(c));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_v(int c) const {
    const int i = c % Stages, rows = tokens - c * kChunk, lane = lane_here();
    auto& boxes = s.boxes[i];
    const int v_head = now(this->v_head, s.work.v_head), slice = now(this->slice, s.work.slice);
    if (lane == 0) {
      if constexpr (Output) stored_read();
      if (whole(c)) barrier_expect(v_landed(c), groups * kBoxBytes);
      const CUtensorMap* const map = Output && groups == Groups ? &maps.v : &maps.slice_of_v;
      load_boxes(shared_address(boxes.v), map, slice / kSlice, v_head, start + c * kChunk, v_landed(c));
    }
    __syncwarp();
    if (whole(c)) return;
    // Rows behind the end are the next sequence's: what is in them, NaN maybe, is no business of this one's, so they become
    // zeros before anybody looks.
    barrier_wait(landed(c), 0);
    for (int half = 0; half < kHalves<D>; ++half) {
      clear_rows(shared_address(boxes.k) + half * kBoxBytes, rows, lane, 32);
      if constexpr (Output) clear_rows(shared_address(boxes.q) + half * kBoxBytes, rows, lane, 32);
    }
    for (int wg = 0; wg < groups; ++wg) clear_rows(shared_address(boxes.v) + wg * kBoxBytes, rows, lane, 32);
    fence_async();
    named_arrive(kCleared, 32 + 128 * groups);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.full[i])), barrier_arrive(shared_address(&s.v_full[i]));
  }

  // The output of the last chunks.
  __device__ __forceinline__ void finish() const {
    const int lane = lane_here();
    if (chunks == 1) ask_transfers();
    for (int c = max(0, chunks - Stages); c < chunks; ++c) {
      wait_empty(c);
      const int rows = tokens - c * kChunk;
      if (whole(c)) {
        take(c);
      } else {  // row by row: those behind the end are the next sequence's
        named_barrier(kWritten, 32 + 128 * groups);
        const int pieces = groups * 8;  // of 16 bytes, of a row
        const int h = now(this->h, s.work.h), slice = now(this->slice, s.work.slice);
#pragma unroll 1
        for (int at = lane; at < rows * pieces; at += 32) {
          const int row = at / pieces, piece = at % pieces;
          const unsigned char* from = s.boxes[c % Stages].v + piece / 8 * kBoxBytes + swizzled(row, piece % 8);
          const int64_t to = (static_cast<int64_t>(start + c * kChunk + row) * p.H + h) * D + slice + 8 * piece;
          *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.output) + to) = *reinterpret_cast<const uint4*>(from);
        }
      }
    }
    if (lane == 0) stored_all();
  }
};

// By one warp.
template <int D, int Groups, bool Output, int Stages>
__device__ __forceinline__ void feed(const Problem& p, Shared<D, Groups, Output, Stages>& s, const Maps& maps) {
  const Feeder<D, Groups, Output, Stages> feeder(p, s, maps);
#pragma unroll 1
  for (int c = 0; c < feeder.chunks; ++c) feeder.ask(c), feeder.ask_v(c);
  if constexpr (Output) feeder.finish();
}

// By a warpgroup: P of each chunk.
template <class E, int D>
__device__ __forceinline__ void find_p(const Problem& p, Shared<D, 2, true>& s) {
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here();
  const int chunks = __shfl_sync(kAllLanes, s.work.chunks, 0);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const int i = c % kStages;
    auto& boxes = s.boxes[i];
    barrier_wait(shared_address(&s.full[i]), c / kStages & 1);
    float products[32];
    multiply_boxes<E, D>(products, shared_address(boxes.q), shared_address(boxes.k));
    const Logs& logs = s.tile[i].logs;
    const Weights weights = weigh(logs, p.scale, warp, lane);
    wgmma_wait<0>();
    settle(products);
    write_p<E>(products, logs, weights, shared_address(s.tile[i].P), warp, lane);
    fence_async();
    __syncwarp();
    if (lane == 0 || kLeavers > 1) barrier_arrive(shared_address(&s.ready[i]));
  }
}

}  // namespace
