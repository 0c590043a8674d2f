#!/bin/sh
# bench/plots/speedup draws the ratios that are in a CSV, and says what is wrong with one.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

speedup=$src/bench/plots/speedup
header=variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads
header=$header,us,us_min,unique_bytes,gbps,frac_read,gflops,intensity,bound,rel_err,frac_compute

# row VARIANT SHARED THREADS US
row() { echo "$1,k,f32,${5-32},32,32,128,64,$2,64,$3,$4,1,1,1,1,1,1,memory,1e-7,0.5"; }

{
    echo "$header"
    row paged 0 1 100; row paged_shared 0 1 80; row chunk 0 1 100; row read 0 1 50; row fma 0 1 7
    row paged 1024 1 600; row paged_shared 1024 1 250; row chunk 1024 1 100; row read 1024 1 50
    row paged 0 2 60; row chunk 0 2 50
} >"$tmp/good.csv"
sh "$speedup" "$tmp/good.csv" >"$tmp/good.svg" || fail "a good CSV"
for title in "paged, 0 shared: 1.00x" "paged_shared, 0 shared: 0.80x" "paged, 1024 shared: 6.00x" \
    "paged_shared, 1024 shared: 2.50x" "paged, 0 shared: 1.20x"; do
    grep -q "<title>$title</title>" "$tmp/good.svg" || fail "no $title"
done
! grep -Eq "<title>(read|fma)" "$tmp/good.svg" || fail "read or fma is drawn"
[ "$(grep -c "How many times faster" "$tmp/good.svg")" -eq 2 ] || fail "panels"

{
    echo "$header"
    row paged 1024 1 100 1; row chunk 1024 1 100 1; row paged 2048 1 200 1; row chunk 2048 1 160 1
    row paged 1024 1 400 4; row chunk 1024 1 100 4; row paged 2048 1 900 4; row chunk 2048 1 100 4
} >"$tmp/batch.csv"
sh "$speedup" --against batch "$tmp/batch.csv" >"$tmp/batch.svg" || fail "against batch"
for title in "1 batch: 1.00x" "4 batch: 4.00x" "1 batch: 1.25x" "4 batch: 9.00x"; do
    grep -q "<title>paged, $title</title>" "$tmp/batch.svg" || fail "no $title"
done
[ "$(grep -c "How many times faster" "$tmp/batch.svg")" -eq 2 ] || fail "panels against batch"
grep -q ">sequences<" "$tmp/batch.svg" || fail "no name of the axis"

if have "$PYTHON3"; then
    $PYTHON3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$tmp/good.svg" || fail "no XML"
fi

# What is not plain attention is compared with its like.
{
    echo "$header"
    row paged 0 1 100; row chunk 0 1 100; row paged+window 0 1 90; row chunk+window 0 1 30
} >"$tmp/added.csv"
sh "$speedup" "$tmp/added.csv" >"$tmp/added.svg" || fail "not plain"
[ "$(grep -c "How many times faster" "$tmp/added.svg")" -eq 2 ] || fail "panels of what is not plain"
grep -q "<title>paged, 0 shared: 3.00x</title>" "$tmp/added.svg" || fail "not plain"
grep -q "threads 1, window, f32, k<" "$tmp/added.svg" || fail "title of what is not plain"

refuses() {
    ! sh "$speedup" "$@" >"$tmp/out.txt" 2>"$tmp/err.txt" || fail "$* is taken"
    [ -s "$tmp/err.txt" ] || [ -s "$tmp/out.txt" ] || fail "$* says nothing"
}
refuses
refuses "$tmp/missing.csv"
refuses --against batch
refuses --against us "$tmp/good.csv"
refuses "$speedup"
echo "$header" >"$tmp/empty.csv"
refuses "$tmp/empty.csv"
grep -v ^chunk "$tmp/good.csv" >"$tmp/half.csv"
refuses "$tmp/half.csv"
