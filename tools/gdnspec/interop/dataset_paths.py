"""The paths of files in a dataset of FlashInfer-Bench. `family`, the name of the family, is its op_type.

definitions/<family>/<definition>.json       solutions/<family>/<definition>/<solution>.json
workloads/<family>/<definition>.jsonl        blob/workloads/<family>/<definition>/<workload>.safetensors
traces/<family>/<definition>.jsonl

Beside it stands a folder for the trace_apply of FlashInfer:
trace_apply/solutions/<family>/<definition>/<solution>.json
"""

MARK = "gdnspec"  # the tag gdnspec:<definition> names the definition of gdnspec


def definition_file(family: str, name: str) -> str:
    return f"definitions/{family}/{name}.json"


def solution_file(family: str, definition: str, name: str) -> str:
    return f"solutions/{family}/{definition}/{name}.json"


def workloads_file(family: str, definition: str) -> str:
    return f"workloads/{family}/{definition}.jsonl"


def tensors_file(family: str, definition: str, uuid: str) -> str:
    return f"blob/workloads/{family}/{definition}/{definition}_{uuid}.safetensors"


def applied_file(family: str, definition: str, name: str) -> str:
    return f"trace_apply/{solution_file(family, definition, name)}"
