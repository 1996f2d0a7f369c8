// Of a block that prepares the chunks of long sequences itself: the warp that asks for them, keys a chunk ahead of queries and
// values. It runs beside warps that fetch much code, so it has little: what a turn needs it finds once, and its steps have no
// branches by lengths.
#pragma once
#include "long_shared.cuh"
#include "short_feed.cuh"

namespace {

struct LongFeeder : TurnFeeder {
  struct Chunk {
    int token, rows, h;
  };
  struct Heads {
    int q, k, v;
  };
  Long& s;
  uint32_t asked = 0, rest = 0;  // chunks whose keys have been asked for, of all turns; and all else, too
  Heads heads{}, last_heads{};   // of this turn; of the chunk before, whose keys have been asked for and no more
  Chunk last{};
  int64_t gate = 0;             // of the lane's first token of the next chunk
  // The next turn, as far as it has been looked up.
  int looked = 0, loaded = 0, next_n = 0, next_h = 0;
  int64_t next_start = 0, next_end = 0;
  static constexpr int kLooks = 3, kBytes = 2 * kBoxBytes;

  __device__ __forceinline__ LongFeeder(const Problem& p, Long& s, const Maps& maps) : TurnFeeder{p, maps}, s(s) {}

  // Waits until what a barrier of place c % Places says holds for chunk c, counted over all turns.
  template <int Places>
  __device__ __forceinline__ static void wait(const uint64_t (&barriers)[Places], uint32_t c) {
    barrier_wait(shared_address(&barriers[c % Places]), c / Places & 1);
    __syncwarp();
  }

  // Three numbers from memory, each of which says where the next one is. So a look takes what the look before has asked for: it
  // does not wait, if a chunk has been asked for meanwhile.
  __device__ __forceinline__ void look_ahead() {
    if (looked == 0) {
      loaded = p.queue == nullptr ? p.N * p.H : lane_here() == 0 ? atomicAdd(p.queue, 1) : 0;
    } else if (looked == 1) {
      const int pair = uniform(loaded), rank = pair / p.H;
      const bool none = pair >= p.N * p.H;
      next_h = none ? -1 : pair - rank * p.H;
      if (!none) loaded = *reinterpret_cast<const volatile int*>(p.queue + kQueued + rank);
    } else if (next_h >= 0) {
      next_n = uniform(loaded);
      next_start = bound(p, next_n), next_end = bound(p, next_n + 1);
    }
    ++looked;
  }
  __device__ __forceinline__ Turn find_next() {
    while (looked < kLooks) look_ahead();
    looked = 0;
    if (next_h < 0) return {0, 0, -1, 0, 0};
    return turn_of(next_n, next_h, uniform(static_cast<int>(next_start)), uniform(static_cast<int>(next_end)));
  }

  // Tells what the next turn is, and asks for its state to come to L2, where those who advance take it from.
  __device__ __forceinline__ void tell_turn(const Turn& turn, int number) {
    // Who has taken that turn has done with the one before, whose place this is.
    constexpr int kBefore = kLongTurns - 1;
    if (number >= kBefore) wait(s.taken, number - kBefore);
    if (lane_here() == 0) {
      Work& work = s.work[number % kLongTurns];
      const int64_t state = (static_cast<int64_t>(turn.n) * p.H + turn.h) * kStaySize * kStaySize;
      work.n = turn.n, work.h = turn.h, work.chunks = turn.chunks, work.slice = 0, work.start = turn.start, work.end = turn.end;
      work.identity = false;
      work.from = p.initial_state == nullptr ? nullptr : p.initial_state + state;
      work.to = p.final_state + state;
      if (turn.chunks >= 0 && work.from != nullptr) prefetch_bytes(work.from, kStaySize * kStaySize * 4);
      barrier_arrive(shared_address(&s.told[number % kLongTurns]));
    }
    __syncwarp();
    gate = (static_cast<int64_t>(turn.start) + lane_here()) * p.H + turn.h;
    heads = {turn.h / p.q_group, turn.h / p.k_group, turn.h / p.v_group};
  }

  // Where rows are to be cleared, another warp says that they are there. Boxes are whole in any case: their rows are the next
  // sequence's, or, behind all tokens, zeros.
  __device__ __forceinline__ static uint32_t landing(bool whole, uint64_t& landed, uint64_t& full) {
    if (whole) barrier_arrive(shared_address(&landed));  // so that its phases are chunks
    const uint32_t at = shared_address(whole ? &full : &landed);
    barrier_expect(at, kBytes);
    return at;
  }
  // Who clears rows says so with kLeavers lanes: where nothing is to be cleared, as many are missing, less the one that expects.
  __device__ __forceinline__ static void land_for_others(bool whole, uint64_t& full) {
    if constexpr (kLeavers > 1) {
      if (whole && lane_here() > 0) barrier_arrive(shared_address(&full));
      __syncwarp();
    }
  }

