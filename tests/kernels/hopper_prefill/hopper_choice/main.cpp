// How hopper_prefill cuts up batches, for GPUs that are not here: its host code, with the emulator's instructions. Of each line of
// standard input, which has a GPU's multiprocessors, clocks in kHz and bits of its bus, and then a batch, a line of what is chosen.
#include <cstdio>
#include <iostream>

#include "instructions.cuh"

#include "cut_64.cuh"

int main() {
  int multiprocessors, clock, memory_clock, bus;
  Batch batch{};
  while (std::cin >> multiprocessors >> clock >> memory_clock >> bus >> batch.tokens >> batch.sequences >> batch.q_heads >>
         batch.v_heads >> batch.D >> batch.checkpoints) {
    batch.k_heads = batch.q_heads, batch.heads = batch.v_heads;
    const Device device = device_of(multiprocessors, clock, memory_clock, bus);
    // With gates and states, as in call.cuh.
    const int64_t rows = batch.tokens * batch.D * (2 * batch.q_heads + batch.v_heads) / 2;
    const int64_t given = rows + 2 * batch.tokens * batch.heads + batch.pairs() * batch.D * batch.D, room = given + given / 2;
    const Cut how = batch.D == 64 ? cut_64(batch, room, device) : cut(batch, room, device);
    const Costs costs{batch, device};
    std::printf("%d %ld %ld %d %ld %ld %d %d %d %ld %.0f %.0f %.0f\n", how.groups, how.first, how.length, how.alone, how.whole, how.most,
                how.stays, how.prepares + how.few, how.ahead, how.one_up_to, device.bytes, costs.one(), costs.both());
  }
}
