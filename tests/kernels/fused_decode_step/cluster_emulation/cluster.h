// A cluster of blocks on one CPU thread: all their threads are fibers, in random order. What a block shares is NaNs
// until it is written, and a message comes when no thread can go on, or at any time.
#pragma once
#include "fibers.h"
#include "warps.h"

inline Place grid_dim;
inline int block_of(int fiber) { return fiber / static_cast<int>(blockDim.x); }

struct Message {
  float* to;
  float x;
  uint64_t* barrier;
  int rank;
};

constexpr size_t kSharedBytes = 48 * 1024;
inline std::vector<std::vector<std::byte>> shared;
inline std::byte* shared_of(int block) { return shared[block].data(); }
inline std::vector<int> arrivals;                // at the cluster's barrier, of each thread
inline std::vector<char> waited;                 // for the kernel ahead
inline std::vector<std::pair<int, long>> syncs;  // of each block: threads at __syncthreads, rounds
inline std::vector<Message> messages;

inline void __syncthreads() {
  auto& sync = syncs[block_of(running)];
  const long round = sync.second;
  if (++sync.first == static_cast<int>(blockDim.x)) {
    sync.first = 0;
    ++sync.second;
  } else {
    wait_until("__syncthreads", [&sync, round] { return sync.second > round; });
  }
}

inline bool deliver() {
  if (messages.empty()) return false;
  std::swap(messages[schedule() % messages.size()], messages.back());
  const Message message = messages.back();
  messages.pop_back();
  const int first = message.rank * static_cast<int>(blockDim.x);
  const auto begin = fibers.begin() + first;
  require(std::any_of(begin, begin + blockDim.x, [](const Fiber& fiber) { return !fiber.done; }),
          "a message to a block that has ended");
  require(*message.barrier >= sizeof(float), "a message that nobody expects");
  *message.to = message.x;
  *message.barrier -= sizeof(float);
  return true;
}

// One cluster along x for each y and z.
template <class Kernel>
void launch(Place grid, int threads, Kernel kernel) {
  grid_dim = grid;
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  const int count = static_cast<int>(grid.x) * threads;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      ::blockIdx = {0, y, z};
      shared.assign(grid.x, std::vector<std::byte>(kSharedBytes, std::byte{0xff}));
      arrivals.assign(count, 0);
      waited.assign(count, false);
      syncs.assign(grid.x, {0, 0});
      prepare_warps(count);
      run_fibers(count, kernel, deliver);
      require(messages.empty(), "messages under way at the end");
    }
  }
}
