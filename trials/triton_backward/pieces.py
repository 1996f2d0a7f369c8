"""pieces.py BEST: a line of arguments of `gdnspec check` for each process: the served smoke and conformance workloads of
four definitions, dealt out, then fresh ones of three seeds. The root of the tree is the working directory."""
import json, sys
from pathlib import Path

folder = sys.argv[1]
for name, pieces in (("k_last", 5), ("k_first", 5), ("raw_gates", 2), ("checkpoints", 2)):
    lines = Path(f"definitions/gdn/gdn_prefill_backward_{name}/workloads.jsonl").read_text().splitlines()
    names = [x["name"] for x in map(json.loads, lines) if x["suite"] in ("smoke", "conformance") and "past_2_31" not in x["name"]]
    for piece in range(pieces):
        of = " ".join(f"--workload {x}" for x in names[piece::pieces])
        print(f"{name}_{piece} gdn_prefill_backward_{name} {folder} {of}")
for name in ("k_last", "k_first", "raw_gates", "checkpoints"):
    for seed in (5, 12, 31):
        print(f"{name}_fresh{seed} gdn_prefill_backward_{name} {folder} --suite fresh --seed {seed}")
