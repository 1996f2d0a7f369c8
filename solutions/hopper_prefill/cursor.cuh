// Where a warpgroup is in the ring of places of chunks: the addresses of the place's boxes, of its tile, and of the barrier that
// says that the chunk has landed. Carried over the loop, so that a chunk's first product waits for no addresses.
#pragma once
#include "shared.cuh"

namespace {

// To the next place, `Stages` of them in turns; `parity` is that of its barriers.
template <int Stages, uint32_t kStageBytes, uint32_t kTileBytes>
__device__ __forceinline__ void next_stage(uint32_t& box, uint32_t& tile, uint32_t& full, uint32_t& stage, uint32_t& parity) {
  const bool around = stage == Stages - 1;
  box = around ? box - (Stages - 1) * kStageBytes : box + kStageBytes;
  tile = around ? tile - (Stages - 1) * kTileBytes : tile + kTileBytes;
  full = around ? full - 8 * (Stages - 1) : full + 8;
  stage = around ? 0 : stage + 1, parity ^= around;
}

}  // namespace
