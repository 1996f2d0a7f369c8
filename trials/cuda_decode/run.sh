#!/bin/bash
# cuda_decode, issue 39: variants for large float32 pools and for few pairs, beside the present version, FlashInfer and the copy.
#   bash run.sh [STAGE ..]      in the root of a copy of the tree h39; without a stage all of: build check time table
# Expected on an H200 with 16 cores: build 40-60 s (16 nvcc at once), check 30-45 s (13 processes at once), time 190 s
# (stops by itself; TIME=n changes it), table 2 s: 300 s at most. Results: $OUT/h39/*.txt, rows.jsonl, rows.txt.
HERE=$(cd "$(dirname "$0")" && pwd)
O=${OUT:?}/h39; mkdir -p "$O"
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export GDNSPEC_CACHE=${GDNSPEC_CACHE:-/tmp/h39_cache} H39_FLOOR=${H39_FLOOR:-/tmp/h39_floor} H39_EXCLUDED=$O/excluded.txt
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
T=$HERE/time_variants.py
begin=$SECONDS
said() { echo "== $1: $((SECONDS - begin)) s after the start"; }

build() { timeout 110 $PY "$T" build > "$O/build.txt" 2>&1; grep -vE "^[a-z0-9_]+: [0-9]+ s$" "$O/build.txt" | tail -5; said "build, $(grep -cE ' [0-9]+ s$' "$O/build.txt") of 16"; }

one_check() { # VARIANT DEFINITION..
  local v=$1; shift
  timeout 85 $PY -m gdnspec check "$@" "$HERE/variants/$v/cuda_decode" --suite smoke --repeat 3 --device cuda > "$O/check_$v.txt" 2>&1
  local rc=$?
  [ $rc = 1 ] && grep -q "FAILED" "$O/check_$v.txt" && echo $v >> "$H39_EXCLUDED"
  echo "check $v rc $rc: $(grep -E '^gdn_decode' "$O/check_$v.txt" | awk '{print $1, $3, $4 "/" $6}' | tr '\n' ';')"
}

check() {
  : > "$H39_EXCLUDED"
  local P=gdn_decode_pool_k_last D=gdn_decode_k_last
  for v in lanes16 meet meet16 walk walk_8k walk_half walk_near; do one_check $v $P & done
  one_check small $P ${P}_bf16_state $D &
  for v in halves8 halves8s; do one_check $v ${P}_bf16_state ${D}_bf16_state & done
  for v in few_4k few_32k few_64k; do one_check $v $D & done
  wait
  said check
}

time_all() { timeout $((${TIME:-190} + 25)) $PY "$T" time "$O/rows.jsonl" ${TIME:-190} > "$O/time.txt" 2>&1; echo "time rc $?"; grep -E "left out|wrong|Error|out of time|in all" "$O/time.txt" | sort | uniq -c | sort -nr | cut -c1-150 | head -6; said time; }

table() { timeout 30 $PY "$T" table "$O/rows.jsonl" "$O/rows.txt" 2>&1 | tee "$O/table.txt" | head -60; }

[ $# = 0 ] && set -- build check time table
[ "$1" = build ] || [ "$1" = check ] && rm -f "$O/rows.jsonl"
for stage in "$@"; do
  case $stage in time) time_all ;; *) $stage ;; esac
done > >(tee "$O/log.txt") 2>&1
wait
