// Rows on their way to shared memory.
#pragma once
#include "convolution.cuh"

namespace {

// A lane's rows from W - 1 tokens before the strip on, a group of copies each, whether there is such a row or not. The place of
// the row that is taken is that of the next to be asked for.
struct Ahead {
  uint4 (&ring)[kStages][kThreads];
  int asked;          // the next row
  unsigned limit;     // behind the last
  const bf16* ahead;  // where it lies
  const int64_t C;

  __device__ __forceinline__ uint4* place(int row) const { return &ring[row & (kStages - 1)][threadIdx.x]; }

  __device__ __forceinline__ void ask() {
    if (static_cast<unsigned>(asked) < limit) copy_ahead(place(asked), ahead);  // not before the first, either
    end_group();
    ++asked, ahead += C;
  }

  __device__ __forceinline__ Row take() const {
    wait_for_groups<kStages - 1>();
    return Row(*place(asked));
  }

  __device__ __forceinline__ void skip_to(int row) {
#pragma unroll 1
    while (asked - kStages < row) {
      wait_for_groups<kStages - 1>();
      ask();
    }
  }
};

}  // namespace
