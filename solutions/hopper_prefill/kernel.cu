// Prefill of the gated delta rule, chunk by chunk, for sm_90a, in one kernel.
//
// A block has one (sequence, head), or one slice of its value channels, and goes over its chunks in order: one warpgroup
// asks for boxes and finds decays and P (feed.cuh), one finds T (invert.cuh), a chunk ahead of the others, which advance
// the state (advance.cuh).
//
// Where few sequences and heads would leave the GPU empty, a sequence is cut into segments, exactly. A first pass has the
// first segment, and of each other but the last what it adds to a state of zeros and what it makes of the identity; `join`
// has the state before every segment from them (join.cuh); a second pass has the others.

#include "advance.cuh"
#include "feed.cuh"
#include "invert.cuh"
#include "join.cuh"

namespace {

// Registers of a thread, by what its warpgroup does: together no more than at launch, 4 x 128 or 3 x 168.
struct Registers {
  int advance, invert, feed;
};
constexpr Registers registers_of(int groups) { return groups == 2 ? Registers{192, 64, 64} : Registers{208, 144, 144}; }

constexpr int threads_of(int groups) { return 128 * (groups + 2); }
static_assert(sizeof(Shared<2>) <= 227 * 1024);

// The grid is (slices, H, N), or (slices, of the identity too in the first pass, H, places of segments).
template <class E, int Groups>
__global__ void __launch_bounds__(threads_of(Groups), 1) gdn_prefill_kernel(const __grid_constant__ Problem p,
                                                                            const __grid_constant__ CUtensorMap q_map,
                                                                            const __grid_constant__ CUtensorMap k_map,
                                                                            const __grid_constant__ CUtensorMap v_map) {
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Shared<Groups>*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  int n = blockIdx.z;
  if (p.length != 0) {
    n = find_sequence(p, blockIdx.z);
  } else if (p.N > 1 && p.N <= kSorted) {
    n = find_ranked(p, n, reinterpret_cast<int*>(s.tile), &s.found);
  }
  if (threadIdx.x == 0) {
    s.busy = find_work<Groups>(p, n, blockIdx.x, blockIdx.y, blockIdx.z, s.work);
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&s.full[i]), 1);
      barrier_init(shared_address(&s.empty[i]), 4 * Groups);
      barrier_init(shared_address(&s.ready[i]), 8);
    }
#pragma unroll
    for (int i = 0; i < kDecays; ++i) barrier_init(shared_address(&s.known[i]), 4);
    barrier_init(shared_address(&s.tail), 1);
    barrier_init_done();
  }
  // What is above the diagonal is never written again.
  for (int at = threadIdx.x; at < kStages * static_cast<int>(sizeof(Tile)) / 16; at += threads_of(Groups)) {
    reinterpret_cast<uint4*>(s.tile)[at] = make_uint4(0, 0, 0, 0);
  }
  fence_async();
  __syncthreads();
  if (!s.busy) return;
  constexpr Registers kRegisters = registers_of(Groups);
  if (wg < Groups) {
    registers_up<kRegisters.advance>();
    advance<E, Groups>(p, s, wg);
  } else if (wg == Groups) {
    registers_down<kRegisters.invert>();
    invert<E, Groups>(p, s);
  } else {
    registers_down<kRegisters.feed>();
    feed<E, Groups>(p, s, q_map, k_map, v_map);
  }
}

}  // namespace

// --- host -------------------------------------------------------------------------------------------------------

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/base.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace {

namespace ffi = tvm::ffi;
using MaybeTensor = ffi::Optional<ffi::TensorView>;

constexpr DLDataType kBFloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat16{kDLFloat, 16, 1};
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt64{kDLInt, 64, 1};

bool same(DLDataType x, DLDataType y) { return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes; }

const char* name_of(DLDataType x) {
  if (same(x, kBFloat16)) return "bfloat16";
  if (same(x, kFloat16)) return "float16";
  if (same(x, kFloat32)) return "float32";
  if (same(x, kInt64)) return "int64";
  if (same(x, {kDLFloat, 64, 1})) return "float64";
  if (same(x, {kDLInt, 32, 1})) return "int32";
  return "of another type";
}

void require(const char* name, const ffi::TensorView& x, DLDataType dtype, DLDevice device,
             std::initializer_list<int64_t> shape) {
  TVM_FFI_CHECK(same(x.dtype(), dtype), ValueError) << name << " is " << name_of(x.dtype()) << ", not " << name_of(dtype);
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA && x.device().device_id == device.device_id, ValueError)
      << name << " is not on the GPU that holds q";
  TVM_FFI_CHECK(x.ndim() == static_cast<int32_t>(shape.size()), ValueError)
      << name << " has " << x.ndim() << " dimensions, not " << shape.size();
  for (int32_t i = 0; i < x.ndim(); ++i) {
    TVM_FFI_CHECK(x.size(i) == shape.begin()[i], ValueError)
        << name << " has size " << x.size(i) << " in dimension " << i << ", not " << shape.begin()[i];
  }
  TVM_FFI_CHECK(x.IsContiguous(), ValueError) << name << " is not contiguous";
  TVM_FFI_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0, ValueError)
      << name << " does not start at a multiple of 16 bytes";
}

