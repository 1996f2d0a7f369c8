"""Where things lie in a dataset of FlashInfer-Bench, and what they are called.

    definitions/gdn/<definition>.json            solutions/gdn/<definition>/<solution>.json
    workloads/gdn/<definition>.jsonl             blob/workloads/gdn/<definition>/<workload>.safetensors
    traces/gdn/<definition>.jsonl

A definition of that format has its heads in its name and in its axes: one of gdnspec's with each preset.
"""

import re
from collections.abc import Mapping

OP_TYPE = "gdn"
MARK = "gdnspec"  # tag that says which definition of gdnspec it is: gdnspec:gdn_decode_k_last
NAME = re.compile(r"gdn_([a-z]+)_(?:qk(\d+)|q(\d+)_k(\d+))_v(\d+)_d(\d+)((?:_[a-z0-9]+)*)")


def name_of(definition: str, axes: Mapping[str, int]) -> str:
    """`gdn_decode_k_last` with 4, 4, 8 heads of 128 is `gdn_decode_qk4_v8_d128_k_last`."""
    family, stage, rest = definition.split("_", 2)
    q, k, v, d = (axes[name] for name in ("num_q_heads", "num_k_heads", "num_v_heads", "head_size"))
    heads = f"qk{q}" if q == k else f"q{q}_k{k}"
    return f"{family}_{stage}_{heads}_v{v}_d{d}_{rest}"


def named(foreign: str) -> tuple[str, str] | None:
    """The other way: (definition, preset), as far as a name tells; None where it is of no such form."""
    match = NAME.fullmatch(foreign)
    if match is None:
        return None
    stage, both, q, k, v, d, rest = match.groups()
    return f"gdn_{stage}{rest}", f"heads-{both or q}x{both or k}x{v}-d{d}"


def definition_file(name: str) -> str:
    return f"definitions/{OP_TYPE}/{name}.json"


def solution_file(definition: str, name: str) -> str:
    return f"solutions/{OP_TYPE}/{definition}/{name}.json"


def workloads_file(definition: str) -> str:
    return f"workloads/{OP_TYPE}/{definition}.jsonl"


def tensors_file(definition: str, uuid: str) -> str:
    return f"blob/workloads/{OP_TYPE}/{definition}/{definition}_{uuid}.safetensors"
