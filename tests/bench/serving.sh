#!/bin/sh
# bench/serving runs its grids, and bench/plots/latency draws them.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

serving=$src/bench/serving latency=$src/bench/plots/latency
[ -x "$build/bench/chunkllama" ] || fail "bench/chunkllama was not built"
serve() { sh "$serving" "$build/bench/chunkllama" "$@"; }

serve grid shape=260k np="64 96" nc=3 batch=3 options="--threads 1" >"$tmp/grid.csv" || fail "grid"
[ "$(wc -l <"$tmp/grid.csv")" -eq 7 ] || fail "$(cat "$tmp/grid.csv")"
head -1 "$tmp/grid.csv" | grep -q "^shape,np,ns,nc,batch,rate,sharing,requests,.*,frac_tree$" || fail "header"
[ "$(awk -F, '{print NF}' "$tmp/grid.csv" | sort -u | wc -l)" -eq 1 ] || fail "columns"
grep -q "^260k,96,96,3,3,0,on,3," "$tmp/grid.csv" || fail "$(cat "$tmp/grid.csv")"

serve rates shape=260k np=96 nc=3 batch=3 rates="50 100" rounds=2 options="--threads 1" >"$tmp/rates.csv" || fail "rates"
[ "$(wc -l <"$tmp/rates.csv")" -eq 9 ] || fail "$(cat "$tmp/rates.csv")"
sh "$latency" "$tmp/rates.csv" >"$tmp/rates.svg" || fail "latency"
[ "$(grep -c "<title>shared, " "$tmp/rates.svg")" -eq 2 ] || fail "shared is not drawn"
[ "$(grep -c "<title>not shared, " "$tmp/rates.svg")" -eq 2 ] || fail "not shared is not drawn"
if have "$PYTHON3"; then
    $PYTHON3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$tmp/rates.svg" || fail "no XML"
fi

refuses() {
    ! "$@" >"$tmp/out.txt" 2>"$tmp/err.txt" || fail "$* is taken"
}
serve rates shape=260k np=64 ns=all nc=3 batch=3 rates=100 options="--threads 1" >"$tmp/all.csv" || fail "ns=all"
grep -q "^260k,64,64,3,3,100,off,3," "$tmp/all.csv" || fail "$(cat "$tmp/all.csv")"

refuses serve nothing np=64
refuses serve grid size=3
refuses serve rates ns=3
refuses sh "$serving"
refuses sh "$latency" "$tmp/grid.csv"
refuses sh "$latency" "$serving"
