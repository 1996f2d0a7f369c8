"""Take a bundle in: audit it, check it in isolation, compare its claimed times. Only a bundle that passes is copied."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.workloads import by_name
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.submission import judging
from gdnspec.submission.admission import admit, refuse_taken, unpacked
from gdnspec.submission.audit import audited
from gdnspec.submission.bundle import Bundle
from gdnspec.submission.claims import claims, devices, unfounded
from gdnspec.submission.complete import incomplete
from gdnspec.submission.evidence import BADGE, Question, served_by, unproven
from gdnspec.submission.finding import Finding
from gdnspec.submission.judging import Terms


class Refused(Exception):
    """The bundle is valid, but not admitted. `reasons`: one line each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


class Unverified(Exception):
    """This machine cannot verify what the bundle claims."""


@dataclass(frozen=True)
class Policy:
    """What a reviewer accepts. `findings`: severe findings of the audit. `unmeasured`: claimed times that are not
    verified; the solution is then admitted without times."""

    findings: bool = False
    unmeasured: bool = False


@dataclass(frozen=True)
class Admitted:
    """An admitted bundle. `folder`: of the solution. `traces`: measured here. `claimed`: how many claimed times were
    verified. `badge`: whether it passed the strict suite; None if that did not run."""

    folder: Path
    verdicts: list[CheckResult]
    traces: list[Trace]
    claimed: int
    badge: bool | None


class Watcher(Protocol):
    """Receives progress reports."""

    def found(self, findings: list[Finding]) -> None: ...

    def started(self, total: int) -> None: ...

    def judged(self, result: CheckResult) -> None: ...

    def measured(self, trace: Trace) -> None: ...

    def warned(self, text: str) -> None: ...


def take_in(bundle: Bundle, into: Path, terms: Terms, policy: Policy, watcher: Watcher) -> Admitted:
    """Judges a bundle and copies its solution into `into`.

    Raises:
        SpecError: The bundle or the request is invalid.
        Refused: The bundle is not admitted.
        Unverified: This machine cannot verify it.
        NotIsolated: This machine cannot run it safely.
    After an error, `into` is unchanged.
    """
    refuse_taken(bundle.solution.name, into)
    _hold_to_definitions(bundle, watcher)
    with unpacked(bundle) as solution:
        findings = audited(bundle.solution, bundle.folder)
        watcher.found(findings)
        if not policy.findings and any(finding.severe for finding in findings):
            raise Refused([f"{finding}" for finding in findings if finding.severe])
        asked = solution.named(bundle.manifest.evidence.solution)
        assert asked is not None  # `read` has checked this
        _hold_evidence(bundle, asked)
        if not policy.unmeasured:
            _require_device(bundle, terms)
        verdicts = _check(solution, terms, watcher)
        traces = [] if policy.unmeasured else _measure(bundle, asked, terms, watcher)
    badge = [
        result.status == "PASSED"
        for result in verdicts
        if result.solution == asked.name and result.suite == BADGE and result.status != "UNSUPPORTED"
    ]
    folder = admit(bundle, traces, into)
    return Admitted(
        folder, verdicts, traces, len(claims(bundle.traces)) if traces else 0, all(badge) if badge else None
    )


def _hold_to_definitions(bundle: Bundle, watcher: Watcher) -> None:
    """Raises `SpecError` if a definition has changed since the bundle was packed. Changed workloads give a warning: the
    bundle must pass those of today."""
    problems = []
    for name, asked in bundle.manifest.evidence.definitions.items():
        at = f"/evidence/definitions/{name}"
        try:
            now = Question.of(definition(name))
        except SpecError as error:
            mine = "a bundle cannot bring a family: --definitions-dir names your own copy"
            problems.append(Problem(bundle.file, str(error), at, mine))
            continue
        if asked.definition != now.definition:
            message = f"was checked on another version of {name}: its definition.json has another sha256 here"
            problems.append(Problem(bundle.file, message, at, "gdnspec submit packs it again"))
        elif asked.workloads != now.workloads:
            watcher.warned(f"{name}: its workloads have changed since the bundle was packed; today's workloads decide")
    if problems:
        raise SpecError(problems)


def _hold_evidence(bundle: Bundle, asked: Solution) -> None:
    """Raises `Refused` if the bundle's own evidence is incomplete, or is about something else."""
    served = served_by(asked)
    problems = unproven(served, bundle.verdicts)
    problems += incomplete(bundle.manifest.evidence, served, bundle.verdicts)
    seen = set()
    for trace in bundle.traces:
        where = f"trace of {trace.definition}/{trace.workload}"
        one = asked.named(trace.solution)
        if one is None or trace.source_hash != one.source_hash:
            problems.append(f"{where}: is for other sources")
        elif trace.definition not in one.manifest.entries or trace.workload not in by_name(
            definition(trace.definition)
        ):
            problems.append(f"{where}: the solution does not serve such a workload")
        elif (trace.solution, trace.definition, trace.workload, trace.device) in seen:
            problems.append(f"{where}: occurs twice")
        seen.add((trace.solution, trace.definition, trace.workload, trace.device))
    if problems:
        raise Refused([f"its own evidence: {problem}" for problem in problems])


def _require_device(bundle: Bundle, terms: Terms) -> None:
    elsewhere = [slug for slug in devices(bundle.traces) if terms.device.kind != "cuda" or slug != terms.device.slug]
    if elsewhere:
        count, here = len(claims(bundle.traces)), "no GPU" if terms.device.kind != "cuda" else terms.device.slug
        raise Unverified(f"{count} times are claimed on {', '.join(elsewhere)}, but this machine has {here}")


def _check(solution: Solution, terms: Terms, watcher: Watcher) -> list[CheckResult]:
    """The verdicts on the solution and its variants. Stops at the first failure outside of the badge suite. Raises
    `Refused` or `Unverified`."""
    jobs = judging.check_jobs(solution, terms)
    watcher.started(len(jobs))
    verdicts = []
    for result in judging.check(jobs, terms, watcher.warned):
        verdicts.append(result)
        watcher.judged(result)
        if result.failed and result.suite != BADGE:
            break
    served = served_by(solution)
    if failures := unproven(dict.fromkeys(served, ()), verdicts):
        raise Refused(failures)
    if not_run := unproven(served, verdicts):
        raise Unverified("; ".join(not_run))
    return verdicts


def _measure(bundle: Bundle, solution: Solution, terms: Terms, watcher: Watcher) -> list[Trace]:
    traces = []
    for trace in judging.measure(judging.speed_jobs(solution, terms), terms, watcher.warned):
        traces.append(trace)
        watcher.measured(trace)
    problems = unfounded(bundle.traces, traces)
    problems += [
        f"{t.status} on {t.definition}/{t.workload}: {(t.message.splitlines() or [''])[0]}"
        for t in traces
        if t.status not in ("PASSED", "UNSUPPORTED")
    ]
    if problems:
        raise Refused(problems)
    return [trace for trace in traces if trace.timing is not None]
