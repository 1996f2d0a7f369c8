// What engines call on their pools of states: verify with drafts of each row or over a tree, prefill on a pool, the commit
// of a step.
//
//   slot ──> part of a state in registers ──> token after token: one reduction over eight lanes, outputs, new state
//                                                 verify: each state to the buffer of steps    prefill: the last to its slot
//
//   calls.cuh   kernels; tree.cuh has that over a tree; rows.cuh a state in registers, and one token of the rule
//   kernel.cu   what the manifest names, and what a call is held to
//   words.cuh, problem.cuh, host_checks.cuh

#include <cuda_bf16.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cmath>
#include <type_traits>

#include "calls.cuh"
#include "host_checks.cuh"
#include "tree.cuh"

namespace {

using MaybeTensor = ffi::Optional<ffi::TensorView>;

cudaStream_t stream_of(DLDevice device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

// A pool of states [.., D, D] of float32 or bfloat16: contiguous within a slot; slots may stand apart.
void require_pool(const Requirements& require, const char* name, const ffi::TensorView& x, int32_t dimensions) {
  require_dimensions(name, x, dimensions);
  TVM_FFI_CHECK(same(x.dtype(), kFloat32) || same(x.dtype(), kBFloat16), ValueError)
      << name << " is " << name_of(x.dtype()) << ", neither float32 nor bfloat16";
  require.place(name, x, x.dtype(), 16);
  const int64_t D = x.size(dimensions - 1), words = 16 / (x.dtype().bits / 8);
  TVM_FFI_CHECK(x.size(dimensions - 2) == D && (D == 64 || D == 128 || D == 256), ValueError)
      << name << " has states of " << x.size(dimensions - 2) << " by " << D << ": 64, 128 and 256 square are served";
  int64_t dense = 1;
  bool contiguous = true;
  for (int32_t i = dimensions - 1; i > 0; --i) {
    contiguous &= x.size(i) == 1 || x.stride(i) == dense;
    dense *= x.size(i);
  }
  TVM_FFI_CHECK(contiguous, ValueError) << name << " is not contiguous within a slot";
  TVM_FFI_CHECK(x.size(0) <= 1 || (x.stride(0) >= dense && x.stride(0) % words == 0), ValueError)
      << name << " has " << x.stride(0) << " elements from slot to slot: it must be " << dense << " or more, in steps of "
      << words;
  TVM_FFI_CHECK(x.size(0) <= INT32_MAX, ValueError) << name << " has " << x.size(0) << " slots, past 32 bits";
}

// A buffer of T steps for the states of a pool.
void require_steps(const Requirements& require, const ffi::TensorView& steps, const ffi::TensorView& pool, int64_t T) {
  require_pool(require, "step_states", steps, 5);
  TVM_FFI_CHECK(T >= 1 && T <= kMaxTokens, ValueError)
      << T << " tokens a row are not served: 1 to " << kMaxTokens << " are";
  TVM_FFI_CHECK(same(steps.dtype(), pool.dtype()) && steps.size(0) == pool.size(0) && steps.size(1) == T &&
                    steps.size(2) == pool.size(1) && steps.size(3) == pool.size(2),
                ValueError)
      << "step_states does not have the states of " << T << " steps for each slot of pool";
}

void require_grid(int64_t blocks) {
  TVM_FFI_CHECK(blocks <= INT32_MAX, ValueError) << "a call of " << blocks << " blocks is not served";
}

// Calls `f` with the element and the head size of a pool.
template <class E, class F>
void by_size(const ffi::TensorView& pool, E element, F f) {
  switch (pool.size(pool.ndim() - 1)) {
    case 64: return f(element, std::integral_constant<int, 64>{});
    case 128: return f(element, std::integral_constant<int, 128>{});
    default: return f(element, std::integral_constant<int, 256>{});
  }
}

// The same, with a value of the type of a pool.
template <class F>
void by_state(const ffi::TensorView& pool, F f) {
  if (same(pool.dtype(), kFloat32)) return by_size(pool, float{}, f);
  by_size(pool, bf16{}, f);
}

float scale_of(const ffi::Optional<double>& scale, int64_t D) {
  return static_cast<float>(scale.has_value() ? scale.value() : 1.0 / std::sqrt(static_cast<double>(D)));
}

// What both calls of verify are given, but for `parents`.
struct Verify {
  ffi::TensorView q, k, v, pool, slots, step_states, step_slots, drafts, A_log, a, dt_bias, b, output;
  ffi::Optional<double> scale;
  ffi::Optional<bool> use_qk_l2norm;

  void require_all() const {
    const Requirements require{pool.device()};
    require_pool(require, "pool", pool, 4);
    require_dimensions("q", q, 4);
    const int64_t B = q.size(0), T = q.size(1), heads = q.size(2), H = pool.size(1), D = pool.size(3);
    require_steps(require, step_states, pool, T);
    TVM_FFI_CHECK(heads > 0 && H % heads == 0, ValueError)
        << "num_q_heads " << heads << " does not divide num_v_heads " << H;
    require("q", q, kBFloat16, 16, {B, T, heads, D});
    require("k", k, kBFloat16, 16, {B, T, heads, D});
    require("v", v, kBFloat16, 16, {B, T, H, D});
    require("a", a, kBFloat16, 2, {B, T, H});
    require("b", b, kBFloat16, 2, {B, T, H});
    require("output", output, kBFloat16, 16, {B, T, H, D});
    require("A_log", A_log, kFloat32, 4, {H});
    require("dt_bias", dt_bias, kBFloat16, 2, {H});
    require("slots", slots, kInt32, 4, {B});
    require("step_slots", step_slots, kInt32, 4, {B});
    require("drafts", drafts, kInt32, 4, {B});
  }

  template <class E>
  void give(VerifyArguments<E>& p) const {
    const int64_t H = pool.size(1);
    p.q = static_cast<const bf16*>(q.data_ptr()), p.k = static_cast<const bf16*>(k.data_ptr());
    p.v = static_cast<const bf16*>(v.data_ptr()), p.a = static_cast<const bf16*>(a.data_ptr());
    p.b = static_cast<const bf16*>(b.data_ptr()), p.dt_bias = static_cast<const bf16*>(dt_bias.data_ptr());
    p.A_log = static_cast<const float*>(A_log.data_ptr());
    p.pool = static_cast<const E*>(pool.data_ptr()), p.steps = static_cast<E*>(step_states.data_ptr());
    p.pool_stride = pool.stride(0), p.steps_stride = step_states.stride(0);
    p.slots = static_cast<const int32_t*>(slots.data_ptr());
    p.step_slots = static_cast<const int32_t*>(step_slots.data_ptr());
    p.drafts = static_cast<const int32_t*>(drafts.data_ptr());
    p.output = static_cast<bf16*>(output.data_ptr());
    p.num_slots = static_cast<int>(pool.size(0)), p.T = static_cast<int>(q.size(1)), p.H = static_cast<int>(H);
    p.group = static_cast<int>(H / q.size(2)), p.scale = scale_of(scale, pool.size(3));
    p.normalise = use_qk_l2norm.has_value() ? use_qk_l2norm.value() : true;
  }

  template <class E, int D>
  unsigned blocks() const {
    const int64_t count = q.size(0) * pool.size(1) * Tile<E, D>::kTiles;
    require_grid(count);
    return static_cast<unsigned>(count);
  }
};

void verify_drafts(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool, ffi::TensorView slots,
                   ffi::TensorView step_states, ffi::TensorView step_slots, ffi::TensorView drafts,
                   ffi::TensorView A_log, ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b,
                   ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output) {
  const Verify call{q, k, v, pool, slots, step_states, step_slots, drafts, A_log, a, dt_bias, b, output, scale, use_qk_l2norm};
  call.require_all();
  if (q.size(0) == 0) return;
  const ffi::CUDADeviceGuard guard(pool.device().device_id);
  by_state(pool, [&](auto element, auto size) {
    using E = decltype(element);
    constexpr int kSize = decltype(size)::value;
    VerifyArguments<E> p{};
    call.give(p);
    verify_kernel<E, kSize><<<call.blocks<E, kSize>(), kThreads, 0, stream_of(pool.device())>>>(p);
    TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  });
}

void verify_tree(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView pool, ffi::TensorView slots,
                 ffi::TensorView step_states, ffi::TensorView step_slots, ffi::TensorView drafts,
                 ffi::TensorView parents, ffi::TensorView A_log, ffi::TensorView a, ffi::TensorView dt_bias,
                 ffi::TensorView b, ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm,
                 ffi::TensorView output) {
  const Verify call{q, k, v, pool, slots, step_states, step_slots, drafts, A_log, a, dt_bias, b, output, scale, use_qk_l2norm};
  call.require_all();
  const Requirements require{pool.device()};
  require("parents", parents, kInt32, 4, {q.size(0), q.size(1)});
  if (q.size(0) == 0) return;
  const ffi::CUDADeviceGuard guard(pool.device().device_id);
  by_state(pool, [&](auto element, auto size) {
    using E = decltype(element);
    constexpr int kSize = decltype(size)::value;
    TreeArguments<E> p{};
    call.give(p);
    p.parents = static_cast<const int32_t*>(parents.data_ptr());
    tree_kernel<E, kSize><<<call.blocks<E, kSize>(), kThreads, 0, stream_of(pool.device())>>>(p);
    TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  });
}

void prefill(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, const MaybeTensor& g, const MaybeTensor& beta,
             ffi::TensorView cu_seqlens, ffi::TensorView pool, ffi::TensorView slots, ffi::TensorView has_initial_state,
             ffi::Optional<double> scale, ffi::TensorView output, int first) {
  const Requirements require{pool.device()};
  require_pool(require, "pool", pool, 4);
  require_dimensions("q", q, 3), require_dimensions("k", k, 3), require_dimensions("v", v, 3);
  require_dimensions("slots", slots, 1);
  const int64_t total = q.size(0), HQ = q.size(1), HK = k.size(1), HV = v.size(1), N = slots.size(0);
  const int64_t H = pool.size(1), D = pool.size(3);
  TVM_FFI_CHECK(HQ > 0 && HK > 0 && HV > 0 && H % HQ == 0 && H % HK == 0 && H % HV == 0, ValueError)
      << HQ << " query, " << HK << " key and " << HV << " value heads do not go with " << H << " states";
  require("q", q, kBFloat16, 16, {total, HQ, D});
  require("k", k, kBFloat16, 16, {total, HK, D});
  require("v", v, kBFloat16, 16, {total, HV, D});
  require("output", output, kBFloat16, 16, {total, H, D});
  if (g.has_value()) require("g", g.value(), kFloat32, 4, {total, H});
  if (beta.has_value()) require("beta", beta.value(), kFloat32, 4, {total, H});
  require("cu_seqlens", cu_seqlens, kInt64, 8, {N + 1});
  require("slots", slots, kInt32, 4, {N});
  require("has_initial_state", has_initial_state, kBool, 1, {N});
  if (N == 0) return;
  const ffi::CUDADeviceGuard guard(pool.device().device_id);
  by_state(pool, [&](auto element, auto size) {
    using E = decltype(element);
    constexpr int kSize = decltype(size)::value;
    PrefillArguments<E> p{};
    p.q = static_cast<const bf16*>(q.data_ptr()), p.k = static_cast<const bf16*>(k.data_ptr());
    p.v = static_cast<const bf16*>(v.data_ptr()), p.output = static_cast<bf16*>(output.data_ptr());
    p.g = g.has_value() ? static_cast<const float*>(g.value().data_ptr()) : nullptr;
    p.beta = beta.has_value() ? static_cast<const float*>(beta.value().data_ptr()) : nullptr;
    p.bounds = static_cast<const int64_t*>(cu_seqlens.data_ptr());
    p.pool = static_cast<E*>(pool.data_ptr()), p.pool_stride = pool.stride(0), p.total = total;
    p.slots = static_cast<const int32_t*>(slots.data_ptr());
    p.held = static_cast<const uint8_t*>(has_initial_state.data_ptr());
    p.num_slots = static_cast<int>(pool.size(0)), p.first = first;
    p.H = static_cast<int>(H), p.HQ = static_cast<int>(HQ), p.HK = static_cast<int>(HK), p.HV = static_cast<int>(HV);
    p.scale = scale_of(scale, D);
    const int64_t blocks = N * H * Tile<E, kSize>::kTiles;
    require_grid(blocks);
    prefill_kernel<E, kSize><<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(pool.device())>>>(p);
    TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  });
}

void prefill_pool(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                  ffi::TensorView cu_seqlens, ffi::TensorView pool, ffi::TensorView slots,
                  ffi::TensorView has_initial_state, ffi::Optional<double> scale, ffi::TensorView output) {
  prefill(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale, output, 0);
}

void prefill_pool_slot_zero(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                            ffi::TensorView cu_seqlens, ffi::TensorView pool, ffi::TensorView slots,
                            ffi::TensorView has_initial_state, ffi::Optional<double> scale, ffi::TensorView output) {
  prefill(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale, output, 1);
}

void commit_states(ffi::TensorView pool, ffi::TensorView slots, ffi::TensorView step_states, ffi::TensorView step_slots,
                   ffi::TensorView accepted) {
  const Requirements require{pool.device()};
  require_pool(require, "pool", pool, 4);
  require_dimensions("slots", slots, 1), require_dimensions("step_states", step_states, 5);
  const int64_t B = slots.size(0), T = step_states.size(1), words = 16 / (pool.dtype().bits / 8);
  require_steps(require, step_states, pool, T);
  require("slots", slots, kInt32, 4, {B});
  require("step_slots", step_slots, kInt32, 4, {B});
  require("accepted", accepted, kInt32, 4, {B});
  if (B == 0) return;
  CommitArguments p{};
  p.pool = static_cast<uint4*>(pool.data_ptr()), p.steps = static_cast<const uint4*>(step_states.data_ptr());
  p.pool_stride = pool.stride(0) / words, p.steps_stride = step_states.stride(0) / words;
  p.size = pool.size(1) * pool.size(2) * pool.size(3) / words;
  p.slots = static_cast<const int32_t*>(slots.data_ptr());
  p.step_slots = static_cast<const int32_t*>(step_slots.data_ptr());
  p.accepted = static_cast<const int32_t*>(accepted.data_ptr());
  p.num_slots = static_cast<int>(pool.size(0)), p.T = static_cast<int>(T);
  p.blocks = (p.size + kThreads * kCopied - 1) / (kThreads * kCopied);
  require_grid(B * p.blocks);
  const ffi::CUDADeviceGuard guard(pool.device().device_id);
  commit_kernel<<<static_cast<unsigned>(B * p.blocks), kThreads, 0, stream_of(pool.device())>>>(p);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_verify_drafts_k_last, verify_drafts);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_verify_tree_k_last, verify_tree);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_pool_k_last, prefill_pool);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_pool_k_last_slot_zero, prefill_pool_slot_zero);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_commit_states_k_last, commit_states);
