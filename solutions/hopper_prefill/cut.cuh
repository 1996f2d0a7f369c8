// How a call is cut up, on the host: slices of a state in a block, and segments of sequences.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "choose.cuh"
#include "device.cuh"
#include "join.cuh"
#include "queue.cuh"
#include "long_shared.cuh"

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
  bool ahead = false;     // .. the next one's first product under way: of long sequences
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
          how.stays ? queue_size(batch.sequences) : 0};
}

#ifdef GDN_CLOCKS
int given(const char* name, int otherwise) {  // what else there could be
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}
#endif

// What a model has a batch take on a device, in cycles: those of multiprocessors, and those of memory beside.
struct Costs {
  const Batch& batch;
  const Device& device;
  Traffic traffic = Traffic{batch};

  // Of what a copy gets. What of the shorter of both times is not hidden. Beginnings and ends of one kernel more.
  static constexpr double kReached = 0.97, kBeside = 0.1, kLaunch = 6000;
  // Of a chunk and head that is prepared, alone: what a multiprocessor takes; of a turn of a block that begins anew.
  static constexpr double kPrepare = 1400, kPrepareWithP = 1600, kTurn = 12000;
  // Of blocks that stay, and of those that prepare their own chunks: a chunk, and a (sequence, head) besides (LOG.md, version 18).
  static constexpr double kStayChunk = 3600, kStayTurn = 6000, kShortChunk = 7300, kShortTurn = 2000;

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
  // Of blocks on multiprocessors: whole ones where all are alike, and else those that begin later may be the shorter ones.
  double turns_of(int64_t blocks, int64_t longer) const {
    const int64_t places = device.multiprocessors;
    return longer == 1 ? static_cast<double>((blocks + places - 1) / places) : std::max(1., static_cast<double>(blocks) / places);
  }
  // Blocks that stay: the longest sequence may be some times as long as the mean.
  double staying(double chunk, double turn, int64_t longer, double bytes_of_chunk) const {
    const double each = batch.chunks_of_one() * chunk, turns = turns_of(batch.pairs(), longer);
    const double computed = std::max(turns * (each + turn), longer * each + turn);
    return beside(computed, batch.chunks() * bytes_of_chunk + states());
  }
  double prepares_short(int64_t longer) const { return staying(kShortChunk, kShortTurn, longer, traffic.prepares_and_outputs()); }
  double stays(int64_t longer) const { return prepare(2) + staying(kStayChunk, kStayTurn, longer, traffic.outputs(false)); }
  // One pass over so many chunks of each sequence with outputs, and over as many of states alone.
  double pass(double computed, int64_t with_outputs, int64_t alone, int groups) const {
    const double bytes = with_outputs * traffic.outputs(!finds_p(groups)) + alone * traffic.states();
    return beside(computed, batch.sequences * bytes);
  }
  // A chunk of a block, where all multiprocessors have one: with one slice, finding P, or with both.
  double chunk(int groups) const {
    const double bytes = traffic.outputs(false) / batch.heads * device.multiprocessors;
    return groups == 1 ? std::max<double>(kFindsPCycles, moved(bytes / 2)) : std::max<double>(chunk_cycles(2), moved(bytes));
  }
};

// The least time by these costs, with a workspace of no more than `room`; of heads of 128, as cut_64.cuh has the others. How long
// each sequence is, the host does not know: a few are taken to be as long as each other, and of many the longest to be two or three
// times as long as the others, which then have to hide behind it.
Cut cut(const Batch& batch, int64_t room, const Device& device) {
  const Costs costs{batch, device};
  const int64_t sequences = batch.sequences, heads = batch.heads, pairs = batch.pairs(), multiprocessors = device.multiprocessors;
  const int64_t each = batch.chunks_of_one(), longest = sequences < 8 ? 1 : sequences < 16 ? 2 : 3, last = pairs % multiprocessors;
  const bool two_will_do = pairs > multiprocessors && last > 0 && 2 * last <= multiprocessors;
  const bool may_have_more = pairs > multiprocessors && sequences > 1 && sequences <= kDecided;
#ifdef GDN_CLOCKS
  if (const int groups = given("GDN_GROUPS", 0); groups != 0) {
    const bool whole = groups == 2 && two_will_do && sequences <= kDecided && given("GDN_LAST", 0) != 0;
    return {groups, given("GDN_FIRST", 0), given("GDN_LENGTH", 0), given("GDN_ALONE", 0) != 0, whole ? pairs - last : 0};
  }
#endif
  // Without output, of a chunk, in a block alone or in one of two, where its beginning and end are as long as kAround more, and it
  // begins kLater. Of one more pass, besides kPass; of a state that is joined over a segment.
  constexpr int64_t kAlone = 1200, kOfTwo = 1650, kAround = 4, kLater = 9000, kSecond = 5800, kJoin = 3300;
  const auto waves = [&](int64_t blocks, int64_t places) { return (blocks + places - 1) / places; };
  Cut best{1, 0, 0, false};
  double least = std::numeric_limits<double>::max();
  const auto offer = [&](double time, const Cut& how) {
    if (time < least) least = time, best = how;
  };
  for (const int groups : {1, 2}) {
    const int64_t blocks = pairs * (groups == 1 ? 2 : 1), cycles = chunk_cycles(groups);
    const double prepared = costs.prepare(groups);
    const auto offer_uncut = [&](double computed, const Cut& how) { offer(prepared + costs.outputs(computed, groups), how); };
    if (longest > 1) {  // of which each slice may be a block's of its own
      const int64_t one = groups == 2 && may_have_more ? kFindsPCycles : cycles;
      const double turns = costs.turns_of(blocks, longest) * (each * cycles + Costs::kTurn);
      offer_uncut(std::max<double>(turns, longest * each * one + kPass), {groups, 0, 0, false});
      continue;
    }
    offer_uncut(waves(blocks, multiprocessors) * (each * cycles + kPass), {groups, 0, 0, false});
    // The last ones may leave half of the multiprocessors idle, or more: then each of them may have two blocks, a slice each.
    if (groups == 2 && two_will_do) {
      const int64_t behind = each * kFindsPCycles + kPass;
      offer_uncut(pairs / multiprocessors * (each * cycles + kPass) + behind, {groups, 0, 0, false, pairs - last});
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
      const double passes = costs.pass(first, how.first, (count - 2) * length, groups) + costs.pass(outputs, (count - 1) * length, 0, groups);
      offer(prepared + passes + kSecond + (count - 2) * kJoin, how);
    }
  }
  // Blocks that stay, which do not write checkpoints.
  if (!batch.checkpoints && pairs * kStaySize < int64_t{1} << 31) {
    Cut staying{2, 0, 0, false};
    staying.stays = true;
    offer(costs.stays(longest), staying);
    staying.prepares = true;
    if (kShortFits) offer(costs.prepares_short(longest), staying);
  }
  // Where there are multiprocessors for all blocks of two slices, and not for all of one. Blocks that decide find P, which
  // one slice alone is the worse for: not where it is better anyhow, as it is with many sequences.
  const bool in_doubt = best.groups == 2 || longest == 2, few = pairs <= multiprocessors && 2 * pairs > multiprocessors;
  if (best.length != 0 || best.stays || sequences == 1 || sequences > kDecided) return best;
  if (few && in_doubt) best.groups = 2, best.most = sequences;
  // Blocks that turn out to be none come last, and are no more than multiprocessors, or one sequence's.
  if (may_have_more && best.groups == 2) best.most = std::clamp<int64_t>(multiprocessors / heads, 1, sequences);
  return best;
}

}  // namespace
