// The kernels of hopper_backward on this CPU, every instruction emulated, against a float64 recurrence. A line a run.
#include <csignal>

#include "instructions.cuh"
#include "hopper_emulation/launch.h"
#include "gradients.h"
#include "brief.cuh"
#include "forward.cuh"
#include "carry.cuh"
#include "first.cuh"
#include "segments.cuh"
#include "together.cuh"
#include "values.cuh"

// SEED draws other orders in which threads run.
#ifndef SEED
#define SEED 1
#endif

namespace {

// Tokens behind the last sequence, and which gradients are given.
struct Given {
  int behind = 0;
  bool output = true, state = true;
};

// Slices in a block, chunks of a segment, and forms: `first`, brief.cuh, tiles that have no memory of their own, both walks side by side.
struct How {
  int groups = 2, segment = 0;
  bool beside = false, brief = false, little = false, paired = false;
};

struct Found {
  Guarded<uint16_t> dq, dk, dv;
  Guarded<float> dg, dbeta, dh0;
  bool intact = true;  // and so is the workspace: nothing was written beside them

  bool has_bits_of(const Found& other) const {
    return dq.has_bits_of(other.dq) && dk.has_bits_of(other.dk) && dv.has_bits_of(other.dv) && dg.has_bits_of(other.dg) &&
           dbeta.has_bits_of(other.dbeta) && dh0.has_bits_of(other.dh0);
  }
};

Place grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

// Blocks run one after the other, in any order: so those that are waited for are launched apart.
template <class E>
void launch_first(const Problem& p, const Maps& maps, const Group& group) {
  const First first{group, 2, p.N * p.H * kHalves};
  const int firsts[] = {0, first.prepare, first.prepare + first.walks, first.prepare + 2 * first.walks};
  for (int i = 0; i < 3; ++i) {
    const auto kernel = [&] { gdn_first_kernel<E>(p, maps, first, firsts[i]); };
    launch(grid(firsts[i + 1] - firsts[i]), kFirstThreads, kFirstBytes, kernel);
  }
}

template <class E, int Groups>
void launch_apart(const Problem& p, const Maps& maps, const Group& group, int64_t places, bool paired) {
  const bool cut = p.segments.owners != nullptr;
  if (cut) launch(grid(1), kCutThreads, 0, [&] { gdn_cut_kernel(p, const_cast<int64_t*>(p.cu_seqlens)); });
  launch(grid(places + 1, p.H / (group.units * group.heads)), 128, prepare_bytes(group.units), [&] { gdn_prepare_kernel<E>(p, maps.q, maps.k, group); });
  if (cut) {
    launch(grid(3, p.H, p.N), kWalkThreads<2>, kCarryBytes, [&] { gdn_carry_kernel<E>(p, maps); });
    launch(grid(2 * kJoinBlocks, p.H, p.segments.N), kJoinThreads, sizeof(JoinShared), [&] { gdn_join_kernel(p); });
  }
  if constexpr (kDivides<E>) {
    if (paired) {
      launch(grid(kHalves, p.H, p.N), kWalkThreads<1>, sizeof(ForwardShared<1>), [&] { gdn_forward_beside_kernel<E>(p, maps); });
      return;
    }
  }
  const bool alone = p.tokens <= p.brief;
  if (p.brief > 0) launch(grid(2), kBriefThreads, sizeof(BriefShared), [&] { gdn_brief_kernel<E>(p, maps, alone); });
  if (p.brief > 0 && alone) return;
  const Place walks = grid(kHalves / Groups, p.H, p.brief > 0 ? std::min<int64_t>(p.N, p.tokens / (p.brief + 1)) : p.N);
  const auto walk = [&](auto blocks) {
    launch(walks, kWalkThreads<Groups>, sizeof(ForwardShared<Groups, blocks>), [&] { gdn_forward_kernel<E, Groups, blocks>(p, maps); }, blocks);
  };
  if constexpr (Groups == 1) {
    if (!cut) return walk(std::integral_constant<int, 2>{});  // as short sequences do
  }
  walk(std::integral_constant<int, 1>{});
}

template <class E, int Groups, bool Beside = false, bool Even = false>
void launch_together(const Problem& p, const Maps& maps, int walkers, int even = 0) {
  launch(grid(1), kGradientBlock, sizeof(GradientShared), [&] { gdn_together_kernel<E, Groups, Beside, Even>(p, maps, walkers, even); });
}

// The walk back and the gradients. Blocks run one after the other, so one does all.
template <class E, int Groups>
void launch_back(const Problem& p, const Maps& maps, bool beside, bool paired) {
  if constexpr (Groups == 2) {
    if constexpr (kDivides<E>) {
      if (paired) return launch_together<E, 2, true>(p, maps, 1);
    }
    if (!beside && p.segments.owners == nullptr) {
      bool even = true;
      for (int n = 0; n < p.N; ++n) even &= count_chunks(p, n) == count_chunks(p, 0);
      return launch_together<E, 2, false, true>(p, maps, even ? 0 : 1, even ? 1 : 0);  // nobody walks if the kernel finds the other
    }
  }
  launch_together<E, Groups>(p, maps, beside ? 0 : 1);
}

template <class E, int Groups>
void launch_all(const Problem& p, const Maps& maps, int64_t places, bool paired) {
  const int shared = std::min(p.q_group, p.k_group);
  Group group{1, std::min(shared, kHeads), 0, 0};
  while (shared % group.heads != 0) --group.heads;
  if (2 * group.heads <= kHeads && p.H / group.heads % 2 == 0) group.units = 2;
  group.of_query_head = p.q_group / group.heads, group.of_key_head = p.k_group / group.heads;
  const bool beside = p.prepared != nullptr;
  if constexpr (kDivides<E>) {
    if (beside) launch_first<E>(p, maps, group);
  }
  if (!beside) launch_apart<E, Groups>(p, maps, group, places, paired);
  if (p.brief == 0 || p.tokens > p.brief) launch_back<E, Groups>(p, maps, beside, paired);
  if (p.v_group > 1) launch(grid(places, p.v_heads), kValueThreads, 0, [&] { gdn_values_kernel<E>(p); });
}

Found call(const Case& c, const Inputs& x, const Cotangents& y, const Given& given, const How& how, float scale) {
  const auto [groups, segment, beside, brief, little, paired] = how;
  const int64_t tokens = x.bounds.back() + given.behind, heads = c.heads(), state = kSize * kSize;
  const int64_t sequences = c.sequences() + (segment > 0 ? tokens / (segment * kChunk) : 0), places = (tokens + kChunk - 1) / kChunk + c.sequences() - 1;
  Found found{Guarded<uint16_t>(tokens * c.query_heads * kSize), Guarded<uint16_t>(tokens * c.key_heads * kSize),
              Guarded<uint16_t>(tokens * c.value_heads * kSize), Guarded<float>(tokens * heads), Guarded<float>(tokens * heads),
              Guarded<float>(c.sequences() * heads * state)};
  Guarded<float> tiles(little ? 0 : places * heads * kTileBytes / 4), starts(places * heads * kStateBytes / 4), ends = starts;
  Guarded<float> decays(places * heads * sizeof(Decays) / 4), of_ends(sequences * heads * 2 * sizeof(WalkSums) / 4);
  Guarded<float> errors(places * heads * kValueBytes / 4);
  Guarded<float> of_end(sequences * heads * kWalkers * kChunk);
  Guarded<float> rests(sequences * heads * 2 * kWalkers * 4 * 32 * 4);
  Problem p{};
  p.cu_seqlens = x.bounds.data();
  if (c.gates) p.g = x.g.data(), p.beta = x.beta.data();
  if (c.initial_state) p.initial_state = x.initial_state.data();
  if (given.state) p.dht = y.final_state.data();
  p.dq = found.dq.data(), p.dk = found.dk.data(), p.dv = found.dv.data();
  p.dg = found.dg.data(), p.dbeta = found.dbeta.data(), p.dh0 = found.dh0.data();
  const auto bytes = [](Guarded<float>& x) { return reinterpret_cast<unsigned char*>(x.data()); };
  p.starts = bytes(starts), p.ends = bytes(ends), p.errors = bytes(errors), p.decays = bytes(decays), p.of_ends = of_ends.data();
  p.reverse_tiles = little ? Tiles{p.ends, kStateBytes, beside || groups == 1 ? kTileBytes : 0} : Tiles{bytes(tiles), kTileBytes, 0};
  p.forward_tiles = {p.reverse_tiles.first + kForwardAt, p.reverse_tiles.step, 0};
  if (little && (beside || paired)) p.forward_tiles = {p.errors, kValueBytes, kBoxBytes};
  p.of_end = of_end.data();
  p.rests = reinterpret_cast<uint4*>(rests.data());
  p.places = static_cast<int>(places);
  std::vector<int> order(sequences, -1);
  if (sequences > 1 && !beside) p.order = order.data();
  const int unset = beside ? 0 : -1;
  Queue queue{unset, unset, unset, unset};
  std::vector<int> walked(places * c.key_heads, unset), ready = walked;
  p.queue = &queue, p.walked = walked.data(), p.ready = ready.data();
  Guarded<float> kept(beside || paired ? sequences * heads * kWalkers * kChunk * kChunk / 2 : 0);
  std::vector<int> over(sequences * heads * kHalves, unset), prepared(places * heads);
  if (beside) p.prepared = prepared.data();
  if (beside || paired) p.forward_over = over.data(), p.kept = kept.data();
  p.tellers = beside ? kTellers : kHalves / groups + (paired ? kHalves : 0);
  p.tokens = tokens, p.N = static_cast<int>(sequences), p.H = static_cast<int>(heads);
  p.q_heads = c.query_heads, p.k_heads = c.key_heads, p.v_heads = c.value_heads;
  p.q_group = p.H / c.query_heads, p.k_group = p.H / c.key_heads, p.v_group = p.H / c.value_heads;
  p.scale = scale, p.multiprocessors = 3, p.brief = brief ? kChunk : 0;
  p.k_first = p.log_gates = c.k_first;
  p.segments = {p.cu_seqlens, p.initial_state, p.dht, c.sequences(), segment};
  p.segments.k_first = p.k_first;
  Guarded<uint16_t> of_heads(p.v_group > 1 ? tokens * heads * kSize : 0);  // dv of each head
  p.writes = p.v_group > 1 ? of_heads.data() : found.dv.data();
  const int64_t of_segments = segment > 0 ? sequences * heads * state : 0;
  Guarded<float> between[2] = {Guarded<float>(of_segments), Guarded<float>(of_segments)};
  std::vector<int64_t> bounds(sequences + 1, -1);
  std::vector<int> owners(sequences, -2), firsts(c.sequences() + 1, -2);
  if (segment > 0) {
    p.segments.states = reinterpret_cast<float*>(p.writes);
    p.segments.transfers = between[0].data(), p.segments.turned = between[1].data();
    p.segments.owners = owners.data(), p.segments.firsts = firsts.data();
    p.cu_seqlens = bounds.data(), p.initial_state = p.dht = p.segments.states;
  }

  const int rows = static_cast<int>(x.bounds.back());
  const std::vector<uint16_t> zeros(given.output ? 0 : y.output.size());
  const uint16_t* const output = given.output ? y.output.data() : zeros.data();
  const Maps maps{{x.q.data(), kSize, c.query_heads, rows, 2}, {x.k.data(), kSize, c.key_heads, rows, 2},
                  {x.v.data(), kSize, c.value_heads, rows, 2}, {x.v.data(), kSize, c.value_heads, rows, 1},
                  {output, kSize, p.H, rows, 2},               {output, kSize, p.H, rows, 1},
                  {p.writes, kSize, p.H, rows, 2},             {p.writes, kSize, p.H, rows, 1}};
  const auto run = [&]<class E> { (groups == 1 ? launch_all<E, 1> : launch_all<E, 2>)(p, maps, places, paired); };
  c.type == Type::float16 ? run.template operator()<__half>() : run.template operator()<__nv_bfloat16>();
  for (const Guarded<float>* x : {&found.dg, &found.dbeta, &found.dh0, &tiles, &starts, &ends, &errors, &of_end, &rests, &decays, &of_ends}) {
    found.intact &= x->intact();
  }
  found.intact &= kept.intact();
  for (const Guarded<float>& x : between) found.intact &= x.intact();
  found.intact &= of_heads.intact() && found.dq.intact() && found.dk.intact() && found.dv.intact();
  return found;
}

// A NaN is worse than anything.
double worse(double x, double y) { return std::isnan(x) || x > y ? x : y; }

// The worst relative error of a sequence and head, of rows [tokens, heads, size] or [sequences, heads, size]. What is small
// beside the others, as a sum of one token may be, is compared with a quarter of their size.
template <class Number>
double error_of(const std::vector<int64_t>& bounds, int heads, int size, const Vector& expected, const Number& number) {
  double worst = 0, squares = 0;
  for (const double x : expected) squares += x * x;
  const double floor = expected.empty() ? 0 : squares / expected.size() / 16;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    for (int h = 0; h < heads; ++h) {
      double wrong = 0, right = 0;
      for (int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
        for (int64_t i = (t * heads + h) * size; i < (t * heads + h + 1) * size; ++i) {
          wrong += std::pow(number(i) - expected[i], 2.), right += std::pow(expected[i], 2.);
        }
      }
      const double least = floor * (bounds[n + 1] - bounds[n]) * size;
      if (wrong != 0) worst = worse(std::sqrt(wrong / std::max(right, least)), worst);
    }
  }
  return worst;
}

