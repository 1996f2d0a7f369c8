"""The parent's side: seeds, expected values and verdicts. No solution's code runs in this process."""
