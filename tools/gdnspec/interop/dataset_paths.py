"""Where things lie in a dataset of FlashInfer-Bench. `family` is its op_type: the name of the family.

definitions/<family>/<definition>.json       solutions/<family>/<definition>/<solution>.json
workloads/<family>/<definition>.jsonl        blob/workloads/<family>/<definition>/<workload>.safetensors
traces/<family>/<definition>.jsonl
"""

MARK = "gdnspec"  # tag that says which definition of gdnspec it is: gdnspec:<definition>


def definition_file(family: str, name: str) -> str:
    return f"definitions/{family}/{name}.json"


def solution_file(family: str, definition: str, name: str) -> str:
    return f"solutions/{family}/{definition}/{name}.json"


def workloads_file(family: str, definition: str) -> str:
    return f"workloads/{family}/{definition}.jsonl"


def tensors_file(family: str, definition: str, uuid: str) -> str:
    return f"blob/workloads/{family}/{definition}/{definition}_{uuid}.safetensors"
