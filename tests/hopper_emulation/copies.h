// Copies of boxes to shared memory. They land when they are waited for, or earlier. Until then NaNs stand there, so that
// whoever reads too early, or is still reading what was there before, is found.
#pragma once
#include "barriers.h"

// [tokens, heads, channels], boxes of 64 tokens and 64 channels of a head, `halves` of them side by side.
struct CUtensorMap {
  const uint16_t* base;
  int channels, heads, tokens, halves;
};

struct BoxCopy {
  uint32_t to;
  CUtensorMap from;
  int half, head, token;
  uint32_t barrier;
};

constexpr int kBoxRows = 64, kBoxRowBytes = 128;

inline std::vector<BoxCopy> box_copies;

inline void load_boxes(uint32_t to, const CUtensorMap* map, int half, int head, int token, uint32_t barrier) {
  require(to % 1024 == 0, "load_boxes: misaligned");
  for (uint32_t at = to; at < to + map->halves * kBoxRows * kBoxRowBytes; at += kPieceBytes) {
    std::memset(fenced_piece(at, "load_boxes"), kPoison, kPieceBytes);
  }
  barrier_at(barrier);
  for (int i = 0; i < map->halves; ++i) {
    box_copies.push_back({to + i * kBoxRows * kBoxRowBytes, *map, half + i, head, token, barrier});
  }
}

inline void land_box(const BoxCopy& copy) {
  const CUtensorMap& map = copy.from;
  for (int row = 0; row < kBoxRows; ++row) {
    const int token = copy.token + row;
    for (int column = 0; column < kBoxRowBytes / 2; ++column) {
      const int channel = copy.half * kBoxRowBytes / 2 + column;
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

inline void prepare_copies() { box_copies.clear(); }
inline void check_no_copies() { require(box_copies.empty(), "exit with copies under way"); }
