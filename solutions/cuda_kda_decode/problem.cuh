// What a call is given, and where a row finds its state.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kNormEpsilon = 1e-6f;

using bf16 = __nv_bfloat16;

// H: heads of state, gates and output. A query and key head serves H / key_heads value heads: its group.
// The grid is (group * tiles, key_heads, rows), so that no index is divided on the way to the first load.
template <class E>
struct Arguments {
  const bf16 *q, *k, *v;           // the first head of the first token
  int64_t qk_stride, v_stride;     // elements from one token to the next
  const E* from;                   // slots of [H, D, D]; without slots the row is the slot
  E* to;
  int64_t slot_stride;
  const int32_t *read, *write;     // [B]
  int num_slots;
  const float *A_log, *dt_bias;    // [H], [H, D]
  const bf16 *a, *b;               // [B, H, D], [B, H]
  bf16* output;                    // [B, H, D]
  int H;
  float scale, lower_bound;
  bool normalise, bounded;         // bounded: gate B, whose decays are at least exp(lower_bound)
};

enum class Slots { kNone, kPool };

}  // namespace
