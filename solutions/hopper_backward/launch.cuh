// The kernels of one call, one after the other.
#pragma once
#include <tvm/ffi/extra/cuda/base.h>

#include <algorithm>
#include <atomic>

#include "forward.cuh"
#include "gradients.cuh"
#include "prepare.cuh"
#include "reverse.cuh"
#include "values.cuh"

namespace {

// With more shared memory than there is without asking, which is asked for once a device.
template <class Kernel, class... Arguments>
void launch(Kernel kernel, std::atomic<uint64_t>& allowed, int device, dim3 grid, int threads, size_t bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  const uint64_t bit = uint64_t{1} << device % 64;
  if ((allowed.load() & bit) == 0) {
    TVM_FFI_CHECK_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    if (device < 64) allowed.fetch_or(bit);
  }
  kernel<<<grid, threads, bytes, stream>>>(arguments...);
  TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
}

dim3 grid_of(int64_t x, int64_t y, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

// Heads that share their q and k are prepared together, so many in a block, or twice as many where four warps have a head each then,
// and multiprocessors blocks enough.
Group group_of(const Problem& p, int64_t places) {
  const int shared = std::min(p.q_group, p.k_group);
  Group group{1, std::min(shared, kHeads), 0, 0};
  while (shared % group.heads != 0) --group.heads;
  const bool enough = places * p.H / group.heads >= 4 * p.multiprocessors;
  if (2 * group.heads <= kHeads && p.H / group.heads % 2 == 0 && enough) group.units = 2;
  group.of_query_head = p.q_group / group.heads, group.of_key_head = p.k_group / group.heads;
  return group;
}

template <class E>
void launch_prepare(const Problem& p, const Maps& maps, int64_t places, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed[2]{};
  const Group group = group_of(p, places);
  const dim3 grid = grid_of(places + 1, p.H / (group.units * group.heads));
  const int bytes = prepare_bytes(group.units);
  launch(gdn_prepare_kernel<E>, allowed[group.units - 1], p.device, grid, 128, bytes, stream, p, maps.q, maps.k, group);
}

template <class E, int Groups>
void launch_walks(const Problem& p, const Maps& maps, cudaStream_t stream) {
  static std::atomic<uint64_t> forward{0}, reverse{0};
  const dim3 grid = grid_of(kHalves / Groups, p.H, p.N);
  constexpr int kThreads = kWalkThreads<Groups>;
  if (p.tokens > 0) {
    launch(gdn_forward_kernel<E, Groups>, forward, p.device, grid, kThreads, sizeof(ForwardShared<Groups>), stream, p, maps);
  }
  launch(gdn_reverse_kernel<E, Groups>, reverse, p.device, grid, kThreads, sizeof(ReverseShared<Groups>), stream, p, maps);
}

// Whether a block walks with both slices of a state: predicted, a chunk takes 1.3 times as long then.
bool takes_both(const Problem& p) {
  const auto waves = [&](int64_t blocks) { return (blocks + p.multiprocessors - 1) / p.multiprocessors; };
  const int64_t pairs = int64_t{p.N} * p.H;
  return 13 * waves(pairs) < 10 * waves(2 * pairs);
}

template <class E>
void launch_all(const Problem& p, const Maps& maps, int64_t places, cudaStream_t stream) {
  if (p.tokens > 0) launch_prepare<E>(p, maps, places, stream);
  takes_both(p) ? launch_walks<E, 2>(p, maps, stream) : launch_walks<E, 1>(p, maps, stream);
  if (p.tokens == 0) return;
  static std::atomic<uint64_t> allowed{0};
  const int64_t blocks = std::min<int64_t>(p.multiprocessors, places * p.k_heads);
  launch(gdn_gradients_kernel<E>, allowed, p.device, grid_of(blocks, 1), kGradientBlock, sizeof(GradientShared), stream, p, maps);
  if (p.v_group > 1) {
    gdn_values_kernel<E><<<grid_of(places, p.v_heads), kValueThreads, 0, stream>>>(p);
    TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  }
}

}  // namespace
