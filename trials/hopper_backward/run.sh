#!/bin/bash
# hopper_backward: variants of version 16 (the tree), each with version 12's bits. Run in the root of a copy of the tree:
#   bash run.sh STAGE [STAGE ..]      without one: compile bits again mine
# Estimates, H200 with 16 cores:
#   compile    all folders of VERSIONS, one process each, beside one another; needs no GPU: 90 to 110 s with fourteen
#   bits       gradients of all versions beside v12, bit by bit, 171 shapes, both gates, twice: 40 to 60 s with eleven
#   again      six rows (AGAIN="16/32 4x8192,..") five times (TURNS), all versions, in another order each time: 80 to 100 s with fourteen
#   mine       72 rows, gates exp(-0.1 u), all versions in turns, no FlashQLA: 14 s a version, 150 s with eleven.
#              GATES=decay,typical takes both: twice that. ROWS="2/8,16/32" takes fewer rows.
#   flashqla   restores or compiles FlashQLA's kernels; needed once before rows, typical or training: 20 s from the cache
#   rows       72 rows beside FlashQLA (add 60 s for its Python): 28 s, and 14 s a version; typical: the same. V is the first of them.
#   training   both passes of V, with hopper_prefill, beside FlashQLA: 90 s
#   check      the judge on smoke and conformance, both definitions, of V: 240 s
#   sanitize   memcheck and racecheck of V: 200 s
# A call for each question:
#   bash run.sh compile bits                                              are bits the same? 150 s
#   VERSIONS="v12 tree twin no_spare no_next_wave next_first next_late no_end no_count decays tokens onward even all" bash run.sh compile again
#                                                                         who loses on three rows, and how far apart are twins? 200 s
#   bash run.sh mine                                                      150 s
#   V=all VERSIONS="v12 tree all" bash run.sh flashqla rows typical       220 s
#   V=all bash run.sh check sanitize                                      440 s
# VERSIONS="v12 all" takes these alone; v12 is always needed for bits and again.
# Variants; all but v12 are of version 16:
#   v12           version 12
#   tree, twin    version 16, and once more
#   no_spare      without SPARE: those that walk forward store states
#   no_next_wave  without NEXT WAVE: nobody asks for the boxes of a block one wave later
#   next_first    blocks of the first wave alone ask
#   next_late     all ask, but behind their products, where memory is idle, and not as soon as their boxes are there
#   no_end        without END: the walk back loads its decay behind products
#   no_count      without COUNT: divisions by the heads of a query head
#   decays        DECAYS: both walks load all decays ahead of products
#   tokens        DECAYS, and TOKENS: the walk forward loads v and gamma ahead of them, too
#   onward        ONWARD: a head's first products follow those of the head before at once
#   even          FEWER: from eight sequences of one length on fewer blocks walk back, by a kernel of its own
#   all           DECAYS, TOKENS, ONWARD and FEWER
HERE=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-/tmp/out} V=${V:-all} JOBS=${JOBS:-14} VERSIONS=${VERSIONS:-v12 tree no_spare no_next_wave next_first next_late decays tokens onward even all}
O=$OUT/hb2; mkdir -p "$O"
export TILELANG_CACHE_DIR=${TILELANG_CACHE_DIR:-/tmp/tlcache} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/tritoncache} HB2_BUILD=${HB2_BUILD:-/tmp/hb2build}
export PYTHONPATH=$PWD/tools:$PYTHONPATH PYTHONUNBUFFERED=1 TILELANG_PRINT_ON_COMPILATION=0
D="gdn_prefill_backward_k_last gdn_prefill_backward_k_first"
say() { echo "== $* ($(date +%T))" | tee -a "$O/log.txt"; }
begin() { T0=$SECONDS; say "$1"; }
end() { say "$1: $((SECONDS - T0)) s"; }

