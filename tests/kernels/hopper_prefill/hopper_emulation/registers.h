// The registers that the warpgroups of a block trade: what one gives back another may ask for.
#pragma once
#include "cuda_words.h"

inline int spare_registers;
inline int registers_at_launch;  // of a thread, from a file of 65,536 that is dealt out in eights

template <int Registers>
void registers_down() {
  static_assert(Registers >= 24 && Registers <= 256 && Registers % 8 == 0);
  require(Registers <= registers_at_launch, "registers_down to more than there were");
  spare_registers += registers_at_launch - Registers;
}

template <int Registers>
void registers_up() {
  static_assert(Registers >= 24 && Registers <= 256 && Registers % 8 == 0);
  const int more = Registers - registers_at_launch;
  require(more >= 0, "registers_up to fewer than there were");
  wait_until("registers", [more] { return spare_registers >= more; });
  spare_registers -= more;
}
