// Prefill of the gated delta rule, chunk by chunk, for sm_90a.
//
// A first kernel finds what needs no state, of every chunk and head on its own (prepare.cuh). In the second a block has one
// (sequence, head), or one slice of its value channels, and advances the state over its chunks in order (advance.cuh),
// which a warp asks for ahead (feed.cuh).
//
// Where few sequences and heads would leave the GPU empty, a sequence is cut into segments, exactly. A first pass has the first
// segment with its outputs, and beside it, without, what each but the last makes of a state of zeros and of the identity; a
// second pass has the outputs of all but the first, and begins with the state before each from those (join.cuh).
#pragma once
#include "advance.cuh"
#include "choose.cuh"
#include "feed.cuh"
#include "prepare.cuh"

namespace {

// Of a thread. At launch each has 128 where two slices are advanced, by four warpgroups, or where two blocks share a
// multiprocessor.
constexpr int kAdvanceRegisters = 208, kFindRegisters = 64, kFeedRegisters = 32, kFeedRegistersOfTwo = 40;

// Warpgroups: those that advance, one that finds P where that is not prepared, one that feeds.
constexpr int threads_of(int groups) { return 128 * (groups + (finds_p(groups) ? 2 : 1)); }
constexpr int blocks_a_multiprocessor(bool output) { return output ? 1 : 2; }
static_assert(sizeof(Shared<2, true>) <= 227 * 1024 && sizeof(Shared<1, false>) <= (227 - 1) * 1024 / 2);

// The grid is (slices, H, N), where blocks decide with as many more as they may need; or (slices, and without output those of
// the identity, H, places of segments behind the first).
template <class E, int Groups, bool Output, bool Checkpoints>
__global__ void __launch_bounds__(threads_of(Groups), blocks_a_multiprocessor(Output))
    gdn_prefill_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  if constexpr (!Output) let_next_begin();
  DYNAMIC_SHARED(memory);
  auto& s = *reinterpret_cast<Block<Groups, Output, Checkpoints>*>(memory);
  const int wg = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  // The bounds are an input: the kernel before does not write them, and has waited for who might have.
  int n = blockIdx.z, x = blockIdx.x, h = blockIdx.y, groups = Groups;
  if (Groups == 2 && p.decides) {
    if (threadIdx.x < 32) {  // the warp that asks for it
      const int block = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
      const Share share = find_share(p, block, reinterpret_cast<float*>(s.boxes));
      n = share.n, h = share.h, x = share.slice, groups = share.groups;
    }
  } else if (p.N > 1 && p.N <= kSorted && (p.length == 0 || p.firsts)) {
    n = find_ranked(p, n, reinterpret_cast<int*>(s.boxes), &s.found);
  }
  Segment segment{n, 0, 0, 0};
  if (p.length != 0) segment = p.firsts ? find_segment(p, 0, 0, n) : find_segment(p, blockIdx.z, Output ? 0 : 1);
  const bool one = blockIdx.x + blockIdx.y + blockIdx.z == 0;
  if (threadIdx.x == 0) {
    s.busy = n >= 0 && find_work<Output>(p, groups, segment, x, h, s.work);
#pragma unroll
    for (int i = 0; i < kStagesOf<Groups, Output, Checkpoints>; ++i) {
      barrier_init(shared_address(&s.full[i]), 1);
      barrier_init(shared_address(&s.v_full[i]), 1);
      barrier_init(shared_address(&s.empty[i]), 4 * groups * kLeavers);
      barrier_init(shared_address(&s.ready[i]), 4 * kLeavers);
    }
    barrier_init(shared_address(&s.tail), 1);
    for (auto& half : s.joining) barrier_init(shared_address(&half), 1);
    barrier_init_done();
  }
  for (auto& tile : s.tile) {
    clear_t(tile, threadIdx.x, threads_of(Groups));
    if constexpr (Output) clear_p(shared_address(tile.P), threadIdx.x, threads_of(Groups));
  }
  fence_async();  // wgmma reads them, and lengths have been written where TMA will
  __syncthreads();
  // Whoever waits for this kernel is to wait for that before it, too: if nobody else here does, one block.
  if (Output && !s.busy) {
    if (one) wait_for_last();
    return;
  }
  if (Groups == 2) groups = s.work.groups;
  if (s.busy && wg < groups) {
    if constexpr (Groups == 2 || !Output) registers_up<kAdvanceRegisters>();
    advance<E, Groups, Output, Checkpoints>(p, s, wg);
  } else if (s.busy && wg == Groups && finds_p(Groups)) {
    if constexpr (finds_p(Groups)) {
      registers_down<kFindRegisters>();
      find_p<E>(p, s);
    }
  } else if (s.busy && wg >= Groups) {
    if constexpr (finds_p(Groups)) registers_down<kFeedRegisters>();
    if constexpr (!Output) registers_down<kFeedRegistersOfTwo>();
    if (threadIdx.x / 32 % 4 == 0) feed(p, s, maps);
  }
  // Nobody has, where it began beside the first segments, or has no chunk to ask for.
  if (one && (!Output || s.work.chunks == 0)) wait_for_last();
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
#include <limits>
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

// How a call is cut up: `groups` slices of a state in a block, segments of `length` chunks (0: none) behind a first one.
struct Cut {
  int groups;
  int64_t first, length;
  bool alone;         // whether a block without outputs has a multiprocessor for itself
  int64_t whole = 0;  // that many (sequence, head) have one block for both slices, those behind them one for each; 0: all ..
  int64_t most = 0;   // .. but for this many sequences, no more, the longest ones, where blocks find that they had better
  bool decides() const { return most + whole > 0; }
};

// Beside inputs and outputs, in units of 4 bytes.
struct Workspace {
  int64_t tiles, states;  // all tiles; the states before all segments, of which there are two kinds
  int64_t all() const { return tiles + 2 * states; }
};

Workspace workspace_of(const Cut& how, int64_t tokens, int64_t sequences, int64_t heads) {
  const int64_t tile = tile_bytes(!finds_p(how.groups)) / static_cast<int64_t>(sizeof(float));
  return {(tokens / kChunk + sequences) * heads * tile,
          how.length == 0 ? 0 : count_places(tokens, sequences, how.first, how.length) * heads * D * D};
}

// The least time as a model has it, with a workspace of no more than `room`. How long each sequence is, the host does not
// know: a few are taken to be as long as each other, and of many the longest to be two or three times as long as the others,
// which then have to hide behind it.
Cut cut(int64_t tokens, int64_t sequences, int64_t heads, int64_t room, int multiprocessors) {
  const int64_t pairs = heads * sequences, last = pairs % multiprocessors;
  const bool two_will_do = pairs > multiprocessors && last > 0 && 2 * last <= multiprocessors;
  const bool may_have_more = pairs > multiprocessors && sequences > 1 && sequences <= kDecided;
#ifdef GDN_CLOCKS
  const auto given = [](const char* name, int otherwise) {  // what else there could be
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::atoi(text);
  };
  if (const int groups = given("GDN_GROUPS", 0); groups != 0) {
    const bool whole = groups == 2 && two_will_do && sequences <= kDecided && given("GDN_LAST", 0) != 0;
    return {groups, given("GDN_FIRST", 0), given("GDN_LENGTH", 0), given("GDN_ALONE", 0) != 0, whole ? pairs - last : 0};
  }
#endif
  // As in choose.cuh. Of a chunk: prepared, by groups; without output, in a block alone or in one of two, where its beginning
  // and end are as long as kAround more, and it begins kLater. Of one more pass, besides kPass; of a state that is joined over
  // a segment.
  constexpr int64_t kPrepare[] = {2100, 1900}, kAlone = 1200, kOfTwo = 1650, kAround = 4, kLater = 9000;
  constexpr int64_t kSecond = 5800, kJoin = 3300;
  const int64_t chunks = tokens / kChunk + sequences;
  const int64_t each = (chunks + sequences - 1) / sequences, longest = sequences < 8 ? 1 : sequences < 16 ? 2 : 3;
  const auto waves = [&](int64_t blocks, int64_t places) { return (blocks + places - 1) / places; };
  Cut best{1, 0, 0, false};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const int groups : {1, 2}) {
    const int64_t blocks = pairs * (groups == 1 ? 2 : 1), cycles = chunk_cycles(groups);
    const int64_t prepared = chunks * heads * kPrepare[groups - 1] / multiprocessors;
    const auto offer = [&](int64_t time, const Cut& how) {
      if (prepared + time < least) least = prepared + time, best = how;
    };
    if (longest > 1) {  // of which each slice may be a block's of its own
      const int64_t one = groups == 2 && may_have_more ? kFindsPCycles : cycles;
      offer(std::max(blocks * each * cycles / multiprocessors, longest * each * one), {groups, 0, 0, false});
      continue;
    }
    offer(waves(blocks, multiprocessors) * (each * cycles + kPass), {groups, 0, 0, false});
    // The last ones may leave half of the multiprocessors idle, or more: then each of them may have two blocks, a slice each.
    if (groups == 2 && two_will_do) {
      const int64_t behind = each * kFindsPCycles + kPass;
      offer(pairs / multiprocessors * (each * cycles + kPass) + behind, {groups, 0, 0, false, pairs - last});
    }
    const int64_t left = multiprocessors - blocks;  // by first segments
    for (int64_t count = 3; left > 0 && count <= 16 && each >= 4 * count; ++count) {
      const int64_t others = 4 * pairs * (count - 2);
      const bool alone = others <= left;
      const int64_t states = alone ? kAlone : waves(others, 2 * left) * kOfTwo;
      // So long that they end with first segments.
      const int64_t even = each * cycles + kPass - kAround * states - kLater;
      const int64_t length = std::clamp<int64_t>(even / (states + (count - 1) * cycles), 1, each / count);
      const Cut how{groups, each - (count - 1) * length, length, alone};
      if (workspace_of(how, tokens, sequences, heads).all() > room) continue;
      const int64_t pass = std::max(how.first * cycles + kPass, (length + kAround) * states + kLater);
      const int64_t outputs = waves(blocks * (count - 1), multiprocessors) * (length * cycles + kPass);
      offer(pass + kSecond + (count - 2) * kJoin + outputs, how);
    }
  }
  // Where there are multiprocessors for all blocks of two slices, and not for all of one. Blocks that decide find P, which
  // one slice alone is the worse for: not where it is better anyhow, as it is with many sequences.
  const bool in_doubt = best.groups == 2 || longest == 2, few = pairs <= multiprocessors && 2 * pairs > multiprocessors;
  if (best.length != 0 || sequences == 1 || sequences > kDecided) return best;
  if (few && in_doubt) best.groups = 2, best.most = sequences;
  // Blocks that turn out to be none come last, and are no more than multiprocessors, or one sequence's.
  if (may_have_more && best.groups == 2) best.most = std::clamp<int64_t>(multiprocessors / heads, 1, sequences);
  return best;
}

