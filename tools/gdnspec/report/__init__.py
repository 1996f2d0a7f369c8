"""What traces and verdicts say: compared, put into words, and on one page. Nothing is run; torch is not needed."""
