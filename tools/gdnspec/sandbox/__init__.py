"""A solution in a process of its own: `parent` starts and limits it, `wire` connects both, `child` runs inside."""
