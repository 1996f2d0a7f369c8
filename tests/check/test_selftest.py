"""The judge is judged: a survivor, a wrong reason and a thin margin each end in exit code 1."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import ROOT, Run
from gdnspec import paths
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.families import families
from gdnspec.catalog.faults import KNOWN_BAD_FILE, Bad, honest, known_bad, rejections
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.selftest import (
    Task,
    Trial,
    bad_task,
    complaints_about_bad,
    complaints_about_honest,
    honest_task,
    margin,
    run,
    strength,
)  # fmt: skip
from gdnspec.cli.commands.selftest import selftest
from gdnspec.inputs.fresh import names
from gdnspec.model.errors import SpecError
from gdnspec.model.fault import Fault, KnownBad, Rejection
from gdnspec.model.result import CheckResult, OutputErrors, Status
from helpers_known_bad import wrong
from patience import PATIENCE, until

# DESIGN section 3 and what public kernels have been seen to do; each must have its known-bad solution.
TRAPS = {
    "undecayed_error", "log_gate_as_linear", "linear_gate_as_log", "equal_heads_assumed", "minus_state_update",
    "mask_without_decay", "l2_norm_skipped", "k_first_as_k_last", "no_carry", "no_delta_term", "beta_constant",
    "beta_squared", "gate_of_next_token", "read_before_write", "head_modulo", "gqa_as_gva", "initial_state_ignored",
    "final_state_transposed", "final_state_of_previous_chunk", "last_five_tokens_unwritten", "ragged_tail_reads_next",
    "cu_seqlens_off_by_one", "empty_sequence_zeros", "scale_twice", "eps_outside_root", "softplus_without_bias",
    "bfloat16_state", "float16_inverse", "bfloat16_inverse", "history_dropped", "output_times_1_01",
    "one_token_in_4096", "neighbour_state_ignored", "nan_at_zero_gate",
    # pools: which slots, skipped rows, gaps
    "pool_skip_as_last_slot", "pool_skip_as_slot_0", "pool_slot_0_skipped", "pool_skipped_output_unwritten",
    "pool_skipped_from_zeros", "pool_stops_at_first_skip", "pool_write_slots_ignored", "pool_read_slots_ignored",
    "pool_taken_as_contiguous", "pool_neighbour_touched", "pool_source_cleared", "pool_slot_modulo_16",
    "pool_slot_in_8_bits",
    # draft tokens: where a row starts, and which state goes where
    "verify_accepted_ignored", "verify_accepted_off_by_one", "verify_none_accepted_as_one", "verify_start_read_late",
    "verify_last_state_only", "verify_states_to_first_slot", "verify_tokens_all_from_start",
    "verify_gates_of_first_token", "verify_skipped_rows_write", "verify_slots_by_token",
    # packed rows
    "packed_q_and_k_exchanged", "packed_by_key_head", "packed_values_one_head_early",
    # checkpoints: after which token, how many, and where each stands
    "checkpoints_one_token_early", "checkpoints_one_token_late", "checkpoints_one_interval_early",
    "checkpoints_one_interval_late", "checkpoints_at_the_end_missing", "checkpoints_last_is_final",
    "checkpoints_partial_over_next", "checkpoints_rounded_up", "checkpoints_reversed", "checkpoints_by_interval",
    "checkpoints_in_length_order", "checkpoints_of_next_sequence", "checkpoints_of_packed_tokens",
    "checkpoints_every_chunk", "checkpoints_at_chunks_of_128", "checkpoints_transposed", "checkpoints_in_bfloat16",
    "checkpoints_without_initial_state", "checkpoints_restart",
    # around the rule: convolution, norm, stages of the chunkwise form, rows of the convolution
    "conv_not_causal", "conv_state_of_outputs", "conv_silu_skipped", "conv_taps_reversed", "conv_state_channels_last",
    "conv_short_state_not_shifted", "conv_flag_ignored", "conv_initial_state_ignored", "conv_empty_state_cleared",
    "conv_update_not_shifted", "norm_without_eps", "norm_eps_outside", "norm_after_gate", "norm_by_mean",
    "norm_weight_plus_one", "stage_wy_gate_cumulative", "stage_state_gate_cumulative", "stage_output_gate_cumulative",
    "stage_state_minus", "stage_output_mask_without_decay", "stage_output_gate_quotients", "from_conv_values_first",
    "from_conv_q_and_k_exchanged", "from_conv_by_key_head", "from_conv_norm_skipped", "from_conv_state_as_k_last",
    "from_conv_stride_of_bfloat16",
    "layer_gate_before_norm", "layer_norm_weight_plus_one", "layer_rows_by_key_head", "layer_conv_state_alone_cleared",
    "fused_gate_as_log", "fused_values_normalised", "fused_norm_before_silu", "fused_query_scaled",
    "fused_halo_missing", "fused_state_read_late", "fused_skipped_gates_of_tokens", "fused_skipped_gates_zero",
    # what is not read, slices, lengths that are kept, calls that differ
    "conv_flag_multiplied", "pool_skipped_row_multiplied", "pool_masked_load_multiplied", "reads_inputs_flat",
    "lengths_by_identity", "lengths_by_address", "lengths_by_address_and_shape", "lengths_of_first_call",
    "wrong_every_seventh_call",
    # two head sizes, write gates up to 2
    "kv_dims_state_exchanged", "kv_dims_scale_of_values", "kv_dims_prefill_state_exchanged",
    "kv_dims_prefill_scale_of_values", "kv_dims_prefill_clamped_to_one", "neg_eigval_ignored", "neg_eigval_always",
    "neg_eigval_doubled_inside", "neg_eigval_clamped_to_one", "layer_neg_eigval_ignored",
    "layer_neg_eigval_doubled_inside", "layer_norm_eps_ignored",
    # states in bfloat16
    "bfloat16_arithmetic", "bfloat16_sum_of_error", "bfloat16_read_after_rounding", "bfloat16_state_truncated",
    # regions of gates, values of scalars, pairs of conditions, sizes
    "checkpoints_scale_sign_dropped", "conv_over_80_sequences", "core_gates_flushed", "core_softplus_cut",
    "decode_groups_of_4", "decode_head_size_256", "decode_head_size_96", "decode_scale_clamped",
    "decode_scale_no_l2norm", "decode_scale_one_as_absent", "decode_scale_sign_dropped",
    "decode_scale_zero_as_absent", "from_conv_gates_flushed", "from_conv_over_4_sequences", "fused_gates_flushed",
    "fused_softplus_linear_at_8", "gate_difference_above_zero", "gate_flushed_1e_10", "gate_flushed_1e_30",
    "gate_flushed_1e_4", "layer_over_3_sequences", "layer_rows_over_40", "log_gate_flushed_20",
    "log_gate_flushed_60", "norm_eps_clamped", "norm_gate_flushed", "norm_rows_over_300", "pairs_four_empty",
    "pairs_gqa_4", "pairs_head_size_256", "pairs_head_size_96", "pairs_no_state_no_beta", "pairs_resets_no_beta",
    "pairs_scale_no_gate", "pool_slots_over_310", "raw_gate_flushed_1e_10", "raw_gate_flushed_1e_30",
    "rows_over_300", "scale_huge_clamped", "scale_one_as_absent", "scale_sign_dropped", "scale_tiny_as_zero",
    "sequences_over_100", "sigmoid_clamped", "sigmoid_linear", "softplus_by_log", "softplus_linear_at_8",
    "softplus_zero_below_10", "stage_output_difference_above_zero", "stage_output_gate_flushed",
    "stage_output_over_13_chunks", "stage_output_scale_one_as_absent", "stage_state_difference_above_zero",
    "stage_state_gate_flushed", "stage_state_over_13_chunks", "tokens_over_3000", "verify_drafts_over_24",
    "verify_shared_start_taken", "verify_start_is_first_slot", "verify_start_of_last_slot", "write_flushed_1e_8",
}  # fmt: skip
CHEATS = {
    "cache_by_pointer", "cache_by_sha", "cache_by_fingerprint", "cache_by_full_content", "works_once", "late_thread",
    "late_process", "lazy_tensor", "patched_comparison", "patched_timer", "patched_synchronize", "reads_parent_memory",
    "reads_expected_files", "forged_result", "forged_then_exit", "recycled_memory", "writes_inputs", "knows_sign_flips",
    "careful_with_published_gates", "careful_with_published_lengths", "pool_kept_by_slot", "fused_qkv_kept",
    "core_states_kept", "layer_states_kept",
}  # fmt: skip


def test_every_trap_and_every_cheat_has_its_solution() -> None:
    kinds = {name: known.kind for name, known in rejections().items()}
    assert {name for name, kind in kinds.items() if kind == "wrong"} >= TRAPS
    assert {name for name, kind in kinds.items() if kind == "cheat"} >= CHEATS


def test_named_killers_are_workloads_that_the_solution_is_tried_on() -> None:
    every = definitions()
    shipped = {name: {line.name for line in workloads(found)} | {*names(found, "cpu")} for name, found in every.items()}
    for name, known in rejections().items():
        served = known.definitions if isinstance(known, Fault) else known_bad([name])[0].solution.manifest.entries
        assert set(known.killed_by) <= set().union(*(shipped[one] for one in served)), name


# --- what is complained about -----------------------------------------------------------------------------------


def result(workload: str = "one", status: Status = "PASSED", suite: str = "smoke", share: float = 0.1) -> CheckResult:
    errors = OutputErrors(output="output", errors={"relative_l2": share * 0.01}, budget={"relative_l2": 0.01})
    return CheckResult(
        definition="gdn_prefill_k_last", workload=workload, suite=suite, solution="s", device="cpu", status=status,
        outputs=[errors],
    )  # fmt: skip


def bad(**known: Any) -> Bad:
    content = {"schema_version": 1, "kind": "wrong", "fault": "it is", "statuses": ["INCORRECT_NUMERICAL"], **known}
    return Bad(load_solution(wrong("no_carry")), KnownBad.model_validate(content))


WRONG: Status = "INCORRECT_NUMERICAL"
COMPLAINTS: dict[str, tuple[Bad, list[CheckResult], str]] = {
    "survivor": (bad(), [result()], "survives every workload"),
    "another_reason": (bad(), [result(status="TIMEOUT")], "is TIMEOUT, not INCORRECT_NUMERICAL"),
    "the_wrong_killer": (
        bad(killed_by=["two"]),
        [result("one", WRONG), result("two")],
        "passes two, which must reject it",
    ),
    "no_such_killer": (
        bad(killed_by=["smoke_b"]),
        [result("smoke_a", WRONG)],
        "killed_by names 'smoke_b', which was not tried (did you mean 'smoke_a'?)",
    ),
    "outside_its_suite": (
        bad(only_in=["strict"]),
        [result("one", WRONG), result("two", WRONG, "strict")],
        "fails on one, outside strict",
    ),
    "thin_outside_its_suite": (
        bad(only_in=["strict"]),
        [result("one", share=0.9), result("two", WRONG, "strict", 2.0)],
        "margin of 1.11",
    ),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_a_judge_that_is_not_worth_its_name_is_complained_about(name: str) -> None:
    item, results, says = COMPLAINTS[name]
    (complaint,) = complaints_about_bad(item, results)
    assert says in complaint


def test_a_rejection_for_its_fault_is_no_complaint() -> None:
    assert not list(complaints_about_bad(bad(killed_by=["one"]), [result("one", WRONG, share=3.0), result("two")]))


def test_honest_solutions_keep_their_margin() -> None:
    solution = load_solution(ROOT / "solutions" / "torch_recurrent")
    assert not list(complaints_about_honest(solution, [result(share=0.66), result(suite="strict", share=0.79)]))
    (thin,) = complaints_about_honest(solution, [result(share=0.68)])
    assert "has a margin of 1.47" in thin
    (thin,) = complaints_about_honest(solution, [result(), result(suite="strict", share=0.81)])
    assert "margin of 1.23" in thin
    (failed,) = complaints_about_honest(solution, [result(status=WRONG, share=1.5)])
    assert "is honest but gets INCORRECT_NUMERICAL" in failed
    assert "symmetry" not in failed
    again = result(status=WRONG).model_copy(update={"message": "on a second call with other content: output: .."})
    failed, *_ = complaints_about_honest(solution, [again])
    assert "(or a symmetry of gdn_prefill_k_last is none: check --symmetries tries each)" in failed
    # The strict suite is a badge: who fails it may still conform.
    assert not list(complaints_about_honest(solution, [result(), result(status=WRONG, suite="strict", share=5.0)]))


def test_strength_is_error_over_budget() -> None:
    assert strength(result()) == 0.0
    assert strength(result(status=WRONG, share=3.0)) == pytest.approx(3.0)
    assert strength(result(status="TIMEOUT")) == float("inf")
    assert margin([result(share=0.5), result(share=0.25)]) == pytest.approx(2.0)


# --- the command ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
def test_one_by_name(gdnspec: Run) -> None:
    done = gdnspec("selftest", "late_process", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 known-bad solutions rejected; 0 complaints" in done.stdout
    assert "late_process" in done.stdout


def test_a_quick_trial_ends_where_a_workload_rejects_and_runs_each_named_killer() -> None:
    names = {"bfloat16_state_truncated", "bfloat16_inverse"}
    chosen = {item.solution.name: item for item in known_bad(names)}
    whole, quick = (Trial("cpu", PATIENCE, 1, complete) for complete in (True, False))
    one = chosen["bfloat16_state_truncated"]
    ((_, results),) = run([bad_task(one, quick)], 1)
    definitions_of = Counter(result.definition for result in results if result.failed)
    assert set(definitions_of) == set(one.solution.manifest.entries), "each is rejected"
    assert {result.workload for result in results if result.failed} >= set(one.known.killed_by)
    later = [result for result in results if result.workload not in one.known.killed_by]
    assert all(sum(r.failed for r in later if r.definition == name) <= 1 for name in definitions_of)
    assert not list(complaints_about_bad(one, results))
    # One that must pass in all suites but one is tried on all of them, in each trial.
    assert not bad_task(chosen["bfloat16_inverse"], quick).until_rejected
    assert not any(bad_task(item, whole).until_rejected for item in chosen.values())
    assert set(honest_task(one.solution, quick).suites) < set(honest_task(one.solution, whole).suites)


def test_a_matrix_needs_every_workload(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("selftest", "no_carry", "--until-rejected", "--markdown", tmp_path / "matrix.md")
    assert done.returncode == 2
    assert "leave out --until-rejected" in done.stderr


def test_killed_it_leaves_nobody_at_work(tmp_path: Path) -> None:
    mark = {"GDNSPEC_CACHE": str(tmp_path / "cache")}  # in the environment of all that it starts
    names, folder = ["late_process", "late_thread"], tmp_path / "known_bad" / "mine"
    for name in names:
        shutil.copytree(wrong(name), folder / name)
        with (folder / name / "kernel.py").open("a") as file:
            file.write("\n\ndef run(**_):\n    time.sleep(9600)\n")  # whoever judged it would never end
    code = f"""
