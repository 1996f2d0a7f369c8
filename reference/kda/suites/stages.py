"""Rows of the three stages of the chunkwise form."""

from collections.abc import Iterator
from typing import Any

from .rows import D120, GROUPS, OF_GATES, SMALL, SMALL_128, Line, Rows, prefill

MHA = "synthetic-mha-2x2-d64"
DEPTHS = (4, 5, 4, 3, 4, 6, 1, 4, 5, 4, 4, 5, 3, 4, 4, 5, 4, 66)  # two sequences of each


def stage(name: str, preset: str, regime: str, lengths: tuple[int, ...], counted: bool, **more: Any) -> Line:
    """A stage of a prefill; `counted`: it has something of every chunk."""
    line = prefill(name, preset, regime, lengths, **more)
    if counted:
        line["axes"]["num_chunks"] = sum(-(-length // 64) for length in lengths)
    return line


def stage_smoke(counted: bool) -> Iterator[Line]:
    yield stage("ragged", GROUPS, "typical", (1, 65, 63), counted, covers="sequences around one chunk")
    yield stage("empty", SMALL, "mild_decay", (0, 64, 0, 20, 0), counted, covers="empty sequences, which have no chunk")
    yield stage("resets", SMALL, "hard_reset", (70,), counted, covers="channels reset at tokens and at edges of chunks")
    yield stage("channels", SMALL, "mixed_channels", (40, 9), counted, covers="channels that decay unlike one another")


def stage_conformance(counted: bool, of_state: bool, scaled: bool) -> Iterator[Line]:
    for regime, covers in OF_GATES.items():
        yield stage(f"regime_{regime}", SMALL, regime, (65, 1, 33), counted, covers=covers)
    yield stage("reflected", SMALL, "beta_two", (65,), counted, covers="beta = 2: a write reflects")
    yield stage("nothing_written", SMALL, "beta_zero", (65,), counted, covers="beta = 0: nothing is written")
    # Each row of w is judged, and no sum of them: of many keys alike, T in bfloat16 leaves nothing.
    alike = (64, 30) if counted else (10, 7)
    yield stage("same_key", SMALL, "same_key", alike, counted, covers="a triangular system far from the identity")
    yield stage("one_large", GROUPS, "one_large_state", (33, 64, 1), counted, covers="one large state among small ones")
    if counted:  # wy reads no state that would show what a gate leaves
        covers = "from alpha of almost 1 to e^-80, each before a state as large as that is small"
        yield stage("every_depth", GROUPS, "every_depth", DEPTHS, counted, covers=covers)
    yield stage("padded", MHA, "typical", (70, 70), counted, covers="sequences equally long: a padded batch")
    yield stage("no_tokens", SMALL, "typical", (0, 0), counted, covers="no chunk at all")
    yield stage("head_size_128", SMALL_128, "mild_decay", (65, 3), counted, covers="the head size of models")
    yield stage("head_size_120", D120, "mild_decay", (40, 0, 25), counted, covers="a head size that no power divides")
    yield stage("several_chunks", SMALL, "mild_decay", (300, 129), counted, covers="several chunks, and their edges")
    if of_state:
        zeros: Line = {"omit": ["initial_state"]}
        yield stage("from_zeros", SMALL, "typical", (70, 0, 5), counted, covers="initial_state absent: zeros", **zeros)
    for scale in (0.0, -0.3) if scaled else ():
        more: Line = {"scalars": {"scale": scale}, "covers": f"a scale of {scale}"}
        yield stage("scale_zero" if scale == 0 else "scale_negative", SMALL, "typical", (70,), counted, **more)


def stages(counted: bool, of_state: bool = False, scaled: bool = False) -> dict[str, Rows]:
    return {
        "smoke": lambda: stage_smoke(counted), "conformance": lambda: stage_conformance(counted, of_state, scaled),
    }  # fmt: skip


STAGES = {
    "kda_chunk_wy": stages(counted=False), "kda_chunk_state": stages(counted=True, of_state=True),
    "kda_chunk_output": stages(counted=True, scaled=True),
}  # fmt: skip
