// What hopper_backward plans, for calls and GPUs that are not here: its host code. Of each line of standard input, which has tokens,
// sequences, heads of queries, of keys and of values, and whether states and do are given, numbers have bfloat16's exponents, and memory is as
// quick as an H200's, a line of bytes: inputs, workspace; and of what is chosen.
#include <cstdio>
#include <iostream>

#include "instructions.cuh"
#include "hopper_emulation/launch.h"
#include "plan.cuh"

int main() {
  Problem p{};
  bool states, output, divides, quick;
  while (std::cin >> p.tokens >> p.N >> p.q_heads >> p.k_heads >> p.v_heads >> states >> output >> divides >> quick) {
    static const float given = 0.f;  // nobody looks there
    p.g = p.beta = &given;
    p.initial_state = p.dht = states ? &given : nullptr;
    p.H = std::max(p.q_heads, p.v_heads), p.multiprocessors = 132;
    p.q_group = p.H / p.q_heads, p.k_group = p.H / p.k_heads, p.v_group = p.H / p.v_heads;
    const Form form{divides, output, quick};
    const Plan plan = plan_of(p, form);
    std::printf("%ld %ld %ld %d %d %d %d %d %ld %ld\n", input_bytes(p, form), plan.all(), plan.length, plan.first.walks, plan.walks.groups, plan.little,
                plan.brief, plan.paired, plan.walks.most, plan.walks.even);
  }
}
