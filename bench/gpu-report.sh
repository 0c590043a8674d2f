#!/bin/bash
# Builds, tests and measures the CUDA backend on this machine's first GPU, in under 8 minutes, without a network, and
# writes one report.
#
# Usage: bench/gpu-report.sh [REPORT.md]      doc/results/gpu-NAME.md, unless another file is named
#
# CUDA_HOME: where the toolkit is (else what nvcc belongs to, else /usr/local/cuda).  BUILD: a folder to build in, kept
# (build-gpu).  SECONDS_IN_ALL: 460; stages that do not fit any more are left out, and count as failed.
#
# First each primitive that the kernels are written in is tested; if one is wrong the rest would mean nothing and is not
# run.  A later stage that fails does not keep the others back.  Exit status: 0; 1 when a stage failed; 77 where there
# is no nvcc or no GPU.
set -u
export LC_ALL=C

say() { echo "gpu-report: $*"; }
skip() { say "SKIP: $*"; exit 77; }
have() { command -v "$1" >/dev/null 2>&1; }

case ${1-} in
-h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit ;;
-*) say "unknown option '$1'" >&2; exit 2 ;;
esac

# ---- what there is --------------------------------------------------------------------------------------------------

if [ -z "${CUDA_HOME-}" ]; then
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
fi
[ -x "$CUDA_HOME/bin/nvcc" ] ||
    skip "no nvcc: the GPU part can be neither built nor measured here (CUDA_HOME says where it is)"
have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q . ||
    skip "nvcc is there, a GPU is not (nvidia-smi finds none): nothing can be measured here"

# The GPU that programs find first, numbered as nvidia-smi does it.
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0}"
case $CUDA_VISIBLE_DEVICES in
'' | MIG-*) which= ;;
*) which=--id=${CUDA_VISIBLE_DEVICES%%,*} ;;
esac
ask() { timeout 20 nvidia-smi ${which:+"$which"} --query-gpu="$1" --format=csv,noheader 2>/dev/null | sed 1q; }
gpu=$(ask name)
compute_cap=$(ask compute_cap) # older drivers cannot say; the toolkit may have a program that does
[[ $compute_cap =~ ^[0-9]+\.[0-9]$ ]] || compute_cap=$("$CUDA_HOME/bin/__nvcc_device_query" 2>/dev/null | sed 's/.$/.&/; 1q')
capability=${compute_cap/./}
[ -n "$capability" ] || skip "neither nvidia-smi nor the toolkit says what the GPU can do"
short=$(echo "$gpu" | tr '[:upper:]' '[:lower:]' |
    sed -e 's/nvidia//; s/geforce//' -e 's/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//')

src=$(cd "$(dirname "$0")/.." && pwd) || exit 1
build=${BUILD-$src/build-gpu}
report=${1-$src/doc/results/gpu-$short.md}
touch "$report" || exit 1
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
trap 'exit 1' HUP INT TERM
export src build logs capability CUDA_HOME
PATH=$CUDA_HOME/bin:$PATH

# ---- stages ---------------------------------------------------------------------------------------------------------

in_all=${SECONDS_IN_ALL-460}
SECONDS=0
failed=0

# note STAGE RESULT WHY: also in a report of what is known by now, in case this is the last that is heard of it.
note() {
    echo "| $1 | $2 | $3 |" >>"$logs/stages.md"
    say "$2  $1: $3"
    write_report >"$report"
}

# stage NAME LIMIT FUNCTION ARGUMENT...: runs a function of this script, its output in a log.  Status 77: its last line
# says why it cannot run here.
stage() {
    local name=$1 limit=$2 start=$SECONDS left=$((in_all - SECONDS)) status
    shift 2
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        note "$name" FAIL "no time is left for it"
        failed=1
        return 1
    fi
    timeout -k 5 "$limit" bash -c '"$@"' _ "$@" >"$logs/$name.log" 2>&1 </dev/null
    status=$?
    case $status in
    0) note "$name" PASS "$((SECONDS - start)) s" ;;
    77) note "$name" SKIP "$(tail -n 1 "$logs/$name.log" | sed 's/^SKIP: //')" ;;
    124 | 137) note "$name" FAIL "not done after $limit s" ;;
    *) note "$name" FAIL "status $status after $((SECONDS - start)) s" ;;
    esac
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
        failed=1
        tail -n 20 "$logs/$name.log" | sed 's/^/    /' | tee -a "$logs/failures"
    fi
    return "$status"
}

