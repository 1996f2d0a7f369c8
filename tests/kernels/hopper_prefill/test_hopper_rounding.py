"""How hopper_prefill rounds T was chosen by a model of its arithmetic on a CPU, whose errors its LOG.md has."""

import os
import re

import forked_command
from conftest import ROOT

FOLDER = ROOT / "solutions/hopper_prefill"


def test_sums_of_columns_are_kept_where_keys_are_alike() -> None:
    words = ["--tokens", "128", "--draws", "1"]
    done = forked_command.run(words, dict(os.environ), script=FOLDER / "rounding.py")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    ways = re.split(r" {2,}", head.strip())
    states = {line[:28].strip(): dict(zip(ways, map(float, line[28:].split()[1::2]), strict=True)) for line in lines}
    for keys in ("one key, beta 1.9", "nearly parallel, beta 0.99"):
        assert states[keys]["kernel"] < 1.5 * states[keys]["two terms"] < 0.3 * states[keys]["one term"], keys
    typical = states["typical"]
    assert typical["kernel"] < 1.1 * typical["one term"], "no errors from token to token of other keys"


def test_the_model_and_the_kernel_agree_about_what_is_alike() -> None:
    kernel = re.search(r"constexpr float kAlike = (\S+)f;", (FOLDER / "invert.cuh").read_text())
    model = re.search(r"ALIKE = .* (\S+)\n", (FOLDER / "rounding.py").read_text())
    assert kernel and model and kernel[1] == model[1]
