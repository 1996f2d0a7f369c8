"""The rows of each definition, by hand: few and small, for a reference goes through them token by token."""

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

Line = dict[str, Any]  # of a workload file, without what is measured
Rows = Callable[[], Iterator[Line]]  # of one suite

SMALL, SMALL_128, GROUPS = "synthetic-gva-1x2-d64", "synthetic-gva-1x2-d128", "synthetic-gva-2x4-d64"
D120 = "synthetic-mha-2x2-d120"
GROUPS_OF_3, MANY_HEADS = "synthetic-gva-2x6-d128", "synthetic-gva-16x64-d128"
BOUND = {"lower_bound": -5.0}
PREFILL_SLICES, DECODE_SLICES = ("q", "k", "v", "g", "beta"), ("q", "k", "v", "a", "b")
SLOT_SLICES = (*DECODE_SLICES, "read_slots", "write_slots")
VERIFY_SLICES = (*DECODE_SLICES, "initial_slots", "state_slots")
SLICES, ODD_SLICES = "inputs that are slices of something wider", "slices, their rows on no boundary"
OF_GATES = {
    "deep_sums": "sums of gates over 16 tokens below the exponents of bfloat16",
    "slow_deep_sums": "sums of gates over 64 tokens below the exponents of bfloat16, over 16 above them",
    "mixed_channels": "a channel that never forgets beside one that forgets at once",
    "hard_reset": "exact resets of some channels, and of all at once",
    "lower_bound": "gates at the lower bound of released models",
    "long_memory": "nothing is forgotten",
    "equal_channels": "gated delta net",
}


def sliced(multiple: int, *inputs: str) -> dict[str, int]:
    """For each input that a caller may slice out of something wider, another gap, a multiple of so many elements."""
    return {name: multiple * (i + 1) for i, name in enumerate(inputs)}


def prefill(name: str, preset: str, regime: str, lengths: tuple[int, ...], **more: Any) -> Line:
    axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
    return {"name": name, "preset": preset, "axes": axes, "sequence_lengths": list(lengths), "regime": regime, **more}


def prefill_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (1, 31, 65), covers="sequences of 1, 31 and 65 tokens together")
    yield prefill("empty_sequences", GROUPS, "mild_decay", (0, 17, 0, 20, 0), covers="no tokens first, between, last")
    yield prefill("resets", SMALL, "hard_reset", (70,), covers="channels reset at tokens and at edges of chunks")
    yield prefill("channels", SMALL_128, "mixed_channels", (40,), covers="channels that decay unlike one another")
    omitted = ["g", "beta", "initial_state"]
    yield prefill("only_required", SMALL, "typical", (30,), omit=omitted, covers="every optional input left out")
    gaps = sliced(16, *PREFILL_SLICES)
    yield prefill("strided_inputs", SMALL, "typical", (1, 31, 33), gaps=gaps, covers=SLICES)


def prefill_conformance() -> Iterator[Line]:
    for regime, covers in OF_GATES.items():
        yield prefill(f"regime_{regime}", SMALL_128, regime, (65, 1, 33), covers=covers)
    yield prefill("same_key", SMALL, "repeated_keys", (96,), covers="a triangular system far from the identity")
    yield prefill("reflected", SMALL, "beta_two", (65,), covers="beta = 2: a write reflects")
    yield prefill("nothing_written", SMALL, "beta_zero", (65,), covers="beta = 0: nothing is written")
    yield prefill("one_large", GROUPS, "one_large_state", (33, 64, 1), covers="one large state among small ones")
    yield prefill("decayed_state", SMALL, "decayed_large_state", (20, 100), covers="a large state that decays by e^-11")
    covers = "a large state that keys replace: few heads, so kernels may hand it on between parts"
    yield prefill("replaced_state", SMALL_128, "replaced_large_state", (600,), covers=covers)
    yield prefill("head_size_120", D120, "mild_decay", (40, 0, 25), covers="a head size that no power of two divides")
    yield prefill("scale_zero", SMALL, "mild_decay", (20,), scalars={"scale": 0.0}, covers="scale 0.0 is not absent")
    yield prefill("scale_negative", SMALL, "mild_decay", (40,), scalars={"scale": -0.3}, covers="a scale of its own")
    yield prefill("no_initial_state", SMALL, "mild_decay", (0, 40), omit=["initial_state"], covers="states of zeros")
    for name in ("g", "beta"):
        yield prefill(f"without_{name}", SMALL, "mild_decay", (33, 0, 9), omit=[name], covers=f"{name} alone absent")
    yield prefill("several_chunks", SMALL, "mild_decay", (300, 129), covers="several chunks, and their edges")
    gaps = sliced(5, *PREFILL_SLICES)
    yield prefill("strided_inputs_odd", SMALL_128, "typical", (65, 1, 30), gaps=gaps, covers=ODD_SLICES)


