"""Rows of tensors that a model has fed its layers: reference/kda/scripts/make_real_input.py records them."""

from collections.abc import Iterator

from .rows import Line

HEADS = "synthetic-mha-2x2-d64"
OF_A_MODEL = {"tensors": "tensors/kimi_linear.safetensors", "covers": "what a real model feeds its layers"}


def recorded_prefill() -> Iterator[Line]:
    axes = {"total_seq_len": 75, "num_seqs": 3}
    yield {"name": "kimi_linear_model", "preset": HEADS, "axes": axes, **OF_A_MODEL}


def recorded_decode() -> Iterator[Line]:
    yield {"name": "kimi_linear_model", "preset": HEADS, "axes": {"batch_size": 3}, **OF_A_MODEL}
