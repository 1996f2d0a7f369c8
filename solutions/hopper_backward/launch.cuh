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
#include "together.cuh"
#include "values.cuh"

namespace {

// Chunks of a segment; 0: sequences are not cut. That is worth it for few heads, and so many segments that the walks which find what
// becomes of states, three for each but those at the ends, fill the multiprocessors.
int64_t segment_of(const Problem& p) {
  const int64_t pairs = int64_t{p.N} * p.H, each = (p.tokens + int64_t{kChunk} * p.N - 1) / (int64_t{kChunk} * p.N);
  constexpr int64_t kMostPairs = 12, kLeast = 64, kLeastChunks = 4;
  if (pairs > kMostPairs || each < kLeast) return 0;
  const int64_t count = std::min((p.multiprocessors / pairs + 4) / 3, each / kLeastChunks);
  return count < 3 ? 0 : (each + count - 1) / count;
}

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
  static std::atomic<uint64_t> allowed{0};
  const Group group = group_of(p, places);
  const dim3 grid = grid_of(places + 1, p.H / (group.units * group.heads));
  const int bytes = prepare_bytes(group.units);
  launch_within(prepare_bytes(2), gdn_prepare_kernel<E>, allowed, p.device, grid, 128, bytes, stream, p, maps.q, maps.k, group);
}

template <class E, int Groups>
void launch_forward(const Problem& p, const Maps& maps, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed{0};
  if (p.tokens == 0) return;
  const dim3 grid = grid_of(kHalves / Groups, p.H, p.brief > 0 ? std::min<int64_t>(p.N, p.tokens / (p.brief + 1)) : p.N);
  launch(gdn_forward_kernel<E, Groups>, allowed, p.device, grid, kWalkThreads<Groups>, sizeof(ForwardShared<Groups>), stream, p, maps);
}

// Early: beside the kernel before.
template <class E, int Groups>
void launch_together(const Problem& p, const Maps& maps, int64_t places, int64_t most, bool early, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed{0};
  const int64_t jobs = int64_t{p.N} * p.H * kHalves / Groups;
  const int walkers = static_cast<int>(std::min<int64_t>({jobs, most, p.multiprocessors}));
  const int64_t blocks = std::min<int64_t>(p.multiprocessors, std::max<int64_t>(walkers, places * p.k_heads));
  const auto kernel = gdn_together_kernel<E, Groups>;
  allow(kernel, sizeof(GradientShared), p.device, allowed);
  cudaLaunchAttribute beside{};
  beside.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid_of(blocks, 1);
  config.blockDim = dim3(kGradientBlock);
  config.dynamicSmemBytes = sizeof(GradientShared);
  config.stream = stream;
  config.attrs = &beside;
  config.numAttrs = early ? 1 : 0;
  TVM_FFI_CHECK_CUDA_ERROR(cudaLaunchKernelEx(&config, kernel, p, maps, walkers));
}

// Whether sequences of one chunk have a kernel of their own: 0, or how long they may be. Only where the others can be found without looking
// at all of them.
int brief_of(const Problem& p) { return p.N <= kSorted && p.tokens <= int64_t{kChunk} * p.N ? kChunk : 0; }

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

// Whether a block walks with both slices of a state: predicted, a chunk takes 1.3 times as long then.
bool takes_both(const Problem& p) {
  const auto waves = [&](int64_t blocks) { return (blocks + p.multiprocessors - 1) / p.multiprocessors; };
  const int64_t pairs = int64_t{p.N} * p.H;
  return 13 * waves(pairs) < 10 * waves(2 * pairs);
}

// How the last kernel walks: slices of a state in a block, and blocks that walk, at most.
struct Walks {
  int groups;
  int64_t most;
};

// Few heads have a block for each slice. Of others as many blocks walk as leave chunks as fast as the others find their gradients:
// of 132, 40 or so, by measured times. Where sequences are short, or some are longer than others maybe, more do.
Walks walks_of(const Problem& p) {
  const int64_t pairs = int64_t{p.N} * p.H, all = p.multiprocessors;
  constexpr int64_t kFewPairs = 24, kShortChunks = 8, kManySequences = 8;
  if (pairs <= kFewPairs) return {1, 2 * pairs};
  if (p.N > kManySequences && p.segments.owners == nullptr && pairs <= all) return {1, 3 * all / 4};
  if (p.N >= kManySequences && p.segments.owners == nullptr) return {2, all};
  if (p.tokens <= kShortChunks * kChunk * p.N) return {2, all};
  const int64_t rounds = std::max<int64_t>(1, pairs * 33 / (10 * all));
  return {2, (pairs + rounds - 1) / rounds};
}

// Where (sequence, head) are few, what comes before the gradients is one kernel, and gradients are found as soon as both walks have left a
// chunk: half of the multiprocessors walk, the others prepare. `walks` is 0 where that is not so.
First first_of(const Problem& p, bool divides, int64_t places) {
  constexpr int64_t kLeastChunks = 64;
  const int64_t pairs = int64_t{p.N} * p.H, walks = kHalves * pairs;
  if (!divides || p.segments.length > 0 || 8 * pairs > p.multiprocessors || p.tokens < kLeastChunks * kChunk * p.N) return {};
  return {group_of(p, places), static_cast<int>(p.multiprocessors - 2 * walks), static_cast<int>(walks)};
}

template <class E>
void launch_beside(const Problem& p, const Maps& maps, const First& first, int64_t places, cudaStream_t stream) {
  if constexpr (kDivides<E>) {
    static std::atomic<uint64_t> allowed{0};
    const dim3 grid = grid_of(first.prepare + 2 * first.walks, 1);
    launch(gdn_first_kernel<E>, allowed, p.device, grid, kFirstThreads, kFirstBytes, stream, p, maps, first, 0);
    launch_together<E, 2>(p, maps, places, 0, true, stream);
  }
}

template <class E>
void launch_apart(const Problem& p, const Maps& maps, int64_t places, cudaStream_t stream) {
  if (p.segments.owners != nullptr) launch_cut(p, stream);
  launch_prepare<E>(p, maps, places, stream);
  if (p.brief > 0) {
    const bool alone = p.tokens <= p.brief;
    launch_brief<E>(p, maps, alone, stream);
    if (alone) return;
  }
  if (p.segments.owners != nullptr) launch_segments<E>(p, maps, stream);
  takes_both(p) ? launch_forward<E, 2>(p, maps, stream) : launch_forward<E, 1>(p, maps, stream);
  const Walks walks = walks_of(p);
  (walks.groups == 2 ? launch_together<E, 2> : launch_together<E, 1>)(p, maps, places, walks.most, false, stream);
}

template <class E>
void launch_all(const Problem& p, const Maps& maps, const First& first, int64_t places, cudaStream_t stream) {
  if (first.walks > 0) {
    launch_beside<E>(p, maps, first, places, stream);
  } else {
    launch_apart<E>(p, maps, places, stream);
  }
  if (p.v_group > 1 && p.tokens > 0) {
    gdn_values_kernel<E><<<grid_of(places, p.v_heads), kValueThreads, 0, stream>>>(p);
    TVM_FFI_CHECK_CUDA_ERROR(cudaGetLastError());
  }
}

}  // namespace