def raw_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (1, 31, 65), covers="gates of Kimi Linear; sequences of 1, 31, 65 tokens")
    yield prefill("bounded", SMALL_128, "typical", (33, 8), scalars=BOUND, covers="gates with a lower bound")
    yield prefill("empty_sequences", GROUPS, "mild_decay", (0, 17, 0, 20, 0), covers="no tokens first, between, last")
    yield prefill("from_zeros", SMALL, "typical", (30,), omit=["initial_state"], covers="states of zeros")
    gaps = sliced(16, *DECODE_SLICES)
    yield prefill("strided_inputs", SMALL, "typical", (1, 31, 33), gaps=gaps, covers=SLICES)


def raw_conformance() -> Iterator[Line]:
    for regime in ("deep_sums", "slow_deep_sums", "mixed_channels", "hard_reset", "long_memory", "equal_channels"):
        yield prefill(f"regime_{regime}", SMALL_128, regime, (65, 1, 33), covers=OF_GATES[regime])
    for regime in ("lower_bound", "mild_decay", "mixed_channels"):
        covers = f"a lower bound, {regime}"
        yield prefill(f"bounded_{regime}", SMALL_128, regime, (65, 1, 33), scalars=BOUND, covers=covers)
    other = {"lower_bound": -1.5}
    yield prefill("other_bound", SMALL, "lower_bound", (40,), scalars=other, covers="a lower bound that no model has")
    yield prefill("large_steps", SMALL, "large_steps", (65,), covers="arguments of softplus that go to hundreds")
    yield prefill("same_key", SMALL, "same_key", (96,), covers="a triangular system far from the identity")
    yield prefill("nothing_written", SMALL, "beta_zero", (65,), covers="beta = 0: nothing is written")
    yield prefill("one_large", GROUPS, "one_large_state", (33, 64, 1), covers="one large state among small ones")
    yield prefill("tiny", SMALL, "tiny_keys", (40,), covers="where the epsilon of the norm stands")
    plain = {"use_qk_l2norm": False}
    yield prefill("as_they_are", GROUPS, "mild_decay", (40, 3), scalars=plain, covers="q and k as they are")
    yield prefill("head_size_120", D120, "typical", (40, 0, 25), covers="a head size that no power of two divides")
    yield prefill("scale_negative", SMALL, "mild_decay", (40,), scalars={"scale": -0.3}, covers="a scale of its own")
    yield prefill("several_chunks", SMALL, "typical", (300, 129), covers="several chunks, and their edges")
    gaps = sliced(5, *DECODE_SLICES)
    yield prefill("strided_inputs_odd", SMALL_128, "typical", (65, 1, 30), gaps=gaps, covers=ODD_SLICES)


def decode(name: str, preset: str, regime: str, batch: int, **more: Any) -> Line:
    return {"name": name, "preset": preset, "axes": {"batch_size": batch}, "regime": regime, **more}


