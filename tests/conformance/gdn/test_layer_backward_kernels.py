"""triton_layer_backward where no workload takes it: other types, kernels of other widths, rows behind the last
sequence, and what it refuses. Triton's interpreter runs it in one process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE, ROOT

CALLS = """
import json, sys
from pathlib import Path
import torch
from gdnspec.build.loader import load_function
from gdn.backward_around import conv1d_backward, gated_rms_norm_backward

folder, build = (Path(x) for x in sys.argv[1:])
conv, norm = (load_function(folder, entry, build) for entry in (
    "conv1d.py::conv1d_backward", "gated_norm.py::gated_rms_norm_backward"))
f32, said = torch.float32, {}
torch.manual_seed(1)

def worst(found, wanted):
    return max(float((a.double() - b).norm() / (b.norm() + 1e-30)) for a, b in zip(found, wanted))

def call(width, dtype, lengths=(1, 70, 0, 2), behind=0, channels=20):
    cu, N = torch.tensor([0, *lengths]).cumsum(0), len(lengths)
    new = lambda *shape, dtype=dtype: torch.randn(shape).to(dtype)
    T, state = int(cu[-1]) + behind, (N, channels, width - 1)
    given = {"x": new(T, 2 * channels)[:, :channels], "weight": new(channels, width), "bias": new(channels),
             "cu_seqlens": cu, "initial_state": new(*state), "do": new(T, channels), "dht": new(*state, dtype=f32)}
    out = {"dx": new(T, channels), "dweight": new(channels, width, dtype=f32), "dbias": new(channels, dtype=f32),
           "dh0": new(*state, dtype=f32)}
    return given, out

def doubled(given):
    return {n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in given.items()}

for width, dtype, behind in ((1, f32, 0), (2, torch.float16, 3), (5, f32, 0), (7, torch.bfloat16, 70)):
    given, out = call(width, dtype, behind=behind)
    conv(**given, **out)
    said[f"conv {width} {dtype}"] = worst(out.values(), conv1d_backward(**doubled(given)))
    if behind:
        said[f"behind {width}"] = float(out["dx"][-behind:].abs().max())
for dtype, (rows, heads, size) in ((f32, (3, 2, 96)), (torch.float16, (1, 1, 1)), (torch.bfloat16, (40, 3, 200))):
    x, z, do = (torch.randn(rows, heads, 2 * size).to(dtype)[..., :size] for _ in range(3))
    given = {"x": x, "z": 4 * z, "weight": torch.randn(size).to(dtype), "eps": 1e-3, "do": do}
    out = {"dx": torch.ones_like(do).contiguous(), "dz": torch.ones_like(do).contiguous(), "dweight": torch.ones(size)}
    norm(**given, **out)
    said[f"norm {size} {dtype}"] = worst(out.values(), gated_rms_norm_backward(**doubled(given)))

given, out = call(4, torch.bfloat16)
for changes in (
    {"x": given["x"].int()}, {"weight": given["weight"][:4]}, {"bias": given["bias"][:4]}, {"do": given["do"].mT},
    {"do": given["x"].repeat_interleave(2, 1)[:, ::2]}, {"dht": given["dht"].double()},
    {"cu_seqlens": torch.tensor([0])}, {"initial_state": given["initial_state"].mT},
    {"dx": out["dx"].float()}, {"dh0": out["dh0"][:1]},
    {"cu_seqlens": torch.tensor([0, 9, 5, 6, 7])},
):
    try:
        conv(**given | out | changes)
        said[f"refused {list(changes)}"] = "served"
    except ValueError as error:
        said[f"refused {list(changes)}: {error}"] = 0.0
print(json.dumps(said))
"""


@pytest.mark.thorough
def test_other_types_and_widths_and_what_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "GDNSPEC_DEBUG": "1", "OMP_NUM_THREADS": "1"}
    paths = (ROOT / "tools", ROOT / "reference", os.environ.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if path)
    command = [sys.executable, "-c", CALLS, str(ROOT / "solutions/triton_layer_backward"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    limits = {"torch.float32": 2e-6, "torch.float16": 5e-4, "torch.bfloat16": 4e-3, "behind": 0.0, "refused": 0.0}
    for name, value in said.items():
        assert value != "served", name
        assert value <= next(limit for word, limit in limits.items() if word in name), (name, value)
    assert sum("refused" in name for name in said) == 11
    assert "rise from 0" in str(list(said))