restore() {
  mkdir -p "$TILELANG_CACHE_DIR"
  if [ ! -e "$TILELANG_CACHE_DIR/restored" ] && [ -f "$HERE/tlcache.tar.xz" ]; then
    tar -xJf "$HERE/tlcache.tar.xz" -C "$TILELANG_CACHE_DIR" && touch "$TILELANG_CACHE_DIR/restored"
  fi
}

compile() {
  begin compile
  for v in $VERSIONS; do [ -d "$HERE/$v" ] && timeout 400 python "$HERE/hb2.py" build $v >> "$O/compile.txt" 2>&1 & done
  wait; tail -n 16 "$O/compile.txt"
  end compile
}
flashqla() {
  begin flashqla; restore
  timeout 420 python "$HERE/tl.py" compile "$HERE/kernels.pickle" "$JOBS" >> "$O/flashqla.txt" 2>&1; tail -n 2 "$O/flashqla.txt"
  end flashqla
}
bits() { begin bits; timeout 300 python "$HERE/hb2.py" bits 2>&1 | tee "$O/bits.txt" | tail -n 12; end bits; }
mine() { begin mine; timeout 400 python "$HERE/hb2.py" mine > "$O/mine.txt" 2>&1; grep -h -E "^stage|Error" "$O/mine.txt" | tail -n 4; end mine; }
again() { begin again; timeout 300 python "$HERE/hb2.py" again > "$O/again.txt" 2>&1; grep -h -E "^stage|Error" "$O/again.txt" | tail -n 4; end again; }
measure() {
  begin "measure: $*"; restore
  timeout 590 python "$HERE/hb2.py" measure "$@" > "$O/measure-$(echo "$*" | tr ' ' '-').txt" 2>&1
  grep -h -E "^stage|^loaded|Error" "$O/measure-$(echo "$*" | tr ' ' '-').txt" | tail -n 8
  end "measure: $*"
}
check() {
  begin check
  cp -r "$HERE/$V/hopper_backward/." solutions/hopper_backward/
  for d in $D; do
    for k in pairs "not pairs and not past_2_31"; do
      timeout 400 python -m gdnspec check $d --solution hopper_backward --suite smoke --suite conformance -k "$k" --json "$O/check-$d-${k:0:3}.jsonl" > "$O/check-$d-${k:0:3}.txt" 2>&1 &
    done
  done; wait
  timeout 200 python -m gdnspec check $D --solution hopper_backward --suite conformance -k past_2_31 --json "$O/check-past.jsonl" > "$O/check-past.txt" 2>&1
  for f in "$O"/check-*.txt; do echo "-- $(basename $f): $(grep -v '^ *$' "$f" | tail -n 2 | tr '\n' ' ')"; done
  end check
}
sanitize() {
  begin sanitize
  cp -r "$HERE/$V/hopper_backward/." solutions/hopper_backward/
  timeout 200 compute-sanitizer --tool memcheck python tools/sanitize.py hopper_backward gdn_prefill_backward_k_last --suite conformance --gib 0.5 > "$O/memcheck.txt" 2>&1 &
  timeout 280 compute-sanitizer --tool racecheck --racecheck-fence-proxy-async no python tools/sanitize.py hopper_backward gdn_prefill_backward_k_last --suite conformance --gib 0.5 --define GDN_EVERY_LANE > "$O/racecheck.txt" 2>&1 &
  wait; tail -n 3 "$O/memcheck.txt" "$O/racecheck.txt"
  end sanitize
}

[ $# -eq 0 ] && set -- compile bits again mine
timed=()
flush() { [ ${#timed[@]} -gt 0 ] && measure "${timed[@]}"; timed=(); }
for stage in "$@"; do
  case $stage in
    rows|typical|training) timed+=($stage);;
    compile|bits|mine|again|flashqla|check|sanitize) flush; $stage;;
    *) echo "no stage $stage";;
  esac
done
flush
say table
timeout 60 python "$HERE/hb2.py" table 2>&1 | tee "$O/table.txt" | cut -c1-400 | head -40
