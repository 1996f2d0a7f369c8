#!/bin/bash
# cuda_decode, issue 39: the tree's version (tiles by pairs, one order of sums) beside the version before, FlashInfer and the copy.
#   bash run.sh [STAGE ..]     in the root of a copy of the tree h39; without a stage: build check bits rows table
# Expected on an H200 with 16 cores (estimates; only the rate of rows comes from a measurement, 499 rows of other variants in 56 s):
#   build   45-60 s   4 nvcc at once: the tree, before, chains, the copy
#   check   90-240 s  16 processes: 8 definitions, smoke and conformance apart, without past_2_31; beside them 5 with workloads of
#                     the performance suite, the only ones (but past_2_31) that reach the tiles for 1,024 pairs and more
#   bits    20-40 s   bits.py, then gdnspec check --invariance on batches on both sides of 1,024 pairs, 6 processes
#   rows    EVERY=1: 3,560 rows, 350-900 s, stops by itself after TIME=560 s, most important kinds first (pool float32, dense bfloat16,
#           pool bfloat16, dense float32). EVERY=6: 1,040 rows, 100-250 s, all rows up to 1,200 pairs. While the machine is held, a
#           call again goes on where the one before stopped, kind by kind: a kind that was cut is timed anew.
#   table   2 s
#   traces  not in the default; for the traces that the changed source makes stale (three tests ask for them: test_readme.py,
#           catalog/test_variants.py, docs/test_site.py). gdnspec bench --save of all eight definitions beside
#           FlashInfer and FLA, SECONDS_A_ROW=0.3: nobody timed it; it stops after 580 s. Alone in a call.
# All with EVERY=6: 260-590 s in one call. With EVERY=1: two calls, `build check bits`, then `rows table`.
# Results: $OUT/h39b/*.txt, rows.jsonl (rows as decode_rows.py writes them).
HERE=$(cd "$(dirname "$0")" && pwd)
O=${OUT:?}/h39b; mkdir -p "$O"
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export GDNSPEC_CACHE=${GDNSPEC_CACHE:-/tmp/h39b_cache} H39_BUILD=${H39_BUILD:-/tmp/h39b_build} H39_VARIANTS=$HERE/variants
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
W=${H39_WORK:-/tmp/h39b_work}; mkdir -p "$W"  # kept from call to call, which $OUT is not
EVERY=${EVERY:-1}; TIME=${TIME:-560}
begin=$SECONDS
said() { echo "== $1: $((SECONDS - begin)) s after the start"; }

LAST="gdn_decode_k_last gdn_decode_k_last_bf16_state gdn_decode_pool_k_last gdn_decode_pool_k_last_bf16_state gdn_decode_packed_k_last"
ALL="$LAST gdn_verify_k_last gdn_decode_k_first gdn_decode_k_first_bf16_state"

build() {
  for name in tree judge before chains copy; do timeout 150 $PY "$HERE/bits.py" build $name > "$O/build_$name.txt" 2>&1 & done; wait
  tail -qn 1 "$O"/build_*.txt; said build
}

one_check() { # NAME OPTION..
  local name=$1; shift
  timeout ${CHECK:-300} $PY -m gdnspec check "$@" --solution cuda_decode --device cuda --repeat 3 > "$O/check_$name.txt" 2>&1
  local rc=$?
  echo "check $name rc $rc: $(grep -E '^gdn_' "$O/check_$name.txt" | sed -E 's/ +/ /g' | cut -d' ' -f3-12 | tr '\n' ';')"
  [ $rc = 0 ] || grep -E "FAILED|INCORRECT|not reached|Error" "$O/check_$name.txt" | head -2
}

check() {
  for d in $ALL; do
    for s in smoke conformance; do one_check ${d}_$s $d --suite $s -k "not past_2_31" & done
  done
  for d in $LAST; do one_check ${d}_large $d --suite performance -k "(batch_2 or batch_8 or batch_64) and not batch_256" & done
  wait; said check
}

invariance() { # DEFINITION: 64, 256 and 2,048 pairs; 512 and 2,048 in pools
  timeout 150 $PY -m gdnspec check $1 --solution cuda_decode --device cuda --invariance --suite performance \
    -k "(batch_2 or batch_8 or batch_16 or batch_64) and not batch_256" > "$O/invariance_$1.txt" 2>&1
  echo "invariance $1 rc $?: $(grep -E '^cuda_decode on|within budget|differs' "$O/invariance_$1.txt" | tail -1 | cut -c1-110)"
}

bits() {
  timeout 150 $PY "$HERE/bits.py" bits > "$O/bits.txt" 2>&1; echo "bits rc $?"; tail -24 "$O/bits.txt"
  for d in $LAST gdn_decode_k_first; do invariance $d & done; wait; said bits
}

rows() {
  local end=$((SECONDS + TIME)) B=$H39_VARIANTS/before/cuda_decode C=$H39_VARIANTS/chains/cuda_decode
  for kind in "pool float32" "dense bfloat16" "pool bfloat16" "dense float32"; do
    local name=rows_${kind// /_} left=$((end - SECONDS)) peers=flashinfer,$B rc=0
    [ "$kind" = "pool float32" ] && peers=$peers,$C
    if [ ! -f "$W/${name}_$EVERY.done" ]; then
      [ $left -lt 20 ] && { echo "no time for $kind"; continue; }
      rm -f "$W/$name.jsonl"
      timeout $left $PY benchmarks/decode_rows.py --against $peers --rows "$kind" --every $EVERY --build "$H39_BUILD" --json "$W/$name.jsonl" > "$W/$name.txt" 2>&1
      rc=$?
      [ $rc = 0 ] && touch "$W/${name}_$EVERY.done"
    fi
    cp "$W/$name".* "$O/"
    echo "rows $kind rc $rc: $(wc -l < "$W/$name.jsonl" 2>/dev/null) rows, $(grep -c 'left out' "$W/$name.txt") left out, $((SECONDS - begin)) s"
    [ $rc = 0 ] || [ $rc = 124 ] || tail -2 "$W/$name.txt"
  done
  said rows
}

table() { cat "$W"/rows_*.jsonl > "$O/rows.jsonl" 2>/dev/null; timeout 60 $PY "$HERE/bits.py" table "$O/rows.jsonl" 2>&1 | tee "$O/table.txt" | head -40; }

traces() {
  timeout 580 $PY -m gdnspec bench $ALL --solution cuda_decode --against flashinfer,fla --seconds ${SECONDS_A_ROW:-0.3} --save --device cuda > "$O/traces.txt" 2>&1
  echo "traces rc $?"; tail -3 "$O/traces.txt"; mkdir -p "$O/traces"; cp solutions/cuda_decode/traces/*.jsonl "$O/traces/"; said traces
}

[ $# = 0 ] && set -- build check bits rows table
for stage in "$@"; do $stage; done > >(tee -a "$O/log.txt") 2>&1
wait
