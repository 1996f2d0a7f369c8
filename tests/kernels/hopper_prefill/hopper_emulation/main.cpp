// The kernels of hopper_prefill on this CPU, every instruction emulated, against a float64 recurrence. A line a run.
#include <csignal>
#include <map>

#include "instructions.cuh"
#include "few.cuh"
#include "launch.h"
#include "prefill.cuh"
#include "recurrence.h"
#include "long.cuh"
#include "stay.cuh"

// SEED draws other orders in which threads run; STOP_AT_FIRST is for those who expect an error; SHORT_ALONE runs nothing but blocks
// that prepare their own chunks, LONG_ALONE nothing but those for long sequences; either also what decides on these.
#ifndef SEED
#define SEED 1
#endif

namespace {

// How a call is cut up: slices of 64 value channels in a block, chunks of a sequence's first segment and of others (0: not
// cut), and whether blocks decide, on a GPU of so many multiprocessors, of how many sequences they have one slice, of no more
// than so many, or of the (sequence, head) behind so many; or how many blocks stay, and whether they prepare their own chunks; or
// how many chunks the longest sequence may have for those of long sequences to have the call, which come behind the others then.
struct Cut {
  int slices, first, length, multiprocessors = 0, most = 0, whole = 0, stays = 0;
  bool prepares = false, ahead = false, few = false;
  int one_up_to = 0;
  bool decides() const { return multiprocessors != 0; }
};

struct Results {
  Guarded<uint16_t> output;
  Guarded<float> final_state, checkpoints;
  bool intact = true;  // and so is the workspace: nothing was written beside them
};

// What is in the outputs of a call. Of kernels that are launched beside others one or the others are to write there.
std::vector<unsigned char> written(const Problem& p) {
  const auto* const output = static_cast<const unsigned char*>(p.output);
  const auto* const states = reinterpret_cast<const unsigned char*>(p.final_state);
  std::vector<unsigned char> all(output, output + p.tokens * p.H * kSize * 2);
  all.insert(all.end(), states, states + int64_t{p.N} * p.H * kSize * kSize * 4);
  return all;
}

template <class E>
void launch_long_early(const Problem& p, const Maps& maps) {
  if constexpr (kLongFits && kSize == kStaySize) {
    Maps its = maps;  // a warp's half of a state's columns
    its.states = {reinterpret_cast<const uint16_t*>(p.final_state), kStaySize, p.H, p.N, 2, kRowsOfWarp};
    launch({static_cast<unsigned>(p.stays), 1, 1}, kLongThreads, sizeof(Long), [&] { gdn_long_kernel<E>(p, its); });
  }
}

template <class E, int Slices, bool Checkpoints>
void launch_all(Problem p, const Maps& maps) {
  const auto grid_of = [&](int slices, int64_t z) {
    return Place{static_cast<unsigned>(slices), static_cast<unsigned>(p.H), static_cast<unsigned>(z)};
  };
  const int blocks = kSize / (Slices * kSlice);
  const size_t bytes = kBlockBytes<kSize, Slices, true, Checkpoints>;
  constexpr int kTogether = kBlocksTogether<kSize, Slices, true>;
  // Heads that share q and k in one block together, or each for itself, and two of those in a block where there are two.
  const int shared = std::min(p.q_group, p.k_group);
  Group group = p.length != 1 ? Group{1, shared} : p.H % 2 != 0 ? Group{1, 1} : Group{2, 1};
  group.of_query_head = p.q_group / group.heads, group.of_key_head = p.k_group / group.heads;
  constexpr bool kWithP = !finds_p(Slices);
  const Place chunks{static_cast<unsigned>(p.tokens / kChunk + p.N + (p.stays != 0)), static_cast<unsigned>(p.H / (group.units * group.heads)), 1};
  launch(chunks, 128, prepare_bytes<kSize>(group.units, kWithP),
         [&] { gdn_prepare_kernel<E, kSize, kWithP>(p, maps.q, maps.k, group); });
  if constexpr (kSize == kStaySize && Slices == 2) {
    if (p.stays != 0 && p.one_up_to == 0) {
      const Place blocks{static_cast<unsigned>(p.stays), 1, 1};
      return launch(blocks, kStayThreads, sizeof(Staying), [&] { gdn_stay_kernel<E>(p, maps); });
    }
  }
  if (p.length != 0) {
    Problem firsts = p;
    firsts.firsts = true;
    launch(grid_of(blocks, p.N), threads_of(Slices), bytes,
           [&] { gdn_prefill_kernel<E, kSize, Slices, true, Checkpoints>(firsts, maps); }, kTogether);
    launch(grid_of(2 * (kSize / kSlice), p.segments), threads_of(1), sizeof(Shared<kSize, 1, false>),
           [&] { gdn_prefill_kernel<E, kSize, 1, false, false>(p, maps); }, kBlocksTogether<kSize, 1, false>);
  }
  const std::vector<unsigned char> before = written(p);
  if (p.one_up_to != 0) launch_long_early<E>(p, maps);
  const std::vector<unsigned char> between = written(p);
  launch(grid_of(blocks, p.length == 0 ? p.N + more_blocks(p) : p.segments), threads_of(Slices), bytes,
         [&] { gdn_prefill_kernel<E, kSize, Slices, true, Checkpoints>(p, maps); }, kTogether);
  if (p.one_up_to != 0 && (before == between) == (between == written(p))) fail("one kernel has the call and two have it, or nobody");
}

void launch_order(const Problem& p) {
  launch({1, 1, 1}, kOrderThreads, kBins * sizeof(int), [&] { gdn_order_kernel<kOrderThreads>(p); });
}

template <class E>
void launch_long(const Problem& p, const Maps& maps) {
  if constexpr (kLongFits && kSize == kStaySize) {
    if (p.queue != nullptr) launch_order(p);
    launch_long_early<E>(p, maps);
  }
}

// Sequences of few tokens, and then the others.
template <class E>
void launch_few(const Problem& p, const Maps& maps) {
  const auto of = [](const CUtensorMap& x) { return reinterpret_cast<const E*>(x.base); };
  if constexpr (kSize == kStaySize) {
    launch({static_cast<unsigned>(kFewBlocks), static_cast<unsigned>(p.H), static_cast<unsigned>(p.N)}, kFewThreads, 0,
           [&] { gdn_few_kernel<E>(p, of(maps.q), of(maps.k), of(maps.v)); });
  }
}

template <class E>
void launch_short(const Problem& p, const Maps& maps) {
  if constexpr (kShortFits && kSize == kStaySize) {
    ShortMaps parts{{maps.q, maps.q, maps.q}, {maps.k, maps.k, maps.k}, {maps.v, maps.v, maps.v}};
    for (CUtensorMap* of : {parts.q, parts.k, parts.v}) {
      for (int i = 0; i < 3; ++i) of[i].halves = 1, of[i].rows = kShortRows * (i + 1);
    }
    parts.states = maps.states;
    parts.states.rows = p.k_first ? kStaySize : kSlice, parts.states.halves = p.k_first ? 2 : 4;
    const Place blocks{static_cast<unsigned>(p.stays), 1, 1};
    launch_order(p);
    if (p.few > 0) launch_few<E>(p, maps);
    launch(blocks, kShortThreads, sizeof(Short), [&] { gdn_short_kernel<E>(p, maps, parts); });
  }
}

Results call(const Case& c, const Inputs& x, const Cut& cut, float scale) {
  const int64_t tokens = x.bounds.back(), heads = c.heads(), state = kSize * kSize;
  Results results{Guarded<uint16_t>(tokens * heads * kSize), Guarded<float>(c.sequences() * heads * state),
                  Guarded<float>(x.checkpoint_bounds.back() * heads * state)};
  Problem p{};
  p.cu_seqlens = x.bounds.data();
  if (c.gates) p.g = x.g.data(), p.beta = x.beta.data();
  if (c.initial_state) p.initial_state = x.initial_state.data();
  p.output = results.output.data();
  p.final_state = results.final_state.data();
  p.every = c.checkpoint_every;
  if (p.every != 0) {
    p.checkpoints = results.checkpoints.data(), p.checkpoint_starts = x.checkpoint_bounds.data();
    p.num_checkpoints = x.checkpoint_bounds.back();
  }
  p.tokens = tokens, p.N = c.sequences(), p.H = static_cast<int>(heads);
  p.q_group = p.H / c.query_heads, p.k_group = p.H / c.key_heads, p.v_group = p.H / c.value_heads;
  p.scale = scale;
  p.k_first = p.log_gates = c.k_first;
  p.first = cut.first, p.length = cut.length, p.multiprocessors = cut.multiprocessors, p.decides = cut.decides();
  p.whole = cut.whole, p.most = std::min(cut.most, p.N);
  p.one_takes = 2050, p.both_take = 3200;
  p.stays = cut.stays, p.one_up_to = cut.one_up_to, p.few = cut.few ? kFewTokens : 0;
  if (cut.length != 0) p.segments = count_places(tokens, p.N, p.first, p.length);
  Guarded<float> before(p.segments * heads * state), transfer = before;
  Guarded<float> tiles((tokens / kChunk + p.N) * heads * (sizeof(Tile<kSize>) / sizeof(float)));
  p.tiles = reinterpret_cast<unsigned char*>(tiles.data());
  p.tile_bytes = tile_bytes(!finds_p(cut.slices));
  Guarded<int> queue(queue_size(p.N));
  p.queue = cut.ahead && p.stays >= p.N * p.H ? nullptr : queue.data();  // each block has one, as in call.cuh
  p.before = before.data(), p.transfer = transfer.data();

  const int rows = static_cast<int>(tokens);
  const Maps maps{{x.q.data(), kSize, c.query_heads, rows, kHalves<kSize>},
                  {x.k.data(), kSize, c.key_heads, rows, kHalves<kSize>},
                  {x.v.data(), kSize, c.value_heads, rows, cut.slices},
                  {results.output.data(), kSize, p.H, rows, cut.slices},
                  {x.v.data(), kSize, c.value_heads, rows, 1},
                  {results.output.data(), kSize, p.H, rows, 1},
                  {reinterpret_cast<const uint16_t*>(p.initial_state)}};
  const auto launched = [&](auto launch_typed) { launch_typed(p, maps); };
  const auto launched_typed = [&]<class E> {
    constexpr int kMost = kSize / kSlice;
    if (cut.ahead) return launched(launch_long<E>);
    if (cut.prepares) return launched(launch_short<E>);
    if (p.every != 0) return launched(cut.slices == 1 ? launch_all<E, 1, true> : launch_all<E, kMost, true>);
    launched(cut.slices == 1 ? launch_all<E, 1, false> : launch_all<E, kMost, false>);
  };
  c.type == Type::float16 ? launched_typed.template operator()<__half>() : launched_typed.template operator()<__nv_bfloat16>();
  for (const Guarded<float>* x : {&results.final_state, &results.checkpoints, &before, &transfer, &tiles}) {
    results.intact &= x->intact();
  }
  results.intact &= results.output.intact() && queue.intact();
  return results;
}

// Of one sequence and head.
struct Error {
  double wrong = 0, right = 0;
  void add(double got, double expected) {
    wrong += (got - expected) * (got - expected);
    right += expected * expected;
  }
  double relative() const { return wrong == 0 ? 0 : std::sqrt(wrong / right); }
};

// A NaN is worse than anything.
double worse(double x, double y) { return std::isnan(x) || x > y ? x : y; }

double error_of_states(const Guarded<float>& got, const Vector& expected) {
  double worst = 0;
  for (size_t state = 0; state < expected.size(); state += kSize * kSize) {
    Error error;
    for (size_t i = state; i < state + kSize * kSize; ++i) error.add(got[i], expected[i]);
    worst = worse(error.relative(), worst);
  }
  return worst;
}

double error_of_output(const Case& c, const Inputs& x, const Guarded<uint16_t>& got, const Vector& expected) {
  double worst = 0;
  for (int n = 0; n < c.sequences(); ++n) {
    for (int h = 0; h < c.heads(); ++h) {
      Error error;
      for (int64_t t = x.bounds[n]; t < x.bounds[n + 1]; ++t) {
        const size_t row = (t * c.heads() + h) * kSize;
        for (size_t i = row; i < row + kSize; ++i) error.add(to_float(got[i], c.type), expected[i]);
      }
      worst = worse(error.relative(), worst);
    }
  }
  return worst;
}

// Of forms that hopper_prefill:invariant chooses from, every one leaves the bits of the first that ran on a case.
bool leaves_other_bits(const Case& c, const Cut& cut, const Results& got) {
  static std::map<std::string, Results> first;
  if (cut.length != 0 || cut.few || cut.ahead || cut.one_up_to != 0) return false;
  const auto [before, is_first] = first.emplace(c.name + std::string(c.type == Type::float16 ? " in float16" : ""), got);
  return !is_first && !(got.output.has_bits_of(before->second.output) && got.final_state.has_bits_of(before->second.final_state));
}

bool report(const Case& c, const Inputs& inputs, const Expected& expected, const Cut& cut, float scale) {
  const Results got = call(c, inputs, cut, scale);
  const double output = error_of_output(c, inputs, got.output, expected.output);
  const double state = error_of_states(got.final_state, expected.final_state);
  const double checkpoints = error_of_states(got.checkpoints, expected.checkpoints);
  // Keys of 64 channels are more alike: a model of the arithmetic in float64 has errors 1.1 to 1.15 times as large.
  const double of_size = kSize == 64 ? 1.2 : 1.;
  const double limit = (c.type == Type::float16 ? 4.8e-4 : 3.8e-3) * (c.repeated_keys ? 9 : 1) * of_size;
  const bool other_bits = leaves_other_bits(c, cut, got);
  const bool right = worse(output, worse(state, checkpoints)) <= limit && got.intact && !other_bits;
  const char* type = c.type == Type::float16 ? "float16" : "bfloat16";
  const std::string slices = cut.one_up_to != 0 ? "decided, or one kernel up to " + std::to_string(cut.one_up_to) + " chunks"
                             : cut.whole != 0  ? "2 of the first " + std::to_string(cut.whole)
                             : cut.stays != 0 ? std::to_string(cut.stays) + (cut.ahead ? " blocks prepare ahead" : cut.few ? " blocks prepare but for few tokens" : cut.prepares ? " blocks prepare" : " blocks stay")
                             : cut.decides() ? "decided, " + std::to_string(cut.multiprocessors)
                                             : std::to_string(cut.slices);
  std::printf("%s: %s, %s, slices %s, segments %d and %d: output %.1e state %.1e checkpoints %.1e, limit %.1e%s\n",
              right ? "right" : "WRONG", c.name, type, slices.c_str(), cut.first, cut.length, output, state, checkpoints, limit,
              !got.intact ? ", written outside of a tensor" : other_bits ? ", other bits" : "");
  std::fflush(stdout);
  return right;
}

std::vector<Case> all_cases() {
  const Case ragged{.name = "ragged, GVA", .lengths = {130, 0, 64, 5}, .value_heads = 2};
  const Case resets{.name = "resets, GQA, k first", .lengths = {65, 1, 100}, .query_heads = 2, .k_first = true,
                    .resets = 0.05f, .largest_beta = 1.8f};
  const Case short_sequences{.name = "short, GVA, k first", .lengths = {3, 64, 0, 130, 65, 1}, .value_heads = 2, .k_first = true,
                       .resets = 0.05f, .checkpoint_every = 0};
  const Case bare{.name = "no gates, no state", .lengths = {150}, .gates = false, .initial_state = false,
                  .checkpoint_every = 0};
  const Case repeated{.name = "repeated keys", .lengths = {128}, .initial_state = false, .repeated_keys = true,
                      .least_alpha = 1.f, .least_beta = 1.9f, .largest_beta = 1.95f};
  const Case longer{.name = "slow decay", .lengths = {330, 0, 70}, .resets = 0.004f, .least_alpha = 0.999f,
                    .largest_beta = 0.3f, .checkpoint_every = 2};
  const Case alike{.name = "alike", .lengths = {128, 128, 128, 128}, .checkpoint_every = 0};
  // More than there are places for them: those of one slice come round only where there are no checkpoints.
  const Case chunks{.name = "many chunks", .lengths = {450}, .checkpoint_every = 0};
  // More than a warp has lanes: nothing is cut, blocks decide nothing.
  Case many{.name = "many sequences", .lengths = {70, 0, 1}, .resets = 0.05f, .checkpoint_every = 0};
  while (many.sequences() <= 34) many.lengths.push_back(many.sequences() % 10);
  Case resets_in_float16 = resets, repeated_in_float16 = repeated;
  resets_in_float16.type = repeated_in_float16.type = Type::float16;
  return {ragged, resets, short_sequences, bare, repeated, longer, alike, chunks, many, resets_in_float16, repeated_in_float16};
}

}  // namespace

