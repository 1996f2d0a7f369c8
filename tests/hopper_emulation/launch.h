// A kernel over a grid: one block after the other, in random order, or pairs of them.
#pragma once
#include "copies.h"
#include "registers.h"
#include "wgmma.h"

template <class Kernel>
void launch(Place grid, int threads, size_t shared_bytes, Kernel kernel, int blocks_together = 1, Place pair = {1, 1, 1}) {
  require(grid.x % pair.x == 0 && grid.y % pair.y == 0 && pair.x * pair.y <= 2, "blocks that are no pairs");
  std::vector<std::vector<Place>> clusters;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; y += pair.y) {
      for (unsigned x = 0; x < grid.x; x += pair.x) {
        clusters.push_back({{x, y, z}});
        if (pair.x * pair.y == 2) clusters.back().push_back({x + pair.x - 1, y + pair.y - 1, z});
      }
    }
  }
  std::shuffle(clusters.begin(), clusters.end(), schedule);
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  gridDim = grid;
  registers_at_launch = 65536 / blocks_together / threads / 8 * 8;
  for (const std::vector<Place>& cluster : clusters) {
    blocks_here = cluster;
    const int blocks = static_cast<int>(cluster.size()), count = threads * blocks;
    prepare_warps(count);
    for (int block = 0; block < blocks; ++block) {
      const In there(block);
      spare_registers = 0;
      prepare_shared_memory(shared_bytes, count);
    }
    prepare_barriers();
    prepare_copies();
    prepare_products(count);
    run_fibers(count, kernel, land_any_box);
    check_no_copies();
    check_no_products();
    for (int block = 0; block < blocks; ++block) {
      const In there(block);
      check_behind_shared_memory();
    }
  }
}
