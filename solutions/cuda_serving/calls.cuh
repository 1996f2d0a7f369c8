// Three kernels: verify with drafts of each row, prefill on a pool, and the commit of a step.
#pragma once
#include "rows.cuh"

namespace {

__device__ __forceinline__ bool is_slot(int slot, int first, int num_slots) { return slot >= first && slot < num_slots; }

struct Gates {
  float alpha, beta;

  template <class E>
  __device__ __forceinline__ Gates(const VerifyArguments<E>& p, int64_t token, int h) {
    const float x = __bfloat162float(p.a[token * p.H + h]) + __bfloat162float(p.dt_bias[h]);
    const float softplus = fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));  // no threshold
    alpha = expf(-expf(p.A_log[h]) * softplus);
    beta = 1.f / (1.f + expf(-__bfloat162float(p.b[token * p.H + h])));
  }
};

// Of all tokens that are not there, the block's value channels.
template <class E, int D>
__device__ __forceinline__ void write_zeros(bf16* output, int64_t first, int64_t count, int H, const Place<E, D>& at) {
  if (at.key != 0) return;
  const float none[Tile<E, D>::R] = {};
  for (int64_t t = 0; t < count; ++t) Rows<E, D>::write(output + ((first + t) * H + at.h) * D + at.channel, none);
}

// One token of a row: the state in `rows` goes on, and the output is written.
template <class E, int D>
__device__ __forceinline__ void verify_token(const VerifyArguments<E>& p, const Place<E, D>& at, Rows<E, D>& rows,
                                             int64_t token) {
  const int key_heads = p.H / p.group, key_head = at.h / p.group;
  const int64_t qk = (token * key_heads + key_head) * D, vo = (token * p.H + at.h) * D;
  Token<E, D> given;
  given.load(p.q + qk, p.k + qk, p.v + vo, at);
  const Gates gate(p, token, at.h);
  float o[Rows<E, D>::R];
  rows.step(given, gate.alpha, gate.beta, p.normalise, p.scale, o);
  if (at.key == 0) Rows<E, D>::write(p.output + vo + at.channel, o);
}

template <class E, int D>
__global__ void __launch_bounds__(kThreads) verify_kernel(const __grid_constant__ VerifyArguments<E> p) {
  const Place<E, D> at(p.H);
  const int slot = p.slots[at.row], to = p.step_slots[at.row];
  const bool live = is_slot(slot, 0, p.num_slots) && is_slot(to, 0, p.num_slots);  // -1, or none: not followed
  const int count = live ? min(p.drafts[at.row], p.T) : 0;
  const int64_t first = at.row * p.T;
  if (count > 0) {
    Rows<E, D> rows;
    rows.load(p.pool + slot * p.pool_stride + at.part());
    E* const steps = p.steps + to * p.steps_stride + at.part();
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      verify_token(p, at, rows, first + t);
      rows.store(steps + static_cast<int64_t>(t) * p.H * D * D);
    }
  }
  const int done = max(count, 0);
  write_zeros<E, D>(p.output, first + done, p.T - done, p.H, at);
}

template <class E, int D>
__global__ void __launch_bounds__(kThreads) prefill_kernel(const __grid_constant__ PrefillArguments<E> p) {
  const Place<E, D> at(p.H);
  const int64_t start = p.bounds[at.row], stop = min(p.bounds[at.row + 1], p.total);
  if (start >= stop) return;  // its slot stays
  const int slot = p.slots[at.row];
  if (!is_slot(slot, p.first, p.num_slots)) {
    write_zeros<E, D>(p.output, start, stop - start, p.H, at);
    return;
  }
  const int q_head = at.h / (p.H / p.HQ), k_head = at.h / (p.H / p.HK), v_head = at.h / (p.H / p.HV);
  E* const state = p.pool + slot * p.pool_stride + at.part();
  Rows<E, D> rows;
  if (p.held[at.row]) {  // what a new sequence finds in its slot is not even loaded
    rows.load(state);
  } else {
    rows.clear();
  }
  Token<E, D> next;
  float next_alpha, next_beta;
  const auto ask = [&](int64_t token) {
    next.load(p.q + (token * p.HQ + q_head) * D, p.k + (token * p.HK + k_head) * D, p.v + (token * p.HV + v_head) * D, at);
    next_alpha = p.g == nullptr ? 1.f : p.g[token * p.H + at.h];
    next_beta = p.beta == nullptr ? 1.f : p.beta[token * p.H + at.h];
  };
  ask(start);
#pragma unroll 1
  for (int64_t token = start; token < stop; ++token) {
    const Token<E, D> given = next;
    const float alpha = next_alpha, beta = next_beta;
    ask(min(token + 1, stop - 1));  // on its way while this one is computed
    float o[Rows<E, D>::R];
    rows.step(given, alpha, beta, false, p.scale, o);
    if (at.key == 0) Rows<E, D>::write(p.output + (token * p.H + at.h) * D + at.channel, o);
  }
  rows.store(state);
}

constexpr int kCopied = 4;  // words of a thread

__global__ void __launch_bounds__(kThreads) commit_kernel(const __grid_constant__ CommitArguments p) {
  const int64_t row = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks;
  const int slot = p.slots[row], from = p.step_slots[row], count = p.accepted[row];
  if (!is_slot(slot, 0, p.num_slots) || !is_slot(from, 0, p.num_slots) || count < 1 || count > p.T) return;  // it stays
  const uint4* source = p.steps + from * p.steps_stride + (count - 1) * p.size;
  uint4* const target = p.pool + slot * p.pool_stride;
  const int64_t first = block * kThreads * kCopied + threadIdx.x;
  uint4 words[kCopied];
#pragma unroll
  for (int n = 0; n < kCopied; ++n) {
    if (first + n * kThreads < p.size) words[n] = source[first + n * kThreads];
  }
#pragma unroll
  for (int n = 0; n < kCopied; ++n) {
    if (first + n * kThreads < p.size) target[first + n * kThreads] = words[n];
  }
}

}  // namespace
