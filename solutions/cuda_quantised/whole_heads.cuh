// Decode of very many heads: a block has one, all of which comes to shared memory by one copy. Sums and new states are products on
// tensor cores.
#pragma once
#include "head_rows.cuh"

namespace {

template <int D, int Warps, int Blocks>
struct WholeTile {
  static constexpr int kThreads = 32 * Warps, kBlocks = Blocks, kTiles = 1, kRowsOfWarp = D / Warps;
  static_assert(kRowsOfWarp % kTileRows == 0);
  // In shared memory, by bytes: codes, scales, v, the barrier at which they arrive, and a number for each row.
  static constexpr int kScales = D * D, kV = kScales + 4 * D, kBarrier = kV + 2 * D, kWrites = kBarrier + 16;
  static constexpr int kShared = kWrites + 4 * D;
};

template <class E, int D, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    gdn_quantised_whole_heads_kernel(const __grid_constant__ CodeArguments<E> p) {
  constexpr int J = D / 64;
  DYNAMIC_SHARED(shared);
  const int h = blockIdx.y * gridDim.x + blockIdx.x, lane = threadIdx.x % 32;
  const int64_t token = blockIdx.z;
  const uint32_t arrival = shared_address(shared + Tile::kBarrier);
  const bool first = threadIdx.x == 0;
  if (first) {
    barrier_init(arrival, 1);
    barrier_init_done();
    const int slot = guess_slot<Slots::kPool>(p, 1);
    if (is_slot(slot, p.num_slots)) bring_near(p.from + slot * p.slot_stride + h * D * D, D * D);
  }

  wait_for_previous();
  const RowSlots<Slots::kPool> row(p, 1);
  typename KeyAndQuery<D>::Words words;
  words.load(p.q + token * p.qk_stride + blockIdx.y * D, p.k + token * p.qk_stride + blockIdx.y * D);
  const auto key = [&] { return p.k + static_cast<int64_t>(anew(blockIdx.z)) * p.qk_stride + blockIdx.y * D; };
  const RawGates raw(p, token, h);
  keep_order();
  bf16* const output = p.output + (token * p.H + h) * D;
  if (!is_slot(row.source, p.num_slots) || !row.finds_target(p.num_slots)) {
    for (int i = threadIdx.x; i < D; i += Tile::kThreads) output[i] = __float2bfloat16_rn(0.f);
    return;
  }
  if (first) {
    barrier_expect(arrival, Tile::kBarrier);
    load_bytes(shared_address(shared), p.from + row.source * p.slot_stride + h * D * D, D * D, arrival);
    load_bytes(shared_address(shared + Tile::kScales), p.scales + row.source * p.scales_stride + h * D, 4 * D, arrival);
    load_bytes(shared_address(shared + Tile::kV), p.v + token * p.v_stride + h * D, 2 * D, arrival);
  }
  let_next_start();
  const KeyAndQuery<D> x(words);
  const HeadFactors head(Gates(raw), x, p.normalise, p.scale);
  __syncthreads();  // the barrier is there
  barrier_wait(arrival, 0);

  E* const to = p.to + row.target(0) * p.slot_stride + h * D * D;
  float* const to_scales = p.scales + row.target(0) * p.scales_stride + h * D;
  const float* const scales = reinterpret_cast<const float*>(shared + Tile::kScales);
  const bf16* const v = reinterpret_cast<const bf16*>(shared + Tile::kV);
  float* const writes = reinterpret_cast<float*>(shared + Tile::kWrites);
  const int first_row = static_cast<int>(threadIdx.x) / 32 * Tile::kRowsOfWarp;
#pragma unroll 1
  for (int turn = 0; turn < Tile::kRowsOfWarp; turn += kTileRows) {
    const int channel = first_row + turn + lane / 4, part = channel * D + 16 * (lane % 4);
    const uint32_t codes = shared_address(shared) + part;
    TwoRows<E, D> rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.unit[r] = scales[channel + 8 * r], rows.v[r] = __bfloat162float(v[channel + 8 * r]);
#pragma unroll
      for (int j = 0; j < J; ++j) rows.words[r][j] = load_shared(codes + 8 * r * D + 64 * j);
    }
    rows.step(x, head, key, codes, scales + channel, writes + channel);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int j = 0; j < J; ++j) store16<false>(to + part + 8 * r * D + 64 * j, rows.words[r][j]);
    }
    if (lane % 4 < 2) {  // all four lanes of a row have the same: one writes what is the first row's, another the second's
      const int at = channel + 8 * (lane % 4);
      output[at] = __float2bfloat16_rn(lane % 4 == 0 ? rows.o[0] : rows.o[1]);
      to_scales[at] = lane % 4 == 0 ? rows.unit[0] : rows.unit[1];
    }
  }
}

}  // namespace
