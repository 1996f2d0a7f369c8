// In the place of the kernel's file of this name: the same functions, emulated, for the blocks of one cluster.
#pragma once

inline void keep_order() {}
inline void finish(float) {}
inline void wait_for_previous() { waited[running] = true; }
inline void let_next_start() {}
inline int load_volatile(const int32_t* from) { return *from; }

// Never past the end of what it was told to take, and never of what is waited for.
inline void prefetch(const void* from, uint32_t bytes) {
  require(reinterpret_cast<uintptr_t>(from) % 16 == 0 && bytes % 16 == 0, "prefetch: misaligned");
  require(!waited[running], "prefetch: late");
  volatile char seen = static_cast<const char*>(from)[0];
  seen = static_cast<const char*>(from)[bytes - 1];
}

inline void cluster_arrive() { ++arrivals[running]; }

inline void cluster_wait() {
  const int round = arrivals[running];
  require(round > 0, "cluster_wait before cluster_arrive");
  wait_until("cluster barrier", [round] {
    for (size_t i = 0; i < arrivals.size(); ++i) {
      if (!fibers[i].done && arrivals[i] < round) return false;
    }
    return true;
  });
}

inline void expect_bytes(uint64_t* barrier, uint32_t bytes) { *barrier = bytes; }

inline void send(float* to, float x, uint64_t* barrier, int rank) {
  for (size_t i = 0; i < arrivals.size(); ++i) {
    require(arrivals[i] > 0, "send: to a block that may not have begun");
  }
  const std::byte* here = shared_of(block_of(running));
  const auto there = [&](void* at) { return shared_of(rank) + (static_cast<std::byte*>(at) - here); };
  messages.push_back({reinterpret_cast<float*>(there(to)), x, reinterpret_cast<uint64_t*>(there(barrier)), rank});
}

inline void wait_for_bytes(uint64_t* barrier) {
  wait_until("messages", [barrier] { return *barrier == 0; });
}
