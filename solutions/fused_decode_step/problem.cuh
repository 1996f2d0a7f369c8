// What a call is given.
#pragma once
#include <cstdint>

#include "words.cuh"
#include "instructions.cuh"

namespace {

constexpr float kNormEpsilon = 1e-6f;

// H value heads; a key head serves H / key_heads of them: its group. conv_dim = (2 key_heads + H) D.
// The grid is (blocks of a group, key_heads, rows).
struct Arguments {
  const bf16 *qkv, *z, *a, *b;                    // [B, conv_dim], [B, H D], [B, H], [B, H]
  const bf16 *conv_weight, *conv_bias;            // [conv_dim, W], [conv_dim] or null
  const float* A_log;                             // [H]
  const bf16 *dt_bias, *norm_weight;              // [H], [D]
  bf16* conv_states;                              // [slots, conv_dim, W - 1]
  float* states;                                  // [slots, H, D, D]
  int64_t conv_stride, state_stride;              // from slot to slot
  const int32_t *conv_slots, *state_slots;        // [B]
  bf16* output;                                   // [B, H D]
  int H, group, conv_dim, num_conv_slots, num_state_slots;
  int early_rows;  // those whose states are asked for early
  float scale;
};

}  // namespace
