// How a call is cut up, on the host: slices of a state in a block, and segments of sequences.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "choose.cuh"
#include "device.cuh"
#include "join.cuh"
#include "long_shared.cuh"
#include "queue.cuh"

namespace {

// How a call is cut up: `groups` slices of a state in a block, segments of `length` chunks (0: none) behind a first one.
struct Cut {
  int groups;
  int64_t first, length;
  bool alone;         // whether a block without outputs has a multiprocessor for itself
  int64_t whole = 0;  // that many (sequence, head) have one block for both slices, those behind them one for each; 0: all ..
  int64_t most = 0;   // .. but for this many sequences, no more, the longest ones, where blocks find that they had better
  bool stays = false;  // blocks take (sequence, head) after (sequence, head) ..
  bool prepares = false;  // .. and prepare their chunks themselves ..
  bool few = false;       // .. but for sequences of few tokens, which are advanced token by token (few.cuh) ..
  bool ahead = false;     // .. the next one's first product under way: of long sequences
  int64_t one_up_to = 0;  // these as well, which have the call where no sequence has more chunks; 0: they do not
  bool queues() const { return stays || one_up_to > 0; }
  bool decides() const { return most + whole > 0; }
};

// Beside inputs and outputs, in units of 4 bytes.
struct Workspace {
  int64_t tiles, states, queue;  // all tiles; the states before all segments, of two kinds; the order of sequences
  int64_t all() const { return tiles + 2 * states + queue; }
};

Workspace workspace_of(const Cut& how, const Batch& batch) {
  const int64_t tile = tile_bytes(!finds_p(how.groups)) / static_cast<int64_t>(sizeof(float));
  const int64_t places = how.length == 0 ? 0 : count_places(batch.tokens, batch.sequences, how.first, how.length);
  return {how.prepares ? 0 : batch.places() * batch.heads * tile, places * batch.heads * batch.D * batch.D,
          how.queues() ? queue_size(batch.sequences) : 0};
}

#ifdef GDN_CLOCKS
int given(const char* name, int otherwise) {  // what else there could be
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}
#endif

// For the judge and for sanitizers, on small batches too: one kernel for long sequences, wherever it may be.
#ifdef GDN_LONG
constexpr bool kLongAnyhow = true;
#else
constexpr bool kLongAnyhow = false;
#endif
// For them, too: that kernel beside two, if a batch has several sequences.
#ifdef GDN_EITHER
constexpr bool kEitherAnyhow = true;
#else
constexpr bool kEitherAnyhow = false;
#endif

// What a model has a batch take on a device, in cycles: those of multiprocessors, and those of memory beside.
struct Costs {
  const Batch& batch;
  const Device& device;
  Traffic traffic = Traffic{batch};

  // Of what a copy gets. What of the shorter of both times is not hidden. The beginning and end of one kernel more.
  static constexpr double kReached = 0.97, kBeside = 0.1, kLaunch = 6000;
  // Of a chunk with both slices, where all multiprocessors have one; of one that is prepared, with P or without; besides its
  // chunks, of a block among many that begin one after the other.
  static constexpr double kBoth = 3200, kPrepareWithP = 1600, kPrepare = 1400, kTurn = 12000;
  // Of a block that leaves at once, among many.
  static constexpr double kLeaves = 200;
  // Of a token of a (sequence, head), one by one.
  static constexpr double kFewToken = 2900;
  // Of blocks that stay, and of those that prepare their own chunks, of short sequences or of long ones: of a chunk, and of a
  // (sequence, head) besides.
  static constexpr double kStayChunk = 3600, kStayTurn = 6000, kShortChunk = 6700, kShortTurn = 2800;
  static constexpr double kLongChunk = 4700, kLongTurn = 3500;
  // Of a chunk that is prepared, by heads of k, and by others.
  static constexpr double kOfKeys = 1200, kOfHead = 700;

