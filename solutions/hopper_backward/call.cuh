// From the tensors of a call to its launches.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/optional.h>

#include <array>
#include <cmath>
#include <mutex>

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

// Segments in the place of sequences. Transfers lie where S will: they are over before that is there, and no segment is so short that there
// would not be room.
static_assert(2 * kHeadSize * kHeadSize * 4 <= kLeastOfSegment / 2 * kStateBytes);
void take_segments(Problem& p, int64_t* bounds) {
  const int64_t size = int64_t{p.N} * p.H * kHeadSize * kHeadSize;
  Segments& all = p.segments;
  all.states = reinterpret_cast<float*>(p.writes), all.transfers = reinterpret_cast<float*>(p.starts), all.turned = all.transfers + size;
  all.owners = reinterpret_cast<int*>(bounds + p.N + 1), all.firsts = all.owners + p.N;
  p.cu_seqlens = bounds, p.initial_state = p.dht = all.states;
}

// Where everything lies that a call leaves for its own kernels.
void take_memory(Problem& p, const Plan& plan, unsigned char* memory) {
  const auto at = [&](WorkPart part) { return memory + plan.before(part); };
  const auto floats = [&](WorkPart part) { return reinterpret_cast<float*>(at(part)); };
  const bool beside = plan.first.walks > 0;
  p.starts = at(kStartsPart), p.ends = at(kEndsPart), p.errors = at(kErrorsPart), p.decays = at(kDecaysPart);
  const int second = beside || plan.walks.groups == 1 ? kTileBytes : 0;  // its place
  p.reverse_tiles = plan.little ? Tiles{p.ends, kStateBytes, second} : Tiles{at(kTilesPart), kTileBytes, 0};
  p.forward_tiles = {p.reverse_tiles.first + kForwardAt, p.reverse_tiles.step, 0};
  if (plan.little && (beside || plan.paired)) p.forward_tiles = {p.errors, kValueBytes, kBoxBytes};
  p.writes = static_cast<uint16_t*>(plan.bytes[kWritesPart] > 0 ? at(kWritesPart) : p.dv);
  p.of_end = floats(kEndPart), p.of_ends = floats(kSumsPart), p.rests = reinterpret_cast<uint4*>(at(kRestsPart));
  if (plan.bytes[kBetasPart] > 0) p.of_betas = floats(kBetasPart);
  if (p.N > 1 && p.N <= kSorted && !beside) p.order = reinterpret_cast<int*>(at(kOrderPart));
  p.queue = reinterpret_cast<Queue*>(at(kQueuePart));
  p.walked = reinterpret_cast<int*>(p.queue + 1), p.ready = p.walked + int64_t{p.places} * p.k_heads;
  if (beside) {
    p.prepared = p.ready + int64_t{p.places} * p.k_heads, p.forward_over = p.prepared + int64_t{p.places} * p.H;
  } else if (plan.paired) {
    p.forward_over = p.ready + int64_t{p.places} * p.k_heads;
  }
  p.kept = floats(kKeptPart);
  p.tellers = beside ? kTellers : kHalves / plan.walks.groups + (plan.paired ? kHalves : 0);
  if (plan.length > 0) {
    take_segments(p, reinterpret_cast<int64_t*>(at(kBoundsPart)));
  }
}

// What the driver says, asked once a device: clocks take it milliseconds.
Gpu gpu_at(int device) {
  constexpr int kKept = 64;
  static std::array<std::once_flag, kKept> asked;
  static std::array<Gpu, kKept> kept;
  const auto ask = [&] {
    const auto say = [&](cudaDeviceAttr what) {
      int value = 0;
      TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&value, what, device));
      return value;
    };
    return gpu_of(say(cudaDevAttrMultiProcessorCount), say(cudaDevAttrMemoryClockRate), say(cudaDevAttrGlobalMemoryBusWidth));
  };
  if (device < 0 || device >= kKept) return ask();
  std::call_once(asked[device], [&] { kept[device] = ask(); });
  return kept[device];
}

void backward(const Call& x, bool k_first) {
  check_shapes(x);
  const DLDevice device = x.q.device();
  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  Problem p = problem_of(x, k_first);
  const Gpu gpu = gpu_at(device.device_id);
  p.multiprocessors = gpu.multiprocessors;
  check_bounds(p, stream);

  const DLDataType type = x.q.dtype();
  const Plan plan = plan_of(p, {same(type, kBFloat16), x.output.has_value(), gpu.quick_memory});
  TVM_FFI_CHECK(int64_t{plan.places} * p.k_heads < (int64_t{1} << 31), ValueError) << plan.places << " chunks are not served";
  p.segments = {p.cu_seqlens, p.initial_state, p.dht, p.N, static_cast<int>(plan.length)};
  p.segments.k_first = p.k_first;
  p.N = plan.N, p.places = plan.places, p.brief = plan.brief;
  const auto workspace = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({plan.all() / 4}), kFloat32, device);
  auto* const memory = static_cast<unsigned char*>(workspace.data_ptr());
  take_memory(p, plan, memory);
  if (plan.first.walks > 0) TVM_FFI_CHECK_CUDA_ERROR(cudaMemsetAsync(p.queue, 0, plan.bytes[kQueuePart], stream));
  void* const given = x.output.has_value() ? x.output.value().data_ptr() : memory + plan.before(kZerosPart);
  if (!x.output.has_value()) TVM_FFI_CHECK_CUDA_ERROR(cudaMemsetAsync(given, 0, plan.bytes[kZerosPart], stream));

  const auto map = [&](void* of, int heads, int halves) { return boxes(of, type, p.tokens, heads, halves); };
  void *const v = x.v.data_ptr(), *const writes = p.writes;
  const Maps maps{map(x.q.data_ptr(), p.q_heads, kHalves), map(x.k.data_ptr(), p.k_heads, kHalves), map(v, p.v_heads, kHalves),
                  map(v, p.v_heads, 1), map(given, p.H, kHalves), map(given, p.H, 1), map(writes, p.H, kHalves), map(writes, p.H, 1)};
  const auto run = same(type, kFloat16) ? launch_all<__half> : launch_all<__nv_bfloat16>;
  run(p, maps, plan, stream);
}

template <bool KFirst>
void gdn_backward(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                  ffi::TensorView cu_seqlens, MaybeTensor initial_state, ffi::Optional<double> scale, MaybeTensor output,
                  MaybeTensor final_state, ffi::TensorView dq, ffi::TensorView dk, ffi::TensorView dv, ffi::TensorView dg,
                  ffi::TensorView dbeta, ffi::TensorView dh0) {
  backward({q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, dq, dk, dv, dg, dbeta, dh0}, KFirst);
}

}  // namespace
