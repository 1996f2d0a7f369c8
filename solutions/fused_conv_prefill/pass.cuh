// The kernel: a few lanes hold a head, and walk down a strip of tokens.
#pragma once
#include "ahead.cuh"
#include "gates.cuh"
#include "walk.cuh"

namespace {

// L2 norm over a head's lanes, all of which take part, where it is one of q or k.
template <int Lanes>
__device__ __forceinline__ void normalise(float (&y)[kPer], bool normed) {
  float square = 0.f;
#pragma unroll
  for (int c = 0; c < kPer; ++c) square = fmaf(y[c], y[c], square);
#pragma unroll
  for (int offset = 1; offset < Lanes; offset *= 2) square += __shfl_xor_sync(kAllLanes, square, offset);
  const float factor = normed ? reciprocal_root(square + kNormEpsilon) : 1.f;
#pragma unroll
  for (int c = 0; c < kPer; ++c) y[c] *= factor;
}

template <int D, int W, bool Bias>
__global__ void __launch_bounds__(kThreads, kBlocks) gdn_conv_gates_kernel(const __grid_constant__ Problem p) {
  constexpr int kLanes = D / kPer, kHeads = kThreads / kLanes;  // of a head; of a block
  const int heads = 2 * p.HK + p.H;
  const int64_t C = static_cast<int64_t>(heads) * D;
  const int first_head = static_cast<int>(blockIdx.x % p.groups) * kHeads, head = first_head + threadIdx.x / kLanes;
  const int first = static_cast<int>(blockIdx.x / p.groups) * p.strip, last = min(first + p.strip, p.T);
  const bool valid = head < heads;  // the last block may have lanes without a head
  const int lane = kPer * (threadIdx.x % kLanes);
  const int64_t channel = static_cast<int64_t>(head) * D + lane;
  const bf16* x_at = p.x + channel;

  __shared__ uint4 ring[kStages][kThreads];
  Ahead rows{ring, first - (W - 1), valid ? static_cast<unsigned>(last) : 0, x_at + (first - (W - 1)) * C, C};

  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kStages; ++i) rows.ask();
  let_next_start();
  Convolution<W, Bias> sums(p, channel, valid);
  Walk<W> piece(p, first, last);

  // Where this lane's head goes, and which gates are the block's.
  const bool of_warp = first_head + static_cast<int>(threadIdx.x / 32) * (32 / kLanes) < 2 * p.HK, normed = head < 2 * p.HK;
  const int owners = normed ? p.HK : p.H;
  const int to_head = head < p.HK ? head : normed ? head - p.HK : head - 2 * p.HK;
  bf16* const to = (head < p.HK ? p.q : normed ? p.k : p.v) + static_cast<int64_t>(to_head) * D + lane;
  const int64_t row_of_output = static_cast<int64_t>(owners) * D;
  const int first_gate = max(first_head - 2 * p.HK, 0);
  const int gates = max(min(first_head + kHeads, heads) - 2 * p.HK - first_gate, 0);

  while (piece.next(p)) {
    const int slot = p.slots[piece.n];
    const bool live = static_cast<unsigned>(slot) < static_cast<unsigned>(p.num_slots);  // -1, or a slot that is none
    write_gates(p, first_gate, gates, piece.from, piece.to, live);
    bf16* out = to + piece.from * row_of_output;
    if (!live) {
#pragma unroll 1
      for (int token = piece.from; valid && token < piece.to; ++token, out += row_of_output) {
        *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
      }
      continue;
    }
    sums.forget();
    if (piece.from == piece.start) {
      // The state before, and the last rows of the sequence, which make the state after: all asked for at once.
      bf16* const at = p.pool + slot * p.slot_stride + channel * (W - 1);
      State<W> state(at, valid && p.carried[piece.n] != 0);
      Row recent[W - 1];
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        const int token = piece.stop - (W - 1) + i;
        if (valid && token >= piece.start) recent[i] = Row(load16(x_at + token * C));
      }
      float x[kPer], y[kPer];
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        state.place(i, x);
        sums.take(x, y);
      }
#pragma unroll
      for (int i = 0; i < W - 1; ++i) {
        if (piece.stop - (W - 1) + i >= piece.start) state.push(recent[i]);
      }
      if (valid) state.store(at);
    } else {
      rows.skip_to(piece.from - (W - 1));
#pragma unroll 1
      for (float y[kPer]; rows.asked - kStages < piece.from; rows.ask()) sums.take(rows.take(), y);
    }
    rows.skip_to(piece.from);
    if (valid && piece.to > last) {  // past the strip, with a sequence that began in it
#pragma unroll 1
      for (int row = last; row < min(piece.to, rows.asked); ++row) *rows.place(row) = load16(x_at + row * C);
      rows.limit = piece.to;
    }

#pragma unroll 1
    for (int token = piece.from; token < piece.to; ++token, out += row_of_output) {
      float y[kPer];
      sums.take(rows.take(), y);
      rows.ask();
#pragma unroll
      for (int c = 0; c < kPer; ++c) y[c] = silu(y[c]);
      if (of_warp) normalise<kLanes>(y, normed);
      if (valid) {
        *reinterpret_cast<uint4*>(out) =
            make_uint4(narrow(y[0], y[1]), narrow(y[2], y[3]), narrow(y[4], y[5]), narrow(y[6], y[7]));
      }
    }
  }
  wait_for_groups<0>();
}

}  // namespace
