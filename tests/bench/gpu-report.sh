#!/bin/sh
# bench/gpu-report.sh on machines without nvcc, without a GPU, and on one that is made up: what it runs, in which order,
# and what it writes.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

have bash || skip "no bash"

# A tree, a toolkit, a GPU and programs that do what their environment says.
tree=$tmp/tree
mkdir -p "$tree/bench" "$tree/doc/results" "$tmp/bin" "$tmp/cuda/bin"
cp "$src/bench/gpu-report.sh" "$tree/bench/"
cp -r "$src/bench/plots" "$tree/bench/"

program() {
    echo '#!/bin/sh' >"$1"
    cat >>"$1"
    chmod +x "$1"
}

program "$tmp/bin/nvidia-smi" <<'STUB'
case $* in
-L) [ "${GPUS-1}" = 0 ] || echo "GPU 0: NVIDIA H200" ;;
*=compute_cap*) echo "${COMPUTE_CAP-9.0}" ;;
*"--id=${OTHER_GPU-0} "*name*) echo "NVIDIA H200" ;;
*) echo something ;;
esac
STUB
program "$tmp/bin/python3" <<'STUB'
exit 1
STUB
program "$tmp/bin/compute-sanitizer" <<'STUB'
echo "sanitized with $2"
STUB
program "$tmp/cuda/bin/nvcc" <<'STUB'
echo "Cuda compilation tools, release 13.0, V13.0.1"
STUB
program "$tmp/cuda/bin/__nvcc_device_query" <<'STUB'
[ -z "${QUERY-}" ] || echo "$QUERY"
STUB
program "$tree/configure" <<'STUB'
echo "$@" >"$MADE/configured"
STUB
program "$tmp/selftest" <<'STUB'
echo "ok    barrier"
exit ${SELFTEST-0}
STUB
program "$tmp/attend" <<'STUB'
echo "$*" >>"$MADE/attends"
while [ $# -gt 0 ]; do
    case $1 in
    --csv) csv=$2 ;;
    --dtype) dtype=$2 ;;
    --kv-heads) kv=$2 ;;
    esac
    shift
done
row() { echo "$1,k,$dtype,32,32,$kv,128,64,4096,64,1,$2,$2,1,1000,0.75,2000,1,memory,1e-3,0.25"; }
[ -z "${csv-}" ] || {
    columns=variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads
    echo $columns,us,us_min,unique_bytes,gbps,frac_read,gflops,intensity,bound,rel_err,frac_compute
    row paged 500
    row paged_shared 200
    row chunk 40
    row copy 30
} >"$csv"
[ -z "${csv-}" ] || sed 's/,40,40,/,99,99,/' "$csv" >"${csv%.csv}.pass1.csv"
STUB
program "$tmp/llama" <<'STUB'
parent() { sed 's/.*) . //; s/ .*//' "/proc/$1/stat"; }
[ -z "${KILLED-}" ] || kill -KILL "$(parent "$(parent "$PPID")")"
echo "100 tokens/s"
STUB
program "$tmp/bin/make" <<'STUB'
case $* in
*clean) ;;
*check-gpu*) exit ${PARITY-0} ;;
*)
    mkdir -p tests/cuda bench backends/cuda
    echo "sm_90  fold  29 registers" >backends/cuda/kernels.txt
    cp "$MADE/selftest" tests/cuda/ptx_selftest
    cp "$MADE/attend" bench/attend
    cp "$MADE/llama" bench/chunkllama
    rm -f tests/cuda/test_cases
    [ -n "${NO_CHECK-}" ] || cp "$MADE/selftest" tests/cuda/test_cases
    exit ${MAKE_STATUS-0} ;;
esac
STUB

# report NAME STATUS [VARIABLE=VALUE]...: runs it; the report is NAME.md.
report() {
    name=$1 expected=$2
    shift 2
    rm -f "$tmp/attends" "$tmp/$name.md"
    status=0
    env MADE="$tmp" PATH="$tmp/bin:$PATH" CUDA_HOME="$tmp/cuda" BUILD="$tmp/build" "$@" \
        bash "$tree/bench/gpu-report.sh" "$tmp/$name.md" >"$tmp/$name.txt" 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || { cat "$tmp/$name.txt"; fail "$name: status $status"; }
}

says() { grep -qF "$2" "$tmp/$1" || { cat "$tmp/$1"; fail "$1 lacks: $2"; }; }

report none 77 CUDA_HOME="$tmp/nowhere"
says none.txt "SKIP: no nvcc"
report nogpu 77 GPUS=0
says nogpu.txt "a GPU is not"
[ ! -e "$tmp/nogpu.md" ] || fail "a report without a GPU"

report good 0
says good.md "# NVIDIA H200"
says good.md "| build | PASS |"
says good.md "| sdpa bf16 32:8 | SKIP | python3 has no torch |"
says good.md "| bf16 | 32 / 32 | 4096 | 30.0 | 500.0 | 200.0 | 40.0 | - | 12.50 | 5.00 | 1000, 75% | 2000, 25% |"
says good.md "| f16 | 32 / 8 | 4096 |"
says good.md "sm_90  fold  29 registers"
says good.md "| chunk | bf16 | 32 / 32 | 4096 | 40.0 |" # beside the model
! grep -q '| 99.0 |' "$tmp/good.md" || fail "the figures are of one pass"
says good.md "sanitized with racecheck"
says good.md "100 tokens/s"
says configured "CUDA_ARCHS=90"
[ "$(grep -c 'grid table3' "$tmp/attends")" -eq 4 ] || fail "attend is not run for two types and two numbers of heads"
[ "$(sed -n 's/^| \(build\|selftest\|parity\|attend bf16 32:32\|llama\) |.*/\1/p' "$tmp/good.md" | tr '\n' ,)" = \
    "build,selftest,parity,attend bf16 32:32,llama," ] || fail "order"

report wrong 1 SELFTEST=1
says wrong.md "| selftest | FAIL |"
[ ! -e "$tmp/attends" ] || fail "measured although a primitive is wrong"
report nocuda 1 SELFTEST=77
says nocuda.md "| selftest | FAIL |"
report unequal 1 PARITY=1
says unequal.md "| parity | FAIL |"
says unequal.md "| f16 | 32 / 8 | 4096 |"
report unbuilt 1 MAKE_STATUS=2
says unbuilt.md "| build | FAIL |"
! grep -q selftest "$tmp/unbuilt.txt" || fail "tested although nothing was built"
report unchecked 0 NO_CHECK=1
says unchecked.md "| parity | SKIP | no Check"
report other 0 CUDA_VISIBLE_DEVICES=2,3 OTHER_GPU=2
says other.md "# NVIDIA H200"
report older 0 COMPUTE_CAP='Field "compute_cap" is not a valid field to query.' QUERY=86
says older.md "compute capability 8.6"
says configured "CUDA_ARCHS=86"
report oldest 77 COMPUTE_CAP=
says oldest.txt "what the GPU can do"
report killed 137 KILLED=1
says killed.md "| attend f16 32:8 | PASS |"
says killed.md "| f16 | 32 / 8 | 4096 |"
report late 1 SECONDS_IN_ALL=0
says late.md "no time is left"
