// Decode of many heads: a block has all rows of one, a few at a time. What belongs to the token alone is done once a head,
// and the next rows are on their way while these are computed.
#pragma once
#include "code_rows.cuh"

namespace {

// A few rows as they are in memory, with what is theirs of the token.
template <class E, int D, class Tile>
struct RowsAhead {
  using Place = RowPlace<E, D, Tile>;
  static constexpr int R = Place::R, C = Place::C;
  uint4 words[R][C];
  float unit[R];
  alignas(2 * Place::kWide) bf16 v[R];

  __device__ __forceinline__ void load(const Place& at, const E* codes, const float* scales, const bf16* of_v) {
#pragma unroll
    for (int r = 0; r < R; ++r) unit[r] = scales[at.channel + r];
#pragma unroll
    for (int r = 0; r < R; r += Place::kWide) load_wide<Place::kWide>(v + r, of_v + at.channel + r);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < C; ++c) words[r][c] = load16(codes + at.part + r * D + c * Place::kNextKey);
    }
  }

  __device__ __forceinline__ void widen_to(CodeRows<E, D, Tile>& rows, float (&to_v)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      rows.unit[r] = unit[r], to_v[r] = __bfloat162float(v[r]);
#pragma unroll
      for (int c = 0; c < C; ++c) to_floats<E>(words[r][c], rows.S[r][c]);
    }
  }
};

template <class E, int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    gdn_quantised_in_turn_kernel(const __grid_constant__ CodeArguments<E> p) {
  constexpr int R = Tile::kRows, C = Tile::kChunks, P = kPer<E>;
  RowPlace<E, D, Tile> at(1);
  bring_rows_near<Slots::kPool>(p, at, 1);

  wait_for_previous();
  RowSlots<Slots::kPool> row(p, 1);
  Packed<P> q_words[C], k_words[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    q_words[c].load(p.q + at.first_token * p.qk_stride + blockIdx.y * D + at.key + c * at.kNextKey);
    k_words[c].load(p.k + at.first_token * p.qk_stride + blockIdx.y * D + at.key + c * at.kNextKey);
  }
  keep_order();
  const RawGates raw(p, at.first_token, at.h);
  if (!row.finds_source(1, p.num_slots)) {
    write_zeros(p, at, 1);
    return;
  }
  keep_order();
  let_next_start();
  const E* const codes = p.from + row.source * p.slot_stride;
  const float* const scales = p.scales + row.source * p.scales_stride + at.h * D;
  const bf16* const of_v = p.v + at.first_token * p.v_stride + at.h * D;
  RowsAhead<E, D, Tile> ahead;
  ahead.load(at, codes, scales, of_v);
  keep_order();
  if (!row.finds_target(p.num_slots)) {
    write_zeros(p, at, 1);
    return;
  }

  const Gates gate(raw);
  float q[C][P], k[C][P], of_token[3] = {};
#pragma unroll
  for (int c = 0; c < C; ++c) q_words[c].widen_to(q[c]), k_words[c].widen_to(k[c]);
  add_token(q, k, of_token);
  sum_lanes<1, Tile::kLanes>(of_token);
  const Factors factor(p.normalise, of_token[0], of_token[1], of_token[2]);
  E* const to = p.to + row.target(0) * p.slot_stride;
  float* const to_scales = p.scales + row.target(0) * p.scales_stride + at.h * D;

#pragma unroll 1
  for (int turn = 0; turn < Tile::kTurns; ++turn) {
    CodeRows<E, D, Tile> rows;
    float v[R], sums[2 * R] = {};
    ahead.widen_to(rows, v);
    const RowPlace<E, D, Tile> here = at;
    at.next_turn();
    if (turn + 1 < Tile::kTurns) ahead.load(at, codes, scales, of_v);
    rows.add_products(q, k, sums);
    sum_lanes<1, Tile::kLanes>(sums);
    rows.step(p, here, at.first_token, sums, k, v, gate, factor);
    rows.template store<false>(here, to + here.part, to_scales + here.channel);
  }
}

}  // namespace
