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
