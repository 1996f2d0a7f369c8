// The kernels of one call, one after the other.
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include <algorithm>
#include <atomic>

#include "brief.cuh"
#include "forward.cuh"
#include "carry.cuh"
#include "first.cuh"
#include "segments.cuh"
#include "plan.cuh"
#include "together.cuh"
#include "values.cuh"

namespace {

// More shared memory than there is without asking, which is asked for once a device.
template <class Kernel>
void allow(Kernel kernel, size_t bytes, int device, std::atomic<uint64_t>& allowed) {
  const uint64_t bit = uint64_t{1} << device % 64;
  if ((allowed.load() & bit) != 0) return;
  TVM_FFI_CHECK_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  if (device < 64) allowed.fetch_or(bit);
}

// `most`: whatever a call needs.
template <class Kernel, class... Arguments>
void launch_within(size_t most, Kernel kernel, std::atomic<uint64_t>& allowed, int device, dim3 grid, int threads, size_t bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  allow(kernel, most, device, allowed);
  kernel<<<grid, threads, bytes, stream>>>(arguments...);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

template <class Kernel, class... Arguments>
void launch(Kernel kernel, std::atomic<uint64_t>& allowed, int device, dim3 grid, int threads, size_t bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  launch_within(bytes, kernel, allowed, device, grid, threads, bytes, stream, arguments...);
}

dim3 grid_of(int64_t x, int64_t y, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

template <class E>
void launch_prepare(const Problem& p, const Maps& maps, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed{0};
  const Group group = group_of(p);
  const dim3 grid = grid_of(p.places + 1, p.H / (group.units * group.heads));
  const int bytes = prepare_bytes(group.units);
  launch_within(prepare_bytes(2), gdn_prepare_kernel<E>, allowed, p.device, grid, 128, bytes, stream, p, maps.q, maps.k, group);
}

template <class E, int Groups, int Blocks>
void launch_forward(const Problem& p, const Maps& maps, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed{0};
  if (p.tokens == 0) return;
  const dim3 grid = grid_of(kHalves / Groups, p.H, p.brief > 0 ? std::min<int64_t>(p.N, p.tokens / (p.brief + 1)) : p.N);
  constexpr size_t kBytes = sizeof(ForwardShared<Groups, Blocks>);
  launch(gdn_forward_kernel<E, Groups, Blocks>, allowed, p.device, grid, kWalkThreads<Groups>, kBytes, stream, p, maps);
}

// Before the kernel before is over, which says when.
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, int threads, size_t bytes, cudaStream_t stream, bool early, const Arguments&... arguments) {
  cudaLaunchAttribute beside{};
  beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes, config.stream = stream;
  config.attrs = &beside, config.numAttrs = early ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// Early: beside the kernel before. Beside: that is the forward walk.
template <class E, int Groups, bool Beside = false, bool Even = false>
void launch_together(const Problem& p, const Maps& maps, const Walks& walks, bool early, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed{0};
  const int64_t jobs = int64_t{p.N} * p.H * kHalves / Groups;
  const auto at_most = [&](int64_t most) { return static_cast<int>(std::min<int64_t>({jobs, most, p.multiprocessors})); };
  const int walkers = at_most(walks.most), even = at_most(walks.even);
  const int64_t blocks = std::min<int64_t>(p.multiprocessors, std::max<int64_t>(walkers, int64_t{p.places} * p.k_heads));
  const auto kernel = gdn_together_kernel<E, Groups, Beside, Even>;
  allow(kernel, sizeof(GradientShared), p.device, allowed);
  launch_early(kernel, grid_of(blocks, 1), kGradientBlock, sizeof(GradientShared), stream, early, p, maps, walkers, even);
}

// Alone: no sequence can be longer.
template <class E>
void launch_brief(const Problem& p, const Maps& maps, bool alone, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed{0};
  const dim3 grid = grid_of(std::min<int64_t>(p.multiprocessors, int64_t{p.N} * p.k_heads), 1);
  launch(gdn_brief_kernel<E>, allowed, p.device, grid, kBriefThreads, sizeof(BriefShared), stream, p, maps, alone);
}

// Where sequences are cut, and the states there.
void launch_cut(const Problem& p, cudaStream_t stream) {
  gdn_cut_kernel<<<1, kCutThreads, 0, stream>>>(p, const_cast<int64_t*>(p.cu_seqlens));
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}
template <class E>
void launch_segments(const Problem& p, const Maps& maps, cudaStream_t stream) {
  static std::atomic<uint64_t> carry{0}, join{0};
  launch(gdn_carry_kernel<E>, carry, p.device, grid_of(3, p.H, p.N), kWalkThreads<2>, kCarryBytes, stream, p, maps);
  launch(gdn_join_kernel, join, p.device, grid_of(2 * kJoinBlocks, p.H, p.segments.N), kJoinThreads, sizeof(JoinShared), stream, p);
}

template <class E>
void launch_beside(const Problem& p, const Maps& maps, const First& first, cudaStream_t stream) {
  if constexpr (kDivides<E>) {
    static std::atomic<uint64_t> allowed{0};
    const dim3 grid = grid_of(first.prepare + 2 * first.walks, 1);
    launch(gdn_first_kernel<E>, allowed, p.device, grid, kFirstThreads, kFirstBytes, stream, p, maps, first, 0);
    launch_together<E, 2>(p, maps, {}, true, stream);
  }
}

template <class E>
void launch_apart(const Problem& p, const Maps& maps, const Plan& plan, cudaStream_t stream) {
  if (p.segments.owners != nullptr) launch_cut(p, stream);
  launch_prepare<E>(p, maps, stream);
  if (p.brief > 0) launch_brief<E>(p, maps, plan.alone, stream);
  if (plan.alone) return;
  if (p.segments.owners != nullptr) launch_segments<E>(p, maps, stream);
  const auto forward = plan.forward_short ? launch_forward<E, 1, 2> : plan.forward_both ? launch_forward<E, 2, 1> : launch_forward<E, 1, 1>;
  forward(p, maps, stream);
  const auto together = plan.walks.groups == 1 ? launch_together<E, 1> : plan.walks.even > 0 ? launch_together<E, 2, false, true> : launch_together<E, 2>;
  together(p, maps, plan.walks, false, stream);
}

// The walk back beside the forward walk. Each kernel begins once the one before has, and waits for what it needs.
template <class E>
void launch_paired(const Problem& p, const Maps& maps, const Plan& plan, cudaStream_t stream) {
  if constexpr (kDivides<E>) {
    static std::atomic<uint64_t> allowed{0};
    constexpr size_t kBytes = sizeof(ForwardShared<1>);
    launch_prepare<E>(p, maps, stream);
    allow(gdn_forward_beside_kernel<E>, kBytes, p.device, allowed);
    launch_early(gdn_forward_beside_kernel<E>, grid_of(kHalves, p.H, p.N), kWalkThreads<1>, kBytes, stream, true, p, maps);
    launch_together<E, 2, true>(p, maps, plan.walks, true, stream);
  }
}

template <class E>
void launch_all(const Problem& p, const Maps& maps, const Plan& plan, cudaStream_t stream) {
  if (plan.first.walks > 0) {
    launch_beside<E>(p, maps, plan.first, stream);
  } else if (plan.paired) {
    launch_paired<E>(p, maps, plan, stream);
  } else {
    launch_apart<E>(p, maps, plan, stream);
  }
  if (p.v_group > 1 && p.tokens > 0) {
    launch_early(gdn_values_kernel<E>, grid_of(p.places, p.v_heads), kValueThreads, 0, stream, plan.paired, p);
  }
}

}  // namespace
