#!/bin/sh
# bench/tree fills small caches, measures everything that was promised, and writes the CSV; it refuses bad options.
# bench/plots/cost draws that CSV.  Times are not looked at.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

tree=$build/bench/tree
cost=$src/bench/plots/cost
[ -x "$tree" ] || fail "bench/tree was not built"

"$tree" --tokens 60000 --repeats 10 --csv "$tmp/tree.csv" >"$tmp/tree.txt" || fail "--tokens 60000"
[ "$(head -n 1 "$tmp/tree.csv")" = what,tokens,unit,median,min,p99,max,samples ] || fail "header"
awk -F, '
    NR == 1 { next }
    NF != 8 { print "fields: " $0; exit 1 }
    !($4 >= 0 && $5 >= 0 && $5 <= $4 && $4 <= $7 && $6 <= $7 && $8 >= 1) { print "numbers: " $0; exit 1 }
    $2 != 60000 && $2 != 15000 && $2 != 3750 && $2 != 937 && $2 != 234 { print "size: " $0; exit 1 }
    seen[$1, $2]++ { print "twice: " $0; exit 1 }' "$tmp/tree.csv" || fail "$(cat "$tmp/tree.csv")"
for what in "memory: tree" "memory: sequences" "memory: of K and V" match "plain hash" "match: nothing found" \
    "tenant: first request" "tenant: open and close" "prompt: new" "prompt: cached" "prompt: new and pool full" \
    "decode 32: unchanged" "decode 256: unchanged" "decode 32: list rebuilt" "decode 256: list rebuilt" \
    fork truncate close "evict a chunk" "evict one by itself"; do
    grep -q "^$what,60000," "$tmp/tree.csv" || fail "no row of $what"
    grep -q "^$what  *[0-9.]" "$tmp/tree.txt" || fail "no line of $what"
done
sh "$cost" "$tmp/tree.csv" >"$tmp/tree.svg" || fail "plot"
for title in "match, 60000 tokens: " "prompt: new, 234 tokens: " "decode 256: unchanged, 15000 tokens: "; do
    grep -q "<title>$title" "$tmp/tree.svg" || fail "no $title"
done
if have "$PYTHON3"; then
    $PYTHON3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$tmp/tree.svg" || fail "no XML"
fi

"$tree" --tokens 50000 --namespaces 300 --sequences 3 --chunk 32 --repeats 1 --csv - >"$tmp/small.csv" || fail "--csv -"
[ "$(head -n 1 "$tmp/small.csv")" = what,tokens,unit,median,min,p99,max,samples ] || fail "--csv - prints more"

"$tree" --help >"$tmp/help.txt" || fail "--help"
for option in tokens namespaces sequences chunk repeats quick csv; do
    grep -q "^  --$option" "$tmp/help.txt" || fail "--help does not tell $option"
done

refuses() {
    status=0
    "$tree" "$@" >"$tmp/out.txt" 2>"$tmp/err.txt" || status=$?
    [ $status -eq 2 ] || fail "$* gives $status"
    [ ! -s "$tmp/out.txt" ] || fail "$* prints"
    [ -s "$tmp/err.txt" ] || fail "$* says nothing"
}
refuses --no-such-option
refuses argument
refuses --tokens
refuses --tokens 100
refuses --tokens 99999999999999999999
refuses --chunk 48
refuses --repeats 0
refuses --sequences -1

status=0
"$tree" --tokens 50000 --repeats 1 --csv "$tmp/no/such/folder.csv" >/dev/null 2>&1 || status=$?
[ $status -eq 1 ] || fail "a CSV that cannot be written gives $status"

refuses_to_draw() {
    ! sh "$cost" "$@" >"$tmp/out.txt" 2>"$tmp/err.txt" || fail "$* is drawn"
    [ -s "$tmp/err.txt" ] || [ -s "$tmp/out.txt" ] || fail "$* says nothing"
}
refuses_to_draw
refuses_to_draw "$tmp/missing.csv"
refuses_to_draw "$cost"
head -n 1 "$tmp/tree.csv" >"$tmp/empty.csv"
refuses_to_draw "$tmp/empty.csv"
