// Copies between memory and shared memory. They are done when they are waited for, or earlier. Until then NaNs stand where
// they go, so that whoever reads too early, or is still reading what was there before, is found; and what comes from shared
// memory has to be the same still.
#pragma once
#include <functional>

#include "barriers.h"

// [tokens, heads, channels], boxes of 64 tokens, or `rows`, and 64 channels of a head, `halves` of them side by side.
struct CUtensorMap {
  const uint16_t* base;
  int channels, heads, tokens, halves, rows = 64;
};

struct BoxCopy {
  uint32_t to;
  CUtensorMap from;
  int half, head, token;
  uint32_t barrier;
};

struct BytesCopy {  // to shared memory
  uint32_t to;
  const std::byte* from;
  int bytes;
  uint32_t barrier;
};

struct Store {  // from there
  uint32_t from;
  std::vector<std::byte> seen;
  std::function<void(const std::byte*)> finish;
};

constexpr int kBoxRowBytes = 128;

inline std::vector<BoxCopy> box_copies;
inline std::vector<BytesCopy> bytes_copies;
inline std::map<int, std::vector<Store>> stores;  // of a thread

inline void load_boxes(uint32_t to, const CUtensorMap* map, int half, int head, int token, uint32_t barrier) {
  require(to % 1024 == 0, "load_boxes: misaligned");
  const uint32_t box = map->rows * kBoxRowBytes;
  require_no_barrier(to, map->halves * box);
  for (uint32_t at = to; at < to + map->halves * box; at += kPieceBytes) {
    std::memset(fenced_piece(at, "load_boxes"), kPoison, kPieceBytes);
  }
  barrier_at(barrier);
  for (int i = 0; i < map->halves; ++i) {
    box_copies.push_back({to + i * box, *map, half + i, head, token, barrier});
  }
}

inline void land_box(const BoxCopy& copy) {
  const CUtensorMap& map = copy.from;
  for (int row = 0; row < map.rows; ++row) {
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
  advance_barrier(barrier_at(copy.barrier), 0, -map.rows * kBoxRowBytes);
}

inline void load_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  require(to % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0 && bytes % 16 == 0, "load_bytes: misaligned");
  require_no_barrier(to, bytes);
  for (uint32_t at = to; at < to + bytes; at += kPieceBytes) {
    std::memset(fenced_piece(at, "load_bytes"), kPoison, kPieceBytes);
  }
  barrier_at(barrier);
  bytes_copies.push_back({to, static_cast<const std::byte*>(from), bytes, barrier});
}

// Nothing that a result depends on.
inline void prefetch_bytes(const void* from, int bytes) {
  require(reinterpret_cast<uintptr_t>(from) % 16 == 0 && bytes % 16 == 0, "prefetch_bytes: misaligned");
}

// `map` is of 32-bit numbers here, 128 a row.
inline void load_state_boxes(uint32_t to, const CUtensorMap* map, int row, uint32_t barrier) {
  require(to % 1024 == 0, "load_state_boxes: misaligned");
  constexpr int kRows = 128, kRowBytes = 128 * 4;
  const auto* from = reinterpret_cast<const std::byte*>(map->base) + static_cast<int64_t>(row) * kRowBytes;
  for (int at = 0; at < kRows * kRowBytes; at += kPieceBytes) {
    const int box = at % kRowBytes / kBoxRowBytes;
    const uint32_t piece = at / kRowBytes * kBoxRowBytes + at % kBoxRowBytes;
    load_bytes(swizzle_128(to + box * kRows * kBoxRowBytes + piece), from + at, kPieceBytes, barrier);
  }
}

// Of such a state `map->rows` rows from there on, and `map->halves` boxes of columns.
inline void load_state_part(uint32_t to, const CUtensorMap* map, int row, int box, uint32_t barrier) {
  require(to % 1024 == 0, "load_state_part: misaligned");
  constexpr int kRowBytes = 128 * 4;
  const auto* from = reinterpret_cast<const std::byte*>(map->base) + static_cast<int64_t>(row) * kRowBytes + box * kBoxRowBytes;
  for (int at = 0; at < map->halves * map->rows * kBoxRowBytes; at += kPieceBytes) {
    const int column = at / (map->rows * kBoxRowBytes) * kBoxRowBytes + at % kBoxRowBytes;
    const int line = at / kBoxRowBytes % map->rows;
    load_bytes(swizzle_128(to + at), from + static_cast<int64_t>(line) * kRowBytes + column, kPieceBytes, barrier);
  }
}

