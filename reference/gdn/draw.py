"""A workload line to its tensors."""

from collections.abc import Iterator

import numpy as np
from gdnspec.family import (
    CARRIER,
    NORMAL_STD,
    Array,
    Definition,
    Floats,
    Layout,
    Part,
    RegimeError,
    Scope,
    Stream,
    Tensor,
    Workload,
    blanked,
    encode,
    is_state,
    off_grid,
    on_fine_grid,
    on_grid,
    tail,
    to_bfloat16,
)  # fmt: skip
from numpy.typing import NDArray

from . import codes, regions, residuals, write_gate
from .bounds import normalises
from .regimes import GENERATORS, inverse_softplus, mamba, mamba_parameters, sigmoid_of_normal
from .solved import CHUNK, wy

BLOCK = 1 << 17  # elements drawn at a time: few enough for a core's cache
NEAR = 24  # near-parallel keys: the common direction weighs this many times the noise
NEAR_VALUES = 16  # the same of near values
ALIKE = 8  # powers of two by which slots that no row names differ: gigabytes of them, but no two neighbours the same
BLANK = ("queries", "keys", "values", "activations", "output_gates", "norm_weights")  # draws
NEVER, ALWAYS, NOTHING = -100.0, 2.0**27, -128.0  # raw gates at which alpha = 1, alpha = 0, beta = 0 in float32


POSITIONS = "seq_len"  # an axis: positions of each row of a padded batch
NUM_CHUNKS, TOKENS = "num_chunks", "total_seq_len"  # axes: chunks, and tokens, of all sequences together


def state_heads(scope: Scope) -> int:
    """Heads of states and gates under bound axes: what a definition calls them, or else its value heads."""
    return int(scope["num_sab_heads"] if "num_sab_heads" in scope else scope.get("num_v_heads", 1))


