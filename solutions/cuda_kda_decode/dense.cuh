// Dense states: each row has its own, in a tensor.
#pragma once
#include "call.cuh"

namespace {

void decode(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, ffi::TensorView state, ffi::TensorView A_log,
            ffi::TensorView a, ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> lower_bound, ffi::Optional<double> scale,
            ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output, ffi::TensorView new_state) {
  require_dimensions("state", state, 4);
  require_dimensions("q", q, 4);
  const Sizes n(state.size(0), q.size(2), state.size(1), state.size(3));
  const Requirements require{state.device()};
  by_element("state", state, [&](auto element) {
    auto p = arguments<decltype(element)>(require, n, A_log, dt_bias, lower_bound, scale, use_qk_l2norm);
    take_tokens(p, require, n, q, k, v, a, b, output);
    take_states(p, require, n, state, new_state);
    launch<decltype(element), Slots::kNone>(p, n, require.device);
  });
}

// mixed_qkv [B, (2 key_heads + H) D]: one row holds the heads of q, of k and of v.
void decode_packed(ffi::TensorView mixed_qkv, ffi::TensorView state, ffi::TensorView A_log, ffi::TensorView a,
                   ffi::TensorView dt_bias, ffi::TensorView b, ffi::Optional<double> lower_bound,
                   ffi::Optional<double> scale, ffi::Optional<bool> use_qk_l2norm, ffi::TensorView output,
                   ffi::TensorView new_state) {
  require_dimensions("state", state, 4);
  require_dimensions("mixed_qkv", mixed_qkv, 2);
  const int64_t H = state.size(1), D = state.size(3), length = mixed_qkv.size(1), keys = length - H * D;
  TVM_FFI_CHECK(D > 0 && keys > 0 && keys % (2 * D) == 0, ValueError)
      << "a row of mixed_qkv has " << length << " elements: " << H << " value heads leave no whole q and k";
  const Sizes n(state.size(0), keys / (2 * D), H, D);
  const Requirements require{state.device()};
  require("mixed_qkv", mixed_qkv, kBFloat16, 16, {n.rows, length});
  require("a", a, kBFloat16, 16, {n.rows, n.H, n.D});
  require("b", b, kBFloat16, 2, {n.rows, n.H});
  require("output", output, kBFloat16, 8, {n.rows, n.H, n.D});
  by_element("state", state, [&](auto element) {
    auto p = arguments<decltype(element)>(require, n, A_log, dt_bias, lower_bound, scale, use_qk_l2norm);
    p.q = static_cast<const bf16*>(mixed_qkv.data_ptr());
    p.k = p.q + n.key_heads * n.D;
    p.v = p.k + n.key_heads * n.D;
    p.a = static_cast<const bf16*>(a.data_ptr());
    p.b = static_cast<const bf16*>(b.data_ptr());
    p.output = static_cast<bf16*>(output.data_ptr());
    p.qk_stride = p.v_stride = length;
    take_states(p, require, n, state, new_state);
    launch<decltype(element), Slots::kNone>(p, n, require.device);
  });
}

}  // namespace
