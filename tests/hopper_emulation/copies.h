// Copies to shared memory. Words land when they are waited for, boxes as late as that or earlier. Until then NaNs stand
// there, so that whoever reads too early, or is still reading what was there before, is found.
#pragma once
#include "barriers.h"

// [tokens, heads, channels], boxes of 64 tokens and 64 channels of a head.
struct CUtensorMap {
  const uint16_t* base;
  int channels, heads, tokens;
};

struct BoxCopy {
  uint32_t to;
  CUtensorMap from;
  int channel, head, token;
  uint32_t barrier;
};

struct WordCopy {
  uint32_t to;
  const void* from;
};

constexpr int kBoxRows = 64, kBoxRowBytes = 128;

inline std::vector<BoxCopy> box_copies;
inline std::vector<std::vector<WordCopy>> word_copies;  // of each thread

inline void load_box(uint32_t to, const CUtensorMap* map, int channel, int head, int token, uint32_t barrier) {
  require(to % 128 == 0, "load_box: misaligned");
  for (uint32_t at = to; at < to + kBoxRows * kBoxRowBytes; at += kPieceBytes) {
    std::memset(fenced_piece(at, "load_box"), kPoison, kPieceBytes);
  }
  barrier_at(barrier);
  box_copies.push_back({to, *map, channel, head, token, barrier});
}

inline void land_box(const BoxCopy& copy) {
  const CUtensorMap& map = copy.from;
  for (int row = 0; row < kBoxRows; ++row) {
    const int token = copy.token + row;
    for (int column = 0; column < kBoxRowBytes / 2; ++column) {
      const int channel = copy.channel + column;
      const bool inside = token >= 0 && token < map.tokens && copy.head >= 0 && copy.head < map.heads && channel >= 0 &&
                          channel < map.channels;
      uint16_t x = 0;
      if (inside) x = map.base[(static_cast<int64_t>(token) * map.heads + copy.head) * map.channels + channel];
      std::memcpy(shared_memory.bytes + swizzle_128(copy.to + row * kBoxRowBytes + column * 2), &x, sizeof x);
    }
  }
  advance_barrier(barrier_at(copy.barrier), 0, -kBoxRows * kBoxRowBytes);
}

// One of them, no matter in which order they were asked for; false: there is none.
inline bool land_any_box() {
  if (box_copies.empty()) return false;
  std::swap(box_copies[schedule() % box_copies.size()], box_copies.back());
  land_box(box_copies.back());
  box_copies.pop_back();
  return true;
}

inline void copy_word(uint32_t to, const void* from) {
  std::memset(shared_bytes(to, 4, "copy_word"), kPoison, 4);
  word_copies[running].push_back({to, from});
}

inline void copies_wait() {
  for (const auto& [to, from] : word_copies[running]) std::memcpy(shared_memory.bytes + to, from, 4);
  word_copies[running].clear();
}

inline void prepare_copies(int threads) {
  box_copies.clear();
  word_copies.assign(threads, {});
}

inline void check_no_copies() {
  const auto none = [](const std::vector<WordCopy>& copies) { return copies.empty(); };
  const bool no_words = std::all_of(word_copies.begin(), word_copies.end(), none);
  require(box_copies.empty() && no_words, "exit with copies under way");
}