bool report(const Case& c, const Inputs& x, const Cotangents& y, const Gradients& expected, const Given& given, const How& how, float scale) {
  const Found got = call(c, x, y, given, how, scale);
  const auto half = [&](const Guarded<uint16_t>& of) { return [&](int64_t i) -> double { return to_float(of[i], c.type); }; };
  const auto full = [](const Guarded<float>& of) { return [&](int64_t i) -> double { return of[i]; }; };
  std::vector<int64_t> of_states(c.sequences() + 1);
  std::iota(of_states.begin(), of_states.end(), 0);
  const double errors[] = {error_of(x.bounds, c.query_heads, kSize, expected.dq, half(got.dq)),
                           error_of(x.bounds, c.key_heads, kSize, expected.dk, half(got.dk)),
                           error_of(x.bounds, c.value_heads, kSize, expected.dv, half(got.dv)),
                           error_of(x.bounds, c.heads(), 1, expected.dg, full(got.dg)),
                           error_of(x.bounds, c.heads(), 1, expected.dbeta, full(got.dbeta)),
                           error_of(of_states, c.heads(), kSize * kSize, expected.dh0, full(got.dh0))};
  // About the judge's budgets of bfloat16. Without do, dg is little more than the product of two states.
  const double limits[] = {7e-3, 9e-3, 8e-3, given.output ? 12e-3 : 30e-3, given.output ? 9e-3 : 13e-3, 6e-3};
  bool right = got.intact;
  for (int i = 0; i < 6; ++i) right &= errors[i] <= limits[i] * (c.type == Type::float16 ? 1. / 8 : c.repeated_keys ? 14. : 1.);
  bool zeros = true;  // behind the last sequence
  for (int64_t t = x.bounds.back(); t < x.bounds.back() + given.behind; ++t) {
    for (int64_t i = 0; i < c.query_heads * kSize; ++i) zeros &= got.dq[t * c.query_heads * kSize + i] == 0;
    for (int64_t i = 0; i < c.key_heads * kSize; ++i) zeros &= got.dk[t * c.key_heads * kSize + i] == 0;
    for (int64_t i = 0; i < c.value_heads * kSize; ++i) zeros &= got.dv[t * c.value_heads * kSize + i] == 0;
    for (int64_t i = 0; i < c.heads(); ++i) zeros &= got.dg[t * c.heads() + i] == 0 && got.dbeta[t * c.heads() + i] == 0;
  }
  right &= zeros;
  How in_turn = how;
  in_turn.paired = false;
  const bool same = !how.paired || got.has_bits_of(call(c, x, y, given, in_turn, scale));
  right &= same;
  std::printf("%s: %s%s%s, %s, %d slices in a block, %d behind, segments of %d: dq %.1e dk %.1e dv %.1e dg %.1e dbeta %.1e dh0 %.1e%s%s%s\n",
              right ? "right" : "WRONG", c.name, how.beside ? ", side by side" : how.paired ? ", walks side by side" : how.brief ? ", one chunk apart" : "", how.little ? ", little memory" : "", c.type == Type::float16 ? "float16" : "bfloat16", how.groups, given.behind, how.segment, errors[0],
              errors[1], errors[2], errors[3], errors[4], errors[5], got.intact ? "" : ", written outside of a tensor",
              zeros ? "" : ", no zeros behind the last sequence", same ? "" : ", other bits than where one walk comes behind the other");
  std::fflush(stdout);
  return right;
}

