"""Runs a solution in a separate process: `parent` starts and limits it, `wire` connects both, `child` runs inside."""