  double moved(double bytes) const { return bytes / (kReached * device.bytes); }
  // Where multiprocessors take so long, and so many bytes are moved beside.
  double beside(double computed, double bytes) const {
    return std::max(computed, moved(bytes)) + kBeside * std::min(computed, moved(bytes));
  }
  double states() const { return 2 * traffic.of_states(batch.pairs()); }
  // The first kernel, for those that advance so many slices in a block.
  double prepare(int groups) const {
    const double computed = batch.chunks() * batch.heads * (groups == 1 ? kPrepareWithP : kPrepare) / device.multiprocessors;
    return kLaunch + beside(computed, batch.chunks() * traffic.prepares(!finds_p(groups)));
  }
  // The second one, uncut, where blocks take so long.
  double outputs(double computed, int groups) const {
    return beside(computed, batch.chunks() * traffic.outputs(!finds_p(groups)) + states());
  }
  int64_t waves(int64_t blocks) const { return (blocks + device.multiprocessors - 1) / device.multiprocessors; }
  // Blocks that stay: the longest sequence may have more chunks than the mean.
  double staying(double chunk, double turn, int64_t longest, double bytes_of_chunk) const {
    const double each = batch.chunks_of_one() * chunk, turns = static_cast<double>(waves(batch.pairs()));
    const double computed = std::max(turns * (each + turn), longest * chunk + turn);
    return beside(computed, batch.chunks() * bytes_of_chunk + states());
  }
  double prepares_short(int64_t longest) const {
    return staying(kShortChunk, kShortTurn, longest, traffic.prepares_and_outputs());
  }
  // The last kernel, of sequences that have more tokens, finds none or few.
  double token_by_token() const {
    const double computed = static_cast<double>(batch.tokens) * batch.heads * kFewToken / device.multiprocessors;
    return kLaunch + beside(computed, batch.chunks() * traffic.prepares_and_outputs() + states());
  }
  double prepares_long(int64_t longest) const {
    return kLaunch + staying(kLongChunk, kLongTurn, longest, traffic.prepares_and_outputs());
  }
  // The most chunks that the longest sequence may have, of no more than so many, where that kernel is to take less, beside blocks
  // of two others that leave at once, most of which prepare two heads or more; 0: it never does.
  int64_t one_up_to(int64_t most, double less) const {
    const double others = kLaunch + kLeaves * batch.chunks() * batch.heads / 2 / device.multiprocessors;
    int64_t from = 0, to = most + 1;
    while (to - from > 1) {
      const int64_t middle = from + (to - from) / 2;
      (others + prepares_long(middle) < less ? from : to) = middle;
    }
    return from;
  }
  // What `prepare` says too much, for two slices: heads that share k share its products. The choice between those that all have
  // it was fitted without this.
  double shared() const {
    const double computed = batch.chunks() * (kOfKeys * batch.k_heads + kOfHead * batch.heads) / device.multiprocessors;
    return prepare(2) - kLaunch - beside(computed, batch.chunks() * traffic.prepares(false));
  }
  double stays(int64_t longest) const { return prepare(2) + staying(kStayChunk, kStayTurn, longest, traffic.outputs(false)); }
  // One pass over so many chunks of each sequence with outputs, and over as many of states alone.
  double pass(double computed, int64_t with_outputs, int64_t alone, int groups) const {
    const double bytes = with_outputs * traffic.outputs(!finds_p(groups)) + alone * traffic.states();
    return beside(computed, batch.sequences * bytes);
  }
  // A chunk of a block where all multiprocessors have one, with both slices, or with one, finding P: where memory holds them up
  // it does so alike.
  double both() const { return std::max(kBoth, moved(traffic.outputs(false) / batch.heads * device.multiprocessors)); }
  double one() const { return kFindsPCycles * both() / kBoth; }
};

// The least time by these costs, with a workspace of no more than `room`; of heads of 128, as cut_64.cuh has the others. How
// long each sequence is, the host does not know: a few are taken to be as long as each other, and of many the longest to be two
// or three times as long as the others, which then have to hide behind it.
Cut cut(const Batch& batch, int64_t room, const Device& device) {
  const Costs costs{batch, device};
  const int64_t sequences = batch.sequences, heads = batch.heads, pairs = batch.pairs();
  const int64_t multiprocessors = device.multiprocessors, last = pairs % multiprocessors;
  const int64_t mean = batch.chunks_of_one(), each = sequences < 8 ? batch.places_of_one() : mean;
  const int64_t longest = sequences < 8 ? 1 : sequences < 16 ? 2 : 3;
  const bool many = pairs >= 2 * multiprocessors;  // each multiprocessor has several
  const bool two_will_do = pairs > multiprocessors && last > 0 && 2 * last <= multiprocessors;
  const bool may_have_more = pairs > multiprocessors && sequences > 1 && sequences <= kDecided;
#ifdef GDN_CLOCKS
  if (const int groups = given("GDN_GROUPS", 0); groups != 0) {
    const bool whole = groups == 2 && two_will_do && sequences <= kDecided && given("GDN_LAST", 0) != 0;
    return {groups, given("GDN_FIRST", 0), given("GDN_LENGTH", 0), given("GDN_ALONE", 0) != 0, whole ? pairs - last : 0};
  }
#endif
  // Without output, of a chunk, in a block alone or in one of two, where its beginning and end are as long as kAround more, and
  // it begins kLater. Of one more pass, besides kPass; of a state that is joined over a segment.
  constexpr int64_t kAlone = 1200, kOfTwo = 1650, kAround = 4, kLater = 9000, kSecond = 5800, kJoin = 3300;
  const auto waves = [](int64_t blocks, int64_t places) { return (blocks + places - 1) / places; };
  Cut best{1, 0, 0, false};
  double least = std::numeric_limits<double>::max(), alike = least;  // .. and if all are as long, though they may not be
  const auto offer = [&](double time, const Cut& how) {
    if (time < least) least = time, best = how;
  };
  for (const int groups : {1, 2}) {
    const int64_t blocks = pairs * (groups == 1 ? 2 : 1), cycles = chunk_cycles(groups);
    const double prepared = costs.prepare(groups);
    const auto offer_uncut = [&](double computed, const Cut& how) { offer(prepared + costs.outputs(computed, groups), how); };
    if (longest > 1) {  // of which each slice may be a block's of its own
      const int64_t one = groups == 2 && may_have_more ? kFindsPCycles : cycles;
      const double turns = static_cast<double>(costs.waves(blocks)) * (each * cycles + Costs::kTurn);
      offer_uncut(std::max<double>(turns, longest * each * one + kPass), {groups, 0, 0, false});
      alike = std::min(alike, prepared + costs.outputs(turns, groups) - (groups == 2 ? costs.shared() : 0));
      continue;
    }
    const double besides = many ? Costs::kTurn : kPass;
    offer_uncut(waves(blocks, multiprocessors) * (each * cycles + besides), {groups, 0, 0, false});
    // The last ones may leave half of the multiprocessors idle, or more: then each of them may have two blocks, a slice each.
    if (groups == 2 && two_will_do) {
      const double behind = each * kFindsPCycles + besides;
      offer_uncut(pairs / multiprocessors * (each * cycles + besides) + behind, {groups, 0, 0, false, pairs - last});
    }
    const int64_t left = multiprocessors - blocks;  // by first segments
    for (int64_t count = 3; left > 0 && count <= 16 && each >= 4 * count; ++count) {
      const int64_t others = 4 * pairs * (count - 2);
      const bool alone = others <= left;
      const int64_t states = alone ? kAlone : waves(others, 2 * left) * kOfTwo;
      // So long that they end with first segments.
      const int64_t even = each * cycles + kPass - kAround * states - kLater;
      const int64_t length = std::clamp<int64_t>(even / (states + (count - 1) * cycles), 1, each / count);
      const Cut how{groups, each - (count - 1) * length, length, alone};
      if (workspace_of(how, batch).all() > room) continue;
      const int64_t first = std::max(how.first * cycles + kPass, (length + kAround) * states + kLater);
      const int64_t outputs = waves(blocks * (count - 1), multiprocessors) * (length * cycles + kPass);
      const double one = costs.pass(first, how.first, (count - 2) * length, groups);
      const double two = costs.pass(outputs, (count - 1) * length, 0, groups);
      offer(prepared + one + kSecond + (count - 2) * kJoin + two, how);
    }
  }
  // Blocks that stay, which write no checkpoints.
  int64_t one_up_to = 0;
  if (!batch.checkpoints && pairs * kStaySize < int64_t{1} << 31) {
    Cut staying{2, 0, 0, false};
    staying.stays = true;
    if (many) offer(costs.stays(longest * mean), staying);
    staying.prepares = true;
    if (kShortFits && many) offer(costs.prepares_short(longest * mean), staying);
    // One kernel for long sequences. T is found two chunks ahead, so shorter ones have it wait. A sequence has one block for both
    // of its slices, so that the longest one, of four times the mean, has to hide behind others; or the device finds how long it
    // is, and two kernels are launched as well. These figures are no closer than kClearly.
    constexpr double kClearly = 0.97;
    constexpr int64_t kFewChunks = 4, kLonger = 4;
    staying.ahead = true;
    const double others = least - (best.groups == 2 && !best.prepares ? costs.shared() : 0);
    const bool clearly = each >= kFewChunks && costs.prepares_long((longest > 1 ? kLonger : 1) * mean) < kClearly * others;
    if (kLongFits && !kInvariant && (clearly || kLongAnyhow)) {
      best = staying;
    } else if (kLongFits && !kInvariant && longest > 1 && each >= kFewChunks) {
      one_up_to = costs.one_up_to(kLonger * mean, kClearly * alike);
      if (4 * one_up_to < 5 * mean) one_up_to = 0;  // all calls would pay for those of lengths that hardly differ
    }
  }
  // Sequences of few tokens one by one. Those with more of them, which then are few, prepare their own chunks.
  const bool few_each = batch.tokens <= kFewTokens * sequences && pairs * kStaySize < int64_t{1} << 31;
  if (kShortFits && !kInvariant && !kLongAnyhow && few_each && !batch.checkpoints && !batch.k_first) {
    Cut how{2, 0, 0, false};
    how.stays = how.prepares = how.few = true;
    // Where pairs are few, what the others say leaves out how long their kernels take to begin (LOG.md, version 20); and with one
    // token each, that blocks which prepare chunks wait for a state's way in and out.
    if (!many || batch.tokens <= sequences) best = how;
    offer(costs.token_by_token(), how);
  }
  // Where there are multiprocessors for all blocks of two slices, and not for all of one. Blocks that decide find P, which
  // one slice alone is the worse for: not where it is better anyhow, as it is with many sequences.
  const bool in_doubt = best.groups == 2 || longest == 2, few = pairs <= multiprocessors && 2 * pairs > multiprocessors;
  if (kEitherAnyhow && kLongFits && !batch.checkpoints && sequences > 1 && batch.tokens > 0) {
    best = {2, 0, 0, false}, one_up_to = 2 * mean;
  }
  if (best.length != 0 || best.stays || sequences == 1 || sequences > kDecided) return best;
  if (few && in_doubt) best.groups = 2, best.most = sequences;
  // Blocks that turn out to be none come last, and are no more than multiprocessors, or one sequence's.
  if (may_have_more && best.groups == 2) best.most = std::clamp<int64_t>(multiprocessors / heads, 1, sequences);
  if (best.groups == 2) best.one_up_to = one_up_to;
  return best;
}

}  // namespace
