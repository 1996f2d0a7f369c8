#!/bin/bash
# bash run.sh STAGE...   in the root of a copy of the tree of h42, PYTHONPATH and GDNSPEC_CACHE set. Stages, H200, 16 cores:
#   tune      (with WITH_OURS set it did not end in 400 s on an H200; without, nobody has tried) 120-200 s  16 processes compile FLA's KDA kernels (640 configurations: heads 32 16 8 4, forward and backward; 0.2-2.6 s each) and triton_kda's;
#                        cuda_kda_decode builds beside them; then one process tunes (about 60 s). Once per machine.
#                        Leaves $OUT/h42/tuned.tar.gz (tuned choices). If that file lies beside run.sh, tune takes the
#                        choices from it and compiles those alone (about 60-90 s).
#   prefill   100-150 s  kda_rows.py, 30 rows, gates 0.3, typical, 12, beside FLA (and what lies in variants/)
#   backward  150-220 s  kda_backward_rows.py, 32 rows, gates 0.3 and typical; then 12 if less than 150 s have passed
#   decode    120-200 s  table of batches 1-256, then gdnspec bench beside fla_kda with traces saved
#   traces    150-250 s  gdnspec bench --save of triton_kda, performance suite (its kernels compile side by side before)
#   gdn_backward 90-150 s triton_backward with both roundings fewer beside the version before (before/triton_backward/),
#                        16/32, 4/16 and 2/8 rows, in turns; a check of two definitions on the GPU first
# Needs tune on the same machine: prefill, backward (else FLA tunes serially, minutes per number of heads).
# Results: $OUT/h42/*.jsonl, *.txt, traces/ (trace files as they are to lie in the tree).
HERE=$(cd "$(dirname "$0")" && pwd)
export O=${OUT:?}/h42 W=${H42_WORK:-/tmp/h42_work}
mkdir -p $O $W/triton $W/build $W/claims
export PYTHONPATH=$HERE/path:$PWD/tools:$PYTHONPATH TRITON_CACHE_DIR=$W/triton PYTHONDONTWRITEBYTECODE=1
export FLA_DISABLE_BACKEND_DISPATCH=1 FLA_TENSOR_CACHE_SIZE=256 FLA_CACHE_RESULTS=1 OMP_NUM_THREADS=1
unset TRITON_INTERPRET
PY=${PY:-python}; command -v $PY >/dev/null || PY=python3
N=${H42_JOBS:-$(nproc)}; [ $N -gt 16 ] && N=16
GDN="$PY -m gdnspec"
DEFS_DECODE="kda_decode_k_last kda_decode_k_last_bf16_state kda_decode_pool_k_last kda_decode_pool_k_last_bf16_state"
[ -d $HERE/variants ] && export H42_VARIANTS=$HERE/variants
now() { date +%s; }

tune() {
  local t=$(now)
  [ -f $HERE/tuned.tar.gz ] && tar xzf $HERE/tuned.tar.gz -C $W/triton
  rm -rf $W/claims; mkdir -p $W/claims
  

  local p=()
  for r in $(seq 0 $((N-1))); do
    timeout 400 $PY $HERE/fla_tuning.py compile $r $N $W/claims >$W/compile.$r.txt 2>&1 & p+=($!)
  done
  wait ${p[@]}
  cat $W/compile.*.txt >$O/compile.txt
  cat $W/claims/* 2>/dev/null | sort | awk '{n[$1]++; s[$1]+=$2} END {for (k in n) printf "%-60s %4d compiled %8.0f s\n", k, n[k], s[k]}' | sort -k4 -nr >$O/compiled.txt
  echo "compiled after $(( $(now) - t )) s"; grep -h "^rank" $O/compile.txt | sort | head -3; grep -hv "^rank" $O/compile.txt | sort | uniq -c | sort -nr | head -6
  timeout 300 $PY $HERE/fla_tuning.py tune >$O/tune.txt 2>&1; echo "tune rc $?"; tail -6 $O/tune.txt
  (cd $W/triton && tar czf $O/tuned.tar.gz */*.autotune.json 2>/dev/null)
  $PY $HERE/fla_tuning.py chosen >$O/chosen.txt 2>&1; wc -l $O/chosen.txt

  echo "tune: $(( $(now) - t )) s"
}

