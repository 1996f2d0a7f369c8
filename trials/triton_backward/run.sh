#!/bin/bash
# triton_backward: before (main), nomend (main without the mend in the walk forward: fails a fresh row, no candidate), v10
# (stacked products, dbeta apart), plain (dbeta apart; the walks multiply by E = (I + N diag(beta))^-1, so V is not rounded
# behind a reset; no accumulator begins with what an operand loses), acc (plain, with E - I and X as accumulator in both
# walks), moves3 (plain, three chunks ahead where a walk forward finds what segments make of a state), beside32 (moves3, and
# both walks at once at 4/16 1x8192 too). plain is the tree.
#   bash run.sh [STAGE ..]     in the root of a copy of the tree tb; without a stage: compile check bits time kernels table
# Expected on an H200 with 16 cores: compile 100-150 s (42 processes, 14 at a time), check 150-200 s (14 processes of the
# judge on smoke and conformance of four definitions, then 12 on fresh rows of seeds 5, 12, 31), bits 30 s, time 60 s (22
# rows, 7 versions), kernels 25 s, table 1 s: 460 s at most. Where time is short: compile time table (220 s) first, the
# others in a second call.
# Further stages: rows, typical (beside FlashQLA, as before), race (racecheck of one small row, 120 s).
# BEST=acc checks another version; VERSIONS="before plain" times fewer. Results: $OUT/tb2/*.txt, versions.jsonl, check/*.txt.
HERE=$(cd "$(dirname "$0")" && pwd)
O=${OUT:?}/tb2; mkdir -p "$O"
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/tritoncache} TILELANG_CACHE_DIR=${TILELANG_CACHE_DIR:-/tmp/tlcache} TILELANG_PRINT_ON_COMPILATION=0
export TB_BUILD=${TB_BUILD:-/tmp/tb_build} VERSIONS=${VERSIONS:-before nomend v10 plain acc moves3 beside32}
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
export PY BEST=${BEST:-plain}
begin=$SECONDS
said() { echo "== $1: $((SECONDS - begin)) s after the start"; }

compile() {
  for v in $VERSIONS; do for h in 2/8 4/16 8/32 16/32 16/64 "16/48 4/12"; do echo "$v $h"; done; done |
    xargs -P 14 -L 1 timeout 200 $PY "$HERE/versions.py" once > "$O/compile.txt" 2>&1
  tail -3 "$O/compile.txt"; said compile
}

check() {
  mkdir -p "$O/check"
  $PY "$HERE/pieces.py" "$HERE/variants/$BEST/triton_backward" | timeout 330 xargs -P 14 -L 1 bash "$HERE/one.sh"
  for f in "$O"/check/*.txt; do
    echo "$(basename "$f" .txt): $(grep -E "^gdn_prefill" "$f" | cut -c30-150 | tr -s ' ') $(grep -m 1 -E "interrupted|INCORRECT|TIMEOUT|FAILED|Error" "$f" | cut -c1-120)"
  done > "$O/check.txt"
  grep -vE "PASSED" "$O/check.txt" | tail -8; echo "$(grep -c PASSED "$O/check.txt") of $(wc -l < "$O/check.txt") processes passed; largest shares: $(grep -oE "[0-9]+% \([a-z0-9_]+ of [a-z0-9]+\)" "$O/check.txt" | sort -rn | head -4 | tr '\n' ' ')"
  said check
}

bits() { timeout 120 $PY "$HERE/versions.py" bits > "$O/bits.txt" 2>&1; tail -8 "$O/bits.txt"; said bits; }

time_all() { rm -f "$O/versions.jsonl"; timeout 150 $PY "$HERE/versions.py" time "$O/versions.jsonl" 100 > "$O/time.txt" 2>&1; grep -E "out of time|Error|rror:" "$O/time.txt" | tail -2; said time; }

kernels() { rm -f "$O/kernels.jsonl"; timeout 90 $PY "$HERE/versions.py" kernels "$O/kernels.jsonl" > "$O/kernels.txt" 2>&1; tail -28 "$O/kernels.txt" | cut -c1-230; said kernels; }

table() { timeout 20 $PY "$HERE/versions.py" table "$O/versions.jsonl" 2>&1 | tee "$O/table.txt"; }

restore() { mkdir -p "$TILELANG_CACHE_DIR"; if [ ! -e "$TILELANG_CACHE_DIR/restored" ] && [ -f "$HERE/../h40/tlcache.tar.xz" ]; then tar -xJf "$HERE/../h40/tlcache.tar.xz" -C "$TILELANG_CACHE_DIR" && touch "$TILELANG_CACHE_DIR/restored"; fi; }

beside() { # GATES FILE
  restore
  timeout 500 $PY benchmarks/backward_rows.py --solutions "$HERE/variants/$BEST/triton_backward,$HERE/variants/before/triton_backward" --gates $1 --build "$TB_BUILD" --jobs 14 --json "$O/$2.jsonl" > "$O/$2.txt" 2>&1
  tail -12 "$O/$2.txt"; said $2
}
rows() { beside decay rows; }
typical() { beside typical typical; }

race() { timeout 240 compute-sanitizer --tool racecheck $PY -m gdnspec check gdn_prefill_backward_k_last "$HERE/variants/$BEST/triton_backward" --workload ragged --repeat 1 --device cuda > "$O/race.txt" 2>&1; grep -E "RACECHECK|hazard|^gdn" "$O/race.txt" | tail -4; said race; }

[ $# = 0 ] && set -- compile check bits time kernels table
for stage in "$@"; do
  case $stage in time) time_all ;; *) $stage ;; esac
done > >(tee "$O/log.txt") 2>&1
wait
