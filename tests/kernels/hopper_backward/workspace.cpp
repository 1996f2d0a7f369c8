// The memory that hopper_backward's host code asks for, with the emulator's instructions. Of each line of standard input, which has
// tokens, sequences, query and key heads, value heads and multiprocessors, a line: chunks of a segment, bytes.
#include <cstdio>
#include <iostream>

#include "instructions.cuh"
#include "workspace.cuh"

int main() {
  Problem p{};
  while (std::cin >> p.tokens >> p.N >> p.q_heads >> p.v_heads >> p.multiprocessors) {
    p.k_heads = p.q_heads, p.H = std::max(p.q_heads, p.v_heads);
    p.q_group = p.k_group = p.H / p.q_heads, p.v_group = p.H / p.v_heads;
    p.segments.length = static_cast<int>(segment_of(p));
    if (p.segments.length > 0) p.N += static_cast<int>(p.tokens / (int64_t{kChunk} * p.segments.length));  // as in call.cuh
    std::printf("%d %ld\n", p.segments.length, workspace_of(p, true).all());
  }
}
