"""Sessions: sequences of calls on one pool of states, driven by the judge's own scheduler and judged step by step."""
