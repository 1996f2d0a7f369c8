// The threads of a block as fibers of one CPU thread: each runs until it has to wait.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 1 << 16;
constexpr char kStackEnd = 0x5a;  // stands at its end until it has run over

struct Place {
  unsigned x = 0, y = 0, z = 0;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done;
  std::function<bool()> ready;  // none: it has not begun
  const char* waits_for;
};

inline Place blockIdx, blockDim, gridDim;
inline std::vector<Fiber> fibers;
inline int running = -1;  // the thread that runs; -1: none
inline ucontext_t scheduler;
inline const std::function<void()>* fiber_body;
inline std::mt19937 schedule;  // seeded by whoever launches

[[noreturn]] inline void fail(const std::string& what) {
  std::fflush(stdout);
  const std::string who = running < 0 ? "" : ", thread " + std::to_string(running);
  std::fprintf(stderr, "block (%u, %u, %u)%s: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, who.c_str(), what.c_str());
  std::_Exit(1);
}

inline void require(bool right, const char* otherwise) {
  if (!right) fail(otherwise);
}

template <class Ready>
void wait_until(const char* what, Ready ready) {
  if (ready()) return;
  Fiber& self = fibers[running];
  self.ready = ready;
  self.waits_for = what;
  swapcontext(&self.context, &scheduler);
}

inline void run_body() {
  (*fiber_body)();
  fibers[running].done = true;
}

inline void start_fibers(int count, const std::function<void()>& body) {
  fiber_body = &body;
  if (fibers.size() < static_cast<size_t>(count)) fibers.resize(count);
  for (int i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    if (!fiber.stack) fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    fiber.stack[0] = kStackEnd;
    fiber.done = false;
    fiber.ready = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, run_body, 0);
  }
}

// Warps in random order, and the lanes of each. Whoever stands first runs as far as it can before the next one moves:
// that shows missing synchronisation where taking turns would hide it.
inline std::vector<int> draw_order(int count) {
  std::vector<int> warps(count / kLanes), lanes(kLanes), order;
  std::iota(warps.begin(), warps.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  std::shuffle(warps.begin(), warps.end(), schedule);
  std::shuffle(lanes.begin(), lanes.end(), schedule);
  for (const int warp : warps) {
    for (const int lane : lanes) order.push_back(warp * kLanes + lane);
  }
  return order;
}

// What can run of the first warp of which some can: all of it, or now and then a part. False: nobody can.
inline bool run_a_warp(const std::vector<int>& order) {
  bool any = false;
  for (size_t i = 0; i < order.size() && !(any && i % kLanes == 0); ++i) {
    Fiber& fiber = fibers[order[i]];
    if (fiber.done || (fiber.ready && !fiber.ready())) continue;
    any = true;
    running = order[i];
    swapcontext(&scheduler, &fiber.context);
    require(fiber.stack[0] == kStackEnd, "kStackBytes is too little");
    running = -1;
    if (schedule() % 32 == 0) break;
  }
  return any;
}

[[noreturn]] inline void fail_deadlocked(int count) {
  std::string waiting;
  for (int i = 0; i < count; ++i) {
    if (fibers[i].done) continue;
    waiting += "\n  thread " + std::to_string(i) + " waits for " + fibers[i].waits_for;
    i += kLanes - 1 - i % kLanes;  // one of each warp will do
  }
  fail("deadlock" + waiting);
}

// Runs `body` once a thread. `happen` lets happen what no thread does, or says that there is nothing. It is called as
// late as may be, when no thread can go on, or at any time.
inline void run_fibers(int count, const std::function<void()>& body, const std::function<bool()>& happen) {
  start_fibers(count, body);
  const bool late = schedule() % 2 == 0;
  std::vector<int> order = draw_order(count);
  for (;;) {
    if (schedule() % 64 == 0) order = draw_order(count);
    if (!late && schedule() % 8 == 0) happen();
    if (run_a_warp(order)) continue;
    if (std::all_of(fibers.begin(), fibers.begin() + count, [](const Fiber& fiber) { return fiber.done; })) return;
    if (!happen()) fail_deadlocked(count);
  }
}
