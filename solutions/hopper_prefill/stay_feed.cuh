// Of a block that stays: a warp that asks for states and chunks of one (sequence, head) after the other, and a warpgroup that
// finds P.
#pragma once
#include "feed.cuh"
#include "queue.cuh"
#include "stay_shared.cuh"

namespace {

// By a warp. Loads of the next (sequence, head) are asked for while this one is advanced.
struct StayFeeder {
  const Problem& p;
  Staying& s;
  const Maps& maps;
  int asked = 0;  // chunks, of all turns
  static constexpr int kBytes = bytes_to_load(true, false);

  __device__ __forceinline__ static int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

  // The (sequence, head) of a turn; chunks < 0: there is none left.
  struct Turn {
    int n, h, chunks, start, end;
  };
  // The order is volatile: the kernel before may have written it while this one was running.
  __device__ __forceinline__ Turn find(int pair) const {
    if (pair >= p.N * p.H) return {0, 0, -1, 0, 0};
    const int rank = pair / p.H, h = pair - rank * p.H;
    const int n = uniform(*reinterpret_cast<const volatile int*>(p.queue + kQueued + rank));
    const int start = uniform(static_cast<int>(bound(p, n))), end = uniform(static_cast<int>(bound(p, n + 1)));
    return {n, h, end < start ? 0 : (end - start + kChunk - 1) / kChunk, start, end};
  }
  __device__ __forceinline__ int take_next() const {
    return uniform(lane_here() == 0 ? atomicAdd(p.queue, 1) : 0);
  }

  // Once the output of chunk `c`, counted over all turns, is there, it goes to memory.
  __device__ __forceinline__ void let_out(int c) const {
    const int i = c % kStayStages;
    barrier_wait(shared_address(&s.empty[i]), c / kStayStages & 1);
    if (lane_here() == 0) {
      fence_async();  // what others have written there is read by TMA, or written over by it
      const auto [token, h] = s.leaving[c % kStayValues];
      if (token >= 0) store_boxes(&maps.output, shared_address(s.v[c % kStayValues]), 0, h, token);
      else store_nothing();  // so that groups are chunks
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_state(const Turn& turn, int number) const {
    const int lane = lane_here();
    const uint32_t landing = shared_address(&s.state_full);
    if (number > 0) barrier_wait(shared_address(&s.state_empty), (number - 1) & 1);
    if (lane == 0) {
      const int pair = turn.n * p.H + turn.h;
      Work& work = s.work[number & 1];
      work.h = turn.h, work.chunks = turn.chunks, work.slice = 0, work.start = turn.start, work.end = turn.end;
      work.to = p.final_state + static_cast<int64_t>(pair) * kStaySize * kStaySize;
      if (turn.chunks >= 0 && p.initial_state != nullptr) {
        barrier_expect(landing, kStaySize * kStaySize * 4);
        load_state_boxes(shared_address(s.state), &maps.states, pair * kStaySize, landing);
      } else {
        barrier_arrive(landing);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void ask_chunk(const Turn& turn, int c) {
    const int i = asked % kStayStages, place = asked % kStayValues, token = turn.start + c * kChunk;
    const bool whole = token + kChunk <= turn.end;
    const uint32_t landing = shared_address(whole ? &s.full[i] : &s.tail[i]);
    if (asked >= kStayStages) barrier_wait(shared_address(&s.keys_empty[i]), (asked / kStayStages - 1) & 1);
    if (kStayTiles == 2 && asked >= kStayStages) let_out(asked - kStayStages);  // which has had the tile's place
    if (lane_here() == 0) {
      auto& keys = s.keys[i];
      for (int more = 1; more < kTellers && whole; ++more) barrier_arrive(landing);
      barrier_expect(landing, 6 * kBoxBytes + kBytes);
      load_boxes(shared_address(keys.k), &maps.k, 0, turn.h / p.k_group, token, landing);
      load_boxes(shared_address(keys.q), &maps.q, 0, turn.h / p.q_group, token, landing);
      const int64_t at = turn.start / kChunk + turn.n + c;
      load_tile<kStaySize, true, false>(s.tile[asked % kStayTiles], p.tiles + (at * p.H + turn.h) * p.tile_bytes, landing);
      kStayTiles == 2 ? stored_read_but_one() : stored_read();  // the output that was in the place of v
      s.leaving[place] = {whole ? token : -1, turn.h};
      load_boxes(shared_address(s.v[place]), &maps.v, 0, turn.h / p.v_group, token, landing);
    }
    __syncwarp();
    if (kStayTiles > 2 && asked >= kStayStages) let_out(asked - kStayStages);
    ++asked;
  }

  __device__ __forceinline__ void run() {
    wait_for_last();
    fence_async_memory();
    Turn turn = find(blockIdx.x);
    for (int number = 0;; ++number) {
      ask_state(turn, number);
      if (turn.chunks < 0) break;
#pragma unroll 1
      for (int c = 0; c < turn.chunks; ++c) ask_chunk(turn, c);
      turn = find(take_next());
    }
    for (int c = max(0, asked - kStayStages); c < asked; ++c) let_out(c);
    if (lane_here() == 0) stored_all();
  }
};

// By a warpgroup: P of each chunk, and zeros in the rows behind a sequence's end, which are the next sequence's: NaN maybe.
template <class E>
__device__ __forceinline__ void find_p_staying(const Problem& p, Staying& s) {
  const int thread = threadIdx.x % 128, warp = __shfl_sync(kAllLanes, thread / 32, 0), lane = lane_here();
  int at = 0, tails = 0;  // the chunk, counted over all turns; parities of tails, a bit a place
#pragma unroll 1
  for (int number = 0;; ++number) {
    barrier_wait(shared_address(&s.state_full), number & 1);
    const Work& work = s.work[number & 1];
    const int chunks = __shfl_sync(kAllLanes, work.chunks, 0);
    if (chunks < 0) break;
    const int tokens = __shfl_sync(kAllLanes, static_cast<int>(work.end - work.start), 0);
    __syncwarp();
    if (lane < kLeavers) barrier_arrive(shared_address(&s.state_empty));
#pragma unroll 1
    for (int c = 0; c < chunks; ++c, ++at) {
      const int i = at % kStayStages, rows = tokens - c * kChunk;
      auto& keys = s.keys[i];
      if (rows < kChunk) {
        barrier_wait(shared_address(&s.tail[i]), tails >> i & 1);
        tails ^= 1 << i;
        for (int half = 0; half < 2; ++half) {
          clear_rows(shared_address(keys.k) + half * kBoxBytes, rows, thread, 128);
          clear_rows(shared_address(keys.q) + half * kBoxBytes, rows, thread, 128);
          clear_rows(shared_address(s.v[at % kStayValues]) + half * kBoxBytes, rows, thread, 128);
        }
        fence_async();
        named_barrier(kLeft, 128);
        if (thread == 0 || kTellers > 1) barrier_arrive(shared_address(&s.full[i]));
        __syncwarp();
      }
      barrier_wait(shared_address(&s.full[i]), at / kStayStages & 1);
      float products[32];
      multiply_boxes<E, kStaySize>(products, shared_address(keys.q), shared_address(keys.k));
      auto& tile = s.tile[at % kStayTiles];
      const Weights weights = weigh(tile.logs, p.scale, warp, lane);
      wgmma_wait<0>();
      settle(products);
      write_p<E>(products, tile.logs, weights, shared_address(tile.P), warp, lane);
      fence_async();
      __syncwarp();
      if (lane == 0 || kLeavers > 1) barrier_arrive(shared_address(&s.ready[i]));
    }
  }
}

}  // namespace