// Boxes of 64 tokens and 64 channels of one head, `halves` of them, of x [T, heads, D]; zeros behind the last token.
CUtensorMap boxes(const ffi::TensorView& x, int halves) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    TVM_FFI_CHECK(result == cudaDriverEntryPointSuccess && found != nullptr, RuntimeError)
        << "the driver has no cuTensorMapEncodeTiled";
    return reinterpret_cast<Encode>(found);
  }();
  CUtensorMap map{};
  if (x.size(0) == 0) return map;
  const auto heads = static_cast<cuuint64_t>(x.size(1)), tokens = static_cast<cuuint64_t>(x.size(0));
  const cuuint64_t sizes[] = {D / 2, tokens, 2, heads}, strides[] = {2 * D * heads, D, 2 * D};
  const cuuint32_t box[] = {D / 2, kChunk, static_cast<cuuint32_t>(halves), 1}, steps[] = {1, 1, 1, 1};
  const auto type = same(x.dtype(), kFloat16) ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult error =
      encode(&map, type, 4, x.data_ptr(), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TVM_FFI_CHECK(error == CUDA_SUCCESS, RuntimeError) << "cuTensorMapEncodeTiled failed with " << error;
  return map;
}

template <class T>
T* pointer(const MaybeTensor& x) {
  return x.has_value() ? static_cast<T*>(x.value().data_ptr()) : nullptr;
}

// For debugging: with GDNSPEC_DEBUG=1 a call waits for bounds that lie on the device and checks what the definitions ask of
// them. Without, bounds outside of the tensors are taken as their ends.
std::vector<int64_t> copied(const int64_t* from, int64_t count, cudaStream_t stream) {
  std::vector<int64_t> to(count, 0);
  TVM_FFI_CHECK_CUDA_ERROR(cudaMemcpyAsync(to.data(), from, count * sizeof(int64_t), cudaMemcpyDeviceToHost, stream));
  TVM_FFI_CHECK_CUDA_ERROR(cudaStreamSynchronize(stream));
  return to;
}

void check_bounds(const Problem& p, int64_t interval, cudaStream_t stream) {
  static const char* given = std::getenv("GDNSPEC_DEBUG");
  if (given == nullptr || given[0] != '1' || given[1] != '\0') return;
  const auto starts = copied(p.cu_seqlens, p.N + 1, stream);
  TVM_FFI_CHECK(starts.front() == 0 && starts.back() == p.tokens && std::is_sorted(starts.begin(), starts.end()), ValueError)
      << "cu_seqlens must rise from 0 to total_seq_len " << p.tokens;
  if (interval == 0) return;
  const auto rows = copied(p.checkpoint_starts, p.N + 1, stream);
  TVM_FFI_CHECK(rows.front() == 0 && rows.back() == p.num_checkpoints, ValueError)
      << "checkpoint_cu_starts must rise from 0 to num_checkpoints " << p.num_checkpoints;
  for (int n = 0; n < p.N; ++n) {
    const int64_t count = (starts[n + 1] - starts[n]) / interval;
    TVM_FFI_CHECK(rows[n + 1] - rows[n] == count, ValueError)
        << "sequence " << n << " has " << count << " checkpoints; checkpoint_cu_starts says " << rows[n + 1] - rows[n];
  }
}

// How a call is cut up: `groups` slices of a state in a block, segments of `length` chunks (0: none).
struct Cut {
  int groups;
  int64_t length;
};

