"""Rows for speed, by the heads of released models. Budgets of all but gradients are measured on a CPU, hence the few
tokens: benchmarks/kda_rows.py has longer ones."""

from collections.abc import Iterator

from .far import far
from .rows import BOUND, Line, decode, in_place, kept, pool, prefill, verify

KIMI, KIMI_TP4, GLM, K3 = "kimi-linear-48b-a3b-tp1", "kimi-linear-48b-a3b-tp4", "glm-5.3-flash-tp1", "kimi-k3-tp1"


def prefill_performance() -> Iterator[Line]:
    yield prefill("8_1x2048", KIMI_TP4, "typical", (2048,))
    yield prefill("8_4x512", KIMI_TP4, "typical", (512,) * 4)
    yield prefill("32_1x1024", KIMI, "typical", (1024,))
    yield prefill("32_8x128", KIMI, "typical", (128,) * 8)
    yield prefill("64_1x512", GLM, "lower_bound", (512,))


def k_first_performance() -> Iterator[Line]:
    yield prefill("32_1x1024", KIMI, "typical", (1024,))


def raw_performance() -> Iterator[Line]:
    yield prefill("32_1x2048", KIMI, "typical", (2048,))
    yield prefill("64_1x512", GLM, "typical", (512,), scalars=BOUND)


def checkpoints_performance() -> Iterator[Line]:
    yield kept("8_1x2048_every_256", KIMI_TP4, "typical", 256, (2048,))


def backward_performance() -> Iterator[Line]:
    """Drawn on the device, which measures their budgets: a CPU needs minutes for a thousand tokens of eight heads. All
    heads of a sample of sequences are judged."""
    for label, preset in (("8", KIMI_TP4), ("32", KIMI)):
        for name, lengths in (("1x8192", (8192,)), ("4x2048", (2048,) * 4), ("64x128", (128,) * 64)):
            yield prefill(f"{label}_{name}", preset, "typical", lengths, **far(2, None))
    yield prefill("64_1x4096", GLM, "typical", (4096,), **far(2, None))


def decode_performance() -> Iterator[Line]:
    for batch in (1, 4, 16, 64, 128):
        yield decode(f"32_batch_{batch}", KIMI, "typical", batch)
    yield decode("64_batch_32", GLM, "typical", 32, scalars=BOUND)
    yield decode("96_batch_32", K3, "typical", 32, scalars=BOUND)


def pool_performance() -> Iterator[Line]:
    for batch, num_slots in ((1, 64), (16, 64), (64, 128)):
        rows = in_place(f"32 {batch}", batch, num_slots)
        yield pool(f"32_batch_{batch}", KIMI, "typical", num_slots, rows)


def verify_performance() -> Iterator[Line]:
    for batch in (1, 16):
        yield verify(f"32_4_tokens_batch_{batch}", KIMI, "typical", 4, [n % 5 for n in range(batch)])
