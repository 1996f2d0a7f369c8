#!/bin/bash
# triton_backward: base (the tree, version 12), and changes, each by itself:
#   one      prepare_kernel in one warp, 32 channels at a time (5,206 instructions per chunk and head; base has 11,800 in 4 warps)
#   scan     scan_kernel: 8 warps, and what a segment needs is loaded while the one before is multiplied (same bits)
#   gates    gates_kernel: a program has 4 heads, so that gates of a token are loaded and stored side by side (bits of dg may change)
#   pdl      kernels of one stream start early (programmatic dependent launch), where no second stream is used
#   all      one + gates + pdl + scan; the stage `choose` gives it the fastest prepare_kernel of the sweep
# The sweep alone (kernels by the profiler): w1_16, w1_64, w2_64, w2_32, w2r_32 (base's order; warps, r: limit of registers, channels),
# first, f1_16, f2_32 (inverse first: spills 28 + 48 for 132 + 168, Gamma twice); gradients_kernel: gv1 (all value channels in a turn), g8 (8 warps, 128 registers, two programs);
# within: within_kernel in 2 warps, one product after the other.
#   bash run.sh [STAGE ..]     in the root of a copy of the tree tb; without a stage: compile kernels choose bits time table
# Expected on an H200 with 16 cores: compile 80-100 s (base first, 6 processes, then 30 and 33, 14 at a time, which find what base has
# compiled), kernels 60 s (17 versions, 3 rows), choose 15 s (compiles the total again), bits 25 s, time 45 s (15 rows, 6 versions,
# rows within 75 s), table 1 s: 240 s. check (judge on BEST, 150-200 s) apart: BEST=all bash run.sh choose check
# Further stages: rows, typical (beside FlashQLA; `beside` is rows), race (racecheck of one small row, 120 s), eager (the total without
# a graph, 50 calls at once after one another, beside base: does an early start ever read what is not there yet? 20 s).
# TIMED="base all" times fewer; VERSIONS=.. SWEEP=.. all stages. Results: $OUT/tb4/*.txt, versions.jsonl, kernels.jsonl, check/*.txt.
HERE=$(cd "$(dirname "$0")" && pwd)
O=${OUT:?}/tb4; mkdir -p "$O"
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/tritoncache} TILELANG_CACHE_DIR=${TILELANG_CACHE_DIR:-/tmp/tlcache} TILELANG_PRINT_ON_COMPILATION=0
export TB_BUILD=${TB_BUILD:-/tmp/tb_build} VERSIONS=${VERSIONS:-base one gates pdl scan all}
SWEEP=${SWEEP-first w1_16 w1_64 w2_64 w2_32 w2r_32 f1_16 f2_32 gv1 g8 within}
TIMED=${TIMED:-$VERSIONS}
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
export PY BEST=${BEST:-all}
begin=$SECONDS
said() { echo "== $1: $((SECONDS - begin)) s after the start"; }

HEADS="2/8 4/16 8/32 16/32 16/64 16/48"
compile() {
  for h in $HEADS; do echo "${VERSIONS%% *} $h"; done | xargs -P 14 -L 1 timeout 100 $PY "$HERE/versions.py" once > "$O/compile.txt" 2>&1
  said "compile of the first"
  (for v in ${VERSIONS#* }; do for h in $HEADS; do echo "$v $h"; done; done
   for v in $SWEEP; do for h in 4/16 16/32 16/64; do echo "$v $h"; done; done) |
    timeout 150 xargs -P 14 -L 1 timeout 100 $PY "$HERE/versions.py" once >> "$O/compile.txt" 2>&1
  grep -E "Error|rror:" "$O/compile.txt" | sort | uniq -c | tail -4; said compile
}

kernels() { rm -f "$O/kernels.jsonl"; VERSIONS="$VERSIONS $SWEEP" timeout 120 $PY "$HERE/versions.py" kernels "$O/kernels.jsonl" > "$O/kernels.txt" 2>&1; tail -54 "$O/kernels.txt" | cut -c1-230; said kernels; }

choose() {
  timeout 20 $PY "$HERE/versions.py" choose "$O/kernels.jsonl" 2>&1 | tee "$O/choose.txt"
  for h in $HEADS; do echo "all $h"; done | timeout 80 xargs -P 14 -L 1 timeout 70 $PY "$HERE/versions.py" once > "$O/compile_all.txt" 2>&1
  grep -E "Error|rror:" "$O/compile_all.txt" | sort | uniq -c | tail -4; said choose
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

bits() { timeout 80 $PY "$HERE/versions.py" bits > "$O/bits.txt" 2>&1; tail -8 "$O/bits.txt"; said bits; }
eager() { VERSIONS="base $BEST" timeout 60 $PY "$HERE/versions.py" eager > "$O/eager.txt" 2>&1; tail -8 "$O/eager.txt"; said eager; }

time_all() { rm -f "$O/versions.jsonl"; VERSIONS=$TIMED timeout 120 $PY "$HERE/versions.py" time "$O/versions.jsonl" 75 > "$O/time.txt" 2>&1; grep -E "out of time|Error|rror:" "$O/time.txt" | tail -2; said time; }

table() { timeout 20 $PY "$HERE/versions.py" table "$O/versions.jsonl" 2>&1 | tee "$O/table.txt"; }

restore() { mkdir -p "$TILELANG_CACHE_DIR"; if [ ! -e "$TILELANG_CACHE_DIR/restored" ] && [ -f "$HERE/../h40/tlcache.tar.xz" ]; then tar -xJf "$HERE/../h40/tlcache.tar.xz" -C "$TILELANG_CACHE_DIR" && touch "$TILELANG_CACHE_DIR/restored"; fi; }

beside_of() { # GATES FILE
  restore
  timeout 500 $PY benchmarks/backward_rows.py --solutions "$HERE/variants/$BEST/triton_backward,$HERE/variants/base/triton_backward" --gates $1 --build "$TB_BUILD" --jobs 14 --json "$O/$2.jsonl" > "$O/$2.txt" 2>&1
  tail -12 "$O/$2.txt"; said $2
}
rows() { beside_of decay rows; }
beside() { rows; }
typical() { beside_of typical typical; }

race() { timeout 240 compute-sanitizer --tool racecheck $PY -m gdnspec check gdn_prefill_backward_k_last "$HERE/variants/$BEST/triton_backward" --workload ragged --repeat 1 --device cuda > "$O/race.txt" 2>&1; grep -E "RACECHECK|hazard|^gdn" "$O/race.txt" | tail -4; said race; }

[ $# = 0 ] && set -- compile kernels choose bits time table
for stage in "$@"; do
  case $stage in time) time_all ;; *) $stage ;; esac
done > >(tee "$O/log.txt") 2>&1
wait