Cut cut(int64_t pairs, int64_t sequences, int64_t chunks, int multiprocessors) {
#ifdef GDN_CLOCKS
  const char *groups = std::getenv("GDN_GROUPS"), *length = std::getenv("GDN_LENGTH");  // what else there could be
  if (groups != nullptr) return {std::atoi(groups), length == nullptr ? 0 : std::atoi(length)};
#endif
  // As many segments as give every multiprocessor one block of the first pass, which has 2 (count - 2) + 1 of each pair.
  const int64_t count = (multiprocessors / pairs + 3) / 2;
  if (count >= 3 && chunks / sequences >= 24) {
    return {2, std::max<int64_t>(8, (chunks + sequences * count - 1) / (sequences * count))};
  }
  return {2 * pairs > multiprocessors ? 2 : 1, 0};
}

template <class E, int Groups>
void launch(Problem p, const CUtensorMap& q_map, const CUtensorMap& k_map, const CUtensorMap& v_map, cudaStream_t stream) {
  constexpr auto kernel = gdn_prefill_kernel<E, Groups>;
  constexpr int kSlices = D / (Groups * kSlice);
  static std::atomic<uint64_t> allowed{0};  // by device
  const uint64_t device = uint64_t{1} << p.device % 64;
  if ((allowed.load() & device) == 0) {
    TVM_FFI_CHECK_CUDA_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared<Groups>))));
    if (p.device < 64) allowed.fetch_or(device);
  }
  const auto run = [&](int slices, int64_t z) {
    const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(p.H), static_cast<unsigned>(z));
    kernel<<<grid, threads_of(Groups), sizeof(Shared<Groups>), stream>>>(p, q_map, k_map, v_map);
    TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  };
  if (p.length == 0) return run(kSlices, p.N);
  run(2 * kSlices, p.segments);
  const dim3 grid(D / kJoinRows, static_cast<unsigned>(p.H), static_cast<unsigned>(p.N));
  gdn_join_kernel<<<grid, kJoinParts * D, kJoinBytes, stream>>>(p);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  p.pass = 2;
  run(kSlices, p.segments);
}

#ifdef GDN_CLOCKS
unsigned* clocks_to = nullptr;
void set_clocks(ffi::TensorView to) { clocks_to = static_cast<unsigned*>(to.data_ptr()); }
#endif

