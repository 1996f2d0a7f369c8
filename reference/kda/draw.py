"""A workload line to its tensors."""

import numpy as np
from gdnspec.family import (
    CARRIER,
    NORMAL_STD,
    Array,
    Definition,
    Floats,
    Layout,
    RegimeError,
    Scope,
    Stream,
    Tensor,
    Workload,
    encode,
    off_grid,
    on_grid,
    to_bfloat16,
)
from numpy.typing import NDArray

from .bounds import BOUND, normalises
from .regimes import GENERATORS, inverse_softplus, mamba, mamba_parameters, sigmoid_of_normal

NEVER, ALWAYS, FULL = -100.0, 2.0**27, 128.0  # raw gates at which alpha = 1, alpha = 0, and a sigmoid is 1, in float32
TOKENS = "total_seq_len"
NEAR = 16  # the same of near values
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
        self.bound = None if bound is None else float(bound)
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
        return Array(tensor.dtype, np.ascontiguousarray(self._drawn(tensor, shape)))

    def _drawn(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        match tensor.draw:
            case "queries" | "keys":
                return self.vectors(tensor, shape)
            case "values":
                return encode(self.values(tensor.name, shape), tensor.dtype)
            case "states":
                sizes = self.regime.state(self.layout)[:, None, None, None]
                # By way of float32, as a state that is kept in it and rounded once.
                return encode((self.stream(tensor.name).normal(*shape) * sizes).astype(np.float32), tensor.dtype)
            case "cotangents":
                return self.cotangents(tensor, shape)
            case str(gate):
                grid = off_grid if self.workload.suite == "fresh" else on_grid
                return encode(grid(self._gate(gate)).reshape(shape), tensor.dtype)
        raise RegimeError(f"the input {tensor.name!r} of {self.definition.name} does not say how it is drawn")

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

    def pool(self, tensor: Tensor, shape: tuple[int, ...], naming: list[str]) -> NDArray[np.generic]:
        """Slots that the call names have states of the magnitude of the first row that names them; all others are
        alike but for a power of two."""
        values, rows = self.workload.integer_inputs(self.definition), max(1, len(self.layout.lengths))
        row_of: dict[int, int] = {}
        for name in naming:
            each = max(1, len(values[name]) // rows)
            for i, slot in enumerate(values[name]):
                row_of.setdefault(slot, i // each)
        sizes, stream = self.regime.state(self.layout), self.stream(tensor.name)
        rest = self.stream(f"{tensor.name}/rest").normal(*shape[1:])
        out = np.empty(shape, dtype=CARRIER[tensor.dtype])
        for slot in range(shape[0]):
            named = slot in row_of
            drawn = stream.normal(*shape[1:]) * sizes[row_of[slot]] if named else rest * 2.0 ** -(slot % ALIKE)
            out[slot] = encode(drawn.astype(np.float32), tensor.dtype)
        return out

    def vectors(self, tensor: Tensor, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Queries and keys: of unit norm, unless the norm is taken inside or the regime differs."""
        stream, (heads, size) = self.stream(tensor.name), shape[-2:]
        x = stream.normal_integers(int(np.prod(shape))).reshape(-1, heads, size)
        if self.regime.keys == "repeated" and tensor.draw == "keys":
            common = self.stream(f"{tensor.name}/direction")
            count = len(self.layout.lengths)
            x = common.normal_integers(count * heads * size).reshape(count, heads, size)[self.layout.sequence]
        x = x.reshape(shape)
        if self.regime.keys == "tiny":
            return encode(x * (1e-4 / NORMAL_STD), tensor.dtype)
        if self.normalised_inside:
            return encode(x / NORMAL_STD, tensor.dtype)
        # The sum of squares is exact in int64 and below 2^53; toward zero, so that |k| <= 1 after rounding.
        unit = x / np.maximum(np.sqrt((x * x).sum(axis=-1, keepdims=True).astype(np.float64)), 1.0)
        return to_bfloat16(unit, toward_zero=True) if tensor.dtype == "bfloat16" else encode(unit, tensor.dtype)

    # --- gates, in float64 ------------------------------------------------------------------------------------------

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
        A, dt_bias = mamba_parameters(self.stream("mamba"), self.layout.heads, self.K)
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
