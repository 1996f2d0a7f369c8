// What the others need of a chunk: its boxes of q, k and v, its decays, and P = scale (Gamma * Q K^T). By a warpgroup of
// its own: boxes and decays a chunk ahead of P.
#pragma once
#include "decays.cuh"

namespace {

// Asks for the boxes of chunk c, once their place is free; by a warp. Rows behind the end are the next sequence's: what is
// in them, NaN maybe, is no business of this one's, so they become zeros before anybody looks.
template <int Groups>
__device__ __forceinline__ void ask(const Problem& p, Shared<Groups>& s, const CUtensorMap& q_map, const CUtensorMap& k_map,
                                    const CUtensorMap& v_map, int c, int start, int tokens, int h, int slice) {
  const int i = c % kStages, rows = tokens - c * kChunk, token = start + c * kChunk;
  auto& boxes = s.boxes[i];
  const uint32_t full = shared_address(&s.full[i]), landed = rows < kChunk ? shared_address(&s.tail) : full;
  barrier_wait(shared_address(&s.empty[i]), c / kStages & 1 ^ 1);
  if (elect_one()) {
    barrier_expect(landed, static_cast<int>(sizeof boxes));
    load_boxes(shared_address(boxes.k), &k_map, 0, h / p.k_group, token, landed);
    load_boxes(shared_address(boxes.q), &q_map, 0, h / p.q_group, token, landed);
    load_boxes(shared_address(boxes.v), &v_map, slice / kSlice, h / p.v_group, token, landed);
  }
  __syncwarp();
  if (rows >= kChunk) return;
  barrier_wait(landed, 0);
  const int lane = lane_here();
  for (int at = 128 * rows + 16 * lane; at < kBoxBytes; at += 512) {  // whole rows: the swizzle stays inside of them
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    store_shared(shared_address(boxes.k) + at, zeros);
    store_shared(shared_address(boxes.k) + kBoxBytes + at, zeros);
    for (int wg = 0; wg < Groups; ++wg) store_shared(shared_address(boxes.v) + wg * kBoxBytes + at, zeros);
  }
  fence_async();
  __syncwarp();
  if (lane == 0) barrier_arrive(full);
}

// P of a chunk, from `products` = Q K^T; by a warpgroup.
template <class E>
__device__ __forceinline__ void write_p(const float (&products)[32], const Decays& d, const Weights& w, uint32_t to, int warp,
                                        int lane) {
  // The row of four cores that this lane gives stmatrix: the second and third core in turns.
  const uint32_t turned = (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16;
  const auto write = [&](const float (&x)[8], int m) {
    const uint32_t words[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
    stmatrix(to + block_of_square(warp, m) + turned, words);
  };
  float x[8];
  weigh_diagonal(w, products, warp, x);
  write(x, warp);
#pragma unroll
  for (int m = 0; m < 3; ++m) {
    if (m >= warp) break;
    weigh_left(d, w, products, m, lane, x);
    write(x, m);
  }
}

template <class E, int Groups>
__device__ __forceinline__ void feed(const Problem& p, Shared<Groups>& s, const CUtensorMap& q_map, const CUtensorMap& k_map,
                                     const CUtensorMap& v_map) {
  [[maybe_unused]] constexpr int kWg = Groups + 1;
  const Work& work = s.work;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32 % 4, 0), lane = lane_here();
  // The same in every lane, and known to be: what TMA is told comes from uniform registers.
  const auto uniform = [](int x) { return __shfl_sync(kAllLanes, x, 0); };
  const int chunks = uniform(work.chunks), start = uniform(static_cast<int>(work.start)), h = uniform(work.h);
  const int tokens = uniform(static_cast<int>(min(work.end - work.start, int64_t{chunks} * kChunk)));
  const int slice = uniform(work.slice);
  const auto ask_for = [&](int c) {
    if (warp == 0 && c < chunks) ask<Groups>(p, s, q_map, k_map, v_map, c, start, tokens, h, slice);
  };
  Gates gates;
  const auto know = [&](int c) {
    if (c >= chunks) return;
    find_decays(p, gates, s.decays[c % kDecays], warp, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.known[c % kDecays]));
    if (c + 1 < chunks) gates = load_gates(p, work, c + 1, lane);
  };
  if (chunks == 0) return;
  gates = load_gates(p, work, 0, lane);
  ask_for(0);
  know(0);
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    const int i = c % kStages;
    auto& boxes = s.boxes[i];
    GDN_STAMP(kWg, c, 0);
    barrier_wait(shared_address(&s.full[i]), c / kStages & 1);
    GDN_STAMP(kWg, c, 1);
    float products[32];
    multiply_boxes<E>(products, shared_address(boxes.q), shared_address(boxes.k));
    GDN_STAMP(kWg, c, 2);
    know(c + 1);
    GDN_STAMP(kWg, c, 3);
    ask_for(c + 1);
    GDN_STAMP(kWg, c, 4);
    const Decays& d = s.decays[c % kDecays];
    barrier_wait(shared_address(&s.known[c % kDecays]), c / kDecays & 1);
    const Weights weights = weigh(d, {p.scale, p.scale}, warp, lane);
    wgmma_wait<0>();
    settle(products);
    GDN_STAMP(kWg, c, 5);
    write_p<E>(products, d, weights, shared_address(s.tile[i].P), warp, lane);
    GDN_STAMP(kWg, c, 6);
    fence_async();  // the products of those who advance read P
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&s.ready[i]));
  }
}

}  // namespace
