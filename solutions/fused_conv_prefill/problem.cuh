// What a call is given, and what may be tuned.
#pragma once
#include <cstdint>

#include "instructions.cuh"

namespace {

using bf16 = __nv_bfloat16;

// The place to tune, with `strip_of` below.
constexpr int kThreads = 128;
constexpr int kBlocks = 4;  // of a multiprocessor
constexpr int kStages = 8;  // rows on their way, a lane; a power of two, and more than the widest kernel
constexpr int kPer = 8;     // channels of a lane: 16 bytes of a row
static_assert((kStages & (kStages - 1)) == 0 && kStages >= 4);

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNormEpsilon = 1e-6f;

// Channels are those of HK query heads, HK key heads and H value heads, in this order.
struct Problem {
  const bf16* x;                 // [T, C]
  const bf16 *weight, *bias;     // [C, W], [C] or null
  const bf16 *a, *b, *dt_bias;   // [T, H], [T, H], [H]
  const float* A_log;            // [H]
  const int64_t* cu_seqlens;     // [N + 1]
  bf16* pool;                    // slots of [C, W - 1]
  const int32_t* slots;          // [N]
  const uint8_t* carried;        // [N]: whether a sequence has a state before it
  bf16 *q, *k, *v;               // [T, HK, D], [T, HK, D], [T, H, D]
  float *g, *beta;               // [T, H]
  int64_t slot_stride;
  int T, N, num_slots, HK, H;
  int groups, strip;  // of heads, a block each; tokens of a block
};

}  // namespace
