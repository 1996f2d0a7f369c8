"""Run flash-linear-attention's `chunk_gated_delta_rule` on `gdnspec.ops`, once this module is imported.

    import gdnspec.integrations.fla

It registers a backend for FLA's operation, before those that FLA has. Every caller of the function gets it, whether FLA
is imported before or after. A call that it does not serve goes on to FLA's own kernels. `unregister()` switches it off,
and so does FLA_GDNSPEC=0 in the environment, at any time.
"""

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from gdnspec import ops
from torch import Tensor
from torch.nn.functional import softplus

from .precision import l2_normalised, wide

try:
    from fla.backends import BaseBackend
    from fla.backends import register as register_backend
except ImportError as error:
    raise ImportError(f"{error}: gdnspec needs fla-core 0.6, pip install 'gdnspec[fla]'") from error

CHUNK_SIZES = (16, 32, 64)  # FLA raises an error for others, so they are left to it
LONGEST_HEAD = 256  # of the kernels in Triton: longer heads would run in PyTorch


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of FLA's function, in its order, then those that it takes by name alone."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    scale: float | None = None
    initial_state: Tensor | None = None
    output_final_state: bool = False
    use_qk_l2norm_in_kernel: bool = False
    use_beta_sigmoid_in_kernel: bool = False
    allow_neg_eigval: bool = False
    state_v_first: bool = False
    cu_seqlens: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None  # this and the next spare FLA a computation
    chunk_indices: Tensor | None = None
    cp_context: Any = None
    use_gate_in_kernel: bool = False
    A_log: Tensor | None = None
    dt_bias: Tensor | None = None
    chunk_size: int = 64  # of FLA's kernels, which changes no result

    def refusal(self) -> str | None:
        """Why the call goes to FLA's own kernels; None if it is served. No value is read."""
        q, k, v = self.q, self.k, self.v
        if self.cp_context is not None:
            return "gdnspec does not divide a sequence among devices"
        if self.allow_neg_eigval and not self.use_beta_sigmoid_in_kernel:
            return "FLA takes allow_neg_eigval only with use_beta_sigmoid_in_kernel"
        if self.use_gate_in_kernel and self.A_log is None:
            return "use_gate_in_kernel needs A_log"
        if q.dim() != 4 or q.shape[2] != k.shape[2] or v.shape[2] % k.shape[2]:
            return f"gdnspec needs [B, T, heads, d] with the heads of FLA, got {[list(x.shape) for x in (q, k, v)]}"
        if self.cu_seqlens is not None and q.shape[0] != 1:
            return f"cu_seqlens needs a batch of one row, got {q.shape[0]}"
        if self.chunk_size not in CHUNK_SIZES:
            return f"FLA takes chunks of {CHUNK_SIZES}, got {self.chunk_size}"
        sequences = q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1
        if self.initial_state is not None and self.initial_state.shape[0] != sequences:
            return f"{sequences} sequences need as many initial states, got {self.initial_state.shape[0]}"
        if not q.dtype == k.dtype == v.dtype:
            return f"gdnspec needs one type for q, k and v, got {q.dtype}, {k.dtype} and {v.dtype}"
        return None if q.device.type == "cpu" else self._refusal_of_a_gpu()

    def _refusal_of_a_gpu(self) -> str | None:
        q, v = self.q, self.v
        if q.device.type != "cuda":
            return f"gdnspec has no kernels for {q.device.type}"
        if q.device.index != torch.cuda.current_device():
            return f"gdnspec's kernels need the current device, got {q.device}"
        if torch.cuda.get_device_capability(q.device) < (8, 0):
            return "gdnspec's kernels need compute capability 8.0"
        if q.dtype != torch.bfloat16:
            return f"gdnspec's kernels need bfloat16, got {q.dtype}"
        if max(q.shape[-1], v.shape[-1]) > LONGEST_HEAD:
            return f"gdnspec's kernels need heads of at most {LONGEST_HEAD}, got {q.shape[-1]} and {v.shape[-1]}"
        floats = (q, self.k, v, self.g, self.beta, self.initial_state, self.A_log, self.dt_bias)
        if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in floats):
            return None
        if q.shape[-1] != v.shape[-1]:
            return f"gdnspec's kernels need heads of one size for gradients, got {q.shape[-1]} and {v.shape[-1]}"
        if torch.cuda.get_device_capability(q.device)[0] != 9:
            return "gdnspec's gradients were tried on Hopper alone"
        return None

    def served(self) -> tuple[Tensor, Tensor | None]:
        """What FLA's function returns: the output, and the final state if it is wanted."""
        q, k, g, beta = self.q, self.k, self.g, self.beta
        if self.use_qk_l2norm_in_kernel:
            q, k = l2_normalised(q), l2_normalised(k)
        if self.use_gate_in_kernel:
            assert self.A_log is not None  # or the call was refused
            g = -wide(self.A_log).exp() * softplus(wide(g) if self.dt_bias is None else wide(g) + self.dt_bias)
        if self.use_beta_sigmoid_in_kernel:
            beta = wide(beta).sigmoid() * (2 if self.allow_neg_eigval else 1)
        tokens = [x.contiguous() for x in (q, k, self.v, g, beta)]
        if self.cu_seqlens is not None:
            tokens = [x[0] for x in tokens]
        state = None if self.initial_state is None else wide(self.initial_state).contiguous()
        layout = "k_last" if self.state_v_first else "k_first"
        output, final_state = ops.gated_delta_rule(
            *tokens, state, self.cu_seqlens, scale=self.scale, state_layout=layout
        )  # fmt: skip
        output = output if self.cu_seqlens is None else output[None]
        return output, final_state if self.output_final_state else None


@register_backend("gated_delta_rule")
class GdnspecBackend(BaseBackend):
    """Forward passes on a GPU, gradients on Hopper too, and everything on a CPU, where FLA has no kernels."""

    backend_type = "gdnspec"
    package_name = "gdnspec"
    env_var = "FLA_GDNSPEC"
    priority = 2  # lower is earlier: FlashQLA has 3
    registered = True

    def is_enabled(self) -> bool:
        return self.registered and super().is_enabled()

    def chunk_gated_delta_rule_verifier(self, *args: Any, **kwargs: Any) -> tuple[bool, str | None]:
        """Whether the call is served, and why not. FLA takes an error, as of an unknown argument, for a no."""
        why = Call(*args, **kwargs).refusal()
        return why is None, why

    def chunk_gated_delta_rule(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        return Call(*args, **kwargs).served()


def register() -> None:
    """Makes FLA ask this backend again. The import does the same; a second time changes nothing."""
    GdnspecBackend.registered = True


def unregister() -> None:
    """Makes FLA pass over this backend from the next call on: FLA itself never forgets one."""
    GdnspecBackend.registered = False


if os.environ.get("FLA_DISABLE_BACKEND_DISPATCH") == "1":
    warnings.warn("FLA_DISABLE_BACKEND_DISPATCH=1: FLA asks no backend, so it does not use gdnspec", stacklevel=2)
