"""Replay a request log, describe the replay, and write its calls as workloads."""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gdnspec.cli.console import add_row, complain, number_of, print_table, say, table
from gdnspec.cli.files import whole
from gdnspec.cli.progress import ticking
from gdnspec.model.errors import SpecError

SLOW = 5  # times the bound; a good kernel stays below this

if TYPE_CHECKING:
    from gdnspec.model.trace import Ceilings
    from gdnspec.traffic.calls import Operator
    from gdnspec.traffic.cost import StepCost
    from gdnspec.traffic.engine import Limits, Totals
    from gdnspec.traffic.log import Log
    from gdnspec.traffic.tally import Tally


def replay(requests: "Log", limits: "Limits", cost: "StepCost", steps_file: Path | None) -> "tuple[Tally, Totals]":
    """Runs the engine and counts its steps. Writes each step as a line of JSON to `steps_file`, if given."""
    from gdnspec.traffic.engine import Engine
    from gdnspec.traffic.tally import Tally

    engine, tally = Engine(limits, cost), Tally()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(whole(steps_file)) if steps_file else None
        tick = stack.enter_context(ticking("requests answered"))
        for i, step in enumerate(engine.run(requests)):
            tally.add(step)
            if i % 1000 == 0:
                tick(engine.totals.requests)
            if out is not None:
                line = {
                    "start": step.start, "duration": step.duration, "times": step.times,
                    "lengths": step.lengths, "carried": step.carried, "rows": step.rows,
                }  # fmt: skip
                print(json.dumps(line), file=out)
    return tally, engine.totals


def say_replay(requests: "Log", totals: "Totals", limits: "Limits", cost: "StepCost") -> None:
    """Prints what happened to the log's requests and tokens."""
    passed = [f"{number_of(count, 'row')} skipped: invalid {column}" for column, count in requests.skipped.items()]
    passed += (
        [f"{number_of(requests.failed, 'request')} skipped: marked as failed in the log"] if requests.failed else []
    )
    for text in passed:
        complain(text)
    seconds = totals.latest / 1e9
    span = f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.1f} s"
    steps = number_of(totals.steps, "step")
    say(f"{number_of(totals.requests, 'request')} in {span}: {steps}, busy {totals.busy / totals.latest:.0%}")
    cached = f", {totals.cached} of them cached" if totals.cached else ""
    say(f"prompts: {totals.prompts} tokens{cached}, {totals.prefilled} prefilled")
    verb = "verified" if limits.drafts else "decoded"
    rows = f"{totals.rows} rows {verb}" + (f" of {limits.drafts + 1} tokens" if limits.drafts else "")
    say(f"answers: {totals.outputs} tokens, {totals.first} by a prefill, {totals.outputs - totals.first} in {rows}")
    if totals.waiting > limits.running:
        complain(f"up to {totals.waiting} requests waited: the engine is slower than the log")
    for operator, time in (cost.prefill, cost.rows):
        complain(f"time of {operator.found.definition.name}: {time}")
    times = cost.over_bound(limits.step_tokens)
    if times is not None and times > SLOW:
        complain(
            f"warning: prefilling {limits.step_tokens} tokens takes {times:.0f} times the bound, by the traces used: "
            "faster kernels make steps shorter, with fewer requests in each"
        )


def write_workloads(
    operators: "list[Operator]", tally: "Tally", folder: Path, reduce: int | None, seed: int, ceilings: "Ceilings"
) -> None:
    """Writes one file per operator, and prints how well its workloads represent all calls."""
    from gdnspec.numerics.floor import bound
    from gdnspec.traffic.reduce import reduce as reduced

    calls = [list(tally.calls(operator)) for operator in operators]
    seconds = [
        [bound(operator.work(operator.shape(call.lengths, call.carried)), ceilings)[0] for call in group]
        for operator, group in zip(operators, calls, strict=True)
    ]
    if not any(calls):
        raise SpecError("the log has no call for these definitions: no answer has a second token")
    rows = table("", "definition", "calls", "distinct", "workloads", "bound (s)", "predicted (s)", "off by")
    folder.mkdir(parents=True, exist_ok=True)
    for operator, group, times in zip(operators, calls, seconds, strict=True):
        name = operator.found.definition.name
        if not group:
            complain(f"the log has no call for {name}: no answer has a second token")
            continue
        kept = reduced(group, times, reduce or len(group), seed)
        with whole(folder / f"{name}.jsonl") as file:
            for i, call in enumerate(kept.calls):
                line = operator.line(f"step-{i}", call.lengths, call.carried, _seed(seed, i), call.times)
                print(json.dumps(line.model_dump(mode="json", exclude_defaults=True)), file=file)
        count = sum(call.times for call in group)
        figures = f"{kept.total:.4g}", f"{kept.predicted:.4g}", f"{kept.error:+.2%}"
        add_row(rows, name, count, len(group), len(kept.calls), *figures)
    print_table(rows)
    for operator, group in zip(operators, calls, strict=True):
        if group:
            name = operator.found.definition.name
            complain(f"next: gdnspec workloads freeze {name} --workloads {folder / f'{name}.jsonl'}")


def _seed(seed: int, line: int) -> int:
    """The seed of one line. Lines differ, and runs with different seeds share none."""
    return (seed * 1_000_003 + line) % (1 << 62)
