// The kernels of one call. Each may begin while the last blocks of the one before are busy, and waits for it itself.
//
//   order   ──> all, where blocks prepare their own chunks; without it, where each has one (sequence, head)
//   order   ──> sequences of few tokens, in the meantime ──> the others, which prepare their own chunks
//   prepare ──> all, where nothing is cut
//   prepare and order ──> all in one kernel ──> all, where lengths decide between these: blocks of the first and the last, or of
//                                               that between them, leave at once
//   prepare ──> the first segments, with outputs ┐
//          └──> those between them and the last, ┴──> all but the first, with outputs
//               states alone: beside the first
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include <atomic>

#include "cut.cuh"
#include "few.cuh"
#include "long.cuh"
#include "prefill.cuh"
#include "stay.cuh"

namespace {

// Once a device: more shared memory than there is without asking.
template <class Kernel>
void allow(Kernel kernel, size_t bytes, int device, std::atomic<uint64_t>& allowed) {
  const uint64_t bit = uint64_t{1} << device % 64;
  if ((allowed.load() & bit) != 0) return;
  TVM_FFI_CHECK_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  if (device < 64) allowed.fetch_or(bit);
}

template <class E, int D, bool WithP>
void launch_prepare(const Problem& p, const Maps& maps, int64_t places, int multiprocessors, cudaStream_t stream) {
  constexpr auto kernel = gdn_prepare_kernel<E, D, WithP>;
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, prepare_bytes<D>(2, WithP), p.device, allowed);
  const int shared = std::min(p.q_group, p.k_group);  // heads that share q and k: products of them are shared
  Group group{};
  group.units = 1, group.heads = std::min(shared, kHeads);
  while (shared % group.heads != 0) --group.heads;
  // Two such, where four warps have a head each then, and multiprocessors two blocks.
  const bool enough = places * p.H / group.heads >= 4 * multiprocessors;
  if (2 * group.heads <= kHeads && p.H / group.heads % 2 == 0 && enough) group.units = 2;
  group.of_query_head = p.q_group / group.heads, group.of_key_head = p.k_group / group.heads;
  const dim3 grid(static_cast<unsigned>(places + (p.stays != 0)), static_cast<unsigned>(p.H / (group.units * group.heads)));
  kernel<<<grid, 128, prepare_bytes<D>(group.units, WithP), stream>>>(p, maps.q, maps.k, group);
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
template <class E, int D, int Groups, bool Output, bool Checkpoints>
void launch(const Problem& p, const Maps& maps, int slices, int64_t z, bool alone, cudaStream_t stream) {
  constexpr auto kernel = gdn_prefill_kernel<E, D, Groups, Output, Checkpoints>;
  constexpr size_t kBytes = kBlockBytes<D, Groups, Output, Checkpoints>;
  constexpr size_t kMost = std::max(kBytes, kMoreThanHalf);
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, kMost, p.device, allowed);
  const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(p.H), static_cast<unsigned>(z));
  launch_early(kernel, grid, threads_of(Groups), alone ? kMost : kBytes, stream, p, maps);
}

template <class E>
void launch_staying(const Problem& p, const Maps& maps, int64_t places, int multiprocessors, cudaStream_t stream) {
  launch_prepare<E, kStaySize, false>(p, maps, places, multiprocessors, stream);
  constexpr auto kernel = gdn_stay_kernel<E>;
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, sizeof(Staying), p.device, allowed);
  launch_early(kernel, dim3(static_cast<unsigned>(p.stays)), kStayThreads, sizeof(Staying), stream, p, maps);
}

void launch_order(const Problem& p, cudaStream_t stream) {
  gdn_order_kernel<kOrderThreads><<<1, kOrderThreads, kBins * sizeof(int), stream>>>(p);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

// q, k and v where no box of them is asked for.
struct Tokens {
  const void *q, *k, *v;
};

template <class E>
void launch_short(const Problem& p, const Maps& maps, const ShortMaps& parts, const Tokens& tokens, cudaStream_t stream) {
  launch_order(p, stream);
  if (p.few > 0) {
    const dim3 grid(kFewBlocks, static_cast<unsigned>(p.H), static_cast<unsigned>(p.N));
    const auto of = [](const void* x) { return static_cast<const E*>(x); };
    launch_early(gdn_few_kernel<E>, grid, kFewThreads, 0, stream, p, of(tokens.q), of(tokens.k), of(tokens.v));
  }
  constexpr auto kernel = gdn_short_kernel<E>;
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, sizeof(Short), p.device, allowed);
  launch_early(kernel, dim3(static_cast<unsigned>(p.stays)), kShortThreads, sizeof(Short), stream, p, maps, parts);
}

template <class E>
auto allow_long(int device) {
  constexpr auto kernel = gdn_long_kernel<E>;
  static std::atomic<uint64_t> allowed{0};
  allow(kernel, sizeof(Long), device, allowed);
  return kernel;
}

// Behind the order of sequences.
template <class E>
void launch_long_early(const Problem& p, const Maps& maps, cudaStream_t stream) {
  const auto kernel = allow_long<E>(p.device);
  launch_early(kernel, dim3(static_cast<unsigned>(p.stays)), kLongThreads, sizeof(Long), stream, p, maps);
}

// Behind the order of sequences, if blocks have several, it may begin early; else it is the call's first kernel, which what is
// before the call knows nothing of.
template <class E>
void launch_long(const Problem& p, const Maps& maps, cudaStream_t stream) {
  if (p.queue != nullptr) {
    launch_order(p, stream);
    return launch_long_early<E>(p, maps, stream);
  }
  allow_long<E>(p.device)<<<p.stays, kLongThreads, sizeof(Long), stream>>>(p, maps);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

template <class E, int D, int Groups, bool Checkpoints>
void launch_all(const Problem& p, const Maps& maps, int64_t places, const Cut& how, int multiprocessors, cudaStream_t stream) {
  launch_prepare<E, D, !finds_p(Groups)>(p, maps, places, multiprocessors, stream);
  constexpr int kSlices = D / (Groups * kSlice);
  constexpr bool kAlone = kBlocksTogether<D, Groups, true> == 1;
  if constexpr (kLongFits && D == kStaySize && Groups == 2 && !Checkpoints) {
    if (p.one_up_to > 0) launch_long_early<E>(p, maps, stream);
  }
  if (p.length == 0) return launch<E, D, Groups, true, Checkpoints>(p, maps, kSlices, p.N + more_blocks(p), kAlone, stream);
  Problem firsts = p;
  firsts.firsts = true;
  launch<E, D, Groups, true, Checkpoints>(firsts, maps, kSlices, p.N, kAlone, stream);
  if (p.segments > 1) {  // the last one of a sequence leaves no state to another
    launch<E, D, 1, false, false>(p, maps, 2 * (D / kSlice), p.segments - (p.N == 1), how.alone, stream);
  }
  if (p.segments > 0) launch<E, D, Groups, true, Checkpoints>(p, maps, kSlices, p.segments, kAlone, stream);
}

}  // namespace
