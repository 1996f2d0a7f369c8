// Of a block that prepares the chunks of long sequences itself: warps that find decays and T, each of every second chunk; and one
// that makes P of Q K^T.
#pragma once
#include "long_shared.cuh"
#include "short_prepare.cuh"

namespace {

__device__ __forceinline__ void say(uint64_t& barrier) {
  __syncwarp();
  if (lane_here() < kLeavers) barrier_arrive(shared_address(&barrier));
}

// Gates that there are not: alpha 1, beta 1, and behind a sequence's end 0. A lane has two tokens.
__device__ __forceinline__ void settle_gates(const Problem& p, int valid, Rows& rows, int lane) {
  if (valid < kChunk || p.g == nullptr || p.beta == nullptr) {
#pragma unroll
    for (int t = 2 * lane; t < 2 * lane + 2; ++t) {
      if (t >= valid || p.g == nullptr) rows.log[t] = p.log_gates ? 0.f : 1.f;
      if (t >= valid || p.beta == nullptr) rows.beta[t] = t < valid ? 1.f : 0.f;
    }
  }
  __syncwarp();
}

// By a warp: decays and T.
template <class E>
__device__ __forceinline__ void invert_long(const Problem& p, Long& s, int warp) {
  const auto clear = [](const unsigned char* boxes, int rows, uint64_t& landed, int parity, uint64_t& full) {
    barrier_wait(shared_address(&landed), parity);
    for (int half = 0; half < 2; ++half) clear_rows(shared_address(boxes) + half * kBoxBytes, rows, lane_here(), 32);
    fence_async();
    say(full);
  };
  const auto rows_of = [&](uint32_t i) { return __shfl_sync(kAllLanes, s.rows[i], 0); };
#pragma unroll 1
  for (uint32_t c = warp;; c += kInverters) {
    // Found again, as what depends on it is, and not kept.
    const auto i = [&] { return static_cast<uint32_t>(anew(c)) % kLongKeys; };
    const int parity = c / kLongKeys & 1;
    barrier_wait(shared_address(&s.asked[i()]), parity);
    const int valid = rows_of(i());
    if (valid < 0) break;
    {
      auto& keys = s.keys[i()];
      barrier_wait(shared_address(&s.gated[i()]), parity);
      settle_gates(p, valid, keys.rows, lane_here());
      find_decays(p, keys.rows, keys.tile.decays, nullptr, lane_here(), keys.inverse);
    }
    say(s.decayed[i()]);
    if (valid < kChunk) clear(s.keys[i()].k, valid, s.k_landed[i()], parity, s.full[i()]);
    barrier_wait(shared_address(&s.multiplied[warp]), c / kInverters & 1);
    auto& keys = s.keys[i()];
    auto& room = s.rooms[warp];
    Inverter<E, kStaySize, false, true, true>{room.products, keys.rows, room.scratch, keys.tile.T[0], p.scale, lane_here()}.find();
    const int rows = rows_of(i());  // before another chunk's may stand there
    fence_async();
    say(s.inverted[i()]);
    if (rows < kChunk) {  // values come later
      const uint32_t v = c % kLongValues;
      clear(s.values[v], rows, s.v_landed[v], c / kLongValues & 1, s.v_full[v]);
    }
  }
}

// P where no factor of a row or of a column leaves the range of a float: from those, without an exponential. Blocks come from the
// last row of blocks on, each read while those before it are made.
template <class E>
__device__ __forceinline__ void find_p_by_factors(const LongKeys& keys, const unsigned char* scores, uint32_t to, int lane) {
  constexpr int kBlocksOfP = 10, kEarly = 3;
  constexpr int kRow[kBlocksOfP] = {3, 3, 3, 3, 2, 2, 2, 1, 1, 0}, kColumn[kBlocksOfP] = {0, 1, 2, 3, 0, 1, 2, 0, 1, 0};
  const uint32_t columns_at = shared_address(keys.inverse) + 16 * (lane % 4);
  const uint32_t rows_at = shared_address(keys.tile.decays.read_out) + lane / 8 * 16 + lane / 4 % 2 * 4;
  float x[kEarly + 1][8], row[2];
  const auto read = [&](int b) { read_products(x[b % (kEarly + 1)], scores, kRow[b], kColumn[b], lane); };
  float4 columns[4];
#pragma unroll
  for (int m = 0; m < 4; ++m) columns[m] = load_four(columns_at + 64 * m);
#pragma unroll
  for (int b = 0; b < kEarly; ++b) read(b);
  const int below = lane / 4 - 2 * (lane % 4);
  const bool first = below >= 0, second = below >= 1;
#pragma unroll
  for (int b = 0; b < kBlocksOfP; ++b) {
    const int r = kRow[b], m = kColumn[b];
    if (b + kEarly < kBlocksOfP) read(b + kEarly);
    if (m == 0) row[0] = load_one(rows_at + 64 * r), row[1] = load_one(rows_at + 64 * r + 8);
    float(&y)[8] = x[b % (kEarly + 1)];
    const float column[4] = {columns[m].x, columns[m].y, columns[m].z, columns[m].w};
#pragma unroll
    for (int e = 0; e < 8; ++e) y[e] = y[e] * row[e / 2 % 2] * column[e / 4 * 2 + e % 2];
    if (m == r) {
      y[0] = first ? y[0] : 0.f, y[1] = second ? y[1] : 0.f, y[4] = 0.f, y[5] = 0.f;
      y[6] = first ? y[6] : 0.f, y[7] = second ? y[7] : 0.f;
    }
    uint32_t words[4];
    pack_block<E>(words, y);
    stmatrix(to + block_of_square(r, m), words);
  }
}

// P of any decays. Rows of blocks from the last one on, of which the next one's products come before stores.
template <class E>
__device__ __forceinline__ void find_p_by_blocks(const Rows& rows, const unsigned char* scores, float scale, uint32_t to,
                                                 int lane) {
  float x[2][4][8];
  const auto read = [&](int r) {
#pragma unroll
    for (int m = 0; m <= r; ++m) read_products(x[r % 2][m], scores, r, m, lane);
  };
  read(3);
#pragma unroll
  for (int r = 3; r >= 0; --r) {
    if (r > 0) read(r - 1);
    uint32_t words[4][4];
#pragma unroll
    for (int m = 0; m <= r; ++m) {
      decay_p(x[r % 2][m], rows, scale, r, m, lane);
      pack_block<E>(words[m], x[r % 2][m]);
    }
#pragma unroll
    for (int m = 0; m <= r; ++m) stmatrix(to + block_of_square(r, m), words[m]);
  }
}

// By a warp: P of each chunk.
template <class E>
__device__ __forceinline__ void find_p_long(const Problem& p, Long& s) {
  constexpr float kMild = 64.f;  // logs up to this, of either sign
#pragma unroll 1
  for (uint32_t c = 0;; ++c) {
    const int lane = lane_here();
    const uint32_t i = c % kLongKeys, parity = c / kLongKeys & 1;
    const auto& keys = s.keys[i];
    barrier_wait(shared_address(&s.asked[i]), parity);
    if (__shfl_sync(kAllLanes, s.rows[i], 0) < 0) break;
    barrier_wait(shared_address(&s.decayed[i]), parity);
    const float2 logs = *reinterpret_cast<const float2*>(&keys.rows.log[2 * lane]);
    const bool mild = fabsf(logs.x) <= kMild && fabsf(logs.y) <= kMild;  // a NaN is not
    // Who has written Q K^T of this chunk has done with P of the one before the last, which was there.
    barrier_wait(shared_address(&s.scored), c & 1);
    const uint32_t to = shared_address(s.queries[c % kLongQueries].P) + turned(lane);
    if (__ballot_sync(kAllLanes, mild) == kAllLanes) {
      find_p_by_factors<E>(keys, s.scores, to, lane);
    } else {
      find_p_by_blocks<E>(keys.rows, s.scores, p.scale, to, lane);
    }
    fence_async();
    say(s.found[c % kLongQueries]);
  }
}

}  // namespace