// Shapes as in the definitions; `interval` in tokens, 0 without checkpoints.
void prefill(bool k_first, const ffi::TensorView& q, const ffi::TensorView& k, const ffi::TensorView& v, const MaybeTensor& g,
             const MaybeTensor& beta, const ffi::TensorView& cu_seqlens, const MaybeTensor& initial_state,
             ffi::Optional<double> scale, const ffi::TensorView& output, const ffi::TensorView& final_state,
             const MaybeTensor& checkpoint_cu_starts, int64_t interval, const MaybeTensor& checkpoints) {
  TVM_FFI_CHECK(q.ndim() == 3 && k.ndim() == 3 && v.ndim() == 3, ValueError) << "q, k and v have three dimensions";
  TVM_FFI_CHECK(cu_seqlens.ndim() == 1 && cu_seqlens.size(0) >= 2, ValueError) << "cu_seqlens has num_seqs + 1 entries";
  const DLDevice device = q.device();
  TVM_FFI_CHECK(device.device_type == kDLCUDA, ValueError) << "q is not on a GPU";
  const int64_t T = q.size(0), HQ = q.size(1), HK = k.size(1), HV = v.size(1), H = std::max(HQ, HV);
  const int64_t N = cu_seqlens.size(0) - 1;
  TVM_FFI_CHECK(q.size(2) == D, ValueError) << "head_size " << q.size(2) << " is not served: 128 is";
  TVM_FFI_CHECK(HQ > 0 && HK > 0 && HV > 0 && ((HK == HV && HQ % HK == 0) || (HQ == HK && HV % HQ == 0)), ValueError)
      << HQ << " query, " << HK << " key and " << HV << " value heads are neither GQA nor GVA";
  TVM_FFI_CHECK(T < (int64_t{1} << 31) - kChunk && N <= 65535 && H <= 65535, ValueError)
      << T << " tokens, " << N << " sequences and " << H << " heads are not served";
  const DLDataType type = q.dtype();
  TVM_FFI_CHECK(same(type, kBFloat16) || same(type, kFloat16), ValueError)
      << "q is " << name_of(type) << ", not bfloat16 or float16";
  require("q", q, type, device, {T, HQ, D});
  require("k", k, type, device, {T, HK, D});
  require("v", v, type, device, {T, HV, D});
  if (g.has_value()) require("g", g.value(), kFloat32, device, {T, H});
  if (beta.has_value()) require("beta", beta.value(), kFloat32, device, {T, H});
  require("cu_seqlens", cu_seqlens, kInt64, device, {N + 1});
  if (initial_state.has_value()) require("initial_state", initial_state.value(), kFloat32, device, {N, H, D, D});
  require("output", output, type, device, {T, H, D});
  require("final_state", final_state, kFloat32, device, {N, H, D, D});
  if (checkpoints.has_value()) {
    TVM_FFI_CHECK(interval > 0 && interval % kChunk == 0 && interval / kChunk < (int64_t{1} << 31), ValueError)
        << "checkpoint_interval " << interval << " is no positive multiple of " << kChunk;
    require("checkpoint_cu_starts", checkpoint_cu_starts.value(), kInt64, device, {N + 1});
    TVM_FFI_CHECK(checkpoints.value().ndim() == 4, ValueError)
        << "checkpoints has " << checkpoints.value().ndim() << " dimensions, not 4";
    require("checkpoints", checkpoints.value(), kFloat32, device, {checkpoints.value().size(0), H, D, D});
  }

  const ffi::CUDADeviceGuard guard(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  int multiprocessors = 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.device_id));
  Problem p{};
  p.device = device.device_id;
  p.cu_seqlens = static_cast<const int64_t*>(cu_seqlens.data_ptr());
  p.g = pointer<const float>(g), p.beta = pointer<const float>(beta);
  p.initial_state = pointer<const float>(initial_state);
  p.output = output.data_ptr();
  p.final_state = static_cast<float*>(final_state.data_ptr());
  p.tokens = T;
  p.N = static_cast<int>(N), p.H = static_cast<int>(H);
  p.q_group = static_cast<int>(H / HQ), p.k_group = static_cast<int>(H / HK), p.v_group = static_cast<int>(H / HV);
  p.scale = static_cast<float>(scale.has_value() ? scale.value() : 1.0 / std::sqrt(static_cast<double>(D)));
  p.k_first = p.log_gates = k_first;
  p.pass = 1;
  if (checkpoints.has_value()) {
    p.checkpoints = pointer<float>(checkpoints), p.checkpoint_starts = pointer<const int64_t>(checkpoint_cu_starts);
    p.num_checkpoints = checkpoints.value().size(0), p.every = static_cast<int>(interval / kChunk);
  }
  check_bounds(p, interval, stream);

  const int64_t places = T / kChunk + N;
  const Cut how = cut(H * N, N, places, multiprocessors);
  ffi::Optional<ffi::Tensor> workspace;
  if (how.length > 0) {
    p.length = static_cast<int>(how.length), p.segments = places / how.length + N;
    TVM_FFI_CHECK(p.segments <= 65535, ValueError) << p.segments << " segments are not served";
    const int64_t states = p.segments * H * D * D;
    workspace = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({3 * states}), kFloat32, device);
    p.start = static_cast<float*>(workspace.value().data_ptr());
    p.local = p.start + states, p.transfer = p.local + states;
  }
#ifdef GDN_CLOCKS
  p.clocks = clocks_to;
#endif
  const CUtensorMap q_map = boxes(q, 2), k_map = boxes(k, 2), v_map = boxes(v, how.groups);
  const auto run = [&](auto launched) { launched(p, q_map, k_map, v_map, stream); };
  if (same(type, kFloat16)) {
    run(how.groups == 1 ? launch<__half, 1> : launch<__half, 2>);
  } else {
    run(how.groups == 1 ? launch<__nv_bfloat16, 1> : launch<__nv_bfloat16, 2>);
  }
}

template <bool KFirst>
void gdn_prefill(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                 ffi::TensorView cu_seqlens, MaybeTensor initial_state, ffi::Optional<double> scale, ffi::TensorView output,
                 ffi::TensorView final_state) {
  prefill(KFirst, q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, {}, 0, {});
}

void gdn_prefill_checkpoints(ffi::TensorView q, ffi::TensorView k, ffi::TensorView v, MaybeTensor g, MaybeTensor beta,
                             ffi::TensorView cu_seqlens, MaybeTensor initial_state, ffi::Optional<double> scale,
                             ffi::TensorView checkpoint_cu_starts, int64_t checkpoint_interval, ffi::TensorView output,
                             ffi::TensorView final_state, ffi::TensorView checkpoints) {
  prefill(false, q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, checkpoint_cu_starts,
          checkpoint_interval, checkpoints);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_last, gdn_prefill<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_k_first, gdn_prefill<true>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gdn_prefill_checkpoints, gdn_prefill_checkpoints);
#ifdef GDN_CLOCKS
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_clocks, set_clocks);
#endif
