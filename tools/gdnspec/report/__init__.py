"""Compare traces and verdicts, describe them in words, and show them on one page. Runs nothing; needs no torch."""
