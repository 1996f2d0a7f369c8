"""A workload line to its tensors."""

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
    off_grid,
    on_grid,
    tail,
    to_bfloat16,
)
from numpy.typing import NDArray

from .bounds import BOUND, normalises
from .regimes import GENERATORS, inverse_softplus, mamba, mamba_parameters, sigmoid_of_normal
from .solved import CHUNK, wy

NEVER, ALWAYS, FULL = -100.0, 2.0**27, 128.0  # raw gates at which alpha = 1, alpha = 0, and a sigmoid is 1, in float32
TOKENS, NUM_CHUNKS = "total_seq_len", "num_chunks"  # axes: tokens, and chunks, of all sequences together
BLANK = ("queries", "keys", "values", "activations", "norm_weights")  # draws
TINY = 1e-4  # elements of what the regime is named after
NEAR = 16  # near values differ by a sixteenth from what they have in common
ALIKE = 8  # powers of two by which slots that no row names differ: so many, but no two neighbours the same


class Painter:
    """Draws one workload. Each input has a stream of its own, so omitting one changes no other."""

    def __init__(self, definition: Definition, workload: Workload, scope: Scope) -> None:
        assert workload.regime is not None
        assert workload.seed is not None
        self.definition, self.workload, self.scope = definition, workload, scope
        self.regime, self.seed = GENERATORS[workload.regime], workload.seed
        lengths = workload.sequence_lengths
        if lengths is None:
            lengths = [int(scope.get("draft_tokens", 1))] * int(scope.get("batch_size", 0))
        self.layout, self.K = (
            Layout(np.array(lengths, dtype=np.int64), int(scope["num_v_heads"])),
            int(scope["head_size"]),
        )
        if definition.conventions.update_gate == "raw" and self.regime.beta_max > 1.0:
            raise RegimeError(
                f"{workload.regime} needs beta up to {self.regime.beta_max}: the sigmoid of {definition.name} ends at 1"
            )
        bound = workload.scalars.get(BOUND)
        self.bound = float(bound) if bound else None  # 0 stands for none
        self.normalised_inside = normalises(definition, workload)

    def stream(self, name: str) -> Stream:
        return Stream(self.seed, name)

    def paint(self, tensor: Tensor) -> Array:
        shape = self.definition.shape(tensor, self.scope)
        if tensor.is_index:
            values = self.workload.integer_inputs(self.definition)[tensor.name]
            return Array(tensor.dtype, np.array(values, dtype=CARRIER[tensor.dtype]).reshape(shape))
        naming = [one.name for one in self.definition.inputs if one.indexes == tensor.name]
        if naming:
            return Array(tensor.dtype, self.pool(tensor, shape, naming))
        if tensor.parts:
            return Array(tensor.dtype, self.packed(tensor, shape[:-1]))
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
                return encode(self.values(drawn.name, shape), dtype)
            case "solved_keys" | "solved_values":
                return self.solved(drawn.draw, shape, dtype)
            case "states":
                sizes = self.regime.state(self.layout)
                if str((drawn.shape or [""])[0]) == NUM_CHUNKS:
                    sizes = np.repeat(sizes, -(-self.layout.lengths // CHUNK))
                sizes = sizes[:, None, None, None]
                # By way of float32, as a state that is kept in it and rounded once.
                return encode((self.stream(drawn.name).normal(*shape) * sizes).astype(np.float32), dtype)
            case "cotangents" if isinstance(drawn, Tensor):
                return self.cotangents(drawn, shape)
            case "activations" | "weights" | "gate_weights" | "norm_weights":
                return self.normals(drawn.name, drawn.draw, shape, dtype)
            case str(gate):
                return encode(self.gate(gate).reshape(shape), dtype)
        raise RegimeError(f"the input {drawn.name!r} of {self.definition.name} does not say how it is drawn")

    def solved(self, draw: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Keys or values that the stage before would have made of the regime's keys, values and gates."""
        H, keys = shape[1], (shape[0], int(self.scope["num_k_heads"]), self.K)
        k = Array("bfloat16", self.vectors("k", "keys", keys, "bfloat16")).values().astype(np.float64)
        v = encode(self.stream("v").normal(shape[0], H, self.K), "bfloat16")
        given = k, Array("bfloat16", v).values().astype(np.float64), self.gate("decay_gates"), self.gate("write_gates")
        return encode(wy(*given, self.layout.lengths)[0 if draw == "solved_values" else 1], dtype)

    def packed(self, tensor: Tensor, before: tuple[int, ...]) -> NDArray[np.generic]:
        """The parts of a row side by side, each as it would be drawn by itself."""
        shapes = self.definition.part_shapes(tensor, self.scope)
        drawn = [self._drawn(part, (*before, *shapes[part.name]), tensor.dtype) for part in tensor.parts or []]
        return np.concatenate([part.reshape(*before, -1) for part in drawn], axis=-1)

    def values(self, name: str, shape: tuple[int, ...]) -> Floats:
        """Normal; where they are near one another, a sixteenth of that about one vector for each sequence and head."""
        drawn = self.stream(name).normal(*shape)
        if self.regime.values == "independent":
            return drawn
        common = self.stream(f"{name}/direction").normal(len(self.layout.lengths), *shape[-2:])
        return np.asarray(common[self.layout.sequence].reshape(shape) + drawn / NEAR)

    def cotangents(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Normal, of the regime's magnitude. Where one token alone has a gradient, it is two thirds into its sequence,
        and a final state has none."""
        drawn = self.stream(tensor.name).normal(*shape) * self.regime.cotangent
        if self.regime.one_cotangent:
            alone = np.zeros(shape[0], dtype=bool)
            if (tensor.shape or [None])[0] == TOKENS:
                alone = self.layout.position == (2 * self.layout.lengths // 3)[self.layout.sequence]
            drawn[~alone] = 0.0
        return encode(drawn.astype(np.float32), tensor.dtype)

    def normals(self, name: str, draw: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Activations: normal, unless a regime is about their size. Weights: a vector near one; a matrix so that a sum
        over its last dimension keeps the size of what it weighs, or steeper where it makes decay gates."""
        mean, deviation = 0.0, 1.0
        match draw:
            case "norm_weights":
                mean, deviation = 1.0, 0.25
            case "weights":
                deviation = float(np.sqrt(1 / shape[-1]))
            case "gate_weights":
                deviation = float(np.sqrt(1 / shape[-1])) * self.regime.steep
            case "activations" if self.regime.keys == "tiny":
                deviation = TINY
        return encode(mean + self.stream(name).normal(*shape) * deviation, dtype)

    def pool(self, tensor: Tensor, shape: tuple[int, ...], naming: list[str]) -> NDArray[np.generic]:
        """Slots that the call names have states of the magnitude of the first row that names them, or what a
        convolution was given; all others are alike but for a power of two."""
        values, rows = self.workload.integer_inputs(self.definition), max(1, len(self.layout.lengths))
        row_of: dict[int, int] = {}
        for name in naming:
            each = max(1, len(values[name]) // rows)
            for i, slot in enumerate(values[name]):
                row_of.setdefault(slot, i // each)
        sizes, stream = self.regime.state(self.layout), self.stream(tensor.name)
        if tensor.draw == "past_activations":
            sizes = np.full_like(sizes, TINY if self.regime.keys == "tiny" else 1.0)
            if self.regime.blank:
                sizes[1::2] = 0.0  # else no window of a decoded row is zeros
        rest = self.stream(f"{tensor.name}/rest").normal(*shape[1:])
        out = np.empty(shape, dtype=CARRIER[tensor.dtype])
        for slot in range(shape[0]):
            named = slot in row_of
            drawn = stream.normal(*shape[1:]) * sizes[row_of[slot]] if named else rest * 2.0 ** -(slot % ALIKE)
            out[slot] = encode(drawn.astype(np.float32), tensor.dtype)
        return out

    def vectors(self, name: str, draw: str, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        """Queries and keys: of unit norm, unless the norm is taken inside or the regime differs."""
        stream, (heads, size) = self.stream(name), shape[-2:]
        x = stream.normal_integers(int(np.prod(shape))).reshape(-1, heads, size)
        if self.regime.keys == "repeated" and draw == "keys":
            common = self.stream(f"{name}/direction")
            count = len(self.layout.lengths)
            x = common.normal_integers(count * heads * size).reshape(count, heads, size)[self.layout.sequence]
        x = x.reshape(shape)
        if self.regime.keys == "tiny":
            return encode(x * (TINY / NORMAL_STD), dtype)
        if self.normalised_inside:
            return encode(x / NORMAL_STD, dtype)
        # The sum of squares is exact in int64 and below 2^53; toward zero, so that |k| <= 1 after rounding.
        unit = x / np.maximum(np.sqrt((x * x).sum(axis=-1, keepdims=True).astype(np.float64)), 1.0)
        return to_bfloat16(unit, toward_zero=True) if dtype == "bfloat16" else encode(unit, dtype)

    # --- gates, in float64 ------------------------------------------------------------------------------------------

    def gate(self, draw: str) -> Floats:
        """On a grid of 2^-20, or off it where nobody has seen the line."""
        return (off_grid if self.workload.suite == "fresh" else on_grid)(self._gate(draw))

    def _gate(self, draw: str) -> Floats:
        match draw:
            case "decay_gates":
                return (self.regime.log_alpha or mamba)(self.stream("gate"), self.layout, self.K)
            case "write_gates":
                return (self.regime.beta or sigmoid_of_normal)(self.stream("beta"), self.layout)
            case "log_rates":
                return np.asarray(np.log(self._parameters()[0]))
            case "step_biases":
                return self._parameters()[1]
            case "raw_decay_gates":
                return self._raw_forget()
            case "raw_write_gates":
                return self._raw_update()
        raise RegimeError(f"no generator {draw!r} for an input of {self.definition.name}")

    def _parameters(self) -> tuple[Floats, Floats]:
        """The rate exp(A_log) [heads] and dt_bias [heads, K]. Under a lower bound models start at a rate of one."""
        A, dt_bias = mamba_parameters(self.stream("mamba"), self.layout.heads, self.K, self.regime.steps)
        if self.bound is None:
            return self.regime.rate * A, dt_bias
        return np.exp(self.stream("rate").between(-1.0, 1.0, self.layout.heads)), dt_bias

    def _raw_forget(self) -> Floats:
        """a, from which rates and biases make the regime's log alpha up to a's rounding."""
        if self.regime.log_alpha is None:
            return self.stream("a").normal(*self.layout.gate_shape, self.K)
        rate, dt_bias = self._parameters()
        log_alpha = self.regime.log_alpha(self.stream("gate"), self.layout, self.K)
        if self.bound is None:
            step = -log_alpha / rate[:, None]
            a = inverse_softplus(np.clip(step, 1e-30, 1e6)) - dt_bias
            return np.where(step == 0, NEVER, np.where(np.isinf(step), ALWAYS, a))
        if np.isinf(log_alpha).any():
            raise RegimeError(f"{self.workload.regime} resets channels: with a lower bound no gate does")
        share = log_alpha / self.bound
        inside = np.clip(share, 1e-9, 1 - 1e-9)
        logit = np.where(share == 0, NEVER, np.where(share >= 1, FULL, np.log(inside) - np.log1p(-inside)))
        return np.asarray(logit / rate[:, None] - dt_bias)

    def _raw_update(self) -> Floats:
        """b, the logit of the regime's beta."""
        if self.regime.beta is None:
            return self.stream("b").normal(*self.layout.gate_shape)
        beta = self.regime.beta(self.stream("beta"), self.layout)
        inside = np.clip(beta, 1e-9, 1 - 1e-9)
        return np.where(beta == 0, -FULL, np.where(beta == 1, FULL, np.log(inside) - np.log1p(-inside)))