import pathlib
from gdnspec import paths
from gdnspec.cli.main import main
paths.known_bad_dir = lambda: pathlib.Path({str(folder.parent)!r})
main()
"""
    command = [sys.executable, "-c", code, "selftest", *names, "--jobs", "2", "--timeout", "9000"]
    process = subprocess.Popen(
        command, env={**os.environ, **mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: len(_marked(mark)) >= 4)  # itself, two that judge, and whom multiprocessing has to count
    process.kill()
    process.wait()
    until(lambda: not _marked(mark))


def _marked(mark: dict[str, str]) -> list[int]:
    (entry,) = (f"{name}={value}".encode() for name, value in mark.items())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def test_an_unknown_name_is_refused(gdnspec: Run) -> None:
    done = gdnspec("selftest", "no_cary")
    assert done.returncode == 2
    assert "did you mean 'no_carry'" in done.stderr


@pytest.mark.parametrize("name", ["NOPE", "decay"])  # like none, and a part of too many
def test_a_name_like_no_other_gets_the_nearest_few_and_the_list(gdnspec: Run, name: str) -> None:
    done = gdnspec("selftest", name)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    near = re.search(r"\(the nearest: (.+), (.+), (.+); gdnspec list faults shows all\)$", done.stderr.strip())
    assert near is not None, done.stderr
    assert {*near.groups()} <= {*rejections(), *(solution.name for solution in honest()), *families()}
    assert name == "NOPE" or all("decay" in other for other in near.groups())


# Without, each job had as many threads as there are processors, and took four times as long.
@pytest.mark.thorough
def test_jobs_share_the_processors(make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    code = """
def run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    if torch.get_num_threads() != 1:
        raise RuntimeError(f"{torch.get_num_threads()} threads")
    return decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)
