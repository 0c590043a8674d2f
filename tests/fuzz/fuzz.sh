#!/bin/sh
# What `make fuzz` runs, in the build folder: each target for its share of FUZZ_SECONDS (60), from FUZZ_SEED (1), in a
# build of its own under AddressSanitizer and UndefinedBehaviorSanitizer.  With clang and its libFuzzer that looks for
# inputs that reach new code; otherwise (or with FUZZ_ENGINE=plain) with driver.c.  FUZZ_RUNS: stop after so many inputs
# of each target.  The last line has the counts.
set -eu
src=${CATTN_SRCDIR:?} make=${MAKE:-make}
seconds=${FUZZ_SECONDS:-60} seed=${FUZZ_SEED:-1} runs=${FUZZ_RUNS:-}
targets=${FUZZ_TARGETS:-ops gguf json saved}
clang=${FUZZ_CLANG:-clang}

links() {
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned
        char *d, unsigned long n) { (void)d; (void)n; return 0; } '"$1" > fuzz/try.c
    shift
    "$@" -o fuzz/try fuzz/try.c >/dev/null 2>&1
}

mkdir -p fuzz
sanitizers=address,undefined
engine=${FUZZ_ENGINE:-}
if [ -z "$engine" ] && links '' "$clang" -fsanitize=fuzzer,$sanitizers; then engine=libfuzzer; fi
if [ "$engine" = libfuzzer ]; then
    cc=$clang sanitize="-fsanitize=fuzzer-no-link,$sanitizers" define=-DUSE_LIBFUZZER link=-fsanitize=fuzzer
else
    engine=plain cc=${CC:-cc} sanitize="-fsanitize=$sanitizers" define='' link=''
    links 'int main(void) { return 0; }' "$cc" "$sanitize" || sanitize=
fi

build=fuzz/$engine
mkdir -p "$build"
[ -f "$build/config.status" ] || (cd "$build" && "$src/configure" CC="$cc" --quiet --disable-shared --disable-openmp \
    --without-openblas --without-onednn CPPFLAGS="$define" \
    CFLAGS="-O1 -g $sanitize ${sanitize:+-fno-sanitize-recover=undefined -fno-omit-frame-pointer}")
for target in $targets; do set -- "$@" "tests/fuzz/$target"; done
(cd "$build" && $make --no-print-directory LDFLAGS="$link" "$@")

# ops has by far the most to try: half of the time, when there are others
share() {
    others=$(($(echo "$targets" | wc -w) - 1))
    case $1:$others in
    *:0) echo "$seconds" ;;
    ops:*) echo $((seconds / 2)) ;;
    *) case " $targets " in
        *' ops '*) echo $((seconds / 2 / others)) ;;
        *) echo $((seconds / (others + 1))) ;;
        esac ;;
    esac
}

run() {
    corpus=$src/tests/fuzz/corpus/$1
    if [ "$engine" = libfuzzer ]; then
        rm -rf "fuzz/found/$1"
        mkdir -p "fuzz/found/$1"
        "$build/tests/fuzz/$1" -seed="$seed" -max_total_time="$2" ${runs:+-runs="$runs"} -max_len=8192 -timeout=60 \
            -rss_limit_mb=4096 -verbosity=0 -artifact_prefix="fuzz/fault-$1-" "fuzz/found/$1" "$corpus"
    else
        (cd fuzz && "../$build/tests/fuzz/$1" --seed "$seed" --seconds "$2" ${runs:+--count "$runs"} "$corpus")
    fi
}

faults=0
: > fuzz/counts
for target in $targets; do
    time=$(share "$target")
    echo "fuzz: $target, $engine, seed $seed, $time s"
    status=0
    run "$target" "$time" > "fuzz/$target.log" 2>&1 || status=$?
    if [ $status -eq 0 ]; then
        grep "^$target: [0-9]* inputs" "fuzz/$target.log" | tee -a fuzz/counts
    else
        faults=$((faults + 1))
        tail -n 40 "fuzz/$target.log"
        grep "^$target: [0-9]* inputs" "fuzz/$target.log" >> fuzz/counts || :
        echo "fuzz: $target: a fault; to repeat it: $build/tests/fuzz/$target fuzz/fault-$target-..."
    fi
done
operations=$(awk '{ n += $4 } END { printf "%.0f", n }' fuzz/counts)
echo "fuzz: $(echo "$targets" | wc -w) targets, $operations operations, $faults faults"
[ "$faults" -eq 0 ]
