// A kernel over a grid: one block after the other, in random order.
#pragma once
#include "copies.h"
#include "registers.h"
#include "wgmma.h"

template <class Kernel>
void launch(Place grid, int threads, size_t shared_bytes, Kernel kernel, int blocks_together = 1) {
  std::vector<Place> blocks;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), schedule);
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  gridDim = grid;
  for (const Place& block : blocks) {
    blockIdx = block;
    spare_registers = 0;
    registers_at_launch = 65536 / blocks_together / threads / 8 * 8;
    prepare_warps(threads);
    prepare_shared_memory(shared_bytes, threads);
    prepare_barriers();
    prepare_copies();
    prepare_products(threads);
    run_fibers(threads, kernel, land_any_box);
    check_no_copies();
    check_no_products();
    check_behind_shared_memory();
  }
}
