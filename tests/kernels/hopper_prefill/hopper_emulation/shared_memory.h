// A block's shared memory: where it may be reached, and what the asynchronous proxy may see of it.
#pragma once
#include "cuda_words.h"

constexpr uint32_t kSharedBytes = 227 * 1024;
constexpr uint32_t kPieceBytes = 16;
constexpr unsigned char kPoison = 0xff;  // a NaN in every type

struct Written {
  uint32_t piece;
  int write;
};

struct SharedMemory {
  alignas(1024) unsigned char bytes[kSharedBytes];
  uint32_t size;  // what the launch has asked for
  // TMA and wgmma see what a thread has written only after a fence: its own, or that of one that has waited at an mbarrier
  // where its warp had arrived. Plain stores are not followed.
  std::vector<int> unfenced;                  // of each piece: the number of a write without a fence; 0: none
  std::vector<std::vector<Written>> written;  // by each thread, or seen by it, since its last fence
  int writes = 0;
};

inline SharedMemory shared_memory;

inline void prepare_shared_memory(size_t size, int threads) {
  require(size <= kSharedBytes, "more shared memory than a block can have");
  SharedMemory& memory = shared_memory;
  std::memset(memory.bytes, kPoison, kSharedBytes);
  memory.size = static_cast<uint32_t>(size);
  memory.unfenced.assign(kSharedBytes / kPieceBytes, 0);
  memory.written.assign(threads, {});
}

inline void check_behind_shared_memory() {
  const unsigned char *begin = shared_memory.bytes + shared_memory.size, *end = shared_memory.bytes + kSharedBytes;
  require(std::all_of(begin, end, [](unsigned char x) { return x == kPoison; }), "written behind the shared memory");
}

#define DYNAMIC_SHARED(name) unsigned char* name = shared_memory.bytes

inline uint32_t shared_address(const void* pointer) {
  const auto at = static_cast<const unsigned char*>(pointer) - shared_memory.bytes;
  require(at >= 0 && at < shared_memory.size, "the address of what is not in shared memory");
  return static_cast<uint32_t>(at);
}

inline unsigned char* shared_bytes(uint32_t at, uint32_t count, const char* who) {
  if (at % count != 0) fail(std::string(who) + ": misaligned");
  if (at + count > shared_memory.size) fail(std::string(who) + ": not shared");
  return shared_memory.bytes + at;
}

// A piece of 16 bytes for `thread` to write.
inline unsigned char* piece_to_write(uint32_t at, int thread, const char* who) {
  unsigned char* piece = shared_bytes(at, kPieceBytes, who);
  const int write = ++shared_memory.writes;
  shared_memory.unfenced[at / kPieceBytes] = write;
  shared_memory.written[thread].push_back({at / kPieceBytes, write});
  return piece;
}

// The same for what reads or writes by the asynchronous proxy.
inline unsigned char* fenced_piece(uint32_t at, const char* who) {
  unsigned char* piece = shared_bytes(at, kPieceBytes, who);
  if (shared_memory.unfenced[at / kPieceBytes] > 0) fail(std::string(who) + " meets a write without fence_async");
  return piece;
}

inline void fence_async() {
  for (const auto& [piece, write] : shared_memory.written[running]) {
    if (shared_memory.unfenced[piece] == write) shared_memory.unfenced[piece] = 0;
  }
  shared_memory.written[running].clear();
}

inline void store_shared(uint32_t at, uint4 x) {
  std::memcpy(piece_to_write(at, running, "store_shared"), &x, sizeof x);
}

inline void store_four_if(bool this_warp, uint32_t at, const float* x) {
  if (this_warp) std::memcpy(piece_to_write(at, running, "store_four_if"), x, 4 * sizeof *x);
}

inline void copy_number(uint32_t to, const float* from) {
  std::memcpy(piece_to_write(to / kPieceBytes * kPieceBytes, running, "copy_number") + to % kPieceBytes, from, sizeof *from);
}

inline void store_pair(uint32_t at, float x, float y) {
  const float pair[] = {x, y};
  std::memcpy(piece_to_write(at / kPieceBytes * kPieceBytes, running, "store_pair") + at % kPieceBytes, pair, sizeof pair);
}

// Of rows of 128 bytes, eight to 1024: the address bits of the row turn those of the piece.
inline uint32_t swizzle_128(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }

inline uint4 load_shared(uint32_t at) {
  uint4 x;
  std::memcpy(&x, shared_bytes(at, 16, "load_shared"), sizeof x);
  return x;
}

inline float load_one(uint32_t at) {
  float x;
  std::memcpy(&x, shared_bytes(at, 4, "load_one"), sizeof x);
  return x;
}

inline float2 load_two(uint32_t at) {
  float2 x;
  std::memcpy(&x, shared_bytes(at, 8, "load_two"), sizeof x);
  return x;
}

inline float4 load_four(uint32_t at) {
  float4 x;
  std::memcpy(&x, shared_bytes(at, 16, "load_four"), sizeof x);
  return x;
}
