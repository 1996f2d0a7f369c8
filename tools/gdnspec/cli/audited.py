"""Print what the audit of a solution's sources found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdnspec.cli.console import complain

if TYPE_CHECKING:
    from gdnspec.submission.finding import Finding

MOST = 40


def print_findings(findings: "Sequence[Finding]") -> None:
    """Prints findings on stderr, the severe ones first."""
    if not findings:
        return
    severe = [finding for finding in findings if finding.severe]
    noted = [finding for finding in findings if not finding.severe]
    complain(f"audit: {len(severe)} {'finding' if len(severe) == 1 else 'findings'} to refuse, {len(noted)} to look at")
    for finding in [*severe, *noted][:MOST]:
        complain(f"  {'refused' if finding.severe else 'noted'}  {finding}")
    if len(findings) > MOST:
        complain(f"  and {len(findings) - MOST} more")
