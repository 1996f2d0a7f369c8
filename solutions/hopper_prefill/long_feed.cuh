// Of a block that prepares the chunks of long sequences itself: the warp that asks for them, keys a chunk ahead of queries and values.
#pragma once
#include "long_shared.cuh"
#include "short_feed.cuh"

namespace {

struct LongFeeder : TurnFeeder {
  Long& s;
  uint32_t asked = 0, rest = 0;  // chunks of which keys were asked for, of all turns; and of which all was

#ifdef LONG_FEED  // heads once a turn, gates in a loop of few instructions
  LongHeads heads{}, last_heads{};  // of this turn, and of the chunk before, of which keys have been asked for and no more
  Asked last{};
  int64_t gate = 0;  // of the lane, of the next chunk
#define LONG_HEAD(kept, found) kept
  // Of a chunk that is not whole too, as many rows as of others: what is behind its end is cleared.
  __device__ __forceinline__ static void load(uint32_t to, const CUtensorMap* whole, const CUtensorMap*, int, int head, int token, uint32_t landing) {
    load_boxes(to, whole, 0, head, token, landing);
  }
  __device__ __forceinline__ static constexpr int bytes_of(int) { return 2 * kBoxBytes; }
#else
#define LONG_HEAD(kept, found) found
#endif

  __device__ __forceinline__ LongFeeder(const Problem& p, Long& s, const Maps& maps, const ShortMaps& parts)
      : TurnFeeder{p, maps, parts}, s(s) {}

  // For what a barrier of place c % Places says about chunk c, counted over all turns, to hold.
  template <int Places>
  __device__ __forceinline__ static void wait(const uint64_t (&barriers)[Places], uint32_t c) {
    barrier_wait(shared_address(&barriers[c % Places]), c / Places & 1);
  }

  // What the next turn is, and its state to L2, from where those who advance take it.
  __device__ __forceinline__ void tell_turn(const Turn& turn, int number) const {
    // Who has taken that turn has done with the one before, whose place this is.
    constexpr int kBefore = kLongTurns - 1;
    if (number >= kBefore) wait(s.taken, number - kBefore);
    __syncwarp();
    if (lane_here() == 0) {
      Work& work = s.work[number % kLongTurns];
      const int64_t state = (static_cast<int64_t>(turn.n) * p.H + turn.h) * kStaySize * kStaySize;
      work.h = turn.h, work.chunks = turn.chunks, work.slice = 0, work.start = turn.start, work.end = turn.end;
      work.identity = false;
      work.from = p.initial_state == nullptr ? nullptr : p.initial_state + state;
      work.to = p.final_state + state;
      if (turn.chunks >= 0 && work.from != nullptr) prefetch_bytes(work.from, kStaySize * kStaySize * 4);
      barrier_arrive(shared_address(&s.told[number % kLongTurns]));
    }
    __syncwarp();
  }

  // Its gates come as single numbers: of those that there are.
  __device__ __forceinline__ void ask_keys(const Turn& turn, int chunk) {
    const uint32_t c = asked++, i = c % kLongKeys;
    const int token = turn.start + chunk * kChunk, rows = min(turn.end - token, kChunk);
    GDN_STAMP(2, c, 0);
    if (c >= kLongKeys) wait(s.keys_empty, c - kLongKeys);
    __syncwarp();
    GDN_STAMP(2, c, 1);
    if (lane_here() == 0) {
#ifdef LONG_FEED
      s.asks[i].rows = rows;  // nobody looks at the rest
#else
      s.asks[i] = {token, rows, turn.h};
#endif
      barrier_arrive(shared_address(&s.asked[i]));
      // Where rows are to be cleared, somebody else says that they are there.
      const uint32_t landing = shared_address(rows < kChunk ? &s.k_landed[i] : &s.full[i]);
      if (rows == kChunk) barrier_arrive(shared_address(&s.k_landed[i]));  // so that its phases are chunks
      barrier_expect(landing, bytes_of(rows));
      load(shared_address(s.keys[i].k), &maps.k, parts.k, rows, LONG_HEAD(heads.k, turn.h / p.k_group), token, landing);
    }
    __syncwarp();
#ifdef LONG_FEED
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
#else
    for (int t = lane_here(); t < rows; t += 32) {
      const int64_t at = static_cast<int64_t>(token + t) * p.H + turn.h;
      if (p.g != nullptr) copy_number(shared_address(&s.keys[i].rows.log[t]), p.g + at);
      if (p.beta != nullptr) copy_number(shared_address(&s.keys[i].rows.beta[t]), p.beta + at);
    }
#endif
    arrive_copied(shared_address(&s.gated[i]));
    __syncwarp();
    ask_rest_of(c);
#ifdef LONG_FEED
    last = {token, rows, turn.h}, last_heads = heads;
#endif
  }
  // Of chunks before c.
  __device__ __forceinline__ void ask_rest_of(uint32_t c) {
    if (rest < c) ask_rest(rest++);
  }

