// What the calls are given.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNormEpsilon = 1e-6f;
constexpr int kMaxTokens = 16;
constexpr int kLanes = 8, kWarps = 4, kThreads = 32 * kWarps;  // lanes side by side in a row of a state; warps of a block

using bf16 = __nv_bfloat16;

// H heads of states; a query and key head serves H / key_heads of them. Slots of a pool may stand apart.
template <class E>
struct VerifyArguments {
  const bf16 *q, *k, *v, *a, *b, *dt_bias;  // [B, T, heads, D]; [B, T, H]; [H]
  const float* A_log;                       // [H]
  const E* pool;                            // slots of [H, D, D]
  E* steps;                                 // slots of [T, H, D, D]
  int64_t pool_stride, steps_stride;        // elements from slot to slot
  const int32_t *slots, *step_slots, *drafts;
  bf16* output;
  int num_slots, T, H, group;
  float scale;
  bool normalise;
};

template <class E>
struct PrefillArguments {
  const bf16 *q, *k, *v;   // [total, heads, D]
  const float *g, *beta;   // [total, H], or null: ones
  const int64_t* bounds;   // [N + 1]
  E* pool;                 // slots of [H, D, D]
  int64_t pool_stride, total;
  const int32_t* slots;    // [N]
  const uint8_t* held;     // [N]: whether the sequence goes on from its slot
  bf16* output;            // [total, H, D]
  int num_slots, first;    // slots below `first` skip a sequence
  int H, HQ, HK, HV;
  float scale;
};

struct CommitArguments {
  uint4* pool;
  const uint4* steps;
  int64_t pool_stride, steps_stride, size;  // 16-byte words from slot to slot, and of one state of all heads
  const int32_t *slots, *step_slots, *accepted;
  int num_slots, T;
  int64_t blocks;  // of a row
};

}  // namespace
