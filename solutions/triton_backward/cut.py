"""How the work is cut, and how far loads are ahead: the one place to tune."""

import os
from typing import NamedTuple

import torch
import triton
from arguments import CHUNK

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SHORT = 512  # tokens per sequence, on average, up to which walks back load two chunks ahead, or none if two fit
PARTS = 16  # of a sequence, where both walks are side by side
EARLY = 6  # so many of them, the last, are walked back before their r is known
KEPT = (16, 12, 11, 10, 9)  # of so many gradients of states are kept at a time, if there is room
BESIDE = (33, 66)  # programs of a walk, of which a multiprocessor has one, with which both walks are side by side
CROWDED = 96  # up to so many: then programs of both walks share multiprocessors, and load two chunks ahead
FAR = 8192  # tokens per sequence, on average, from which that is so
FORWARD_AHEAD = 3  # chunks, in walks forward but those over segments whose first states are known: two fit (README)
BESIDE_MOVES = 2  # chunks, in short walks back beside that one
LONG_SEGMENT = 64  # chunks: what comes to nothing over so many is left out, and more goes side by side
GATE_HEADS = 4  # of a program of gates_kernel and steep_kernel
STEEP_CHANNELS = 64  # at a time, in steep_kernel, which seldom has any


class Blocking(NamedTuple):
    """How the work is cut, a tuple for each kernel: warps, registers per thread where they are to be fewer than ptxas
    takes (0: as many as it takes), then channels at a time, then how far loads are ahead."""

    prepare: tuple[int, int, int]
    forward: tuple[int, int, int, int]
    backward: tuple[int, int, int, int]
    within: tuple[int, int, int]
    gradients: tuple[int, int, int, int, int]  # channels of keys, then of values


def blocking(D: int, dtype: torch.dtype) -> Blocking:
    """For heads of D elements and operands of `dtype`. No kernel for head sizes up to 128 may
    take more than 227 KiB of shared memory, or spill much (README)."""
    B = padded(D)
    if INTERPRETED:  # it charges by the operation
        return Blocking((4, 0, B), (4, 0, B, 1), (4, 0, B, 1), (4, 0, B), (4, 0, B, B, 1))
    if dtype == torch.float32:  # products by multiply-adds: all of a slice is in registers
        return Blocking((8, 0, 16), (8, 0, 16, 1), (8, 0, 16, 1), (16, 0, 32), (8, 0, 16, 16, 1))
    if D > 128:
        return Blocking((4, 0, 64), (8, 0, 64, 2), (8, 0, 64, 1), (4, 0, 64), (4, 0, 64, 64, 1))
    return Blocking((1, 0, 32), (4, 0, 64, 4), (4, 0, 64, 3), (4, 168, B), (4, 0, 64, 64, 3))


def segment_of(num_seqs: int, H: int, total: int, D: int, operand) -> int:
    """Chunks of a segment, where (sequence, head) pairs are few and their sequences long; else 0: whole sequences."""
    chunks = triton.cdiv(total, CHUNK)
    if INTERPRETED:  # both ways are to be seen
        return 2 if num_seqs * H < 4 and total else 0
    if operand != torch.bfloat16 or D > 128 or num_seqs * H > 16 or chunks < 16 * num_seqs:
        return 0
    return max(8, triton.next_power_of_2(chunks * H // 80))


def beside(num_seqs: int, H: int, total: int, slices: int) -> bool:
    """Whether both walks are to go side by side: where both leave multiprocessors to each other."""
    if INTERPRETED:
        return num_seqs * H >= 4
    programs = num_seqs * H * slices
    least = CHUNK * PARTS if programs <= BESIDE[1] else FAR
    return BESIDE[0] <= programs <= CROWDED and total >= least * num_seqs


def long(segment: int) -> bool:
    """Whether a segment has chunks enough that their decays may come to nothing, and that a second lane pays."""
    return segment >= LONG_SEGMENT or (INTERPRETED and segment > 0)


def ahead(stages: int, device: torch.device) -> int:
    """How far loads may be ahead in a walk: as far as they should where a multiprocessor has 227 KiB of shared memory
    (sm_90), else two chunks (163 KiB, sm_80) or one."""
    if device.type != "cuda":
        return stages
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return stages if room >= 227 * 1024 else min(stages, 2 if room >= 163 * 1024 else 1)


def outnumber(programs: int, device: torch.device) -> bool:
    """Whether there are more programs than multiprocessors."""
    return device.type == "cuda" and programs > torch.cuda.get_device_properties(device).multi_processor_count


def launch(warps: int, registers: int) -> dict[str, int]:
    """Options of a launch. Only Triton's CUDA backend knows of a limit of registers."""
    limit = {"maxnreg": registers} if registers and not torch.version.hip else {}
    return {"num_warps": warps} | limit


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (triton_chunkwise)."""
    return max(64, triton.next_power_of_2(head_size))