  // Keys and gates of a chunk, then what else the chunk before it needs. Gates are of many heads side by side, so they come as
  // single numbers.
  __device__ __forceinline__ void ask_keys(const Turn& turn, int chunk) {
    const uint32_t c = asked++, i = c % kLongKeys;
    const int token = turn.start + chunk * kChunk, rows = min(turn.end - token, kChunk);
    if (c >= kLongKeys) wait(s.keys_empty, c - kLongKeys);
    if (lane_here() == 0) {
      s.rows[i] = rows;
      barrier_arrive(shared_address(&s.asked[i]));
      const uint32_t to = landing(rows == kChunk, s.k_landed[i], s.full[i]);
      load_boxes(shared_address(s.keys[i].k), &maps.k, 0, heads.k, token, to);
    }
    __syncwarp();
    land_for_others(rows == kChunk, s.full[i]);
    const uint32_t to = shared_address(&s.keys[i].rows.log[lane_here()]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (lane_here() + 32 * e < rows) {
        const int64_t at = gate + static_cast<int64_t>(e * 32) * p.H;
        if (p.g != nullptr) copy_number(to + 128 * e, p.g + at);
        if (p.beta != nullptr) copy_number(to + static_cast<uint32_t>(offsetof(Rows, beta)) + 128 * e, p.beta + at);
      }
    }
    gate += static_cast<int64_t>(kChunk) * p.H;
    arrive_copied(shared_address(&s.gated[i]));
    __syncwarp();
    ask_rest(c);
    last = {token, rows, turn.h}, last_heads = heads;
  }

  // The output of chunk c, once it is there.
  __device__ __forceinline__ void let_out(uint32_t c) const {
    wait(s.empty, c);
    if (lane_here() == 0) {
      fence_async();  // what others have written there is read by TMA, or written over by it
      const auto [token, h] = s.going[c % kLongValues];
      if (token >= 0) store_boxes(&maps.output, shared_address(s.values[c % kLongValues]), 0, h, token);
    }
    __syncwarp();
  }

  // Values of the last one of `end` chunks, if there is one, and then queries.
  __device__ __forceinline__ void ask_rest(uint32_t end) {
    if (rest == end) return;
    const auto [token, rows, h] = last;
    const uint32_t c = rest++, v = c % kLongValues, q = c % kLongQueries;
    if (c >= kLongValues) let_out(c - kLongValues);
    if (lane_here() == 0) {
      const uint32_t to = landing(rows == kChunk, s.v_landed[v], s.v_full[v]);
      stored_read();  // the output that was there
      s.going[v] = {rows == kChunk ? token : -1, h};
      load_boxes(shared_address(s.values[v]), &maps.v, 0, last_heads.v, token, to);
    }
    __syncwarp();
    land_for_others(rows == kChunk, s.v_full[v]);
    if (c >= kLongQueries) wait(s.q_empty, c - kLongQueries);
    if (lane_here() == 0) {
      const uint32_t to = shared_address(&s.q_landed[q]);
      barrier_expect(to, kBytes);
      load_boxes(shared_address(s.queries[q].q), &maps.q, 0, last_heads.q, token, to);
    }
    __syncwarp();
  }

  // Says that there is no more to all who invert or find P. Those who find K K^T and Q K^T ahead do so of what is there, for
  // nobody.
  __device__ __forceinline__ void end_chunks() {
    for (uint32_t c = asked; c < asked + kInverters; ++c) {
      const uint32_t i = c % kLongKeys;
      if (c >= kLongKeys) wait(s.keys_empty, c - kLongKeys);
      if (lane_here() == 0) {
        s.rows[i] = -1;
        barrier_arrive(shared_address(&s.asked[i]));
      }
      if (lane_here() < kLeavers) barrier_arrive(shared_address(&s.full[i]));
      __syncwarp();
    }
    ask_rest(asked);  // not before: a turn's first product may be what it waits for
    if (asked >= kLongQueries) wait(s.q_empty, asked - kLongQueries);
    if (lane_here() == 0) barrier_arrive(shared_address(&s.q_landed[asked % kLongQueries]));
    __syncwarp();
  }

  __device__ __forceinline__ void run() {
    wait_for_last();
    fence_async_memory();
    Turn turn = find(blockIdx.x);
    bool ended = false;
#pragma unroll 1
    for (int number = 0;; ++number) {
      // Sequences without tokens come last. Before they are told of, which waits for others: those wait for this.
      if (turn.chunks <= 0 && !ended) end_chunks(), ended = true;
      tell_turn(turn, number);
      if (turn.chunks < 0) break;
#pragma unroll 1
      for (int c = 0; c < turn.chunks; ++c) {
        ask_keys(turn, c);
        // Late: who takes the next one early has it wait while other blocks have nothing to do.
        if (looked < kLooks && turn.chunks - c <= kLooks) look_ahead();
      }
      turn = find_next();
    }
    for (uint32_t c = asked > kLongValues ? asked - kLongValues : 0; c < asked; ++c) let_out(c);
    if (lane_here() == 0) stored_all();
  }
};

}  // namespace
