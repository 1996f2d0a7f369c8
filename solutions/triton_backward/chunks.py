"""Where chunks lie: in the batch of sequences, and in the workspace.

Chunk c of sequence n has slot cu_seqlens[n] // C + n + c in the workspace. No two chunks share one, all are below
ceil(total_seq_len / C) + num_seqs - 1, and nobody has to count the chunks of the sequences before, or wait for the
host.
"""

import triton
import triton.language as tl


@triton.jit
def start_of(cu_seqlens_ptr, n, total):
    """The first token of sequence n, and the end of the one before; inside the batch, whatever cu_seqlens says."""
    return tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + n).to(tl.int64), 0), total)


@triton.jit
def slot_of(cu_seqlens_ptr, n, total, C: tl.constexpr):
    """The slot of the first chunk of sequence n."""
    return start_of(cu_seqlens_ptr, n, total) // C + n


@triton.jit
def sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C: tl.constexpr):
    """The last sequence whose first slot is not beyond `slot`: a search, for first slots rise from one to the next."""
    low, high = num_seqs * 0, num_seqs  # first slot of low <= slot < first slot of high
    while high - low > 1:
        middle = (low + high) // 2
        if slot_of(cu_seqlens_ptr, middle, total, C) <= slot:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C: tl.constexpr):
    """The first token of the chunk in a slot, and how many it has: none where no chunk is.

    Chunks are counted in 32 bits: in 64 bits ptxas 12.8 loses a carry after some divisions of a program's number.
    """
    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    before = (slot - slot_of(cu_seqlens_ptr, n, total, C)).to(tl.int32).to(tl.int64)
    first = start_of(cu_seqlens_ptr, n, total) + before * C
    return first, tl.minimum(start_of(cu_seqlens_ptr, n + 1, total) - first, C).to(tl.int32)


@triton.jit
def chunks_of(cu_seqlens_ptr, at, num_seqs, total, C: tl.constexpr, SEGMENT: tl.constexpr):
    """The sequence at which number, or the one that has a segment; its first token and slot, and how many tokens."""
    if SEGMENT == 0:
        n, before, most = at, at * 0, total
    else:
        n = sequence_of(cu_seqlens_ptr, at, num_seqs, total, C * SEGMENT)
        before = (at - slot_of(cu_seqlens_ptr, n, total, C * SEGMENT)).to(tl.int32).to(tl.int64) * SEGMENT
        most = SEGMENT * C
    start = start_of(cu_seqlens_ptr, n, total) + before * C
    length = tl.minimum(start_of(cu_seqlens_ptr, n + 1, total) - start, most).to(tl.int32)
    return n, start, slot_of(cu_seqlens_ptr, n, total, C) + before, length


@triton.jit
def span_of(cu_seqlens_ptr, n, place, length, first, many, total, C: tl.constexpr, SEGMENT: tl.constexpr,
            PARTS: tl.constexpr):  # fmt: skip
    """What `many` parts from `first` on take of sequence n, or of the segment at `place`, with so many tokens: the last
    of their chunks, from which a walk goes back, how many there are (none: 0 or less), how many a part has, and the
    first place for the gradients of states of one part.

    A sequence or segment has PARTS parts of so many chunks each, counted from its end; the last ones may lack some.
    Places are numbered as slots are: for sequences with chunks of C PARTS tokens.
    """
    chunks = tl.cdiv(length, C)
    if SEGMENT == 0:
        span, kept = tl.cdiv(chunks, PARTS), slot_of(cu_seqlens_ptr, n, total, C * PARTS)
    else:
        span, kept = SEGMENT // PARTS, place * (SEGMENT // PARTS)
    last = chunks - 1 - first * span
    return last, tl.minimum(last + 1, span * many), span, kept


@triton.jit
def chunk_of_part(cu_seqlens_ptr, at, part, num_seqs, total, C: tl.constexpr, SEGMENT: tl.constexpr,
                  PARTS: tl.constexpr):  # fmt: skip
    """The chunk of a part whose gradient of the state has place `at`, in 32 bits: its sequence, slot and first token,
    and how many tokens it has: none where no chunk is."""
    if SEGMENT == 0:  # noqa: SIM108  Triton compiles both sides of an expression
        place = sequence_of(cu_seqlens_ptr, at, num_seqs, total, C * PARTS)
    else:
        place = at // (SEGMENT // PARTS)
    n, start, slot, length = chunks_of(cu_seqlens_ptr, place.to(tl.int64), num_seqs, total, C, SEGMENT)
    last, turns, _, kept = span_of(cu_seqlens_ptr, n, place, length, part, 1, total, C, SEGMENT, PARTS)
    turn = (at - kept).to(tl.int32)
    chunk = (last - turn).to(tl.int64)
    count = tl.where(turn < turns, tl.minimum(length - chunk * C, C), 0)
    return n, slot + chunk, start + chunk * C, count.to(tl.int32)
