"""Prints a choice: the solution, its reason, and the runners-up as a table."""

from gdnspec.choice.candidates import Asked, Candidates
from gdnspec.choice.choose import Choice
from gdnspec.choice.expected_time import lengths_said
from gdnspec.cli.console import add_row, print_table, say, table
from gdnspec.report.units import shown_part, shown_time


def print_choices(asked: Asked, preset: str, choices: list[Choice], candidates: Candidates) -> None:
    """Prints at least one choice."""
    definition = asked.found.definition
    said = lengths_said(definition, asked.scope, asked.sequence_lengths)
    say(f"{definition.name}, {said} of {preset}, on {asked.slug}: {choices[0].name}")
    say(choices[0].reason)
    rows, best = table("", "solution", "time", "ratio", "of the bound", "how it is known"), choices[0].time
    for choice in choices:
        time = "" if choice.time is None else shown_time(choice.time)
        ratio = "" if choice.time is None or best is None else f"{choice.time / best:.2f}x"
        share = "" if choice.efficiency is None else shown_part(choice.efficiency)
        known = f"{choice.basis}, by an earlier version" if choice.earlier else choice.basis
        add_row(rows, choice.name, time, ratio, share, known)
    say()
    print_table(rows)
    if candidates.refused:
        say()
    for name, why in candidates.refused.items():
        say(f"{name} cannot serve: {why}")