inline void land_bytes(const BytesCopy& copy) {
  std::memcpy(shared_memory.bytes + copy.to, copy.from, copy.bytes);
  advance_barrier(barrier_at(copy.barrier), 0, -copy.bytes);
}

inline void store(uint32_t from, int bytes, const char* who, std::function<void(const std::byte*)> finish) {
  Store store{from, {}, std::move(finish)};
  for (uint32_t at = from; at < from + bytes; at += kPieceBytes) {
    const auto* piece = reinterpret_cast<const std::byte*>(fenced_piece(at, who));
    store.seen.insert(store.seen.end(), piece, piece + kPieceBytes);
  }
  stores[running].push_back(std::move(store));
}

inline void store_boxes(const CUtensorMap* map, uint32_t from, int half, int head, int token) {
  require(from % 1024 == 0, "store_boxes: misaligned");
  const int bytes = map->halves * map->rows * kBoxRowBytes;
  store(from, bytes, "store_boxes", [map = *map, half, head, token, bytes](const std::byte* seen) {
    for (int at = 0; at < bytes; at += 2) {
      const int row = token + at / kBoxRowBytes % map.rows;
      const int channel = (half + at / (map.rows * kBoxRowBytes)) * kBoxRowBytes / 2 + at % kBoxRowBytes / 2;
      if (row >= map.tokens) continue;
      auto* to = const_cast<uint16_t*>(map.base) + (static_cast<int64_t>(row) * map.heads + head) * map.channels + channel;
      std::memcpy(to, seen + swizzle_128(at), 2);
    }
  });
}

inline void store_bytes_if(bool this_lane, void* to, uint32_t from, int bytes) {
  if (!this_lane) return;
  require(from % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0 && bytes % 16 == 0, "store_bytes_if: misaligned");
  store(from, bytes, "store_bytes_if", [to, bytes](const std::byte* seen) { std::memcpy(to, seen, bytes); });
}

// The other way of load_state_part.
inline void store_state_part_if(bool this_lane, const CUtensorMap* map, uint32_t from, int row, int box) {
  if (!this_lane) return;
  require(from % 1024 == 0, "store_state_part_if: misaligned");
  constexpr int kRowBytes = 128 * 4;
  const int of_box = map->rows * kBoxRowBytes, bytes = map->halves * of_box;
  auto* const to = reinterpret_cast<std::byte*>(const_cast<uint16_t*>(map->base)) + static_cast<int64_t>(row) * kRowBytes;
  store(from, bytes, "store_state_part_if", [to, box, of_box, bytes](const std::byte* seen) {
    for (int at = 0; at < bytes; at += 4) {
      const int line = at % of_box / kBoxRowBytes, column = (box + at / of_box) * kBoxRowBytes + at % kBoxRowBytes;
      std::memcpy(to + static_cast<int64_t>(line) * kRowBytes + column, seen + swizzle_128(at), 4);
    }
  });
}

inline void store_nothing() { stores[running].push_back({0, {}, [](const std::byte*) {}}); }

inline void stored_all() {
  for (const Store& store : stores[running]) {
    const bool same = std::memcmp(shared_memory.bytes + store.from, store.seen.data(), store.seen.size()) == 0;
    require(same, "shared memory that was written while it was stored");
    store.finish(store.seen.data());
  }
  stores.erase(running);
}
inline void stored_read() { stored_all(); }
inline void stored_read_but_one() {  // the last one only is still read
  auto& mine = stores[running];
  if (mine.size() < 2) return;
  Store last = std::move(mine.back());
  mine.pop_back();
  stored_all();
  stores[running].push_back(std::move(last));
}

// One of them, no matter in which order they were asked for; false: there is none.
inline bool land_any_box() {
  if (!bytes_copies.empty() && (box_copies.empty() || schedule() % 2 == 0)) {
    land_bytes(bytes_copies.back());
    bytes_copies.pop_back();
    return true;
  }
  if (box_copies.empty()) return false;
  std::swap(box_copies[schedule() % box_copies.size()], box_copies.back());
  land_box(box_copies.back());
  box_copies.pop_back();
  return true;
}

inline void prepare_copies() {
  box_copies.clear();
  bytes_copies.clear();
  stores.clear();
}
inline void check_no_copies() {
  require(box_copies.empty() && bytes_copies.empty() && stores.empty(), "exit with copies under way");
}
