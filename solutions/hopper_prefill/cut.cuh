// How a call is cut up, on the host: slices of a state in a block, and segments of sequences.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "choose.cuh"
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

Workspace workspace_of(const Cut& how, int64_t tokens, int64_t sequences, int64_t heads, int64_t D) {
  const int64_t tile = tile_bytes(!finds_p(how.groups)) / static_cast<int64_t>(sizeof(float));
  return {how.prepares ? 0 : (tokens / kChunk + sequences) * heads * tile,
          how.length == 0 ? 0 : count_places(tokens, sequences, how.first, how.length) * heads * D * D,
          how.stays ? queue_size(sequences) : 0};
}

#if defined(GDN_CLOCKS) || defined(GDN_GIVEN)
int given(const char* name, int otherwise) {  // what else there could be
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}
#endif

// The least time as a model has it, with a workspace of no more than `room`; of heads of 128, as cut_64.cuh has the others. How
// long each sequence is, the host does not know: a few are taken to be as long as each other, and of many the longest to be two
// or three times as long as the others, which then have to hide behind it.
Cut cut(int64_t tokens, int64_t sequences, int64_t heads, int64_t room, int multiprocessors, bool checkpoints) {
  const int64_t pairs = heads * sequences, last = pairs % multiprocessors;
  // Where states are much of what moves, and each multiprocessor has several, the next one had better come while this one is
  // advanced. Longer sequences lose more by having two places for keys than they gain: measured, from 8 chunks on.
  constexpr int64_t kStayTokens = 384, kStayPairs = 2;
  // With so many tokens a chunk is prepared before its turn comes, in the block itself: by counting (LOG.md, version 17).
#if defined(GDN_CLOCKS) || defined(GDN_GIVEN)
  if (given("GDN_LONG", 0) != 0) {
    Cut all{2, 0, 0, false};
    all.stays = all.prepares = all.ahead = true;
    return all;
  }
  const bool forced = given("GDN_GROUPS", 0) != 0;
  const int64_t prepare_tokens = given("GDN_SHORT", 128);
#else
  constexpr bool forced = false;
  constexpr int64_t prepare_tokens = 128;
#endif
  const bool many = pairs >= kStayPairs * multiprocessors && pairs * kStaySize < int64_t{1} << 31;
  if (!forced && !checkpoints && many && tokens <= kStayTokens * sequences) {
    Cut staying{2, 0, 0, false};
    staying.stays = true, staying.prepares = kShortFits && tokens <= prepare_tokens * sequences;
    return staying;
  }
  const bool two_will_do = pairs > multiprocessors && last > 0 && 2 * last <= multiprocessors;
  const bool may_have_more = pairs > multiprocessors && sequences > 1 && sequences <= kDecided;
#if defined(GDN_CLOCKS) || defined(GDN_GIVEN)
  if (const int groups = given("GDN_GROUPS", 0); groups != 0) {
    const bool whole = groups == 2 && two_will_do && sequences <= kDecided && given("GDN_LAST", 0) != 0;
    return {groups, given("GDN_FIRST", 0), given("GDN_LENGTH", 0), given("GDN_ALONE", 0) != 0, whole ? pairs - last : 0};
  }
#endif
  // As in choose.cuh. Of a chunk: prepared, by groups; without output, in a block alone or in one of two, where its beginning
  // and end are as long as kAround more, and it begins kLater. Of one more pass, besides kPass; of a state that is joined over
  // a segment.
  constexpr int64_t kPrepare[] = {2100, 1900}, kAlone = 1200, kOfTwo = 1650, kAround = 4, kLater = 9000;
  constexpr int64_t kSecond = 5800, kJoin = 3300;
  const int64_t chunks = tokens / kChunk + sequences;
  const int64_t each = (chunks + sequences - 1) / sequences, longest = sequences < 8 ? 1 : sequences < 16 ? 2 : 3;
  const auto waves = [&](int64_t blocks, int64_t places) { return (blocks + places - 1) / places; };
  Cut best{1, 0, 0, false};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const int groups : {1, 2}) {
    const int64_t blocks = pairs * (groups == 1 ? 2 : 1), cycles = chunk_cycles(groups);
    const int64_t prepared = chunks * heads * kPrepare[groups - 1] / multiprocessors;
    const auto offer = [&](int64_t time, const Cut& how) {
      if (prepared + time < least) least = prepared + time, best = how;
    };
    if (longest > 1) {  // of which each slice may be a block's of its own
      const int64_t one = groups == 2 && may_have_more ? kFindsPCycles : cycles;
      offer(std::max(blocks * each * cycles / multiprocessors, longest * each * one), {groups, 0, 0, false});
      continue;
    }
    offer(waves(blocks, multiprocessors) * (each * cycles + kPass), {groups, 0, 0, false});
    // The last ones may leave half of the multiprocessors idle, or more: then each of them may have two blocks, a slice each.
    if (groups == 2 && two_will_do) {
      const int64_t behind = each * kFindsPCycles + kPass;
      offer(pairs / multiprocessors * (each * cycles + kPass) + behind, {groups, 0, 0, false, pairs - last});
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
      if (workspace_of(how, tokens, sequences, heads, 128).all() > room) continue;
      const int64_t pass = std::max(how.first * cycles + kPass, (length + kAround) * states + kLater);
      const int64_t outputs = waves(blocks * (count - 1), multiprocessors) * (length * cycles + kPass);
      offer(pass + kSecond + (count - 2) * kJoin + outputs, how);
    }
  }
  // Where there are multiprocessors for all blocks of two slices, and not for all of one. Blocks that decide find P, which
  // one slice alone is the worse for: not where it is better anyhow, as it is with many sequences.
  const bool in_doubt = best.groups == 2 || longest == 2, few = pairs <= multiprocessors && 2 * pairs > multiprocessors;
  if (best.length != 0 || sequences == 1 || sequences > kDecided) return best;
  if (few && in_doubt) best.groups = 2, best.most = sequences;
  // Blocks that turn out to be none come last, and are no more than multiprocessors, or one sequence's.
  if (may_have_more && best.groups == 2) best.most = std::clamp<int64_t>(multiprocessors / heads, 1, sequences);
  return best;
}

}  // namespace