def decode_smoke() -> Iterator[Line]:
    yield decode("batch_5", GROUPS, "typical", 5, covers="gates of Kimi Linear")
    yield decode("bounded", SMALL_128, "typical", 4, scalars=BOUND, covers="gates with a lower bound")
    yield decode("channels", SMALL, "mixed_channels", 4, covers="channels that decay unlike one another")
    yield decode("strided_inputs", SMALL, "typical", 3, gaps=sliced(16, *DECODE_SLICES), covers=SLICES)


def decode_conformance() -> Iterator[Line]:
    for regime in ("hard_reset", "deep_sums", "long_memory", "large_initial_state", "beta_zero", "large_steps"):
        yield decode(f"regime_{regime}", SMALL_128, regime, 6, covers=f"the regime {regime}")
    for regime in ("lower_bound", "mild_decay", "one_large_state"):
        yield decode(f"bounded_{regime}", SMALL_128, regime, 5, scalars=BOUND, covers=f"a lower bound, {regime}")
    other = {"lower_bound": -1.5}
    yield decode("other_bound", SMALL, "lower_bound", 4, scalars=other, covers="a lower bound that no model has")
    yield decode("tiny", SMALL, "tiny_keys", 4, covers="where the epsilon of the norm stands")
    plain = {"use_qk_l2norm": False}
    yield decode("as_they_are", GROUPS, "mild_decay", 3, scalars=plain, covers="q and k as they are")
    yield decode("scaled", SMALL, "mild_decay", 3, scalars={"scale": -0.3}, covers="a scale of its own")
    yield decode("head_size_120", D120, "typical", 3, covers="a head size that no power of two divides")
    yield decode("strided_inputs_odd", SMALL_128, "typical", 6, gaps=sliced(5, *DECODE_SLICES), covers=ODD_SLICES)


def of_names(rows: Rows, names: tuple[str, ...]) -> Rows:
    """What decode's own rows show of the gates need not be shown again of other states or rows."""
    return lambda: (row for row in rows() if row["name"] in names)


def packed(rows: Rows) -> Rows:
    """The rows of decode, with q, k and v of a token in one row, which may be a slice of a wider one."""

    def made() -> Iterator[Line]:
        for row in rows():
            gaps = row.pop("gaps", None)
            if gaps:
                row["gaps"] = {"mixed_qkv": gaps["q"]} | {name: gaps[name] for name in ("a", "b")}
            yield row

    return made


Row = tuple[int, int]  # the slot that it reads, the slot that it writes
SKIPPED = (-1, -1)


def pool(name: str, preset: str, regime: str, num_slots: int, rows: list[Row], **more: Any) -> Line:
    return {
        "name": name, "preset": preset, "axes": {"batch_size": len(rows), "num_slots": num_slots}, "regime": regime,
        "integers": {"read_slots": [r for r, _ in rows], "write_slots": [w for _, w in rows]}, **more,
    }  # fmt: skip


def somewhere(name: str, count: int, num_slots: int) -> list[int]:
    """`count` slots, the same for each name."""
    return random.Random(zlib.crc32(name.encode())).sample(range(num_slots), count)


def in_place(name: str, batch: int, num_slots: int) -> list[Row]:
    return [(slot, slot) for slot in somewhere(name, batch, num_slots)]


def moved(name: str, batch: int, num_slots: int) -> list[Row]:
    slots = somewhere(name, 2 * batch, num_slots)
    return list(zip(slots[:batch], slots[batch:], strict=True))


def pool_smoke() -> Iterator[Line]:
    yield pool("in_place", GROUPS, "typical", 9, in_place("in_place", 5, 9), covers="every state where it was")
    yield pool("bounded", SMALL, "typical", 11, moved("moved", 4, 11), scalars=BOUND, covers="a bound; states moved")
    one, two = in_place("skips", 2, 6)
    skips = [SKIPPED, one, SKIPPED, two, SKIPPED]
    yield pool("skips", SMALL_128, "mixed_channels", 6, skips, covers="rows skipped first, between and last")
    rows = in_place("strided", 3, 5)
    yield pool("strided", SMALL, "mild_decay", 5, rows, gaps={"pool": 192}, covers="a gap between slots")
    first, second = moved("strided_inputs", 2, 6)
    gaps = sliced(16, *SLOT_SLICES)
    yield pool("strided_inputs", SMALL, "typical", 6, [first, SKIPPED, second], gaps=gaps, covers=SLICES)