int main(int count, char** arguments) {
  // Of all runs one in so many.
  const int share = count > 1 ? std::atoi(arguments[1]) : 1;
  int asked = 0;
  std::signal(SIGSEGV, [](int) { fail("an address that there is not"); });
  const float scale = 1.f / std::sqrt(float{kSize});
  bool right = true;
  schedule.seed(SEED);
  const auto run_on = [&](const Case& c, const Inputs& inputs, const Expected& expected, const Cut& cut) {
    if (asked++ % share != 0) return;
    right &= report(c, inputs, expected, cut, scale);
#ifdef STOP_AT_FIRST
    if (!right) std::_Exit(1);
#endif
  };
  // Two kernels and one beside each other. The longest sequence is as long as it may be for one, or longer.
  const auto run_beside = [&](const Case& c, const Inputs& inputs, const Expected& expected) {
    for (const int more : {0, 1}) {
      const int one_up_to = c.chunks() - more;
      run_on(c, inputs, expected,
             {.slices = 2, .first = 0, .length = 0, .multiprocessors = 4, .most = 2, .stays = 3, .one_up_to = one_up_to});
    }
  };
  for (const Case& c : all_cases()) {
    const Inputs inputs = draw(c);
    const Expected expected = recur(c, inputs, scale);
    const auto run = [&](const Case& c, const Expected& expected, const Cut& cut) { run_on(c, inputs, expected, cut); };
#if !defined(SHORT_ALONE) && !defined(LONG_ALONE)
    for (int slices = 1; slices <= kSize / kSlice; ++slices) {
      for (const Cut& cut : {Cut{slices, 0, 0}, Cut{slices, 1, 1}, Cut{slices, 2, 1}, Cut{slices, 2, 2},
                             Cut{slices, 0, 0, 1, 99}, Cut{slices, 0, 0, 4, 1}, Cut{slices, 0, 0, 132, 99},
                             Cut{slices, 0, 0, 1, 1, 2}, Cut{slices, 0, 0, 0, 0, 0, 1}, Cut{slices, 0, 0, 0, 0, 0, 3}}) {
        if (cut.stays != 0 && (slices == 1 || c.checkpoint_every != 0)) continue;
        if (cut.decides() && (slices == 1 || c.sequences() == 1)) continue;
        if (cut.first > 1 && c.chunks() <= cut.first) continue;  // one segment
        if (c.sequences() > kCut && cut.length + cut.multiprocessors != 0) continue;
        run(c, expected, cut);
      }
    }
#endif
    if (!kShortFits || kSize != kStaySize) continue;
    Case bare = c;
    Expected of_states = expected;
    bare.checkpoint_every = 0, of_states.checkpoints.clear();
    for (const int blocks : {1, 3}) {
      if (blocks == 1 && c.checkpoint_every != 0) continue;  // every case once, some twice
#ifndef LONG_ALONE
      run(bare, of_states, {.slices = 2, .first = 0, .length = 0, .stays = blocks, .prepares = true});
#endif
    }
    if (!c.k_first && c.sequences() > 1) run(bare, of_states, {.slices = 2, .first = 0, .length = 0, .stays = 3, .prepares = true, .few = true});
    // In fewer blocks than there are (sequence, head), and in as many.
    for (const int blocks : {1, 3, bare.sequences() * bare.heads()}) {
      if (blocks == 1 && c.checkpoint_every != 0) continue;
      if (blocks > 8) continue;
      run(bare, of_states, {.slices = 2, .first = 0, .length = 0, .stays = blocks, .prepares = true, .ahead = true});
    }
    if (c.sequences() > 1 && c.sequences() <= kDecided) run_beside(bare, inputs, of_states);
  }
  if (kLongFits && kSize == kStaySize) {
    const Case nine{.name = "nine sequences, GVA", .lengths = {65, 0, 130, 1, 64, 63, 257, 5, 128}, .value_heads = 2, .resets = 0.02f,
                    .checkpoint_every = 0};
    const Inputs inputs = draw(nine);
    run_beside(nine, inputs, recur(nine, inputs, scale));
  }
  return right ? 0 : 1;
}
