// Matrices in the registers of a warp: of 8 x 8 numbers lane l has row l / 4, columns 2 (l % 4) and the next.
#pragma once
#include "numbers.h"
#include "shared_memory.h"

// Calls move(address, i) for what a lane has of four matrices; i counts the halves of its registers. `rows` are the
// addresses that the lanes give, eight a matrix. Each lane moves its own when it runs: only __syncwarp orders them.
template <class Move>
void for_own_numbers(const uint32_t* rows, bool transposed, Move move) {
  for (int i = 0; i < 8; ++i) {
    const int first = running % kLanes / 4, second = running % kLanes % 4 * 2 + i % 2;
    const int row = transposed ? second : first, column = transposed ? first : second;
    move(shared_memory.bytes + rows[i / 2 * 8 + row] + 2 * column, i);
  }
}

inline void load_fragments(const char* what, uint32_t (&r)[4], uint32_t at, bool transposed) {
  shared_bytes(at, kPieceBytes, what);
  uint16_t halves[8];
  for_own_numbers(together(what, at), transposed, [&](const void* from, int i) { std::memcpy(&halves[i], from, 2); });
  std::memcpy(r, halves, sizeof r);
}

inline void store_fragments(const char* what, uint32_t at, const uint32_t (&r)[4], bool transposed) {
  piece_to_write(at, running, what);
  uint16_t halves[8];
  std::memcpy(halves, r, sizeof r);
  for_own_numbers(together(what, at), transposed, [&](void* to, int i) { std::memcpy(to, &halves[i], 2); });
}

inline void ldmatrix(uint32_t (&r)[4], uint32_t at) { load_fragments("ldmatrix", r, at, false); }
inline void ldmatrix_transposed(uint32_t (&r)[4], uint32_t at) { load_fragments("ldmatrix_transposed", r, at, true); }
inline void stmatrix(uint32_t at, const uint32_t (&r)[4]) { store_fragments("stmatrix", at, r, false); }
inline void stmatrix_transposed(uint32_t at, const uint32_t (&r)[4]) {
  store_fragments("stmatrix_transposed", at, r, true);
}

struct SmallProduct {
  uint32_t left[4], right[2];
};

// d [16, 8] += a [16, 16] b [16, 8]
template <class E>
inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const SmallProduct* all = together("mma", SmallProduct{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto number = [](uint32_t pair, int half) { return to_float(half_of(pair, half), kType<E>); };
  const int lane = running % kLanes;
  for (int k = 0; k < 16; ++k) {
    for (int e = 0; e < 4; ++e) {
      const SmallProduct &row = all[lane / 4 * 4 + k % 8 / 2], &column = all[(lane % 4 * 2 + e % 2) * 4 + k % 8 / 2];
      d[e] += number(row.left[e / 2 + k / 8 * 2], k % 2) * number(column.right[k / 8], k % 2);
    }
  }
}
