"""gdnspec workloads materialize: the tensors of a line, written one at a time, are those that the judge draws."""

import json
import os
import subprocess
from pathlib import Path

import forked_command
import numpy as np
import pytest
from conftest import ROOT, Run
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import InvalidWorkload, digest, materialise
from gdnspec.inputs.raw import read_raw
from gdnspec.inputs.stream import write
from gdnspec.model.dtypes import SIZES
from sampled import one_in

SAMPLED = one_in(8, definitions())


@pytest.mark.parametrize("name", SAMPLED)
def test_the_files_hold_what_the_judge_draws(gdnspec: Run, tmp_path: Path, name: str) -> None:
    found = definition(name)
    done = gdnspec("workloads", "materialize", name, "--suite", "smoke", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in workloads(found) if line.suite == "smoke"]
    assert len(list(tmp_path.iterdir())) == len(lines)
    for line in lines:
        wanted = materialise(found, line).tensors
        file = tmp_path / f"{line.name}.safetensors"
        got = read_raw(file)
        assert sorted(got) == sorted(wanted)
        for tensor, array in wanted.items():
            assert (got[tensor].dtype, got[tensor].shape) == (array.dtype, array.shape)
            assert got[tensor].data == np.ascontiguousarray(array.data).tobytes(), (line.name, tensor)
        header = json.loads(file.read_bytes()[8 : 8 + int.from_bytes(file.read_bytes()[:8], "little")])
        for tensor, entry in header.items():
            assert entry["data_offsets"][0] % SIZES[wanted[tensor].dtype] == 0, "each tensor is aligned"


def test_the_library_reads_them(gdnspec: Run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    line = next(line for line in workloads(definition("gdn_prefill_k_last")) if line.name == "ragged")
    assert (
        gdnspec("workloads", "materialize", "gdn_prefill_k_last", "--workload", "ragged", "-o", tmp_path).returncode
        == 0
    )
    tensors = load_file(tmp_path / "ragged.safetensors")
    assert tensors["q"].dtype == torch.bfloat16
    assert tensors["q"].shape[0] == line.axes["total_seq_len"]
    assert tensors["cu_seqlens"].diff().tolist() == line.sequence_lengths


def test_what_is_written_has_the_hash_of_the_line(tmp_path: Path) -> None:
    found = definition("gdn_decode_pool_k_last")
    line = next(line for line in workloads(found) if line.suite == "smoke")
    size, sha256 = write(found, line, tmp_path / "x.safetensors")
    assert sha256 == line.sha256 == digest(materialise(found, line).tensors)
    assert size == (tmp_path / "x.safetensors").stat().st_size
    with pytest.raises(InvalidWorkload, match="but the workload has another"):
        write(found, line.model_copy(update={"sha256": "0" * 64}), tmp_path / "y.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"], "nothing half done is left"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_a_pool_is_held_once(tmp_path: Path) -> None:
    """A pool of 0.3 GiB, nearly every slot of it named: the process never has half as much again."""
    line = {
        "name": "pool", "suite": "performance", "preset": "qwen3-next-80b-a3b-tp1", "regime": "typical", "seed": 1,
        "axes": {"batch_size": 157, "num_slots": 160},
        "integers": {"read_slots": list(range(157)), "write_slots": list(range(157))},
    }  # fmt: skip
    (tmp_path / "w.jsonl").write_text(json.dumps(line) + "\n")
    code = """
import sys, pathlib
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import load_workloads
from gdnspec.inputs.stream import write
from gdnspec.model.dtypes import SIZES
def most():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith("VmHWM")) / 2**20
found, folder = definition("gdn_decode_pool_k_last"), pathlib.Path(sys.argv[1])
(line,) = load_workloads(folder / "w.jsonl", found)
before = most()
print(write(found, line, folder / "pool.safetensors")[0] / 2**30, most() - before)
"""
    (tmp_path / "program.py").write_text(code)
    done = forked_command.run([str(tmp_path)], dict(os.environ), script=tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    size, more = map(float, done.stdout.split())
    (tmp_path / "pool.safetensors").unlink()
    assert size > 0.3
    assert more < 1.5 * size, "GiB"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gdn_prefill_k_lst",), "did you mean 'gdn_prefill_k_last'?"),
        (("gdn_prefill_k_last", "--workload", "raged"), "did you mean 'ragged'?"),
        (("gdn_prefill_k_last", "--suite", "smok"), "no suite 'smok'"),
        (("gdn_prefill_k_last", "--workloads", "none.jsonl"), "none.jsonl"),
        (("gdn_prefill_k_last", "--workload", "ragged", "-o", str(ROOT / "README.md")), "is a file"),
    ],
)
def test_a_wrong_request_is_told(gdnspec: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    output = () if "-o" in arguments else ("-o", tmp_path / "out")
    done = gdnspec("workloads", "materialize", *arguments, *output)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_files_are_overwritten_on_request_only(gdnspec: Run, tmp_path: Path) -> None:
    arguments = ("workloads", "materialize", "gdn_decode_k_last", "--workload", "one_row", "-o", tmp_path)
    (tmp_path / "one_row.safetensors").write_text("mine")
    assert "exists already" in gdnspec(*arguments).stderr
    assert (tmp_path / "one_row.safetensors").read_text() == "mine"
    assert gdnspec(*arguments, "--force").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists() or os.geteuid() != 0, reason="needs a small disk of its own")
def test_a_full_disk_is_told_and_leaves_nothing(gdnspec: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("no mount here")
    try:
        done = gdnspec("workloads", "materialize", "gdn_decode_k_last", "--workload", "batch_8", "-o", small)
        assert done.returncode == 2
        assert "cannot be written: No space left on device" in done.stderr
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=False)
