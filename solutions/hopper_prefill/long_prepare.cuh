// Of a block that prepares the chunks of long sequences itself: warps that find decays and T, of every second chunk; and one that
// makes P of Q K^T.
#pragma once
#include "long_loops.cuh"
#include "long_shared.cuh"
#include "short_prepare.cuh"

namespace {

// Gates that there are not: alpha 1, beta 1, and behind a sequence's end 0. A lane has two tokens.
__device__ __forceinline__ void settle_gates(const Problem& p, const Asked& asked, Rows& rows, int lane) {
  if (asked.rows < kChunk || p.g == nullptr || p.beta == nullptr) {
#pragma unroll
    for (int t = 2 * lane; t < 2 * lane + 2; ++t) {
      if (t >= asked.rows || p.g == nullptr) rows.log[t] = p.log_gates ? 0.f : 1.f;
      if (t >= asked.rows || p.beta == nullptr) rows.beta[t] = t < asked.rows ? 1.f : 0.f;
    }
  }
  __syncwarp();
}

// By a warp.
template <class E>
__device__ __forceinline__ void invert_long(const Problem& p, Long& s, int warp) {
  const auto say = [](uint64_t* barrier) {
    __syncwarp();
    if (lane_here() < kLeavers) barrier_arrive(shared_address(barrier));
  };
  const auto clear = [&](const unsigned char* boxes, int rows, uint64_t* landed, int parity, uint64_t* full) {
    barrier_wait(shared_address(landed), parity);
    for (int half = 0; half < 2; ++half) clear_rows(shared_address(boxes) + half * kBoxBytes, rows, lane_here(), 32);
    fence_async();
    __syncwarp();
    if (lane_here() == 0) barrier_arrive(shared_address(full));
  };
#pragma unroll 1
  for (uint32_t c = warp;; c += kInverters) {
    const auto i = [&] { return static_cast<uint32_t>(anew(c)) % kLongKeys; };  // found again, as what depends on it is, and not kept
    const int parity = c / kLongKeys & 1;
    barrier_wait(shared_address(&s.asked[i()]), parity);
    const Asked asked = read_asked(s.asks[i()]);
    if (asked.rows < 0) break;
    GDN_STAMP(2, c, 0);
#ifdef LONG_DP
    barrier_wait(shared_address(&s.decayed[i()]), parity);
#else
    {
      auto& keys = s.keys[i()];
      barrier_wait(shared_address(&s.gated[i()]), parity);
      settle_gates(p, asked, keys.rows, lane_here());
      find_decays(p, keys.rows, keys.tile.decays, nullptr, lane_here()
#ifdef LONG_PFAST
        , keys.inverse
#endif
      );
    }
    say(&s.decayed[i()]);
#endif
    GDN_STAMP(2, c, 1);
    if (asked.rows < kChunk) clear(s.keys[i()].k, asked.rows, &s.k_landed[i()], parity, &s.full[i()]);
    barrier_wait(shared_address(&s.multiplied[warp]), c / kInverters & 1);
    GDN_STAMP(2, c, 2);
    {
      auto& keys = s.keys[i()];
      auto& room = s.rooms[warp];
// What slows those who advance (trial/probes.py): as many instructions in a loop, in a straight line, of mma.sync.
#if LONG_PROBE == 1
      float a[2] = {1.f, 2.f};
#pragma unroll 1
      for (int k = 0; k < 80; ++k) {
#pragma unroll
        for (int j = 0; j < 16; ++j) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(a[0]) : "f"(a[1]));
      }
      if (a[0] == 1.2345f) room.scratch.diagonal[0][0] = a[0];
#elif LONG_PROBE == 2
      float a[8] = {1.f, 2.f, 3, 4, 5, 6, 7, 8};
#pragma unroll
      for (int k = 0; k < 944; ++k) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(a[k % 7]) : "f"(a[7]));
      for (int k = 1; k < 7; ++k) a[0] += a[k];
      if (a[0] == 1.2345f) room.scratch.diagonal[0][0] = a[0];
#elif LONG_PROBE == 3
      float d[2][4] = {};
      const uint32_t a[4] = {};
#pragma unroll 1
      for (int k = 0; k < 20; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mma<E>(d[j % 2], a, 0, 0);
        d[0][0] += d[1][0];
      }
      if (d[0][0] == 1.2345f) room.scratch.diagonal[0][0] = d[0][0];
#elif defined(LONG_NO_T)
#elif defined(LONG_LOOPS)
      LoopInverter<E> loops{room.products, keys.rows, room.scratch, keys.tile.T[0]};
      if (loops.find_diagonal()) {
        Inverter<E, kStaySize, false, true, true> inverter{room.products, keys.rows, room.scratch, keys.tile.T[0], p.scale, lane_here()};
        inverter.keeps_sums = true;
        inverter.template invert<__nv_bfloat16, 2>();
      } else {
        loops.invert_diagonal();
        loops.find_below();
      }
#else
      Inverter<E, kStaySize, false, true, true>{room.products, keys.rows, room.scratch, keys.tile.T[0], p.scale, lane_here()}.find();
#endif
    }
    const int rows = read_asked(s.asks[i()]).rows;  // before another chunk's may stand there
    fence_async();
    say(&s.inverted[i()]);
    GDN_STAMP(2, c, 3);
    if (rows < kChunk) {  // values come later
      const uint32_t v = c % kLongValues;
      clear(s.values[v], rows, &s.v_landed[v], c / kLongValues & 1, &s.v_full[v]);
    }
  }
}