struct Run {
  Case c;
  Given given = {};
  How how = {};
  int zero_beta = -1;  // of this token and head
};

std::vector<Run> all_runs() {
  const Case ragged{.name = "ragged, GVA", .lengths = {130, 0, 64, 5}, .value_heads = 2, .checkpoint_every = 0};
  const Case resets{.name = "resets, GQA, k first", .lengths = {65, 2, 100}, .query_heads = 2, .k_first = true, .resets = 0.05f,
                    .largest_beta = 1.8f, .checkpoint_every = 0};
  const Case linear{.name = "resets, GVA", .lengths = {100}, .value_heads = 3, .resets = 0.05f, .largest_beta = 1.8f,
                    .checkpoint_every = 0};
  const Case bare{.name = "no gates, no states", .lengths = {150}, .gates = false, .initial_state = false, .checkpoint_every = 0};
  const Case longer{.name = "slow decay", .lengths = {330, 0, 70}, .resets = 0.004f, .least_alpha = 0.999f, .largest_beta = 0.3f,
                    .checkpoint_every = 0};
  const Case repeated{.name = "repeated keys", .lengths = {128}, .initial_state = false, .repeated_keys = true, .least_alpha = 1.f,
                      .least_beta = 1.9f, .largest_beta = 1.95f, .checkpoint_every = 0};
  const Case cut{.name = "cut, k first", .lengths = {1060, 0, 70}, .k_first = true, .least_alpha = 0.999f, .largest_beta = 0.3f,
                 .checkpoint_every = 0};
  Case cut_gva = cut;
  cut_gva.name = "cut, GVA", cut_gva.lengths = {70, 1400}, cut_gva.value_heads = 2, cut_gva.k_first = false;
  Case whole = cut;
  whole.lengths = {230, 0, 70};
  Case in_float16 = linear;
  in_float16.type = Type::float16;
  const Case some{.name = "some short, GVA", .lengths = {5, 0, 64, 130, 3}, .value_heads = 2, .checkpoint_every = 0};
  const Case all{.name = "all short, resets, GQA, k first", .lengths = {17, 40, 0}, .query_heads = 2, .k_first = true, .resets = 0.05f,
                 .largest_beta = 1.8f, .checkpoint_every = 0};
  const Case one{.name = "one short, no gates, no states", .lengths = {50}, .gates = false, .initial_state = false, .checkpoint_every = 0};
  const How slice{.groups = 1}, both{.groups = 2}, beside{.groups = 1, .beside = true};
  const auto with_little = [](How how) { return how.little = true, how; };
  const How paired{.groups = 2, .paired = true};
  constexpr int kZero = 2 * 70, kMiddle = 2 * 100;  // tokens whose beta is 0: of the first chunk and a later one, and of whole chunks between
  Case long_ragged = ragged;
  long_ragged.lengths = {200, 0, 64, 5};
  std::vector<Run> runs{{ragged, {100}, both, kZero}, {resets, {}, slice}, {in_float16, {}, slice}, {linear, {}, both}, {bare, {0, true, false}, slice},
                        {cut, {3}, {.groups = 2, .segment = 8}}, {ragged, {100}, beside, kZero}, {resets, {}, beside}, {whole, {3}, beside},
                        {ragged, {100}, paired, kZero}, {resets, {}, paired}, {whole, {3}, paired}, {bare, {0, true, false}, paired},
                        {some, {100}, {.groups = 2, .brief = true}, kZero}, {all, {3}, {.brief = true}}, {one, {0, true, false}, {.brief = true}}};
  if (kTerms == 1) {
    runs.insert(runs.end(), {{long_ragged, {100}, with_little(both), kMiddle}, {cut, {3}, {.groups = 1, .segment = 8, .little = true}}, {cut_gva, {100}, {.groups = 2, .segment = 8, .little = true}},
                             
                             {long_ragged, {}, with_little(beside), kMiddle}, {long_ragged, {100}, with_little(paired), kMiddle}});
  }
  if (std::getenv("THOROUGH") != nullptr) {
    for (const Given& given : {Given{}, Given{0, false, true}, Given{7, true, false}}) {
      for (const Case& c : {ragged, resets, linear, bare, longer, repeated, in_float16}) {
        for (const How& how : {slice, both}) {
          runs.push_back({c, given, how});
          if (kTerms == 1) runs.push_back({c, given, with_little(how)});
        }
        if (c.type == Type::float16) continue;
        for (const How& how : {beside, paired}) {
          runs.push_back({c, given, how});
          if (kTerms == 1) runs.push_back({c, given, with_little(how)});
        }
      }
      for (Case c : {some, all, one}) {
        for (const int groups : {1, 2}) {
          c.type = Type::bfloat16, runs.push_back({c, given, {.groups = groups, .brief = true}});
          c.type = Type::float16, runs.push_back({c, given, {.groups = groups, .brief = true}});
        }
      }
    }
  }
  return runs;
}

}  // namespace

// Makes the last of every `share` runs: of three, that is one of each kind, and not the longest. Without an argument, all.
int main(int count, char** arguments) {
  const int share = count > 1 ? std::atoi(arguments[1]) : 1;
  int asked = 0;
  std::signal(SIGSEGV, [](int) { fail("an address that there is not"); });
  const float scale = 1.f / std::sqrt(float{kSize});
  bool right = true;
  schedule.seed(SEED);
  for (const Run& run : all_runs()) {
    if (++asked % share != 0) continue;
    Inputs inputs = draw(run.c);
    if (run.zero_beta >= 0) inputs.beta[run.zero_beta] = 0.f;
    const Cotangents cotangents = draw_cotangents(run.c, inputs);
    const Gradients expected = recur_back(run.c, inputs, cotangents, scale, run.given.output, run.given.state);
    right &= report(run.c, inputs, cotangents, expected, run.given, run.how, scale);
#ifdef STOP_AT_FIRST
    if (!right) return 1;
#endif
  }
  return right ? 0 : 1;
}