def pool_conformance() -> Iterator[Line]:
    regimes = ("hard_reset", "deep_sums", "long_memory", "large_initial_state", "one_large_state", "large_steps")
    for i, regime in enumerate(regimes):
        rows = (in_place, moved)[i % 2](regime, 5, 12)
        yield pool(f"regime_{regime}", SMALL_128, regime, 12, rows, covers=f"the regime {regime}")
    rows = moved("bounds", 5, 12)
    yield pool("bounded_lower_bound", SMALL, "lower_bound", 12, rows, scalars=BOUND, covers="gates at their bound")
    first, *others = somewhere("shared", 5, 9)
    yield pool("shared", SMALL, "typical", 9, [(first, slot) for slot in others], covers="one slot read by all rows")
    yield pool("full", SMALL, "typical", 24, in_place("full", 24, 24), covers="every slot of the pool in use")
    many = in_place("many", 65, 80)
    yield pool("batch_65", SMALL, "typical", 80, many, covers="more rows than a block of them, slots out of order")
    yield pool("all_skipped", SMALL, "typical", 4, [SKIPPED] * 3, covers="no row to do")
    rows, gaps = in_place("strided_inputs_odd", 4, 6), sliced(5, *SLOT_SLICES)
    yield pool("strided_inputs_odd", SMALL_128, "typical", 6, [*rows, SKIPPED], gaps=gaps, covers=ODD_SLICES)
    plain = {"use_qk_l2norm": False, "scale": 0.0}
    rows = in_place("scale", 3, 5)
    yield pool("as_they_are", SMALL, "mild_decay", 5, rows, scalars=plain, covers="q and k as they are, scale 0.0")
    yield pool(
        "head_size_120", D120, "typical", 7, moved("120", 3, 7), covers="a head size that no power of two divides"
    )


