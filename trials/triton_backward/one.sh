#!/bin/bash
# one.sh NAME ARGUMENTS..: one process of the judge
name=$1; shift
timeout ${CHECK_LIMIT:-240} ${PY:-python} -m gdnspec check "$@" --device cuda > "$OUT/tb4/check/$name.txt" 2>&1
