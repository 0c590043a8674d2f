#!/bin/sh
# bench/attend on a pretended GPU: its variants are right, for shapes that end anywhere, and its CSV is that of the CPU.
# Times mean nothing.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

# The last options given win.
run() {
    "$build/tests/cuda-host/attend" --backend cuda --batch 3 --heads 4 --kv-heads 2 --head-dim 64 --shared 128 \
        --private 70 --passes 1 --seconds 0 --memory 1K --threads 1 --csv "$tmp/out.csv" "$@" >"$tmp/out.txt" 2>&1 ||
        { cat "$tmp/out.txt"; fail "$*"; }
    [ "$(awk -F, 'NR > 1 { print NF, ($12 > 0) }' "$tmp/out.csv" | sort -u)" = "21 1" ] || fail "$*: the CSV"
}

has() {
    for variant; do
        grep -q "^$variant," "$tmp/out.csv" || fail "no $variant"
    done
    grep -q "^matmul: SKIP: ." "$tmp/out.txt" || fail "no reason why there is no product"
}

run --dtype bf16
has paged paged_shared chunk copy
run --dtype f16 --rows 5 --window 90 --sink-tokens 3 --sinks --alibi --variants paged,chunk
grep -q "^chunk+5rows+window+alibi+sinks,mma,f16,3,4,2,64," "$tmp/out.csv" || fail "the name of a variant"
run --dtype f32 --head-dim 20 --kv-heads 4 --shared 0
has paged paged_shared chunk copy
run --dtype bf16 --kernel general --variants chunk
grep -q "^chunk,general,bf16," "$tmp/out.csv" || fail "--kernel"
run --dtype i8
grep -q "^chunk: SKIP: " "$tmp/out.txt" || fail "i8 is not refused"
! "$build/tests/cuda-host/attend" --backend cuda --pack >"$tmp/out.txt" 2>&1 || fail "--pack"
! "$build/tests/cuda-host/attend" --backend cuda --variants naive >"$tmp/out.txt" 2>&1 || fail "--variants naive"