def kept(name: str, preset: str, regime: str, interval: int, lengths: tuple[int, ...], **more: Any) -> Line:
    """A prefill with the state after every `interval` tokens."""
    scalars = {"checkpoint_interval": interval, **more.pop("scalars", {})}
    line = prefill(name, preset, regime, lengths, scalars=scalars, **more)
    line["axes"] |= {"num_checkpoints": sum(length // interval for length in lengths)}
    return line


def checkpoints_smoke() -> Iterator[Line]:
    yield kept("ragged", SMALL, "typical", 64, (1, 65, 63, 130), covers="none, one and two checkpoints a sequence")
    yield kept("empty_sequences", SMALL, "mild_decay", 64, (0, 64, 0, 70, 0), covers="no tokens first, between, last")
    yield kept("no_checkpoint", SMALL, "typical", 128, (50, 0, 127), covers="no sequence reaches an interval")
    yield kept("channels", SMALL, "mixed_channels", 64, (128,), covers="channels that decay unlike one another")
    gaps = sliced(16, *PREFILL_SLICES)
    yield kept("strided_inputs", SMALL, "typical", 64, (1, 31, 65), gaps=gaps, covers=SLICES)


def checkpoints_conformance() -> Iterator[Line]:
    for regime in ("deep_sums", "mixed_channels", "hard_reset", "long_memory", "one_large_state"):
        yield kept(f"regime_{regime}", SMALL_128, regime, 64, (65, 1, 130), covers=f"the regime {regime}")
    yield kept("edges", SMALL, "typical", 64, (63, 64, 65, 127, 128, 129), covers="lengths around one interval and two")
    yield kept("two_chunks", SMALL, "typical", 128, (260, 128), covers="an interval of several chunks")
    yield kept("interval_192", SMALL, "mild_decay", 192, (400, 191, 192), covers="an interval of one chunk and a half")
    yield kept("same_key", SMALL, "repeated_keys", 64, (96,), covers="a triangular system far from the identity")
    yield kept("nothing_written", SMALL, "beta_zero", 64, (64, 100), covers="states that only decay")
    yield kept("head_size_120", D120, "mild_decay", 64, (70, 0), covers="a head size that no power of two divides")
    omitted = ["g", "beta", "initial_state"]
    yield kept("only_required", SMALL, "typical", 64, (70,), omit=omitted, covers="every optional input left out")
    for name in ("g", "beta", "initial_state"):
        yield kept(f"without_{name}", SMALL, "mild_decay", 64, (66, 0, 9), omit=[name], covers=f"{name} alone absent")
    yield kept("scale_zero", SMALL, "typical", 64, (70,), scalars={"scale": 0.0}, covers="scale 0.0: states as ever")
    gaps = sliced(5, *PREFILL_SLICES)
    yield kept("strided_inputs_odd", SMALL_128, "typical", 64, (65, 1, 30), gaps=gaps, covers=ODD_SLICES)


def verify(
    name: str, preset: str, regime: str, tokens: int, accepted: list[int], skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """`accepted` of each row; every row has slots of its own, anywhere in a pool with a few to spare."""
    batch = len(accepted)
    num_slots = batch * (tokens + 1) + 3
    slots = somewhere(f"verify {name}", batch * (tokens + 1), num_slots)
    initial, state = slots[:batch], slots[batch:]
    for n in skipped:
        initial[n], state[n * tokens : (n + 1) * tokens] = -1, [-1] * tokens
    return {
        "name": name, "preset": preset, "regime": regime,
        "axes": {"batch_size": batch, "draft_tokens": tokens, "num_slots": num_slots},
        "integers": {"initial_slots": initial, "state_slots": state, "accepted": accepted}, **more,
    }  # fmt: skip


def verify_smoke() -> Iterator[Line]:
    yield verify("four_tokens", SMALL_128, "typical", 4, [0, 4, 2], covers="none, all and some accepted before")
    yield verify("bounded", SMALL, "typical", 3, [1, 3], scalars=BOUND, covers="gates with a lower bound")
    yield verify("skips", SMALL, "mixed_channels", 3, [0, 0, 3, 1], skipped=(0, 2), covers="skipped rows among others")
    yield verify("strided", SMALL, "mild_decay", 2, [2, 1], gaps={"pool": 128}, covers="a gap between slots")
    gaps = sliced(16, *VERIFY_SLICES)
    yield verify("strided_inputs", SMALL, "typical", 2, [2, 0, 1], skipped=(1,), gaps=gaps, covers=SLICES)


def verify_conformance() -> Iterator[Line]:
    for regime in ("hard_reset", "deep_sums", "long_memory", "large_initial_state", "one_large_state", "large_steps"):
        yield verify(f"regime_{regime}", SMALL, regime, 3, [0, 1, 3], covers=f"the regime {regime}")
    yield verify("bounded_lower_bound", SMALL, "lower_bound", 3, [2, 0], scalars=BOUND, covers="gates at their bound")
    yield verify("one_token", SMALL, "typical", 1, [1, 0, 1], covers="one draft token: decode from a pool")
    yield verify("sixteen_tokens", SMALL, "typical", 16, [16], covers="the most draft tokens")
    yield verify("every_count", SMALL, "typical", 5, list(range(6)), covers="every count of accepted tokens")
    yield verify("all_skipped", SMALL, "typical", 2, [0, 0], skipped=(0, 1), covers="no row to do")
    gaps = sliced(5, *VERIFY_SLICES)
    yield verify("strided_inputs_odd", SMALL_128, "typical", 3, [3, 0, 1], skipped=(1,), gaps=gaps, covers=ODD_SLICES)
    plain = {"use_qk_l2norm": False, "scale": 0.3}
    yield verify("as_they_are", SMALL, "mild_decay", 3, [0, 2], scalars=plain, covers="q and k as they are, a scale")
    yield verify("head_size_120", D120, "typical", 2, [1, 2], covers="a head size that no power of two divides")


def backward_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (5, 31, 65), covers="sequences of 5, 31 and 65 tokens together")
    yield prefill("empty_sequences", GROUPS, "mild_decay", (0, 17, 0, 20, 0), covers="no tokens: dh0 is dht")
    yield prefill("resets", SMALL, "hard_reset", (40,), covers="channels reset at tokens and at edges of chunks")
    yield prefill("channels", SMALL, "mixed_channels", (40, 9), covers="channels that decay unlike one another")
    omitted = ["g", "beta", "initial_state", "dht"]
    yield prefill("only_required", SMALL, "typical", (30,), omit=omitted, covers="every optional input left out but do")
    gaps = sliced(16, *PREFILL_SLICES, "do")
    yield prefill("strided_inputs", SMALL, "typical", (5, 31, 33), gaps=gaps, covers=SLICES)


def backward_conformance() -> Iterator[Line]:
    for regime in ("deep_sums", "slow_deep_sums", "mixed_channels", "hard_reset", "lower_bound", "long_memory"):
        seed = {"seed": 2} if regime == "deep_sums" else {}  # of others honest arithmetic takes more than a budget
        yield prefill(f"regime_{regime}", SMALL_128, regime, (65, 9, 33), **seed, covers=OF_GATES[regime])
    yield prefill("one_cotangent", SMALL, "single_cotangent", (70, 9), covers="zeros behind the only cotangent")
    yield prefill("huge_cotangents", SMALL, "huge_cotangents", (65,), covers="gradients of magnitude 1e7")
    yield prefill("reflected", SMALL, "beta_two", (40,), covers="beta = 2: a write reflects")
    yield prefill("nothing_written", SMALL, "beta_zero", (65,), covers="beta = 0: dbeta alone knows of the error")
    yield prefill("one_large", GROUPS, "one_large_state", (33, 64, 9), covers="one large state among small ones")
    yield prefill("head_size_120", D120, "mild_decay", (40, 0, 25), covers="a head size that no power of two divides")
    yield prefill("scale_zero", SMALL, "mild_decay", (20,), scalars={"scale": 0.0}, covers="scale 0.0 is not absent")
    yield prefill("scale_negative", SMALL, "mild_decay", (40,), scalars={"scale": -0.3}, covers="a scale of its own")
    yield prefill("from_output", SMALL, "mild_decay", (40, 0), omit=["dht"], covers="dht absent: zeros")
    yield prefill("from_state", SMALL, "mild_decay", (40, 0), omit=["do"], covers="do absent: zeros")
    yield prefill("from_zeros", SMALL, "mild_decay", (40, 0), omit=["initial_state"], covers="dg of first tokens is 0")
    for name in ("g", "beta"):
        yield prefill(f"without_{name}", SMALL, "mild_decay", (33, 0, 9), omit=[name], covers=f"{name} alone absent")
    omitted = ["g", "beta", "initial_state", "do"]
    yield prefill(
        "dht_alone", SMALL, "mild_decay", (33, 0, 9), omit=omitted, covers="every optional input left out but dht"
    )
    omitted = ["do", "dht"]
    yield prefill("no_cotangents", SMALL, "mild_decay", (33, 0, 9), omit=omitted, covers="no gradient: zeros, not NaN")
    yield prefill("several_chunks", SMALL, "typical", (150, 129), covers="several chunks, and their edges")
    gaps = sliced(5, *PREFILL_SLICES, "do")
    yield prefill("strided_inputs_odd", SMALL_128, "typical", (65, 5, 30), gaps=gaps, covers=ODD_SLICES)
    yield prefill("tiny_cotangents", SMALL, "tiny_cotangents", (65,), covers="gradients of magnitude 8e-10")
    yield prefill("replaced", SMALL, "replaced_large_state", (65,), covers="beta = 1: a write replaces")
    yield prefill("all_empty", SMALL, "mild_decay", (0, 0, 0), covers="empty sequences alone")
    yield prefill("padded_batch", SMALL, "mild_decay", (33, 33), covers="sequences equally long")
    omitted = ["initial_state", "dht"]
    yield prefill("states_absent", SMALL, "mild_decay", (33, 0, 9), omit=omitted, covers="as in training: no states")
    omitted = ["g", "beta"]
    yield prefill("gates_absent", SMALL, "mild_decay", (33, 0, 9), omit=omitted, covers="the delta rule, from a state")


PREFILL = {"smoke": prefill_smoke, "conformance": prefill_conformance}
RAW = {"smoke": raw_smoke, "conformance": raw_conformance}
DECODE = {"smoke": decode_smoke, "conformance": decode_conformance}
DECODE_SMOKE_FEW = of_names(decode_smoke, ("batch_5", "bounded", "strided_inputs"))
# What rounding a state to bfloat16 may meet, and steps whose exponential overflows; other rows ask the same of both
# types.
OF_BF16 = (
    "regime_hard_reset", "regime_long_memory", "regime_large_initial_state", "bounded_lower_bound",
    "bounded_one_large_state", "as_they_are", "head_size_120", "strided_inputs_odd", "regime_large_steps",
)  # fmt: skip
DECODE_BF16 = {"smoke": DECODE_SMOKE_FEW, "conformance": of_names(decode_conformance, OF_BF16)}
PACKED = {
    "smoke": packed(DECODE_SMOKE_FEW),
    "conformance": packed(
        of_names(
            decode_conformance,
            ("regime_hard_reset", "regime_deep_sums", "regime_large_initial_state", "regime_large_steps",
             "bounded_lower_bound", "bounded_one_large_state", "tiny", "as_they_are", "scaled", "head_size_120",
             "strided_inputs_odd"),
        )
    ),
}  # fmt: skip
PACKED_BF16 = {
    "smoke": packed(DECODE_SMOKE_FEW),
    "conformance": packed(of_names(decode_conformance, OF_BF16)),
}
POOL = {"smoke": pool_smoke, "conformance": pool_conformance}
POOL_BF16 = {
    "smoke": of_names(pool_smoke, ("in_place", "bounded", "skips", "strided", "strided_inputs")),
    "conformance": of_names(
        pool_conformance,
        ("regime_hard_reset", "regime_long_memory", "regime_large_steps", "bounded_lower_bound", "shared",
         "all_skipped", "strided_inputs_odd"),
    ),
}  # fmt: skip
CHECKPOINTS = {"smoke": checkpoints_smoke, "conformance": checkpoints_conformance}
VERIFY = {"smoke": verify_smoke, "conformance": verify_conformance}
BACKWARD = {"smoke": backward_smoke, "conformance": backward_conformance}
ROWS: dict[str, dict[str, Rows]] = {
    "kda_prefill_k_last": PREFILL, "kda_prefill_k_first": PREFILL, "kda_prefill_raw_gates": RAW,
    "kda_prefill_checkpoints": CHECKPOINTS, "kda_verify_k_last": VERIFY,
    "kda_prefill_backward_k_last": BACKWARD,
    "kda_decode_k_last": DECODE, "kda_decode_k_last_bf16_state": DECODE_BF16, "kda_decode_packed_k_last": PACKED,
    "kda_decode_packed_k_last_bf16_state": PACKED_BF16,
    "kda_decode_pool_k_last": POOL, "kda_decode_pool_k_last_bf16_state": POOL_BF16,
}  # fmt: skip
