// What a call does, and the memory that it needs beside its inputs and outputs, by the shapes that the host knows.
#pragma once
#include <algorithm>

#include "first.cuh"

namespace {

struct Gpu {
  int multiprocessors;
  bool quick_memory;  // as an H200's
};

// Of what the driver says: kHz of memory, at most; bits of the bus. An H100 has 25 GB/s per multiprocessor, an H200 37.
constexpr Gpu gpu_of(int multiprocessors, int memory_clock, int bus) {
  constexpr double kQuick = 32e9;
  return {multiprocessors, 2e3 * memory_clock * bus / 8 >= kQuick * multiprocessors};
}

// What a call is given beside what Problem says.
struct Form {
  bool divides;  // kDivides
  bool output;   // do
  bool quick_memory;
};

// Segments of a long sequence, at most; 0: sequences are not cut. That is worth it for few heads, and so many segments that the walks which
// find what becomes of states, three for each but those at the ends, fill the multiprocessors.
constexpr int kLeastSegments = 3;
int64_t chunks_of_each(const Problem& p) { return (p.tokens + int64_t{kChunk} * p.N - 1) / (int64_t{kChunk} * p.N); }
int64_t most_segments(const Problem& p) {
  const int64_t pairs = int64_t{p.N} * p.H, each = chunks_of_each(p);
  constexpr int64_t kMostPairs = 12, kLeast = 64;
  if (pairs > kMostPairs || each < kLeast) return 0;
  const int64_t count = std::min((p.multiprocessors / pairs + 4) / 3, each / kLeastOfSegment);
  return count < kLeastSegments ? 0 : count;
}

// Heads that share their q and k are prepared together, so many in a block, or twice as many where four warps have a head each then,
// and multiprocessors blocks enough.
Group group_of(const Problem& p) {
  const int shared = std::min(p.q_group, p.k_group);
  Group group{1, std::min(shared, kHeads), 0, 0};
  while (shared % group.heads != 0) --group.heads;
  const bool enough = int64_t{p.places} * p.H / group.heads >= 4 * p.multiprocessors;
  if (2 * group.heads <= kHeads && p.H / group.heads % 2 == 0 && enough) group.units = 2;
  group.of_query_head = p.q_group / group.heads, group.of_key_head = p.k_group / group.heads;
  return group;
}

// Whether a block walks with both slices of a state: predicted, a chunk takes 1.3 times as long then.
bool takes_both(const Problem& p) {
  const auto waves = [&](int64_t blocks) { return (blocks + p.multiprocessors - 1) / p.multiprocessors; };
  const int64_t pairs = int64_t{p.N} * p.H;
  return 13 * waves(pairs) < 10 * waves(2 * pairs);
}

// Whether two blocks of a multiprocessor walk forward, where its start and its end are most of a walk.
bool takes_short(const Problem& p) {
  constexpr int64_t kMostChunks = 4;
  return p.tokens <= kMostChunks * kChunk * p.N;
}

// How the last kernel walks: slices of a state in a block; blocks that walk, at most; and so many, if not 0, where all sequences have as many chunks.
struct Walks {
  int groups;
  int64_t most, even = 0;
};

// Few heads have a block for each slice. Of others as many blocks walk as leave chunks as fast as the others find their gradients:
// of 132, 32 to 64, by measured times. Where sequences are short, or some are longer than others maybe, more do. What more of them leave
// in a time passes through memory: an H200 gains by that, unless sequences are so long that it is not in the cache any more. Of many
// sequences the host does not know whether some are longer: the kernel does.
Walks walks_of(const Problem& p, bool quick_memory) {
  const int64_t pairs = int64_t{p.N} * p.H, all = p.multiprocessors;
  constexpr int64_t kFewPairs = 24, kLeastChunks = 4, kShortChunks = 8, kManySequences = 8, kMostCompared = 64;
  const auto in_rounds = [&](int64_t rounds) { return (pairs + rounds - 1) / std::max<int64_t>(1, rounds); };
  if (pairs <= kFewPairs) return {1, 2 * pairs};
  if (p.N > kManySequences && p.segments.length == 0 && pairs <= all) return {1, 3 * all / 4};
  if (p.N >= kManySequences && p.segments.length == 0) {
    if (!quick_memory || pairs <= all || p.N > kMostCompared || p.tokens <= kLeastChunks * kChunk * p.N) return {2, all};
    return {2, all, in_rounds(p.tokens <= kShortChunks * kChunk * p.N ? 2 * pairs / all : pairs * 33 / (10 * all))};
  }
  if (p.tokens <= kShortChunks * kChunk * p.N) return {2, all};
  constexpr int64_t kLongChunks = 64;
  const bool fewer = 2 * pairs > all && pairs <= all && (!quick_memory || p.tokens > kLongChunks * kChunk * p.N);
  const int64_t in_turn = fewer ? 42 : 33;  // 128 pairs: 32 blocks, or 43 as of 256
  const int64_t rounds = std::max<int64_t>(1, pairs * in_turn / (10 * all));
  return {2, in_rounds(rounds)};
}

// Where (sequence, head) are few, what comes before the gradients is one kernel, and gradients are found as soon as both walks have left a
// chunk: half of the multiprocessors walk, the others prepare. `walks` is 0 where that is not so.
First first_of(const Problem& p, bool divides) {
  constexpr int64_t kLeastChunks = 16;
  const int64_t pairs = int64_t{p.N} * p.H, walks = kHalves * pairs;
  if (!divides || p.segments.length > 0 || 8 * pairs > p.multiprocessors || p.tokens < kLeastChunks * kChunk * p.N) return {};
  return {group_of(p), static_cast<int>(p.multiprocessors - 2 * walks), static_cast<int>(walks)};
}

// Whether sequences of one chunk have a kernel of their own: 0, or how long they may be. Only where the others can be found without looking
// at all of them.
int brief_of(const Problem& p) { return p.N <= kSorted && p.tokens <= int64_t{kChunk} * p.N ? kChunk : 0; }

// Whether the walk back begins beside the forward walk, where neither fills the multiprocessors: each slice has a block that walks forward, and
// from a third of the blocks on those would take too many. The bytes that both move at once are too many for an H100.
bool are_paired(const Problem& p, const Form& form, const Walks& walks) {
  constexpr int64_t kLeastChunks = 16;
  const bool idle = walks.groups == 2 && 3 * int64_t{p.N} * p.H <= p.multiprocessors;
  return form.divides && form.quick_memory && idle && p.segments.length == 0 && p.tokens >= kLeastChunks * kChunk * p.N;
}

// --- memory ------------------------------------------------------------------------------------------------------

// Its parts, as they lie one after the other; Problem says what they are.
enum WorkPart {
  kStartsPart, kEndsPart, kErrorsPart, kTilesPart, kWritesPart, kZerosPart, kDecaysPart, kEndPart, kSumsPart, kBetasPart, kRestsPart, kOrderPart,
  kQueuePart, kBoundsPart, kKeptPart, kWorkParts
};

struct Plan {
  int N, places, brief;  // Problem's
  int64_t length;     // chunks of a segment; 0: nothing is cut
  First first;        // walks 0: one kernel after the other
  Walks walks;        // back
  bool forward_both;  // slices in a block that walks forward
  bool forward_short;  // two blocks that do on a multiprocessor, a slice each
  bool alone;         // no sequence has more than one chunk
  bool paired;        // the walk back is beside the forward walk, and not behind it
  bool little;        // tiles have no memory of their own
  int64_t bytes[kWorkParts];

