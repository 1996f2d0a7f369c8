// mbarriers, which count threads and bytes, and named barriers, which count threads.
#pragma once
#include <map>
#include <utility>

#include "shared_memory.h"

struct Barrier {
  int count;    // arrivals that complete a phase
  int pending;  // of this phase
  int bytes;    // announced and not here yet
  int phase = 0;
  int made_by;  // a thread whose fence is still to come; -1: it has been
  std::vector<Written> arriving = {}, arrived = {};  // without a fence, by warps that arrive in this phase, in the last one
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
  long round = 0;
};

inline std::map<uint32_t, Barrier> barriers;  // by address
inline std::map<int, NamedBarrier> named_barriers;

inline void prepare_barriers() {
  barriers.clear();
  named_barriers.clear();
}

inline Barrier& barrier_at(uint32_t at) {
  const auto found = barriers.find(at);
  require(found != barriers.end(), "no barrier there");
  require(found->second.made_by < 0, "a barrier before barrier_init_done");
  return found->second;
}

inline void advance_barrier(Barrier& barrier, int arrivals, int bytes) {
  barrier.pending -= arrivals;
  barrier.bytes += bytes;
  require(barrier.pending >= 0, "too many arrivals");
  if (barrier.pending == 0 && barrier.bytes == 0) {
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.arrived = std::exchange(barrier.arriving, {});
  }
}

inline void barrier_init(uint32_t at, int count) {
  shared_bytes(at, 8, "barrier_init");
  require(count > 0 && !barriers.contains(at), "a barrier that was there, or that nobody arrives at");
  barriers[at] = {.count = count, .pending = count, .bytes = 0, .made_by = running};
}

inline void barrier_end(uint32_t at) {
  barrier_at(at);
  barriers.erase(at);
}
// What is a barrier still may be written by the hardware at any time.
inline void require_no_barrier(uint32_t at, int bytes) {
  const auto found = barriers.lower_bound(at);
  require(found == barriers.end() || found->first >= at + bytes, "a copy to where a barrier is");
}

inline void barrier_init_done() {
  for (auto& [at, barrier] : barriers) {
    if (barrier.made_by == running) barrier.made_by = -1;
  }
}

// Each write once, in order, less those that have been fenced or written over.
inline void add_writes(std::vector<Written>& to, const std::vector<Written>& from) {
  to.insert(to.end(), from.begin(), from.end());
  std::erase_if(to, [](const Written& x) { return shared_memory.unfenced[x.piece] != x.write; });
  std::ranges::sort(to, {}, &Written::write);
  const auto twice = std::ranges::unique(to, {}, &Written::write);
  to.erase(twice.begin(), twice.end());
}

inline void barrier_arrive(uint32_t at) {
  Barrier& barrier = barrier_at(at);
  const int first = running / kLanes * kLanes;
  for (int thread = first; thread < first + kLanes; ++thread) add_writes(barrier.arriving, shared_memory.written[thread]);
  advance_barrier(barrier, 1, 0);
}
inline void barrier_expect(uint32_t at, int bytes) { advance_barrier(barrier_at(at), 1, bytes); }

// For the phase of this parity to be over.
inline void barrier_wait(uint32_t at, int parity) {
  require(parity == 0 || parity == 1, "a parity that is none");
  const Barrier& barrier = barrier_at(at);
  wait_until("mbarrier", [&barrier, parity] { return barrier.phase % 2 != parity; });
  add_writes(shared_memory.written[running], barrier.arrived);
}

// Whether it is; now and then that is not seen yet.
// Copies of numbers are made at once.
inline void arrive_copied(uint32_t at) { barrier_arrive(at); }
inline int barrier_test(uint32_t at, int parity) {
  if (barrier_at(at).phase % 2 == parity || schedule() % 4 == 0) return 0;
  barrier_wait(at, parity);
  return 1;
}
inline void barrier_wait_unless(int over, uint32_t at, int parity) {
  if (!over) barrier_wait(at, parity);
}
inline void barrier_arrive_if(int this_lane, uint32_t at) {
  if (this_lane) barrier_arrive(at);
}

// Returns the round that has to be over for whoever waits.
inline long arrive_at(NamedBarrier& barrier, int threads) {
  if (barrier.arrived == 0) barrier.threads = threads;
  require(barrier.threads == threads, "threads that disagree about how many a barrier has");
  const long round = barrier.round;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.round;
  }
  return round;
}

inline void arrive_and_wait(int id, int threads, const char* what) {
  NamedBarrier& barrier = named_barriers[id];
  const long round = arrive_at(barrier, threads);
  wait_until(what, [&barrier, round] { return barrier.round > round; });
}

inline NamedBarrier& named_barrier_of(int id, int threads) {
  require(id > 0 && id < 16 && threads > 0 && threads % kLanes == 0, "a named barrier that there is not");
  return named_barriers[id];
}

inline void named_arrive(int id, int threads) { arrive_at(named_barrier_of(id, threads), threads); }

inline void named_barrier(int id, int threads) {
  named_barrier_of(id, threads);
  arrive_and_wait(id, threads, "named barrier");
}

inline void __syncthreads() { arrive_and_wait(0, static_cast<int>(blockDim.x), "__syncthreads"); }
