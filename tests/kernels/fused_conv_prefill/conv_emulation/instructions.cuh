// For a CPU: what solutions/fused_conv_prefill/instructions.cuh has for a GPU. Copies that are under way are NaN until they
// are waited for.
#pragma once
#include <bit>
#include <deque>

#include "cuda_words.h"

#define __shared__ static

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

inline void wait_for_previous() {}
inline void let_next_start() {}

struct Copy {
  uint4* to;
  uint4 value;
};
inline std::vector<std::vector<Copy>> open_groups;                 // of each thread: what it has asked for since its last group
inline std::vector<std::deque<std::vector<Copy>>> groups_on_their_way;

inline void prepare_groups(int threads) {
  open_groups.assign(threads, {});
  groups_on_their_way.assign(threads, {});
}

// x, whose rows are the only ones that are copied ahead.
inline const __nv_bfloat16 *first_of_x = nullptr, *end_of_x = nullptr;

inline void copy_ahead(uint4* to, const __nv_bfloat16* from) {
  require(from >= first_of_x && from + 8 <= end_of_x, "a copy from outside of x");
  uint4 value;
  std::memcpy(&value, from, sizeof(value));
  for (const auto& group : groups_on_their_way[running]) {
    for (const Copy& copy : group) require(copy.to != to, "two copies to one place");
  }
  open_groups[running].push_back({to, value});
  std::memset(to, 0xff, sizeof(*to));
}

inline void end_group() {
  groups_on_their_way[running].push_back(std::move(open_groups[running]));
  open_groups[running].clear();
}

template <int N>
void wait_for_groups() {
  auto& groups = groups_on_their_way[running];
  for (; groups.size() > N; groups.pop_front()) {
    for (const Copy& copy : groups.front()) *copy.to = copy.value;
  }
}

inline float kept(float x) { return x; }
inline float power_of_two(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline float reciprocal_root(float x) { return 1.f / std::sqrt(x); }

inline uint32_t nearest_even(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline uint32_t narrow(float low, float high) { return nearest_even(low) | nearest_even(high) << 16; }
