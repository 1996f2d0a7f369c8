"""triton_kda makes scores in several ways, by what gates allow: each is right at every gate."""

import json
import os
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gdnspec.build.resources import triton_resources  # noqa: E402
from meta_tensors import meta  # noqa: E402

KINDS = ("slow", "half", "16", "8", "4", "2")  # of gates, and "fast"


@pytest.mark.parametrize("kinds", [KINDS[:5:2], pytest.param(KINDS, marks=pytest.mark.thorough)], ids=["some", "all"])
def test_scores_are_right_at_every_gate(kinds: tuple[str, ...], tmp_path: Path) -> None:
    script = Path(__file__).with_name("interpreted_kda.py")
    done = forked_command.run([str(tmp_path), "fast", *kinds], os.environ | {"TRITON_INTERPRET": "1"}, script=script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 3 * (1 + len(kinds)) + 2
    for case, errors in found.items():
        assert max(errors) < 6e-3, (case, errors)
    # No quotient is taken where it might overflow: then all ways are one.
    assert found["fast, False, False"] == found["fast, False, True"]
    for kind in kinds:
        assert found[f"{kind}, False, False"] != found[f"{kind}, False, True"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("which", ["raw gates", "finished gates"])
def test_two_blocks_of_prefill_fit_on_a_multiprocessor(which: str) -> None:
    T, H, D, N = 8192, 32, 128, 1
    q, k, v, output, a = (meta(T, H, D, dtype=torch.bfloat16) for _ in range(5))
    common = {"q": q, "k": k, "v": v, "cu_seqlens": meta(N + 1, dtype=torch.int64), "scale": None, "output": output}
    common |= {"initial_state": meta(N, H, D, D), "final_state": meta(N, H, D, D)}
    raw = {"A_log": meta(H), "a": a, "dt_bias": meta(H, D), "b": meta(T, H, dtype=torch.bfloat16)}
    raw |= {"lower_bound": None, "use_qk_l2norm": None}
    calls = {
        "finished gates": ("kernel.py::prefill_k_last", common | {"g": meta(T, H, D), "beta": meta(T, H)}),
        "raw gates": ("kernel.py::prefill_raw_gates", common | raw),
    }
    (kernels,) = triton_resources(ROOT / "solutions/triton_kda", [calls[which]])
    prepare, *others = sorted(kernels, key=lambda x: x.name != "prepare_kernel")
    assert prepare.name == "prepare_kernel"
    assert prepare.shared_bytes <= 113 * 1024
    assert prepare.spill_stores + prepare.spill_loads < 750  # the log says what spills: it may not grow unseen
    assert others
    assert all(x.spill_stores == x.spill_loads == 0 for x in others)
    assert not any(x.refilled for x in kernels)
