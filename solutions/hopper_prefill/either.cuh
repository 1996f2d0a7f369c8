// One kernel for long sequences, or the second of two: by lengths, which the host does not know. So a call whose lengths decide has
// as many kernels as any other of two. Blocks of the first one leave at once where this one prepares chunks itself (prepare.cuh).
#pragma once
#include "long.cuh"
#include "prefill.cuh"

namespace {

constexpr int kEitherThreads = threads_of(2);
// A block for long sequences has a warpgroup that does nothing then, and eight registers less where it advances.
constexpr int kEitherAdvanceRegisters = 208;
static_assert(2 * kEitherAdvanceRegisters + kLongPrepareRegisters + kLeastRegisters <= 4 * 65536 / kEitherThreads);
constexpr size_t kEitherBytes = std::max(sizeof(Long), sizeof(Block<kStaySize, 2, true, false>));

// The grid is that of the second kernel, which has no fewer blocks than stay.
template <class E>
__global__ void __launch_bounds__(kEitherThreads, 1)
    gdn_either_kernel(const __grid_constant__ Problem p, const __grid_constant__ Maps maps) {
  if (!one_has_it(p)) return prefill_block<E, kStaySize, 2, true, false>(p, maps);
  const int number = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
  if (number < p.stays) long_block<E, kEitherThreads, kEitherAdvanceRegisters>(p, maps, number);
}

}  // namespace
