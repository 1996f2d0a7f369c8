// From the tensors of a call to its launches.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/optional.h>

#include <cmath>

#include "bounds.cuh"
#include "encode.cuh"
#include "launch.cuh"

namespace {

using MaybeTensor = ffi::Optional<ffi::TensorView>;

template <class T>
T* pointer(const MaybeTensor& x) {
  return x.has_value() ? static_cast<T*>(x.value().data_ptr()) : nullptr;
}

// Inputs and outputs, as in the definitions.
struct Call {
  ffi::TensorView q, k, v;
  MaybeTensor g, beta;
  ffi::TensorView cu_seqlens;
  MaybeTensor initial_state;
  ffi::Optional<double> scale;
  MaybeTensor output, final_state;  // their gradients
  ffi::TensorView dq, dk, dv, dg, dbeta, dh0;
};

void check_shapes(const Call& x) {
  TVM_FFI_CHECK(x.q.ndim() == 3 && x.k.ndim() == 3 && x.v.ndim() == 3, ValueError) << "q, k and v have three dimensions";
  TVM_FFI_CHECK(x.cu_seqlens.ndim() == 1 && x.cu_seqlens.size(0) >= 2, ValueError) << "cu_seqlens has num_seqs + 1 entries";
  const DLDevice device = x.q.device();
  TVM_FFI_CHECK(device.device_type == kDLCUDA, ValueError) << "q is not on a GPU";
  const int64_t T = x.q.size(0), HQ = x.q.size(1), HK = x.k.size(1), HV = x.v.size(1), H = std::max(HQ, HV);
  const int64_t N = x.cu_seqlens.size(0) - 1, D = x.q.size(2);
  TVM_FFI_CHECK(D == kHeadSize, ValueError) << "head_size " << D << " is not served: 128 is";
  TVM_FFI_CHECK(HQ > 0 && HK > 0 && HV > 0 && ((HK == HV && HQ % HK == 0) || (HQ == HK && HV % HQ == 0)), ValueError)
      << HQ << " query, " << HK << " key and " << HV << " value heads are neither GQA nor GVA";
  TVM_FFI_CHECK(T < (int64_t{1} << 31) - kChunk && N <= 65535 && H <= 65535, ValueError)
      << T << " tokens, " << N << " sequences and " << H << " heads are not served";
  const DLDataType type = x.q.dtype();
  TVM_FFI_CHECK(same(type, kBFloat16) || same(type, kFloat16), ValueError)
      << "q is " << name_of(type) << ", not bfloat16 or float16";
  const auto require_maybe = [&](const char* name, const MaybeTensor& of, DLDataType type, std::initializer_list<int64_t> shape) {
    if (of.has_value()) require(name, of.value(), type, device, shape);
  };
  require("q", x.q, type, device, {T, HQ, D});
  require("k", x.k, type, device, {T, HK, D});
  require("v", x.v, type, device, {T, HV, D});
  require_maybe("g", x.g, kFloat32, {T, H});
  require_maybe("beta", x.beta, kFloat32, {T, H});
  require("cu_seqlens", x.cu_seqlens, kInt64, device, {N + 1});
  require_maybe("initial_state", x.initial_state, kFloat32, {N, H, D, D});
  require_maybe("do", x.output, type, {T, H, D});
  require_maybe("dht", x.final_state, kFloat32, {N, H, D, D});
  require("dq", x.dq, type, device, {T, HQ, D});
  require("dk", x.dk, type, device, {T, HK, D});
  require("dv", x.dv, type, device, {T, HV, D});
  require("dg", x.dg, kFloat32, device, {T, H});
  require("dbeta", x.dbeta, kFloat32, device, {T, H});
  require("dh0", x.dh0, kFloat32, device, {N, H, D, D});
}

Problem problem_of(const Call& x, bool k_first) {
  Problem p{};
  p.device = x.q.device().device_id;
  p.cu_seqlens = static_cast<const int64_t*>(x.cu_seqlens.data_ptr());
  p.g = pointer<const float>(x.g), p.beta = pointer<const float>(x.beta);
  p.initial_state = pointer<const float>(x.initial_state), p.dht = pointer<const float>(x.final_state);
  p.dq = x.dq.data_ptr(), p.dk = x.dk.data_ptr(), p.dv = x.dv.data_ptr();
  p.dg = static_cast<float*>(x.dg.data_ptr()), p.dbeta = static_cast<float*>(x.dbeta.data_ptr());
  p.dh0 = static_cast<float*>(x.dh0.data_ptr());
  p.tokens = x.q.size(0);
  p.N = static_cast<int>(x.cu_seqlens.size(0) - 1);
  p.q_heads = static_cast<int>(x.q.size(1)), p.k_heads = static_cast<int>(x.k.size(1)), p.v_heads = static_cast<int>(x.v.size(1));
  p.H = std::max(p.q_heads, p.v_heads);
  p.q_group = p.H / p.q_heads, p.k_group = p.H / p.k_heads, p.v_group = p.H / p.v_heads;
  p.scale = static_cast<float>(x.scale.has_value() ? x.scale.value() : 1.0 / std::sqrt(static_cast<double>(kHeadSize)));
  p.k_first = p.log_gates = k_first;
  return p;
}

// Segments in the place of sequences, whose states and bounds are in the workspace.
void take_segments(Problem& p, float* states, int64_t* bounds) {
  const int64_t size = int64_t{p.N} * p.H * kHeadSize * kHeadSize;
  Segments& all = p.segments;
  all.starts = states, all.ends = states + size, all.transfers = states + 2 * size, all.turned = states + 3 * size;
  all.owners = reinterpret_cast<int*>(bounds + p.N + 1), all.firsts = all.owners + p.N;
  p.cu_seqlens = bounds, p.initial_state = all.starts, p.dht = all.ends, p.k_first = false;
}

void backward(const Call& x, bool k_first) {
  check_shapes(x);
  const DLDevice device = x.q.device();
  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  Problem p = problem_of(x, k_first);
  TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&p.multiprocessors, cudaDevAttrMultiProcessorCount, device.device_id));
  check_bounds(p, stream);

  p.segments = {p.cu_seqlens, p.initial_state, p.dht, p.N, static_cast<int>(segment_of(p))};
  p.segments.k_first = p.k_first;
  p.brief = brief_of(p);
  const bool cut = p.segments.length > 0;
  if (cut) p.N += static_cast<int>(p.tokens / (int64_t{kChunk} * p.segments.length));
  const int64_t places = p.tokens / kChunk + p.N, of_head = places * p.H, of_sequences = int64_t{p.N} * p.H;
  TVM_FFI_CHECK(places * p.k_heads < (int64_t{1} << 31), ValueError) << places << " chunks are not served";
  const int64_t of_values = p.tokens * p.H * kHeadSize * 2;
  const int64_t zeros = x.output.has_value() ? 0 : of_values;  // in the place of do
  const int64_t shared = p.v_group > 1 ? of_values : 0;        // dv of each head
  p.places = static_cast<int>(places);
  const First first = first_of(p, same(x.q.dtype(), kBFloat16), places);
  const bool beside = first.walks > 0;
  const int64_t of_queue = 16 + (2 * places * p.k_heads + (beside ? of_head + kHalves * of_sequences : 0) + 3) / 4 * 16;
  const int64_t of_warps = of_sequences * kWalkers * kChunk * kChunk / 2;
  const int64_t sizes[] = {of_head * kStateBytes, of_head * kStateBytes, of_head * kValueBytes, shared, of_head * kTileBytes,
                           of_sequences * kWalkers * kChunk * 4, of_sequences * 2 * kWalkers * 4 * 32 * 16,
                           (p.N + 3) / 4 * 16, of_queue,
                           cut ? 4 * of_sequences * kHeadSize * kHeadSize * 4 : 0, cut ? (4 * int64_t{p.N} + 8) * 4 : 0, zeros,
                           beside ? of_warps * 4 : 0};
  int64_t all = 0;
  for (const int64_t size : sizes) all += size;
  const auto workspace = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({all / 4}), kFloat32, device);
  auto* at = static_cast<unsigned char*>(workspace.data_ptr());
  const auto next = [&](int i) {
    unsigned char* const from = at;
    at += sizes[i];
    return from;
  };
  p.starts = next(0), p.ends = next(1), p.errors = next(2);
  void* const writes = shared > 0 ? next(3) : p.dv;
  p.writes = static_cast<uint16_t*>(writes), p.tiles = next(4);
  p.of_end = reinterpret_cast<float*>(next(5)), p.rests = reinterpret_cast<uint4*>(next(6));
  int* const order = reinterpret_cast<int*>(next(7));
  if (p.N > 1 && p.N <= kSorted && !beside) p.order = order;
  p.queue = reinterpret_cast<Queue*>(next(8));
  p.walked = reinterpret_cast<int*>(p.queue + 1), p.ready = p.walked + places * p.k_heads;
  if (beside) {
    p.prepared = p.ready + places * p.k_heads, p.forward_over = p.prepared + of_head;
    TVM_FFI_CHECK_CUDA_ERROR(cudaMemsetAsync(p.queue, 0, of_queue, stream));
  }
  auto* const states = reinterpret_cast<float*>(next(9));
  auto* const bounds = reinterpret_cast<int64_t*>(next(10));
  if (cut) take_segments(p, states, bounds);
  void* const no_output = next(11);
  void* const given = x.output.has_value() ? x.output.value().data_ptr() : no_output;
  if (beside) p.kept = reinterpret_cast<float*>(next(12));
  if (zeros > 0) TVM_FFI_CHECK_CUDA_ERROR(cudaMemsetAsync(given, 0, zeros, stream));

  const DLDataType type = x.q.dtype();
  const auto map = [&](void* of, int heads, int halves) { return boxes(of, type, p.tokens, heads, halves); };
  void* const v = x.v.data_ptr();
  const Maps maps{map(x.q.data_ptr(), p.q_heads, kHalves), map(x.k.data_ptr(), p.k_heads, kHalves), map(v, p.v_heads, kHalves),
                  map(v, p.v_heads, 1), map(given, p.H, kHalves), map(given, p.H, 1), map(writes, p.H, kHalves), map(writes, p.H, 1)};
  const auto run = same(type, kFloat16) ? launch_all<__half> : launch_all<__nv_bfloat16>;
  run(p, maps, first, places, stream);
}

template <bool KFirst>
void gdn_backward(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                  ffi::TensorView cu_seqlens, MaybeTensor initial_state, ffi::Optional<double> scale, MaybeTensor output,
                  MaybeTensor final_state, ffi::TensorView dq, ffi::TensorView dk, ffi::TensorView dv, ffi::TensorView dg,
                  ffi::TensorView dbeta, ffi::TensorView dh0) {
  backward({q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, dq, dk, dv, dg, dbeta, dh0}, KFirst);
}

}  // namespace