// Once a device: more shared memory than there is without asking.
template <class Kernel>
void allow(Kernel kernel, size_t bytes, int device, std::atomic<uint64_t>& allowed) {
  const uint64_t bit = uint64_t{1} << device % 64;
  if ((allowed.load() & bit) != 0) return;
  TVM_FFI_CHECK_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  if (device < 64) allowed.fetch_or(bit);
}

template <class E, bool WithP>
void launch_prepare(const Problem& p, const Maps& maps, int64_t places, int multiprocessors, cudaStream_t stream) {
  constexpr auto kernel = gdn_prepare_kernel<E, WithP>;
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, prepare_bytes(2, WithP), p.device, allowed);
  const int shared = std::min(p.q_group, p.k_group);  // heads that share q and k: products of them are shared
  Group group{};
  group.units = 1, group.heads = std::min(shared, kHeads);
  while (shared % group.heads != 0) --group.heads;
  // Two such, where four warps have a head each then, and multiprocessors two blocks.
  const bool enough = places * p.H / group.heads >= 4 * multiprocessors;
  if (2 * group.heads <= kHeads && p.H / group.heads % 2 == 0 && enough) group.units = 2;
  group.of_query_head = p.q_group / group.heads, group.of_key_head = p.k_group / group.heads;
  const dim3 grid(static_cast<unsigned>(places), static_cast<unsigned>(p.H / (group.units * group.heads)));
  kernel<<<grid, 128, prepare_bytes(group.units, WithP), stream>>>(p, maps.q, maps.k, group);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