  // The output of chunk c, once it is there.
  __device__ __forceinline__ void let_out(uint32_t c) const {
    const uint32_t i = c % kLongValues, parity = c / kLongValues & 1;
    barrier_wait(shared_address(&s.empty[i]), parity);
    if (lane_here() == 0) {
      fence_async();  // what others have written there is read by TMA, or written over by it
      const auto [token, h] = s.going[i];
      if (token >= 0) store_boxes(&maps.output, shared_address(s.values[i]), 0, h, token);
    }
    __syncwarp();
  }

  // Values of chunk c, whose keys have been asked for, and then queries.
  __device__ __forceinline__ void ask_rest(uint32_t c) const {
    if (c >= kLongValues) let_out(c - kLongValues);
    GDN_STAMP(2, c, 2);
#ifdef LONG_FEED
    const Asked& ask = last;
#else
    const Asked& ask = s.asks[c % kLongKeys];
#endif
    const int token = ask.first, rows = ask.rows, h = ask.h;
    const uint32_t v = c % kLongValues, q = c % kLongQueries;
    if (lane_here() == 0) {
      const uint32_t landing = shared_address(rows < kChunk ? &s.v_landed[v] : &s.v_full[v]);
      if (rows == kChunk) barrier_arrive(shared_address(&s.v_landed[v]));
      stored_read();  // the output that was there
      s.going[v] = {rows == kChunk ? token : -1, h};
      barrier_expect(landing, bytes_of(rows));
      load(shared_address(s.values[v]), &maps.v, parts.v, rows, LONG_HEAD(last_heads.v, h / p.v_group), token, landing);
    }
    __syncwarp();
    if (c >= kLongQueries) wait(s.q_empty, c - kLongQueries);
    __syncwarp();
    if (lane_here() == 0) {
      const uint32_t landing = shared_address(&s.q_landed[q]);
      barrier_expect(landing, bytes_of(rows));
      load(shared_address(s.queries[q].q), &maps.q, parts.q, rows, LONG_HEAD(last_heads.q, h / p.q_group), token, landing);
    }
    __syncwarp();
  }

  // That there is no more, to all who invert or find P, and to those who find K K^T and Q K^T ahead: of what is there, for nobody.
  __device__ __forceinline__ void end_chunks() {
    ask_rest_of(asked);
    for (uint32_t c = asked; c < asked + kInverters; ++c) {
      const uint32_t i = c % kLongKeys;
      if (c >= kLongKeys) wait(s.keys_empty, c - kLongKeys);
      __syncwarp();
      if (lane_here() == 0) {
        s.asks[i].rows = -1;
        barrier_arrive(shared_address(&s.asked[i]));
        barrier_arrive(shared_address(&s.full[i]));
      }
      __syncwarp();
    }
    if (asked >= kLongQueries) wait(s.q_empty, asked - kLongQueries);
    __syncwarp();
    if (lane_here() == 0) barrier_arrive(shared_address(&s.q_landed[asked % kLongQueries]));
    __syncwarp();
  }

#ifdef LONG_NEXT
  // What the block has next, found step by step beside this turn's chunks: what a step has asked memory for the next one looks at.
  int step = 0, looked = 0, next_n = 0, next_h = 0;
  int64_t from_bound = 0, to_bound = 0;
  __device__ __forceinline__ void look_for_next() {
    if (step == 0) {
      looked = p.queue == nullptr ? p.N * p.H : lane_here() == 0 ? atomicAdd(p.queue, 1) : 0;
    } else if (step == 1) {
      const int pair = uniform(looked), rank = pair / p.H;
      next_h = pair >= p.N * p.H ? -1 : pair - rank * p.H;
      looked = next_h < 0 || p.queue == nullptr ? rank : *reinterpret_cast<const volatile int*>(p.queue + kQueued + rank);
    } else if (step == 2) {
      next_n = uniform(looked);
      if (next_h >= 0) from_bound = bound(p, next_n), to_bound = bound(p, next_n + 1);
    }
    ++step;
  }
  __device__ __forceinline__ Turn found_next() {
    while (step < 3) look_for_next();
    step = 0;
    if (next_h < 0) return {0, 0, -1, 0, 0};
    const int start = uniform(static_cast<int>(from_bound)), end = uniform(static_cast<int>(to_bound));
    return {next_n, next_h, end < start ? 0 : (end - start + kChunk - 1) / kChunk, start, end};
  }
#endif

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
#ifdef LONG_FEED
      gate = (static_cast<int64_t>(turn.start) + lane_here()) * p.H + turn.h;
      heads = {turn.h / p.q_group, turn.h / p.k_group, turn.h / p.v_group};
#endif
#pragma unroll 1
      for (int c = 0; c < turn.chunks; ++c) {
        ask_keys(turn, c);
#ifdef LONG_NEXT
        if (step < 3 && turn.chunks - c <= 3) look_for_next();
#endif
      }
#ifdef LONG_NEXT
      turn = found_next();
#else
      turn = find(take_next());
#endif
    }
    for (uint32_t c = asked > kLongValues ? asked - kLongValues : 0; c < asked; ++c) let_out(c);
    if (lane_here() == 0) stored_all();
  }
};

}  // namespace