class Painter:
    """Draws one workload. Each input has a stream of its own, so omitting one changes no other."""

    def __init__(self, definition: Definition, workload: Workload, scope: Scope) -> None:
        assert workload.regime is not None
        assert workload.seed is not None
        self.definition, self.workload, self.scope = definition, workload, scope
        self.regime, self.seed = GENERATORS[workload.regime], workload.seed
        lengths = workload.sequence_lengths or [int(scope.get("draft_tokens", scope.get(POSITIONS, 1)))] * int(
            scope.get("batch_size", 0)
        )
        behind = int(scope.get(TOKENS, 0)) - sum(workload.sequence_lengths or [0])
        if workload.sequence_lengths is not None and behind > 0:  # rows of no sequence are drawn as one more
            lengths = [*lengths, behind]
        self.layout = Layout(np.array(lengths, dtype=np.int64), state_heads(scope))
        raw = definition.conventions.update_gate in ("raw", "raw_doubled")
        self.beta_ends = write_gate.factor(definition, workload.scalars)
        if raw and self.regime.beta_max > self.beta_ends:
            switch = any(tensor.name == write_gate.SWITCH for tensor in definition.inputs)
            hint = f"; with the scalar {write_gate.SWITCH} it ends at 2" if switch else ""
            raise RegimeError(
                f"{workload.regime} needs beta up to {self.regime.beta_max}: the sigmoid of {definition.name} ends at "
                f"1{hint}"
            )
        self.normalised_inside = normalises(definition, workload)

    def stream(self, name: str) -> Stream:
        return Stream(self.seed, name)

    def paint(self, tensor: Tensor) -> Array:
        shape = self.definition.shape(tensor, self.scope)
        if tensor.is_index:
            values = self.workload.integer_inputs(self.definition)[tensor.name]
            return Array(tensor.dtype, np.array(values, dtype=CARRIER[tensor.dtype]).reshape(shape))
        if tensor.parts:
            return Array(tensor.dtype, self.packed(tensor, shape[:-1]))
        if tensor.draw in ("state_codes", "state_scales"):
            return Array(tensor.dtype, self.quantised(tensor, shape))
        if tensor.draw in ("states", "past_activations") and self._naming(tensor):
            return Array(tensor.dtype, self.pool(tensor, shape))
        return Array(tensor.dtype, np.ascontiguousarray(self._drawn(tensor, shape, tensor.dtype)))

    def _drawn(self, drawn: Tensor | Part, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """By the generator that the definition names; the stream is that of the tensor's name, or of the part's."""
        out = self._made(drawn, shape, dtype)
        if not self.regime.blank or drawn.draw not in BLANK:
            return out
        padding = None if drawn.draw == "norm_weights" else tail(self.layout)
        return blanked(out, self.stream(f"{drawn.name}/blank"), padding)

    def _made(self, drawn: Tensor | Part, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        match drawn.draw:
            case "queries" | "keys":
                return self.vectors(drawn.name, drawn.draw, shape, dtype)
            case "values":
                return self.values(drawn.name, shape, dtype)
            case "solved_keys" | "solved_values":
                return self.solved(drawn.draw, shape, dtype)
            case "states" if isinstance(drawn, Tensor):
                return self.states(drawn, shape)
            case "states_between":
                return encode(residuals.drawn(self, shape), dtype)
            case "cotangents" if isinstance(drawn, Tensor):
                return self.cotangents(drawn, shape)
            case "activations" | "output_gates" | "weights" | "norm_weights" | "gate_weights" | "biases":
                return self.normals(drawn.name, drawn.draw, shape, dtype)
            case str(gate):
                return encode(self.gate(gate).reshape(shape), dtype)
        raise RegimeError(f"the input {drawn.name!r} of {self.definition.name} does not say how it is drawn")

    # --- vectors ------------------------------------------------------------------------------------------------

    def vectors(self, name: str, draw: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Queries and keys in the carrier of `dtype`: of unit norm, unless the norm is taken inside or the regime
        differs. In bfloat16 they are those in float32, rounded, wherever they are not of unit norm."""
        stream = self.stream(name)
        size = shape[-1]
        if self.regime.codes == "ties" and draw == "keys":
            return encode(codes.ties(stream, shape, self._code_type()), dtype)
        out = np.empty((int(np.prod(shape[:-1], dtype=np.int64)), size), dtype=CARRIER[dtype])
        heads = shape[-2]
        # The common key of every (sequence, head), where the regime has one; queries are always independent.
        alike = draw == "keys" and self.regime.keys in ("repeated", "near_parallel")
        directions = self._common(name, heads, size) if alike else None
        rows = max(1, BLOCK // size)
        for start in range(0, len(out), rows):
            stop = min(start + rows, len(out))
            x = stream.normal_integers((stop - start) * size).reshape(-1, size)
            if directions is not None:
                row = np.arange(start, stop)
                common = directions[self.layout.sequence[row // heads], row % heads]
                x = common if self.regime.keys == "repeated" else NEAR * common + x
            out[start:stop] = self._scaled(x, dtype)
        return out.reshape(shape)

    def _common(self, name: str, heads: int, size: int) -> NDArray[np.int64]:
        """One vector for each (sequence, head)."""
        shape = (len(self.layout.lengths), heads, size)
        return self.stream(f"{name}/direction").normal_integers(int(np.prod(shape))).reshape(shape)

    def _scaled(self, x: NDArray[np.int64], dtype: str) -> NDArray[np.generic]:
        if self.regime.keys == "tiny":
            return encode(x * (1e-4 / NORMAL_STD), dtype)
        if self.normalised_inside:
            return encode(x * (self.regime.activation / NORMAL_STD), dtype)
        # The sum of squares is exact in int64 and below 2^53; toward zero, so that |k| <= 1 after rounding.
        norm = np.sqrt((x * x).sum(axis=-1, keepdims=True).astype(np.float64))
        unit = x / np.maximum(norm, 1.0)
        # The last bit of a wider type is within what `validity` lets pass.
        return to_bfloat16(unit, toward_zero=True) if dtype == "bfloat16" else encode(unit, dtype)

    def values(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        stream = self.stream(name)
        size = shape[-1]
        if self.regime.codes == "ties":
            return encode(codes.powers_of_two(stream, shape), dtype)
        out = np.empty((int(np.prod(shape[:-1], dtype=np.int64)), size), dtype=CARRIER[dtype])
        heads = shape[-2]
        common = self._common(name, heads, size) if self.regime.values == "near" else None
        rows = max(1, BLOCK // size)
        for start in range(0, len(out), rows):
            stop = min(start + rows, len(out))
            x = stream.normal_integers((stop - start) * size).reshape(-1, size)
            if common is not None:
                row = np.arange(start, stop)
                x = common[self.layout.sequence[row // heads], row % heads] + x / NEAR_VALUES
            out[start:stop] = encode(x / NORMAL_STD, dtype)
        return out.reshape(shape)

    def solved(self, draw: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Keys or values that the stage before would have made of the regime's keys, values and gates."""
        if self.definition.conventions.decay_gate != "log":
            raise RegimeError(f"{draw} of {self.definition.name} cannot be drawn: its gate is not in log space")
        size, heads = (int(self.scope[axis]) for axis in ("key_head_dim", "num_k_heads"))
        k = (
            Array("bfloat16", self.vectors("k", "keys", (shape[0], heads, size), "bfloat16"))
            .values()
            .astype(np.float64)
        )
        v_shape = (*shape[:2], int(self.scope["value_head_dim"]))
        v = Array("bfloat16", self.values("v", v_shape, "bfloat16")).values().astype(np.float64)
        made = wy(k, v, self.gate("decay_gates"), self.gate("write_gates"), self.layout.lengths)
        return encode(made[0 if draw == "solved_values" else 1], dtype)

    def states(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Normal, times the regime's magnitude for the sequence. Elementwise: the layout makes no difference."""
        stream = self.stream(tensor.name)
        sizes = self._magnitudes(tensor)
        if str((tensor.shape or [])[0]) == NUM_CHUNKS:
            sizes = np.repeat(sizes, -(-self.layout.lengths // CHUNK), axis=0)
        out = np.empty(shape, dtype=CARRIER[tensor.dtype])
        each = int(np.prod(shape[1:]))
        step = max(1, BLOCK // max(1, each))
        for start in range(0, len(out), step):
            size = sizes[start : start + step].reshape(len(sizes[start : start + step]), -1, 1)
            x = stream.normal_integers(len(size) * each).reshape(*size.shape[:2], -1)
            # By way of float32, as a state that is kept in it and rounded once.
            drawn = (x * (size / NORMAL_STD)).astype(np.float32)
            out[start : start + step] = encode(drawn.reshape(len(size), each), tensor.dtype).reshape(-1, *shape[1:])
        return out

    def cotangents(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Normal, of the regime's magnitude. Where one token alone has a gradient, it is two thirds into its sequence,
        and a final state has none."""
        x = self.stream(tensor.name).normal_integers(int(np.prod(shape))) * (self.regime.cotangent / NORMAL_STD)
        out = encode(x.astype(np.float32), tensor.dtype).reshape(shape)
        if self.regime.cotangents == "one":
            alone = np.zeros(len(out), dtype=bool)
            if str((tensor.shape or [""])[0]) == TOKENS:
                alone = self.layout.position == (2 * self.layout.lengths // 3)[self.layout.sequence]
            out[~alone] = 0
        return out

    def _magnitudes(self, tensor: Tensor) -> Floats:
        """Of what each sequence starts from, [num_seqs], or of each of its heads, [num_seqs, heads]."""
        sizes = self.regime.state(self.layout)
        if (
            self.regime.regions == "forget"
            and is_state(self.definition, tensor)
            and self.definition.conventions.decay_gate == "raw"
        ):
            # A norm behind the rule squares what is read.
            sizes = regions.states_of_raw(self.layout, 1e15 if self._normed() else regions.LARGEST)
        if self.regime.regions == "forget" and self.definition.stage == "backward":
            # The gradient of a gate is a product with the whole state, and must stay a float32.
            sizes = np.minimum(sizes, 1e30)
        if self.normalised_inside and self.definition.conventions.packing == "ragged":
            # Of one token from zeros a multiple of q k is read; keys that are rounded behind a norm leave little of it.
            sizes = np.where(sizes == 0, 1.0, sizes)
        return sizes if is_state(self.definition, tensor) or sizes.ndim == 1 else np.ones(len(sizes))

    def _normed(self) -> bool:
        return any(tensor.draw == "norm_weights" for tensor in self.definition.inputs)

    def normals(self, name: str, draw: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Activations: normal, unless a regime is about their size. Weights: a vector near one; a matrix so that a sum
        over its last dimension keeps the size of what it weighs. Biases: small beside activations."""
        mean, deviation = 0.0, 1.0
        match draw:
            case "norm_weights":
                mean, deviation = 1.0, 0.25
            case "weights":
                deviation = float(np.sqrt(1 / shape[-1]))
            case "gate_weights":
                deviation = float(np.sqrt(1 / shape[-1])) * self.regime.steep
            case "biases":
                deviation = 0.25
            case "activations" if self.regime.keys == "tiny":
                deviation = 1e-4
            case "activations":
                deviation = self.regime.activation
            case "output_gates" if self.regime.rate != 1.0:  # large steps: arguments of gates go to hundreds
                deviation = 100.0
        stream = self.stream(name)
        out = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=CARRIER[dtype])
        for start in range(0, out.size, BLOCK):
            stop = min(start + BLOCK, out.size)
            x = stream.normal_integers(stop - start) * (deviation / NORMAL_STD)
            out[start:stop] = encode(mean + x, dtype)
        if draw == "output_gates" and self.regime.regions == "write" and out.size:
            # Whole vectors of an output gate in one region: among others the small ones would not show.
            levels = regions.silu_levels(shape[0], self.layout.heads)[..., None]
            noise = stream.uniform(*levels.shape[:2], out.size // levels.size) / 4
            out = encode((levels + noise).reshape(-1), dtype)
        return out.reshape(shape)

    def packed(self, tensor: Tensor, before: tuple[int, ...]) -> NDArray[np.generic]:
        """The parts of a row side by side, each as it would be drawn by itself."""
        shapes, drawn = self.definition.part_shapes(tensor, self.scope), []
        for part in tensor.parts or []:
            shape = shapes[part.name]
            drawn.append(self._drawn(part, (*before, *shape), tensor.dtype).reshape(*before, int(np.prod(shape))))
        return np.concatenate(drawn, axis=-1)

    def _naming(self, pool: Tensor) -> list[str]:
        return [tensor.name for tensor in self.definition.inputs if tensor.indexes == pool.pool]

    def _code_type(self) -> str:
        """The type of the definition's codes."""
        coded = [tensor.dtype for tensor in self.definition.inputs if tensor.is_code]
        if not coded or self.normalised_inside:
            how = (
                "keeps no codes" if not coded else "normalises keys, which no tie survives: use_qk_l2norm must be false"
            )
            raise RegimeError(f"{self.workload.regime} cannot be drawn: {self.definition.name} {how}")
        return coded[0]

    def quantised(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """The codes or the scales of states that are drawn as those of a pool are."""
        pool = self.definition.input(tensor.pool)
        each = self.definition.shape(pool, self.scope)[1:]
        out = np.empty(shape, dtype=CARRIER[tensor.dtype])
        kept: tuple[NDArray[np.generic], NDArray[np.float32]] | None = None
        for slot, (S, named) in enumerate(self._slots(pool, shape[0], int(np.prod(each)))):
            S = codes.row_of_ends(S.reshape(each)) if self.regime.codes == "ends" else S.reshape(each)
            found = codes.quantised(S, pool.dtype) if named or kept is None else kept
            kept = kept if named else found
            power = 1.0 if named else 2.0 ** -(slot % ALIKE)
            out[slot] = found[0] if tensor.scales is None else found[1] * np.float32(power)
        return out

    def pool(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Slots that the call names as `states` has them, each of the magnitude of the first row that names it; all
        others alike, for there may be gigabytes of them, but no two quite the same."""
        alike: list[NDArray[np.generic]] = []
        out = np.empty((shape[0], int(np.prod(shape[1:]))), dtype=CARRIER[tensor.dtype])
        for slot, (S, named) in enumerate(self._slots(tensor, shape[0], out.shape[1])):
            if not named and not alike:
                alike = [encode(S * 2.0**-i, tensor.dtype) for i in range(ALIKE)]
            out[slot] = encode(S, tensor.dtype) if named else alike[slot % ALIKE]
        return out.reshape(shape)

    def _slots(self, tensor: Tensor, count: int, elements: int) -> Iterator[tuple[Floats, bool]]:
        """The content of each slot of a pool, [elements], and whether the call names it; all others are the same."""
        values = self.workload.integer_inputs(self.definition)
        row_of: dict[int, int] = {}
        for name in self._naming(tensor):
            each = max(1, len(values[name]) // max(1, len(self.layout.lengths)))
            for i, slot in enumerate(values[name]):
                row_of.setdefault(slot, i // each)
        sizes = self._magnitudes(tensor)
        if self.regime.keys == "tiny" and tensor.draw == "past_activations":
            sizes = np.full_like(sizes, 1e-4)  # what the convolution was given: queries and keys come of them as well
        if self.regime.blank and tensor.draw == "past_activations":
            sizes = sizes * (np.arange(len(sizes)) % 2 == 0)  # else no window of a decoded row is zeros
        stream = self.stream(tensor.name)
        rest = self.stream(f"{tensor.name}/rest").normal_integers(elements) / NORMAL_STD
        for slot in range(count):
            if slot in row_of:
                size = sizes[row_of[slot]]
                drawn = stream.normal_integers(elements).reshape(size.size, -1) * (size.reshape(-1, 1) / NORMAL_STD)
                yield drawn.reshape(-1), True
            else:
                yield rest, False

    # --- gates --------------------------------------------------------------------------------------------------

    def gate(self, draw: str) -> Floats:
        """In float64: on a grid of 2^-20, or off it where nothing rests on that."""
        grid = on_fine_grid if self.regime.regions else on_grid
        return (off_grid if self.workload.suite == "fresh" else grid)(self._gate(draw))

    def _gate(self, draw: str) -> Floats:
        match draw:
            case "decay_gates":
                log_alpha = (self.regime.log_alpha or mamba)(self.stream("gate"), self.layout)
                log = self.definition.conventions.decay_gate == "log"
                return log_alpha if log else np.exp(log_alpha)
            case "write_gates":
                return (self.regime.beta or sigmoid_of_normal)(self.stream("beta"), self.layout)
            case "log_rates":
                return np.log(self._mamba_parameters()[0])
            case "step_biases":
                return self._mamba_parameters()[1]
            case "raw_decay_gates":
                return self._raw_forget()
            case "raw_write_gates":
                return self._raw_update()
        raise RegimeError(f"no generator {draw!r} for an input of {self.definition.name}")

    def _mamba_parameters(self) -> tuple[Floats, Floats]:
        A, dt_bias = mamba_parameters(self.stream("mamba"), self.layout.heads)
        if self.regime.regions == "forget":
            return regions.raw_rates(self.layout.heads), dt_bias
        every_second = np.arange(self.layout.heads) % 2 == 0
        return self.regime.rate * A * np.exp(self.regime.overflow * every_second), dt_bias

    def _raw_forget(self) -> Floats:
        """a, such that exp(-A softplus(a + dt_bias)) is the regime's alpha up to a's rounding."""
        if self.regime.log_alpha is None:
            return self.stream("a").normal(*self.layout.gate_shape)
        A, dt_bias = self._mamba_parameters()
        if self.regime.regions == "forget":
            return regions.raw_arguments(self.layout) - dt_bias
        rate = -self.regime.log_alpha(self.stream("gate"), self.layout) / A
        inside = np.clip(rate, 1e-30, 1e6)
        a = inverse_softplus(inside) - dt_bias
        return np.where(rate == 0, NEVER, np.where(np.isinf(rate), ALWAYS, a))

    def _raw_update(self) -> Floats:
        """b, the logit of the regime's beta; of half of it where the sigmoid is doubled."""
        if self.regime.regions == "write":
            logits = regions.logits(self.layout)
            # The slope of the sigmoid at 88 is at the end of float32's range, where a scaled gradient loses bits.
            return logits.clip(-128, 64) if self.definition.stage == "backward" else logits
        if self.regime.beta is None:
            return self.stream("b").normal(*self.layout.gate_shape)
        beta = self.regime.beta(self.stream("beta"), self.layout) / self.beta_ends
        inside = np.clip(beta, 1e-9, 1 - 1e-9)
        return np.where(beta == 0, NOTHING, np.where(beta == 1, -NOTHING, np.log(inside) - np.log1p(-inside)))