"""
    task = Task(load_solution(make_solution(code)), math.inf, "cpu", PATIENCE, 1)
    ((_, results),) = run([task], len(os.sched_getaffinity(0)))
    ran = [result for result in results if result.status != "UNSUPPORTED"]  # of what is for a GPU
    assert {result.status for result in ran} == {"PASSED"}, {result.message for result in ran}
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """The folder of known-bad solutions, with one of them alone, as a folder."""

    def make(name: str) -> Path:
        (item,) = known_bad([name])
        folder = tmp_path / "known_bad" / "mine" / name
        shutil.copytree(item.solution.folder, folder)
        known = {"schema_version": 1, **item.known.model_dump(include=set(Rejection.model_fields))}
        (folder / KNOWN_BAD_FILE).write_text(json.dumps(known))
        monkeypatch.setattr(paths, "known_bad_dir", lambda: folder.parents[1])
        return folder

    return make


@pytest.mark.thorough
def test_a_survivor_ends_in_exit_code_1(only: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = only("output_times_1_01")
    kernel = folder / "kernel.py"
    right = kernel.read_text().replace("1.01", "1.00")
    assert right != kernel.read_text()
    kernel.write_text(right)
    with pytest.raises(typer.Exit) as exit_:
        selftest(["output_times_1_01"], 1, "cpu", 60.0, 1, json_file=None, markdown=None)
    assert exit_.value.exit_code == 1
    said = capsys.readouterr()
    assert "output_times_1_01 survives every workload" in said.err
    assert "0 of 1 known-bad solutions rejected" in said.out


def test_a_fault_without_its_solution_is_missed(only: Callable[[str], Path]) -> None:
    (only("no_carry") / "solution.json").unlink()
    with pytest.raises(SpecError, match=r"has a known_bad\.json but no solution\.json"):
        known_bad()
