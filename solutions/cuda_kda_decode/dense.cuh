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

}  // namespace
