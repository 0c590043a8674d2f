#!/bin/sh
# bench/plots/cuda-model makes the tables that doc/results/cuda-model.md has, of numbers that hang together, and says
# what is wrong with its arguments.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

model=$src/bench/plots/cuda-model
sh "$model" >"$tmp/all.md" || fail "no tables"
sed -n '/^## The GPUs/,/^## What follows/p' "$src/doc/results/cuda-model.md" | sed '/^## What follows/d' >"$tmp/doc.md"
diff "$tmp/all.md" "$tmp/doc.md" >"$tmp/diff.txt" ||
    [ "$(grep -c '^[<>] .' "$tmp/diff.txt")" -eq 0 ] || fail "doc/results/cuda-model.md has other tables"

# By hand: 4096 shared and 32 x 64 private tokens of 32 heads of 128, K and V of two bytes; Q and output of 32 rows.
awk 'BEGIN { printf "| 32 / 32 | 4096 | 8 | 100.66 MB | memory | %.1f |\n", \
    1e6 * (6144 * 32 * 2 * 128 * 2 + 2 * 32 * 32 * 128 * 2) / 2039e9 + 2 }' >"$tmp/row.txt"
[ "$(grep -cF "$(cat "$tmp/row.txt")" "$tmp/all.md")" -eq 1 ] || fail "no row $(cat "$tmp/row.txt")"

# One sequence has nothing to share: paged_shared is paged.
sh "$model" batch=1 >"$tmp/one.md" || fail "batch=1"
awk -F'|' '/^\| 32 \/ / && NF == 15 { n++; if ($11 != $12) { print; exit 1 } } END { exit n != 24 }' "$tmp/one.md" ||
    fail "batch 1: paged_shared differs from paged"

columns=variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads,us
{
    echo "$columns"
    echo chunk,k,f16,32,32,32,128,64,4096,64,1,103.2
    echo paged,k,f16,32,32,32,128,64,4096,64,1,1300
    echo copy,k,f16,32,32,32,128,64,4096,64,1,1300
    echo chunk,k,f32,32,32,32,128,64,4096,64,1,1300
} >"$tmp/attend.csv"
sh "$model" --against "$tmp/attend.csv" a100 >"$tmp/against.md" || fail "--against"
grep -q '^| chunk | f16 | 32 / 32 | 4096 | 103.2 | 64.9 | 51.6 | 2.00 |$' "$tmp/against.md" || fail "measured chunk"
[ "$(wc -l <"$tmp/against.md")" -eq 4 ] || fail "rows of --against"

refuses() {
    ! sh "$model" "$@" >"$tmp/out.txt" 2>"$tmp/err.txt" || fail "$* is taken"
    [ -s "$tmp/err.txt" ] || fail "$* says nothing"
}
refuses sequences=3
refuses batch
refuses --against "$tmp/attend.csv" v100
refuses --against "$tmp/missing.csv" a100
refuses --against "$tmp/row.txt" a100
