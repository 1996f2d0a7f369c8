"""What may run the linear attention of a Qwen3-Next: transformers in plain PyTorch, FLA's kernels, or `gdnspec.ops`."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

# FLA's own kernels, not those of libraries that it would hand over to. It keeps where chunks lie for so many tensors of
# lengths: what it misses in a CUDA graph it would compute anew there, and wait for.
os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
os.environ.setdefault("FLA_TENSOR_CACHE_SIZE", "256")

from gdnspec.integrations.transformers import use
from torch import Tensor, nn
from transformers.models.qwen3_next import modeling_qwen3_next as package

RULE, STEP = "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"
CONVOLUTION, CONVOLUTION_STEP = "causal_conv1d_fn", "causal_conv1d_update"


@contextmanager
def _replaced(functions: dict[str, Callable[..., Any]], norm: Callable[..., Tensor] | None = None) -> Iterator[None]:
    """The functions that transformers itself replaces where it finds FLA, and the norm."""
    norm = norm or package.Qwen3NextRMSNormGated.forward
    with patch.multiple(package, **functions), patch.object(package.Qwen3NextRMSNormGated, "forward", norm):
        yield


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """From under the wrappers that would take FLA's kernels."""
    names = (RULE, STEP, CONVOLUTION, CONVOLUTION_STEP)
    with _replaced({name: inspect.unwrap(getattr(package, name)) for name in names}):
        yield


@contextmanager
def fla(model: nn.Module) -> Iterator[None]:
    """FLA's convolution, rule and norm. The gates are transformers', as where it finds FLA by itself."""
    from fla.modules import causal_conv1d as convolutions
    from fla.modules.norm import fused_norm_gate as norms
    from fla.ops import gated_delta_rule as rules

    def convolution(
        x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, cu_seq_lens_q: Any = None, **_: Any
    ) -> Tensor:
        y, _ = convolutions.causal_conv1d(x.mT, weight, bias, activation=activation, cu_seqlens=cu_seq_lens_q)
        return y.mT

    def convolution_step(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        y, _ = convolutions.causal_conv1d_update(
            x.mT.contiguous(), state, weight=weight, bias=bias, activation=activation
        )
        return y.mT

    def rule(function: Callable[..., Any]) -> Callable[..., Any]:
        names = set(inspect.signature(function).parameters)
        return lambda *tensors, **options: function(
            *tensors, **{name: x for name, x in options.items() if name in names}
        )

    def norm(self: Any, x: Tensor, gate: Tensor) -> Tensor:
        return norms.rms_norm_gated(x, gate, self.weight, None, eps=self.variance_epsilon)

    functions = {
        RULE: rule(rules.chunk_gated_delta_rule), STEP: rule(rules.fused_recurrent_gated_delta_rule),
        CONVOLUTION: convolution, CONVOLUTION_STEP: convolution_step,
    }  # fmt: skip
    with _replaced(functions, norm):
        yield


PATHS: dict[str, Callable[[nn.Module], Any]] = {"transformers": plain, "fla": fla, "gdnspec": use}
