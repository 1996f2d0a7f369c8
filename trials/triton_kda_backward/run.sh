#!/bin/bash
# Backward pass of triton_kda: variants in turns. Stages: compile sweep check kernels time table (all, in this order, by default)
#   before   the tree at ae3322b0
#   scores   scores_kernel in one warp, tiles in registers, quotients of 16 and 8 tokens
#   between  between_kernel in one warp, [channels, tokens] in registers, each block's tokens loaded once
#   both     scores + between
#   table    both, near before far in scores_kernel, and a table of chunks in place of a search in each program
#   ahead    table, and queries_kernel and keys_kernel ask for what they will read (L2)
#   split    ahead, and scores_kernel's earlier blocks in a loop of their own (252 registers, no spills): the tree of kb
# bash run.sh [STAGE ..] in the root of a copy of the tree kb. VERSIONS="before both" GATES="12 0.3" choose fewer.
# Expected on an H200 with 16 cores: compile 90-140 s (28 + 18 processes, 14 at a time), sweep 30 s, check 40 s, kernels 15 s, time 45 s, table 1 s.
HERE=$(cd "$(dirname "$0")" && pwd)
O=${OUT:?}/kb1; mkdir -p "$O"
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/tritoncache} KB_BUILD=${KB_BUILD:-/tmp/kb_build}
export VERSIONS=${VERSIONS:-before scores between both table ahead split}
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
begin=$SECONDS
said() { echo "== $1: $((SECONDS - begin)) s after the start"; }
compile() {
  (for v in $VERSIONS; do for h in 32 16 8 4; do echo "once $v $h"; done; done
   [ -n "$NOSWEEP" ] || $PY "$HERE/versions.py" sweep_jobs | sed 's/^/sweep_one /') |
    timeout 170 xargs -P 14 -L 1 timeout 120 $PY "$HERE/versions.py" > "$O/compile.txt" 2>&1
  grep -E "Error|rror:" "$O/compile.txt" | cut -c1-160 | sort | uniq -c | tail -6; said compile
}
sweep() { timeout 90 $PY "$HERE/versions.py" sweep "$O/sweep.jsonl" > "$O/sweep.txt" 2>&1; tail -8 "$O/sweep.txt" | cut -c1-400; said sweep; }
check() { timeout 100 $PY "$HERE/versions.py" check > "$O/check.txt" 2>&1; grep -E "WORSE|DIFFER|WRONG|RESETS|rror" "$O/check.txt" | tail -8; tail -4 "$O/check.txt"; echo "$(grep -cE '^(plain|resets|slow|no decay|gates|typical)' "$O/check.txt") lines of errors"; said check; }
kernels() { timeout 60 $PY "$HERE/versions.py" kernels > "$O/kernels.txt" 2>&1; tail -18 "$O/kernels.txt" | cut -c1-230; said kernels; }
time_all() { rm -f "$O/times.jsonl"; timeout 110 $PY "$HERE/versions.py" time "$O/times.jsonl" 70 > "$O/time.txt" 2>&1; grep -E "out of time|rror" "$O/time.txt" | tail -3; said time; }
table() { timeout 20 $PY "$HERE/versions.py" table "$O/times.jsonl" 2>&1 | tee "$O/table.txt"; }
[ $# = 0 ] && set -- compile sweep check kernels time table
for stage in "$@"; do case $stage in time) time_all ;; *) $stage ;; esac; done > >(tee "$O/log.txt") 2>&1
wait
