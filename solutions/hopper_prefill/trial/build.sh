#!/bin/bash
# The builds that long_rows.py compares, into FOLDER: `bash solutions/hopper_prefill/trial/build.sh FOLDER`. Needs nvcc and no GPU.
# PYTHON names the Python in which apache-tvm-ffi is installed; ONLY the builds to make.
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
tvm=$(${PYTHON:-python} -c "import pathlib, tvm_ffi; print(pathlib.Path(tvm_ffi.__file__).parent)")
make() {  # name, flags
  [ -n "$ONLY" ] && [[ " $ONLY " != *" $1 "* ]] && return
  nvcc -std=c++17 -O2 --expt-relaxed-constexpr -Xcompiler -fPIC -shared -gencode=arch=compute_90a,code=sm_90a "${@:2}" \
    -I"$tvm/include" "$here/trial/one.cu" -L"$tvm/lib" -ltvm_ffi -o "$folder/$1.so"
}
folder=$(cd "$1" && pwd)
make new -DGDN_FORMS       # GDN_FORM=3 in the environment takes this form in every call, 0 what is chosen
make no_t -DGDN_FORMS -DLONG_NO_T    # wrong results: what it would take if T cost nothing
make clocks -DGDN_CLOCKS   # cycles of each step
# One form and type alone, which builds in 15 s: probes.py.
alone() { make "$1" -DGDN_FORMS -DGDN_ONLY_LONG "${@:2}"; }
alone p_t
alone p_not -DLONG_NO_T
alone p_loop -DLONG_PROBE=1
alone p_line -DLONG_PROBE=2
alone p_mma -DLONG_PROBE=3
alone c_t -DGDN_CLOCKS
# With less code: code_rows.py. LONG_LOOPS: T, P and decays in loops; LONG_CALL: T and P share one; LONG_STEPS: of a substitution in a
# turn; LONG_FEED: the warp that feeds; LONG_KEPT: places found once a chunk, where the state is advanced; LONG_ONE: K K^T by one
# warpgroup and Q K^T by the other.
loops="-DLONG_LOOPS -DLONG_CALL" advance="-DLONG_FEED -DLONG_KEPT" one="-DLONG_ONE -DLONG_ADV=224 -DLONG_PREP=56"
alone v_halves
alone v_loops $loops
alone v_loops2 $loops -DLONG_STEPS=2
alone v_adv $advance
alone v_both $loops $advance
alone v_one $loops $advance $one
alone v_one2 $loops $advance $one -DLONG_STEPS=2
alone v_one_no_t $loops $advance $one -DLONG_NO_T
