#!/bin/sh
# bench/attend runs every variant on small shapes, finds them right, and writes the CSV that was promised; it refuses bad
# options.  Times are not looked at.
. "$CATTN_SRCDIR/tests/api/common.sh"

attend=$build/bench/attend
[ -x "$attend" ] || fail "bench/attend was not built"

columns=variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads
columns=$columns,us,us_min,unique_bytes,gbps,frac_read,gflops,intensity,bound,rel_err

# The last options given win.
run() {
    "$attend" --batch 4 --heads 4 --head-dim 32 --shared 128 --private 70 --passes 1 --seconds 0 --memory 1M \
        --threads 2 "$@"
}

# check FILE DTYPE LIMIT: the header, 20 fields a row, figures that hang together, errors within bounds.
check() {
    [ "$(head -n 1 "$1")" = "$columns" ] || fail "$1: header $(head -n 1 "$1")"
    awk -F, -v dtype="$2" -v limit="$3" '
        NR == 1 { next }
        NF != 20 { print "fields: " $0; exit 1 }
        $3 != dtype && $3 != "f32" { print "dtype: " $0; exit 1 }
        !($12 > 0 && $13 > 0 && $13 <= $12 && $15 >= 0 && $16 >= 0) { print "times: " $0; exit 1 }
        {
            tokens = $1 == "paged" || $1 == "naive" ? $4 * ($9 + $10) : $9 + $4 * $10
            bytes = tokens * 2 * $6 * $7 * ($3 == "f32" ? 4 : 2)
            work = $1 == "read" ? 0 : 4 * $5 * $7 * $4 * ($9 + $10)
        }
        $14 != bytes { print "bytes: " $0; exit 1 }
        ($18 - work / bytes) ^ 2 > 0.0001 { print "intensity: " $0; exit 1 }
        $19 != "memory" && $19 != "compute" { print "bound: " $0; exit 1 }
        !($20 <= limit) || ($1 != "read" && $20 == 0) { print "error: " $0; exit 1 }
    ' "$1" || fail "$1"
}

# has FILE TEXT: the variants are in the CSV; what another library does may be said to be skipped in TEXT instead.
has() {
    for variant in paged paged_shared chunk read; do
        grep -q "^$variant," "$1" || fail "$1: no $variant"
    done
    for variant in naive paper onednn; do
        grep -q "^$variant," "$1" || grep -q "^$variant: SKIP: ." "$2" || fail "$1: no $variant, and no reason"
    done
}

run --csv "$tmp/f32.csv" >"$tmp/f32.txt" || fail "f32"
check "$tmp/f32.csv" f32 1e-5
has "$tmp/f32.csv" "$tmp/f32.txt"
check "$tmp/f32.pass1.csv" f32 1e-5
has "$tmp/f32.pass1.csv" "$tmp/f32.txt"
[ ! -e "$tmp/f32.pass2.csv" ] || fail "a second pass"

run --kv-heads 2 --dtype bf16 --threads 1 --csv - >"$tmp/bf16.csv" 2>"$tmp/bf16.txt" || fail "bf16"
check "$tmp/bf16.csv" bf16 2e-2
has "$tmp/bf16.csv" "$tmp/bf16.txt"

ours=paged,paged_shared,chunk,read
run --variants $ours --dtype f16 --heads 6 --kv-heads 2 --batch 3 --shared 0 --csv - >"$tmp/f16.csv" 2>/dev/null ||
    fail "f16"
check "$tmp/f16.csv" f16 1e-2
run --variants $ours --private 0 --kernel generic --chunk 32 --csv - >"$tmp/all.csv" 2>/dev/null || fail "all shared"
check "$tmp/all.csv" f32 1e-5
[ "$(grep -c ,generic, "$tmp/all.csv")" -eq 3 ] || fail "--kernel generic"

# More threads than heads, and batches of different numbers of rows over one store.
run --variants $ours --batch 64 --heads 24 --kv-heads 3 --threads 6 --csv - >"$tmp/threads.csv" 2>/dev/null ||
    fail "threads"
check "$tmp/threads.csv" f32 1e-5

run --variants chunk --grid table3 --warm --csv - >"$tmp/grid.csv" 2>/dev/null || fail "grid"
check "$tmp/grid.csv" f32 1e-5
[ "$(cut -d, -f1,9 "$tmp/grid.csv" | tail -n +2 | tr '\n' ' ')" = "chunk,0 chunk,1024 chunk,2048 chunk,4096 " ] ||
    fail "grid: $(cat "$tmp/grid.csv")"

run --variants $ours --quick >"$tmp/quick.txt" || fail "quick"
grep -q " x, .* x$" "$tmp/quick.txt" || fail "quick: $(cat "$tmp/quick.txt")"

"$attend" --help >"$tmp/help.txt" || fail "--help"
for variant in naive paper onednn paged paged_shared chunk read; do
    grep -q "^  $variant " "$tmp/help.txt" || fail "--help does not tell $variant"
done

refuses() {
    status=0
    "$attend" "$@" >"$tmp/out.txt" 2>"$tmp/err.txt" || status=$?
    [ $status -eq 2 ] || fail "$* gives $status"
    [ ! -s "$tmp/out.txt" ] || fail "$* prints"
    [ -s "$tmp/err.txt" ] || fail "$* says nothing"
}
refuses --no-such-option
refuses argument
refuses --batch
refuses --batch 0
refuses --batch -1
refuses --batch 3x
refuses --batch 99999999999999999999
refuses --heads 4 --kv-heads 3
refuses --chunk 48
refuses --shared 100
refuses --shared 0 --private 0
refuses --dtype f64
refuses --kernel no-such-kernel
refuses --variants chunk,none
refuses --variants ''
refuses --grid table4
refuses --memory 0
refuses --memory 1T
refuses --seconds many
refuses --passes 0

status=0
run --variants read --csv "$tmp/no/such/folder.csv" >/dev/null 2>&1 || status=$?
[ $status -eq 1 ] || fail "a CSV that cannot be written gives $status"
