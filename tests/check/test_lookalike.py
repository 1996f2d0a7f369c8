"""A failure that looks like a known fault says so, and any other mistake does not."""

from pathlib import Path

import pytest
from conftest import RIGHT_DECODE, Run
from gdnspec.catalog.faults import rejections
from gdnspec.check import lookalike
from gdnspec.model.fault import Fault
from sampled import one_in

ARGUMENTS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
OPTIONS = ("gdn_decode_k_last", "--workload", "tiny_keys", "--workload", "resets", "--device", "cpu", "--seed", "1")
RIGHT = f"{RIGHT_DECODE}\n\ndef mine{ARGUMENTS}:\n    o, s = decode_k_last{ARGUMENTS}\n    return o, s\n"
# Another text than the table's, with the same mistake: the error is taken from the state before its decay.
DECAY, ERROR = "    S = alpha[..., None, None] * S  # decay\n", "    u = beta[..., None] * (v - read(S, k))"
UNDECAYED = RIGHT.replace(DECAY + ERROR, ERROR + "\n" + DECAY.rstrip("\n"))
MISTAKES = {
    "scaled": "return o * 1.1, s",
    "transposed in part": "return o, torch.where(torch.arange(s.shape[-1]) < 9, s.mT, s)",
}


def said(gdnspec: Run, folder: Path, text: str) -> str:
    (folder / "kernel.py").write_text(text)
    done = gdnspec("check", folder / "kernel.py::mine", *OPTIONS)
    assert done.returncode == 1, done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if line.startswith("like a known fault"))


@pytest.mark.parametrize("mistake", one_in(2, MISTAKES.values(), MISTAKES))
def test_an_unrelated_mistake_matches_nothing(gdnspec: Run, tmp_path: Path, mistake: str) -> None:
    assert said(gdnspec, tmp_path, RIGHT.replace("return o, s", mistake)) == ""


def test_a_known_mistake_is_named_with_the_count_of_rows(gdnspec: Run, tmp_path: Path) -> None:
    line = said(gdnspec, tmp_path, UNDECAYED)
    fault = "The error is taken from the state before its decay."
    assert line == f"like a known fault: mine on gdn_decode_k_last matches undecayed_error on 2 of 2 rows: {fault}"


GRADIENTS = """
import torch

def mine(x, z, weight, eps, do):
    leaves = [t.detach().float().requires_grad_() for t in (x, z, weight)]
    with torch.enable_grad():
        n, gate, w = torch.nn.functional.rms_norm(leaves[0], x.shape[-1:], eps=1e-6), *leaves[1:]
        (n * w * torch.nn.functional.silu(gate)).backward(do.float())
    dx, dz, dweight = (t.grad for t in leaves)
    return dx.bfloat16(), dz.bfloat16(), dweight * w.detach()
"""


def test_a_known_mistake_of_gradients_is_named(gdnspec: Run, tmp_path: Path) -> None:
    """Their faults are several files each, with the names of those of other faults."""
    (tmp_path / "kernel.py").write_text(GRADIENTS)
    options = ("--workload", "rows", "--workload", "head_size_120", "--device", "cpu", "--seed", "1")
    done = gdnspec("check", "gdn_gated_rms_norm_backward", tmp_path / "kernel.py::mine", *options)
    assert done.returncode == 1, done.stderr
    fault = "norm_backward_dweight_with_weight on 2 of 2 rows: dweight has the weight as a factor."
    assert f"like a known fault: mine on gdn_gated_rms_norm_backward matches {fault}" in done.stderr


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.thorough)])
def test_faults_of_every_definition_are_compared(share: int) -> None:
    wrong = [known for known in rejections().values() if isinstance(known, Fault) and known.kind == "wrong"]
    for name in sorted({name for known in wrong for name in known.definitions})[::share]:
        assert lookalike._faults(name), name


def test_without_the_table_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookalike, "rejections", dict)
    assert lookalike._faults("gdn_decode_k_last") == []


def test_the_comparison_ends_in_time() -> None:
    seconds = iter([0.0, 0.0, lookalike.SECONDS + 1])
    wrong = lookalike.Wrong({("mine", "gdn_decode_k_last"): []})
    assert list(wrong.likenesses(lambda: next(seconds))) == []
    assert next(seconds, None) is None