missing() { echo "SKIP: $*"; exit 77; }

# Code for this GPU alone: for all of them it would take most of the time.
build_all() {
    set -e
    cd "$src"
    [ -x configure ] || ./autogen.sh
    mkdir -p "$build"
    cd "$build"
    "$src/configure" --with-cuda="$CUDA_HOME" --disable-shared --quiet CUDA_ARCHS="$capability"
    make -s clean
    # One after the other: targets that are made side by side would make what they share twice.
    make -s -j"$(getconf _NPROCESSORS_ONLN)" all
    make -s -j"$(getconf _NPROCESSORS_ONLN)" bench-programs cuda-programs
}

# nvidia-smi has found a GPU: where CUDA finds none that is a fault of the machine, and there will be no figures.
selftest() { "$build/tests/cuda/ptx_selftest" || exit 1; }

parity() {
    make -s -k -j4 -C "$build" check-gpu VERBOSE=1 || return
    [ -x "$build/tests/cuda/test_cases" ] || missing "no Check when this was configured: only the primitives were tested"
}

# sanitize TOOL
sanitize() {
    have compute-sanitizer || missing "compute-sanitizer is not installed"
    set -e
    compute-sanitizer --tool "$1" --error-exitcode 9 "$build/tests/cuda/ptx_selftest"
    compute-sanitizer --tool "$1" --error-exitcode 9 "$build/bench/attend" --backend cuda --batch 3 --heads 4 \
        --kv-heads 2 --shared 256 --private 70 --dtype bf16 --variants paged,paged_shared,chunk --passes 1 --seconds 0 \
        --memory 1M
}

# attend DTYPE KV_HEADS
attend() {
    "$build/bench/attend" --backend cuda --grid table3 --dtype "$1" --kv-heads "$2" --seconds 0.15 \
        --csv "$logs/attend-$1-$2.csv"
}

# sdpa DTYPE KV_HEADS
sdpa() {
    have python3 && python3 -c 'import torch' 2>/dev/null || missing "python3 has no torch"
    python3 "$src/bench/sdpa.py" "$1" "$2" >"$logs/sdpa-$1-$2.csv"
}

llama() {
    "$build/bench/chunkllama" --backend cuda --shape 1b --generate np=1088,ns=1024,nc=64,batch=32 --stats
}

export -f have missing build_all selftest parity sanitize attend sdpa llama

measure() {
    local dtype kv_heads
    stage build 180 build_all || return
    stage selftest 20 selftest || return
    stage parity 80 parity
    stage memcheck 30 sanitize memcheck
    stage racecheck 30 sanitize racecheck
    for dtype in bf16 f16; do
        for kv_heads in 32 8; do
            stage "attend $dtype 32:$kv_heads" 40 attend $dtype $kv_heads
        done
    done
    for kv_heads in 32 8; do
        stage "sdpa bf16 32:$kv_heads" 30 sdpa bf16 $kv_heads
    done
    stage llama 40 llama
}

# ---- the report -----------------------------------------------------------------------------------------------------

# The CSVs of all passes together.
csvs() {
    find "$logs" -name "$1" ! -name '*.pass*' | sort
}

