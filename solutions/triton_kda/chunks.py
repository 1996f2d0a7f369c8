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
def known_tokens(chunks_ptr, slot):
    """The same from a table [slots, 2], which saves a search: loads that wait for one another."""
    return tl.load(chunks_ptr + 2 * slot), tl.load(chunks_ptr + 2 * slot + 1).to(tl.int32)
