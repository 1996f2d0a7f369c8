"""Which definition has which rows: the ones by hand, and what comes to them."""

from collections.abc import Iterator

from .blank import BLANK
from .far import FAR
from .layer import LAYERS
from .performance import (
    backward_performance,
    checkpoints_performance,
    decode_performance,
    k_first_performance,
    pool_performance,
    prefill_performance,
    raw_performance,
    verify_performance,
)
from .recorded import recorded_decode, recorded_prefill
from .rows import ROWS, Rows
from .scalars import SCALARS
from .sizes import SIZES
from .stages import STAGES
from .strict import backward_strict, checkpoints_strict, prefill_strict

OWN = ROWS | LAYERS | STAGES

MORE: dict[str, dict[str, Rows]] = {
    "kda_prefill_k_last": {
        "conformance": recorded_prefill, "strict": prefill_strict, "performance": prefill_performance,
    },
    "kda_prefill_k_first": {"strict": prefill_strict, "performance": k_first_performance},
    "kda_prefill_raw_gates": {"conformance": recorded_prefill, "performance": raw_performance},
    "kda_prefill_checkpoints": {"strict": checkpoints_strict, "performance": checkpoints_performance},
    "kda_prefill_backward_k_last": {"strict": backward_strict, "performance": backward_performance},
    "kda_decode_k_last": {"conformance": recorded_decode, "performance": decode_performance},
    "kda_decode_k_last_bf16_state": {"performance": decode_performance},
    "kda_decode_pool_k_last": {"performance": pool_performance},
    "kda_decode_pool_k_last_bf16_state": {"performance": pool_performance},
    "kda_verify_k_last": {"performance": verify_performance},
}  # fmt: skip


def suites(name: str) -> Iterator[tuple[str, Rows]]:
    """(suite, rows) of a definition; a suite may come twice."""
    for groups in (OWN, MORE):
        yield from groups.get(name, {}).items()
    if name in SCALARS:
        yield "conformance", SCALARS[name]
    for rows in FAR.get(name, ()):
        yield "conformance", rows
    for more in (BLANK, SIZES):
        if name in more:
            yield "conformance", more[name]