# Of the CSVs: microseconds of each variant over each shape, medians, and what they come to.
table() {
    echo "| K, V | heads | shared | copy | paged | paged_shared | chunk | torch SDPA | paged / chunk |" \
        "paged_shared / chunk | chunk GB/s, of copy | chunk GFLOP/s, of matmul |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|---|"
    # shellcheck disable=SC2046 # a list of files
    cat $(csvs 'attend-*.csv') $(csvs 'sdpa-*.csv') /dev/null | awk -F, '
    $1 == "variant" {
        for (i = 1; i <= NF; i++)
            column[$i] = i
        next
    }

    {
        key = $column["dtype"] " | " $column["heads"] " / " $column["kv_heads"] " | " $column["shared"]
        if (!(key in seen)) {
            seen[key] = 1
            keys[++n] = key
        }
        variant = $column["variant"]
        us[key, variant] = $column["us"]
        if (variant == "chunk") {
            read[key] = sprintf("%.0f, %.0f%%", $column["gbps"], 100 * $column["frac_read"])
            compute[key] = sprintf("%.0f, %.0f%%", $column["gflops"], 100 * $column["frac_compute"])
        }
    }

    function time(key, variant) {
        return (key, variant) in us ? sprintf("%.1f", us[key, variant]) : "-"
    }

    function ratio(key, variant) {
        return (key, variant) in us && us[key, "chunk"] > 0 ? sprintf("%.2f", us[key, variant] / us[key, "chunk"]) : "-"
    }

    END {
        for (i = 1; i <= n; i++)
            printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", keys[i], time(keys[i], "copy"), \
                time(keys[i], "paged"), time(keys[i], "paged_shared"), time(keys[i], "chunk"), time(keys[i], "sdpa"), \
                ratio(keys[i], "paged"), ratio(keys[i], "paged_shared"), read[keys[i]], compute[keys[i]]
    }
    '
}

# What the model of doc/results/cuda-model.md predicts for this GPU, if it knows it.
against_model() {
    case $short in
    *a100*) model=a100 ;;
    *4090*) model=rtx4090 ;;
    *h200*) model=h200 ;;
    *) echo "The model (cuda-model.md) knows no GPU of this name."; return ;;
    esac
    for csv in $(csvs 'attend-*.csv'); do
        sh "$src/bench/plots/cuda-model" --against "$csv" $model | sed "${again-}"
        again=1,2d
    done
}

quote() {
    echo '```'
    cat
    echo '```'
}

# What nvidia-smi says, asked once: it may take seconds.
machine() {
    cat <<TEXT
| | |
|---|---|
| GPU | $gpu, compute capability $compute_cap, $(ask memory.total) |
| clocks | $(ask clocks.max.sm), memory $(ask clocks.max.mem), at most $(ask power.limit) |
| driver | $(ask driver_version) |
| toolkit | $("$CUDA_HOME/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') |
| host | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed 1q), $(getconf _NPROCESSORS_ONLN) CPUs |
TEXT
}

write_report() {
    cat <<TEXT
# $gpu

$(date +%F), $(git -C "$src" -c safe.directory='*' rev-parse --short HEAD 2>/dev/null || echo 'no version of the sources is known'),
made by \`bench/gpu-report.sh\` in $SECONDS s.

$(cat "$logs/machine.md")

| stage | result | |
|---|---|---|
$(cat "$logs/stages.md")

$([ ! -s "$logs/failures" ] || quote <"$logs/failures")

## Attention

One layer of one decode step, table 3: batch 32, 64 private tokens, chunk 64, medians in us.  \`copy\` moves as many
bytes in the device's memory as \`chunk\` must read, half of them read and half written.

$(table)

Against the model:

$(against_model)

## Kernels

$([ ! -s "$build/backends/cuda/kernels.txt" ] || quote <"$build/backends/cuda/kernels.txt")
TEXT
    for log in selftest parity memcheck racecheck llama; do
        [ -s "$logs/$log.log" ] || continue
        printf '\n## %s\n\n' $log
        tail -n 40 "$logs/$log.log" | quote
    done
}

say "$gpu; the report goes to $report"
machine >"$logs/machine.md"
measure
write_report >"$report" || failed=1
say "$report is written, after $SECONDS s"
exit $failed
