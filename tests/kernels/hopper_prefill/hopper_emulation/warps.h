// What the 32 lanes of a warp do together.
#pragma once
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "fibers.h"

struct Exchange {
  static constexpr size_t kBytes = 64;  // of a lane
  std::string_view what;
  int arrived = 0;
  long round = 0;
  // Two: a lane may begin the next round while others still read this one.
  alignas(16) std::byte values[2][kLanes * kBytes];
};

inline std::vector<Exchange> exchanges;  // one a warp

inline void prepare_warps(int threads) { exchanges.assign(threads / kLanes, {}); }

// Every lane gives `mine` and gets those of all, which stay until its next round.
template <class T>
const T* together(const char* what, const T& mine) {
  static_assert(sizeof(T) <= Exchange::kBytes && std::is_trivially_copyable_v<T>);
  Exchange& exchange = exchanges[running / kLanes];
  const long round = exchange.round;
  T* all = reinterpret_cast<T*>(exchange.values[round % 2]);
  if (exchange.arrived == 0) exchange.what = what;
  if (exchange.what != what) fail("divergent warp: " + std::string(exchange.what) + " and " + what);
  all[running % kLanes] = mine;
  if (++exchange.arrived == kLanes) {
    exchange.arrived = 0;
    ++exchange.round;
  } else {
    wait_until(what, [&exchange, round] { return exchange.round > round; });
  }
  return all;
}
