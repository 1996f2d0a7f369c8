"""What `gdnspec check --invariance` prints and saves. Imported after torch was needed."""

from collections.abc import Sequence

from gdnspec.bench.measure import untimed
from gdnspec.catalog.traces import save
from gdnspec.check.plan import Job
from gdnspec.cli.command_line import command_line
from gdnspec.cli.console import add_row, complain, print_table, say, table
from gdnspec.cli.verdicts import Summary, print_notes
from gdnspec.model.batch_invariance import Answer, answers, badge, invariant, pieces
from gdnspec.model.result import LIKENESSES, QUESTIONS, CheckResult

COLOURS = {"same_bits": "green", "within_budget": "yellow", "differs": "red"}


def print_invariance(summary: Summary) -> None:
    """Prints one row per definition, solution and question, and one sentence per definition and solution."""
    summary.print_repeated()
    rows = table("", "definition", "solution", "question", "answer", "workloads", "compared")
    ran = [(row, results) for row, results in sorted(summary.rows.items()) if any(r.invariance for r in results)]
    for (definition, solution), results in ran:
        for one in answers(results):
            counts = [str(one.workloads or ""), str(one.compared or "")]
            styles = {3: COLOURS.get(one.likeness or "", "dim")}
            add_row(rows, definition, solution, QUESTIONS[one.question], _said(one), *counts, styles=styles)
    print_table(rows)
    for (definition, solution), results in ran:
        found = badge(invariant(results), pieces(results)) or "no workload has such batches"
        say(f"{solution} on {definition}: {found}")
    print_notes(summary)


def _said(answer: Answer) -> str:
    return f"{answer.words} ({answer.message})" if answer.message else answer.words


def save_invariance(summary: Summary, jobs: Sequence[Job], seed: int) -> None:
    """Writes one trace without times per definition and solution: on the workload with the worst answer. A solution
    that failed, other than by a broken claim, has none. Raises `SpecError` if a file cannot be written."""
    of = {(job.found.definition.name, job.solution.name, job.workload.name): job for job in jobs}
    command = command_line()
    for (definition, solution), results in summary.rows.items():
        asked = [result for result in results if result.batch_invariant is not None or result.pieces is not None]
        if not asked or any(result.failed and result.status != "NOT_INVARIANT" for result in results):
            continue
        worst = max(asked, key=_badness)
        job = of[definition, solution, worst.workload]
        message = "; ".join(f"{QUESTIONS[one.question]}: {_said(one)}" for one in answers(asked))
        trace = untimed(job, job.device, seed, command, worst.status, message)
        same, alike = invariant(asked), pieces(asked)
        file = save(job.solution, trace.model_copy(update={"batch_invariant": same, "pieces": alike}))
        complain(f"{file}: {solution} on {definition}: {badge(same, alike)}")


def _badness(result: CheckResult) -> int:
    return max(LIKENESSES.index(one.likeness) for one in result.invariance.values() if one.likeness is not None)
