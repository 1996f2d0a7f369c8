// cuda_serving's kernels, block after block: a thread of the processor for each of eight lanes.
#include <thread>
#include <vector>

#include "tree.cuh"

namespace {

template <class F>
void launch(int64_t blocks, F kernel) {
  for (int64_t block = 0; block < blocks; ++block) {
    for (int group = 0; group < kThreads / kLanes; ++group) {
      Lanes shared;
      std::vector<std::thread> threads;
      for (int lane = 0; lane < kLanes; ++lane) {
        threads.emplace_back([&, lane] {
          threadIdx = {static_cast<unsigned>(group * kLanes + lane), 0, 0}, blockIdx = {static_cast<unsigned>(block), 0, 0};
          lanes = &shared;
          kernel();
        });
      }
      for (auto& thread : threads) thread.join();
    }
  }
}

template <class T>
T* at(void* const* tensors, int n) {
  return static_cast<T*>(tensors[n]);
}

// Tensors in the order of gdn_verify_drafts_k_last, then the output, then the parents of a tree.
template <class E, int D>
VerifyArguments<E> verify_arguments(void* const* x, const int64_t* sizes, float scale) {
  const auto [B, T, H, heads, slots, normalise, pool_stride] = reinterpret_cast<const int64_t(&)[7]>(*sizes);
  return {
      at<bf16>(x, 0), at<bf16>(x, 1), at<bf16>(x, 2), at<bf16>(x, 9), at<bf16>(x, 11), at<bf16>(x, 10), at<float>(x, 8),
      at<E>(x, 3), at<E>(x, 5), pool_stride, T * H * D * D, at<int32_t>(x, 4), at<int32_t>(x, 6), at<int32_t>(x, 7),
      at<bf16>(x, 12), static_cast<int>(slots), static_cast<int>(T), static_cast<int>(H), static_cast<int>(H / heads), scale,
      normalise != 0};
}

template <class E, int D>
void verify_of(void* const* x, const int64_t* sizes, float scale) {
  const auto p = verify_arguments<E, D>(x, sizes, scale);
  launch(sizes[0] * sizes[2] * Tile<E, D>::kTiles, [&] { verify_kernel<E, D>(p); });
}

template <class E, int D>
void tree_of(void* const* x, const int64_t* sizes, float scale) {
  const TreeArguments<E> p{verify_arguments<E, D>(x, sizes, scale), at<int32_t>(x, 13)};
  launch(sizes[0] * sizes[2] * Tile<E, D>::kTiles, [&] { tree_kernel<E, D>(p); });
}

template <class E, int D>
void prefill_of(void* const* x, const int64_t* sizes, float scale) {
  const auto [N, total, H, HQ, HK, HV, slots, first, pool_stride] = reinterpret_cast<const int64_t(&)[9]>(*sizes);
  const PrefillArguments<E> p{
      at<bf16>(x, 0), at<bf16>(x, 1), at<bf16>(x, 2), at<float>(x, 3), at<float>(x, 4), at<int64_t>(x, 5), at<E>(x, 6),
      pool_stride, total, at<int32_t>(x, 7), at<uint8_t>(x, 8), at<bf16>(x, 9), static_cast<int>(slots),
      static_cast<int>(first), static_cast<int>(H), static_cast<int>(HQ), static_cast<int>(HK), static_cast<int>(HV), scale};
  launch(N * H * Tile<E, D>::kTiles, [&] { prefill_kernel<E, D>(p); });
}

}  // namespace

extern "C" {

#define FOR(D)                                                                                                \
  void verify_float32_##D(void** x, int64_t* n, float scale) { verify_of<float, D>(x, n, scale); }            \
  void tree_float32_##D(void** x, int64_t* n, float scale) { tree_of<float, D>(x, n, scale); }                \
  void tree_bfloat16_##D(void** x, int64_t* n, float scale) { tree_of<bf16, D>(x, n, scale); }                \
  void verify_bfloat16_##D(void** x, int64_t* n, float scale) { verify_of<bf16, D>(x, n, scale); }            \
  void prefill_float32_##D(void** x, int64_t* n, float scale) { prefill_of<float, D>(x, n, scale); }          \
  void prefill_bfloat16_##D(void** x, int64_t* n, float scale) { prefill_of<bf16, D>(x, n, scale); }
FOR(64)
FOR(128)
FOR(256)

// The order in which a tree's tokens are visited, and for each whether its state must be read back.
void visits(const int32_t* parents, int count, int32_t* order, int32_t* read) {
  Tree tree(parents, count);
  int t = -1;
  for (int n = 0; tree.left != 0; ++n) {
    int next = tree.take_child(t);
    read[n] = next < 0;
    while (next < 0) t = tree.parent(t), next = tree.take_child(t);
    order[n] = t = next;
  }
}

void commit(void** x, int64_t* n) {  // rows, slots, tokens, and 16-byte words of a state and from slot to slot
  const int64_t blocks = (n[3] + kThreads * kCopied - 1) / (kThreads * kCopied);
  const CommitArguments p{at<uint4>(x, 0), at<uint4>(x, 2), n[4], n[2] * n[3], n[3], at<int32_t>(x, 1), at<int32_t>(x, 3),
                          at<int32_t>(x, 4), static_cast<int>(n[1]), static_cast<int>(n[2]), blocks};
  for (unsigned block = 0; block < n[0] * blocks; ++block) {
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threadIdx = {thread, 0, 0}, blockIdx = {block, 0, 0};
      commit_kernel(p);
    }
  }
}
}