prefill() {
  local t=$(now) v=()
  for x in $HERE/variants/*/; do [ -f "$x/kernel.py" ] && v+=(--version ${x%/}); done
  timeout 60 $PY benchmarks/kda_rows.py --check "${v[@]}" >$O/prefill_check.txt 2>&1; tail -14 $O/prefill_check.txt
  timeout 560 $PY benchmarks/kda_rows.py "${v[@]}" --json $O/prefill.jsonl >$O/prefill.txt 2>&1; echo "prefill rc $?"
  grep -E " / triton_kda|left out|Error|NVIDIA" $O/prefill.txt
  echo "prefill: $(( $(now) - t )) s"
}

backward() {
  local t=$(now)
  timeout 420 $PY benchmarks/kda_backward_rows.py --gates ${H42_BACK_GATES:-0.3,typical} --json $O/backward.jsonl >$O/backward.txt 2>&1; echo "backward rc $?"
  [ $(( $(now) - t )) -lt 150 ] && timeout 200 $PY benchmarks/kda_backward_rows.py --gates 12 --json $O/backward.jsonl >>$O/backward.txt 2>&1
  grep -E " / triton_kda|left out|Error|NVIDIA" $O/backward.txt
  echo "backward: $(( $(now) - t )) s"
}

keep() { # trace files as they lie in the tree
  for d in solutions/triton_kda solutions/cuda_kda_decode peers/fla_kda; do
    [ -d $d/traces ] && mkdir -p $O/traces/$d/traces && cp $d/traces/*.jsonl $O/traces/$d/traces/
  done
}

decode() {
  local t=$(now)
  timeout 240 $PY $HERE/decode_table.py $O/decode_table.jsonl $W/build >$O/decode_table.txt 2>&1; echo "table rc $?"
  grep -E "float32|least|Error|left out" $O/decode_table.txt | head -30
  timeout 330 $GDN bench $DEFS_DECODE --solution cuda_kda_decode --against fla_kda --seconds ${H42_SECONDS:-0.6} --save --save-baselines --json $O/decode.jsonl >$O/decode.txt 2>&1; echo "bench rc $?"
  tail -40 $O/decode.txt | cut -c1-150 | head -${H42_LINES:-8}; keep
  echo "decode: $(( $(now) - t )) s"
}

traces() {
  local t=$(now) p=() all=""
  export TRITON_SHARED=$W/triton
  for d in kda_prefill_k_last kda_prefill_k_first kda_prefill_raw_gates kda_prefill_checkpoints kda_prefill_backward_k_last kda_verify_k_last $DEFS_DECODE; do all="$all $d"; done
  for d in $all; do timeout 200 $GDN check $d --solution triton_kda --suite performance --device cuda >$O/check_$d.txt 2>&1 & p+=($!); done
  wait ${p[@]}; tail -qn1 $O/check_*.txt | cut -c1-120; echo "checked after $(( $(now) - t )) s"
  timeout 400 $GDN bench $all --solution triton_kda --seconds ${H42_SECONDS:-0.3} --save --json $O/traces.jsonl >$O/traces.txt 2>&1; echo "bench rc $?"
  tail -42 $O/traces.txt | cut -c1-150 | head -${H42_LINES:-14}; keep
  unset TRITON_SHARED
  echo "traces: $(( $(now) - t )) s"
}

gdn_backward() {
  local t=$(now)
  timeout 150 $GDN check gdn_prefill_backward_k_last gdn_prefill_backward_k_first --solution triton_backward --suite smoke --suite fresh --device cuda >$O/gdn_check.txt 2>&1; echo "check rc $?"; tail -4 $O/gdn_check.txt | cut -c1-150
  timeout 240 $PY benchmarks/backward_rows.py --solutions triton_backward,$HERE/before/triton_backward --jobs $N --rows "16/32 1x8192,16/32 4x2048,4/16 1x8192,2/8 1x32768" --json $O/gdn_backward.jsonl >$O/gdn_backward.txt 2>&1; echo "rows rc $?"; tail -14 $O/gdn_backward.txt | cut -c1-150
  echo "gdn_backward: $(( $(now) - t )) s"
}

for stage in "${@:-tune}"; do echo "== $stage"; $stage 2>&1; done