  int64_t before(int part) const {
    int64_t sum = 0;
    for (int i = 0; i < part; ++i) sum += bytes[i];
    return sum;
  }
  int64_t all() const { return before(kWorkParts); }
};

int64_t input_bytes(const Problem& p, const Form& form) {
  const int64_t of_head = p.tokens * kHeadSize * 2, gates = (p.g != nullptr) + (p.beta != nullptr);
  const int64_t states = (p.initial_state != nullptr) + (p.dht != nullptr);
  return of_head * (p.q_heads + p.k_heads + p.v_heads + (form.output ? p.H : 0)) + gates * p.tokens * p.H * 4 +
         states * p.N * p.H * kHeadSize * kHeadSize * 4 + 8 * (int64_t{p.N} + 1);
}

// Tiles may lie where dS will, or in `first`, where the walk forward is beside the walk back, those of that walk where r will: whoever
// overwrites a tile has it in shared memory. Where each slice has a block, it writes its half alone, and so each has its tile there.
constexpr bool kRoomForBoth = kTileBytes <= kStateBytes;
constexpr bool kRoomForEach = kReverseBytes <= kStateBytes / 2 && kTileBytes >= kStateBytes / 2 && kTileBytes + kReverseBytes <= kStateBytes &&
                              kForwardBytes <= kBoxBytes;

// In so many segments; 0: not cut.
Plan plan_with(Problem p, const Form& form, int64_t segments, bool little, bool paired) {
  Plan plan{};
  plan.length = segments > 0 ? (chunks_of_each(p) + segments - 1) / segments : 0;
  p.segments.length = static_cast<int>(plan.length);
  plan.brief = p.brief = brief_of(p);
  const bool cut = plan.length > 0;
  const int64_t places = std::max<int64_t>(1, (p.tokens + kChunk - 1) / kChunk + p.N - 1);
  if (cut) p.N += static_cast<int>(p.tokens / (int64_t{kChunk} * plan.length));
  const int64_t of_head = places * p.H, pairs = int64_t{p.N} * p.H;
  plan.N = p.N, plan.places = p.places = static_cast<int>(places);
  plan.first = first_of(p, form.divides), plan.walks = walks_of(p, form.quick_memory), plan.forward_both = takes_both(p);
  plan.forward_short = takes_short(p);
  plan.alone = p.brief > 0 && p.tokens <= p.brief;
  const bool beside = plan.first.walks > 0;
  plan.paired = paired && are_paired(p, form, plan.walks);
  plan.little = little && !plan.alone && (beside || plan.paired || plan.walks.groups == 1 ? kRoomForEach : kRoomForBoth);
  const int64_t of_values = p.tokens * p.H * kHeadSize * 2;
  int64_t* const bytes = plan.bytes;
  if (!plan.alone) {
    bytes[kStartsPart] = bytes[kEndsPart] = of_head * kStateBytes, bytes[kErrorsPart] = of_head * kValueBytes;
    bytes[kEndPart] = pairs * kWalkers * kChunk * 4, bytes[kSumsPart] = pairs * 2 * sizeof(WalkSums);
    if (cut || p.initial_state != nullptr || p.dht != nullptr) bytes[kRestsPart] = pairs * 2 * kWalkers * 4 * 32 * sizeof(uint4);
    if (!in_rows_of_queries(p)) bytes[kBetasPart] = of_head * kWalkers * kChunk * 4;
  }
  bytes[kTilesPart] = plan.little ? 0 : of_head * kTileBytes, bytes[kDecaysPart] = of_head * sizeof(Decays);
  bytes[kWritesPart] = p.v_group > 1 ? of_values : 0;  // dv of each head
  bytes[kZerosPart] = form.output ? 0 : of_values;     // in the place of do
  bytes[kOrderPart] = (p.N + 3) / 4 * 16;
  bytes[kQueuePart] = 16 + (2 * places * p.k_heads + (beside ? of_head : 0) + (beside || plan.paired ? kHalves * pairs : 0) + 3) / 4 * 16;
  bytes[kBoundsPart] = cut ? (4 * int64_t{p.N} + 8) * 4 : 0;
  bytes[kKeptPart] = beside || plan.paired ? pairs * kWalkers * kChunk * kChunk / 2 * 4 : 0;
  return plan;
}

// The limit as a multiple of the inputs. The variant `roomy` has none: GDN_ROOMY.
#ifdef GDN_ROOMY
constexpr int64_t kMostInputs = 1 << 20;
#else
constexpr int64_t kMostInputs = 2;
#endif

// The fastest that takes at most so many times the inputs; if none does, the one that takes least, but never without segments where the walks
// cannot be side by side.
Plan plan_of(const Problem& p, const Form& form) {
  const int64_t most = kMostInputs * input_bytes(p, form), segments = most_segments(p);
  Plan least = plan_with(p, form, segments, false, true);
  const auto fits = [&](int64_t count, bool little, bool paired = false) {
    const Plan plan = plan_with(p, form, count, little, paired);
    if (plan.all() < least.all()) least = plan;
    return plan.all() <= most;
  };
  if (fits(segments, false, true)) return least;
  for (int64_t count = segments; count >= kLeastSegments; --count) {
    if (fits(count, true)) return least;
  }
  if (segments > 0 && !form.divides) return least;
  if (!fits(0, false) && !fits(0, true, true)) fits(0, true);
  return least;
}

}  // namespace
