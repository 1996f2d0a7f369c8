#!/bin/bash
# cuda_kda_decode: four variants for bfloat16 states (and one for float32 pools) beside the present version and the copy.
#   bash run.sh [STAGE ..]      in the root of a copy of the tree kd; without a stage all of: build check time table
# Expected on an H200 with 16 cores (estimates from a like run of cuda_decode): build 45 s (6 nvcc at once), check 45 s (8 processes),
# time 15 s of rows and 10 s to start (rows stop by themselves after TIME=22 s), table 1 s: 2 minutes in all.
# Results: $OUT/kd/*.txt, rows.jsonl.
HERE=$(cd "$(dirname "$0")" && pwd)
O=${OUT:?}/kd; mkdir -p "$O"
W=${KD_WORK:-/tmp/kd_work}; mkdir -p "$W"  # kept from call to call, which $OUT is not
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export GDNSPEC_CACHE=${GDNSPEC_CACHE:-/tmp/kd_cache} KD_FLOOR=${KD_FLOOR:-/tmp/kd_floor} KD_EXCLUDED=$W/excluded.txt
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
T=$HERE/time_variants.py
begin=$SECONDS
said() { echo "== $1: $((SECONDS - begin)) s after the start"; }

build() { timeout 150 $PY "$T" build > "$O/build.txt" 2>&1; grep -vE "^[a-z0-9_]+: [0-9]+ s$" "$O/build.txt" | tail -5; said "build, $(grep -cE '^[a-z_]+: [0-9]+ s$' "$O/build.txt") of 6"; }

one_check() { # VARIANT KIND DEFINITION..
  local v=$1 f=$O/check_$1_$2.txt; shift 2
  timeout 150 $PY -m gdnspec check "$@" "$HERE/variants/$v/cuda_kda_decode" --suite smoke --repeat 3 --device cuda > "$f" 2>&1
  local rc=$?
  [ $rc = 1 ] && grep -q "FAILED" "$f" && echo $v >> "$KD_EXCLUDED"
  echo "check $v rc $rc: $(grep -E '^kda_decode' "$f" | awk '{print $1, $3, $4 "/" $6}' | tr '\n' ';')"
}

check() {
  : > "$KD_EXCLUDED"
  for v in two_warps early_slots matrix matrix_early; do
    one_check $v dense kda_decode_k_last kda_decode_k_last_bf16_state &
    one_check $v pool kda_decode_pool_k_last kda_decode_pool_k_last_bf16_state &
  done
  wait; said check
}

time_all() {
  rm -f "$O/rows.jsonl"
  timeout $((${TIME:-22} + 12)) $PY "$T" time "$O/rows.jsonl" ${TIME:-22} > "$O/time.txt" 2>&1; echo "time rc $?"
  grep -E "left out:? |WRONG|Error|out of time|in all" "$O/time.txt" | sort -u | cut -c1-150 | head -6; said time
}

table() { timeout 30 $PY "$T" table "$O/rows.jsonl" 2>&1 | tee "$O/table.txt" | head -46; }

[ $# = 0 ] && set -- build check time table
for stage in "$@"; do
  case $stage in time) time_all ;; *) $stage ;; esac
done > >(tee "$O/log.txt") 2>&1
wait