// By a warp: P of each chunk. Rows of blocks from the last one on, of which the next one's products come before stores.
template <class E>
__device__ __forceinline__ void find_p_long(const Problem& p, Long& s) {
#ifdef LONG_DP
  // Decays too, two chunks ahead: T is not begun before K K^T is there, which is found so far ahead.
  const auto decay_chunk = [&](uint32_t c) {
    const uint32_t i = c % kLongKeys, parity = c / kLongKeys & 1;
    barrier_wait(shared_address(&s.asked[i]), parity);
    const Asked asked = read_asked(s.asks[i]);
    if (asked.rows < 0) return false;
    auto& keys = s.keys[i];
    barrier_wait(shared_address(&s.gated[i]), parity);
    settle_gates(p, asked, keys.rows, lane_here());
    find_decays(p, keys.rows, keys.tile.decays, nullptr, lane_here()
#ifdef LONG_PFAST
        , keys.inverse
#endif
    );
    __syncwarp();
    if (lane_here() < kLeavers) barrier_arrive(shared_address(&s.decayed[i]));
    return true;
  };
  uint32_t decayed = 0;
  bool more = true;
#endif
#pragma unroll 1
  for (uint32_t c = 0;; ++c) {
    const int lane = lane_here(), i = c % kLongKeys, parity = c / kLongKeys & 1;
#ifdef LONG_DP
#pragma unroll 1
    for (; more && decayed <= c + kAhead; ++decayed) {
      more = decay_chunk(decayed);
      if (!more) break;
    }
    if (c >= decayed) break;
    (void)parity;
#else
    barrier_wait(shared_address(&s.asked[i]), parity);
    if (read_asked(s.asks[i]).rows < 0) break;
    barrier_wait(shared_address(&s.decayed[i]), parity);
#endif
    GDN_STAMP(2, c, 0);
    barrier_wait(shared_address(&s.scored), c & 1);
    GDN_STAMP(2, c, 1);
    const Rows& rows = s.keys[i].rows;
    // Who has written Q K^T of this chunk has done with P of the one before the last, which was there.
#ifndef LONG_LOOPS
    const uint32_t to = shared_address(s.queries[c % kLongQueries].P) + turned(lane);
#endif
#ifdef LONG_NO_P
    if (false) {
    } else if (anew(0) == 0) {
    } else {
#elif defined(LONG_PFAST)
    const float2 two_logs = *reinterpret_cast<const float2*>(&rows.log[2 * lane]);
    if (__ballot_sync(kAllLanes, fabsf(two_logs.x) <= 64.f && fabsf(two_logs.y) <= 64.f) == kAllLanes) {
      float x[4][8];
      const uint32_t from = shared_address(s.scores) + 16 * lane, columns_at = shared_address(s.keys[i].inverse) + 16 * (lane % 4);
      const uint32_t rows_at = shared_address(s.keys[i].tile.decays.read_out) + lane / 8 * 16 + lane / 4 % 2 * 4;
      constexpr int kRow[10] = {3, 3, 3, 3, 2, 2, 2, 1, 1, 0}, kColumn[10] = {0, 1, 2, 3, 0, 1, 2, 0, 1, 0};
      const auto read = [&](int b) {
        const uint32_t at = from + fragments_of(kRow[b], kColumn[b]);
        const float4 left = load_four(at), right = load_four(at + 512);
        float(&y)[8] = x[b % 4];
        y[0] = left.x, y[1] = left.y, y[2] = left.z, y[3] = left.w, y[4] = right.x, y[5] = right.y, y[6] = right.z, y[7] = right.w;
      };
      float4 columns[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) columns[m] = load_four(columns_at + 64 * m);
#pragma unroll
      for (int b = 0; b < 3; ++b) read(b);
      const int below = lane / 4 - 2 * (lane % 4);
      const bool zero = below >= 0, one = below >= 1;
      float by[2];
#pragma unroll
      for (int b = 0; b < 10; ++b) {
        const int r = kRow[b], m = kColumn[b];
        if (b + 3 < 10) read(b + 3);
        if (m == 0) by[0] = load_one(rows_at + 64 * r), by[1] = load_one(rows_at + 64 * r + 8);
        float(&y)[8] = x[b % 4];
        const float column[4] = {columns[m].x, columns[m].y, columns[m].z, columns[m].w};
#pragma unroll
        for (int e = 0; e < 8; ++e) y[e] = y[e] * by[e / 2 % 2] * column[e / 4 * 2 + e % 2];
        if (m == r) {
          y[0] = zero ? y[0] : 0.f, y[1] = one ? y[1] : 0.f, y[6] = zero ? y[6] : 0.f, y[7] = one ? y[7] : 0.f;
          y[4] = y[5] = 0.f;
        }
        uint32_t words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] = pack<E>(y[2 * e], y[2 * e + 1]);
        stmatrix(to + block_of_square(r, m), words);
      }
    } else {
#else
    {
#endif
#ifdef LONG_LOOPS
    decay_blocks<E>(s.scores, rows, p.scale, shared_address(s.queries[c % kLongQueries].P), 0xffa94, 0xe4910, 4);
#else
    float x[2][4][8];
    const auto read = [&](int r) {
#pragma unroll
      for (int m = 0; m <= r; ++m) read_products(x[r % 2][m], s.scores, r, m, lane);
    };
    read(3);
#pragma unroll
    for (int r = 3; r >= 0; --r) {
      if (r > 0) read(r - 1);
      uint32_t words[4][4];
      const float logs[2] = {rows.log[16 * r + lane / 4], rows.log[16 * r + lane / 4 + 8]};
#pragma unroll
      for (int m = 0; m <= r; ++m) {
        float(&y)[8] = x[r % 2][m];
        if (m == r) {
          float weights[8];
          weigh_diagonal(weights, rows.log, r, lane);
#pragma unroll
          for (int e = 0; e < 8; ++e) y[e] *= p.scale * weights[e];
        } else {
          const float end = rows.log[16 * m + 15];
          float factors[4], weight[2];
          column_factors(factors, rows.factor, m, lane);
#pragma unroll
          for (int e = 0; e < 2; ++e) weight[e] = p.scale * exp2_fast(logs[e] - end);
#pragma unroll
          for (int e = 0; e < 8; ++e) y[e] *= weight[e / 2 % 2] * factors[e / 4 * 2 + e % 2];
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) words[m][e] = pack<E>(y[2 * e], y[2 * e + 1]);
      }
#pragma unroll
      for (int m = 0; m <= r; ++m) stmatrix(to + block_of_square(r, m), words[m]);
    }
#endif
    }
    fence_async();
    __syncwarp();
    if (lane < kLeavers) barrier_arrive(shared_address(&s.found[c % kLongQueries]));
    GDN_STAMP(2, c, 2);
  }
}

}  // namespace