// Of a kernel that begins while the last blocks of the one before are busy, and waits for it itself.
template <class Kernel, class... Arguments>
void launch_early(Kernel kernel, dim3 grid, int threads, size_t bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, arguments...));
}

constexpr size_t kMoreThanHalf = 116 * 1024;  // of a multiprocessor's shared memory: what asks for it is alone there

// Of one kernel that advances: so many slices and, in z, sequences or places of segments.
template <class E, int Groups, bool Output, bool Checkpoints>
void launch(const Problem& p, const Maps& maps, int slices, int64_t z, bool alone, cudaStream_t stream) {
  constexpr auto kernel = gdn_prefill_kernel<E, Groups, Output, Checkpoints>;
  constexpr size_t kBytes = kBlockBytes<Groups, Output, Checkpoints>;
  constexpr size_t kMost = std::max(kBytes, kMoreThanHalf);
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, kMost, p.device, allowed);
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(p.H), static_cast<unsigned>(z));
  launch_early(kernel, grid, threads_of(Groups), alone ? kMost : kBytes, stream, p, maps);
}

template <class E, int Groups, bool Checkpoints>
void launch_all(const Problem& p, const Maps& maps, int64_t places, const Cut& how, int multiprocessors, cudaStream_t stream) {
  launch_prepare<E, !finds_p(Groups)>(p, maps, places, multiprocessors, stream);
  constexpr int kSlices = D / (Groups * kSlice);
  if (p.length == 0) {
    return launch<E, Groups, true, Checkpoints>(p, maps, kSlices, p.N + more_blocks(p), true, stream);
  }
  Problem firsts = p;
  firsts.firsts = true;
  launch<E, Groups, true, Checkpoints>(firsts, maps, kSlices, p.N, true, stream);
  if (p.segments > 1) {  // the last one of a sequence leaves no state to another
    launch<E, 1, false, false>(p, maps, 2 * (D / kSlice), p.segments - (p.N == 1), how.alone, stream);
  }
  if (p.segments > 0) launch<E, Groups, true, Checkpoints>(p, maps, kSlices, p.segments, true, stream);
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
  if (checkpoints.has_value()) {
    p.checkpoints = pointer<float>(checkpoints), p.checkpoint_starts = pointer<const int64_t>(checkpoint_cu_starts);
    p.num_checkpoints = checkpoints.value().size(0), p.every = static_cast<int>(interval / kChunk);
  }
  check_bounds(p, interval, stream);

  const int64_t places = T / kChunk + N;
  TVM_FFI_CHECK(places < (int64_t{1} << 31), ValueError) << places << " chunks are not served";
  const int64_t given = T * D * (HQ + HK + HV) / 2 + (g.has_value() + beta.has_value()) * T * H +
                        initial_state.has_value() * N * H * D * D;  // in units of 4 bytes
  const Cut how = cut(T, N, H, given + given / 2, multiprocessors);
  const Workspace size = workspace_of(how, T, N, H);
  p.decides = how.decides(), p.multiprocessors = multiprocessors;
  p.whole = static_cast<int>(how.whole), p.most = static_cast<int>(how.most);
  if (how.length > 0) {
    p.first = static_cast<int>(how.first), p.length = static_cast<int>(how.length);
    p.segments = count_places(T, N, how.first, how.length);
    TVM_FFI_CHECK(p.segments <= 65535, ValueError) << p.segments << " segments are not served";
  }
  const auto workspace = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({size.all()}), kFloat32, device);
  p.tiles = static_cast<unsigned char*>(workspace.data_ptr()), p.tile_bytes = tile_bytes(!finds_p(how.groups));
  p.before = static_cast<float*>(workspace.data_ptr()) + size.tiles, p.transfer = p.before + size.states;
#ifdef GDN_CLOCKS
  p.clocks = clocks_to;
#endif
  const Maps maps{boxes(q, 2), boxes(k, 2), boxes(v, how.groups), boxes(output, how.groups), boxes(v, 1), boxes(output, 1)};
  const auto run = [&](auto launched) { launched(p, maps, places, how, multiprocessors, stream); };
  const auto run_typed = [&]<class E>() {
    if (p.every != 0) return run(how.groups == 1 ? launch_all<E, 1, true> : launch_all<E, 2, true>);
    run(how.groups == 1 ? launch_all<E, 1, false> : launch_all<E, 2, false>);
  };
  same(type, kFloat16) ? run_typed.template operator()<__half>() : run_typed.template operator()<__nv_bfloat16>();
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
