"""Rows of inputs that are slices of something wider: two of every definition that takes strides."""

from collections.abc import Iterator
from functools import partial

from gdnspec.family import Definition

from .backward import BACKWARD
from .backward_around import CONV_BACKWARD, LAYER_BACKWARD, RAW
from .backward_residuals import RESIDUALS
from .by_definition import KINDS, TWO_SIZES
from .checkpoints import CHECKPOINTS, kept
from .commit import COMMIT, commit
from .conv_gates import CONV_GATES
from .conv_gates_backward import CONV_GATES_BACKWARD
from .conv_trees import CONV_TREE, conv_tree
from .conv_verify import CONV_VERIFY, conv_verify
from .convolution import CONVOLUTION, CONVOLUTION_DECODE, convolution, shifted
from .core_decode import CORE_DECODE
from .decode import decode
from .drafts import DRAFTS, drafts
from .edges import ANYWHERE, EDGES, WINDOWS, edged, windowed
from .from_conv import FROM_CONV, FROM_CONV_F32, from_conv
from .heads import GROUPS_128, K64_V128, K128_V64, SMALL
from .layer import LAYER, LAYER_DECODE, layer, layer_rows
from .line import Line, Rows
from .padded import MASKS, PADDED, padded
from .pool import POOL, pool
from .prefill import PREFILL, prefill
from .prefill_pool import PREFILL_POOL, PREFILL_SLOT_ZERO, prefill_pool
from .quantised import QUANTISED_POOL, QUANTISED_VERIFY
from .slots import SKIPPED, moved
from .trees import BUSHY, CHAIN, TREE, tree
from .verify import VERIFY, verify


def gaps(definition: Definition, multiple: int) -> dict[str, int]:
    """For each input that a caller may slice out of something wider, another gap, a multiple of so many elements."""
    strided = [tensor.name for tensor in definition.inputs if tensor.strides is not None]
    return {name: multiple * (i + 1) for i, name in enumerate(strided)}


def strided(definition: Definition) -> dict[str, Rows]:
    """Gaps as projections of a model leave them, and odd ones."""
    if not gaps(definition, 1):
        return {}

    def rows(name: str, multiple: int, small: bool, covers: str) -> Iterator[Line]:
        yield {**_line(definition, name, small), "gaps": gaps(definition, multiple), "covers": covers}

    return {
        "smoke": partial(rows, "strided_inputs", 16, True, "inputs that are slices of something wider"),
        "conformance": partial(rows, "strided_inputs_odd", 5, False, "slices, their rows on no boundary"),
    }


def _line(definition: Definition, name: str, small: bool) -> Line:
    two_sizes = definition.name in TWO_SIZES
    preset = (K64_V128 if small else K128_V64) if two_sizes else SMALL if small else GROUPS_128
    lengths = (1, 63, 65) if small else (65, 1, 130, 64)  # published already: see careful_with_published_lengths
    flags, skipped, batch = "+-+-"[: len(lengths)], (1,), 3 if small else 6
    # A definition of two head sizes has the rows of the one that it is made like.
    like = definition.name.removesuffix("_kv_dims").removesuffix("_neg_eigval")
    kind = KINDS[like]
    if kind in (BACKWARD, RAW):  # of one token dg is one number, of which rounding may leave nothing
        return prefill(name, preset, "slow_decay", tuple(max(3, length) for length in lengths))
    if kind is RESIDUALS:
        return kept(name, preset, "slow_decay", 64, tuple(max(3, length) for length in lengths))
    if kind is LAYER_BACKWARD:
        return prefill(name, preset, "typical", (20, 3, 9), seed=1)
    if kind in (PREFILL, CONV_BACKWARD, CONV_GATES_BACKWARD):
        return prefill(name, preset, "typical", lengths)
    if kind is CHECKPOINTS:
        return kept(name, preset, "typical", 64, lengths)
    if kind is POOL or kind is QUANTISED_POOL:
        slots = moved(name, batch, 2 * batch)
        return pool(name, preset, "typical", 2 * batch + 2, [slots[0], SKIPPED, *slots[2:]])
    if kind is VERIFY or kind is QUANTISED_VERIFY:
        return verify(name, preset, "typical", 3, [n % 4 for n in range(batch)], skipped=skipped)
    if kind is COMMIT:
        return commit(name, preset, "typical", 3, [n % 4 for n in range(batch)], skipped=skipped)
    if kind is TREE:
        return tree(name, preset, "typical", [BUSHY, CHAIN, BUSHY][:batch], skipped=skipped)
    if kind is DRAFTS:
        return drafts(name, preset, "typical", 3, [n % 4 for n in range(batch)], skipped=skipped)
    if kind is PADDED:
        return padded(name, preset, "typical", 12 if small else 66, (5, 12, 9), MASKS)
    if kind is EDGES:
        return edged(name, preset, "typical", 64, lengths, ANYWHERE)
    if kind is WINDOWS:
        return windowed(name, preset, 64, lengths, flags, ANYWHERE, skipped=skipped)
    if kind is CONV_TREE:
        return conv_tree(name, preset, [BUSHY, CHAIN, BUSHY][:batch], skipped=skipped)
    if kind is CONV_VERIFY:
        return conv_verify(
            name, preset, 3, [1 + n % 3 for n in range(batch)], [3 - n % 4 for n in range(batch)], skipped
        )
    if kind is CONVOLUTION or kind is CONV_GATES:
        return convolution(name, preset, lengths, flags, skipped=skipped)
    if kind is CONVOLUTION_DECODE:
        return shifted(name, preset, batch, batch + 2, skipped=skipped)
    if kind is FROM_CONV or kind is FROM_CONV_F32:
        return from_conv(name, preset, "typical", lengths, skipped=skipped)
    if kind is PREFILL_POOL:
        return prefill_pool(name, preset, "typical", (1, 5, 9) if small else lengths, flags, skipped, behind=4)
    if kind is PREFILL_SLOT_ZERO:  # every slot is one further, and 0 skips
        line = prefill_pool(name, preset, "typical", (1, 5, 9) if small else lengths, flags, skipped, behind=4)
        slots, axes = [slot + 1 for slot in line["integers"]["slots"]], line["axes"]
        line["integers"]["slots"], axes["num_slots"] = slots, axes["num_slots"] + 1
        return line
    if kind is LAYER:
        return layer(name, preset, (20, 3, 9), "+-+", skipped=skipped)
    if kind is LAYER_DECODE or kind is CORE_DECODE:
        return layer_rows(name, preset, batch, skipped=skipped)
    return decode(name, preset, "typical", batch)
