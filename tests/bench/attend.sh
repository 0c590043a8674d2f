#!/bin/sh
# bench/attend runs every variant on small shapes, finds them right, and writes the CSV that was promised; it refuses
# bad options.  Times are not looked at.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

attend=$build/bench/attend
[ -x "$attend" ] || fail "bench/attend was not built"

columns=variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads
columns=$columns,us,us_min,unique_bytes,gbps,frac_read,gflops,intensity,bound,rel_err,frac_compute

# The last options given win.
run() {
    "$attend" --batch 4 --heads 4 --head-dim 32 --shared 128 --private 70 --passes 1 --seconds 0 --memory 1M \
        --threads 2 "$@"
}

# check FILE DTYPE LIMIT: the header, 21 fields a row, figures that hang together, errors within bounds.
check() {
    [ "$(head -n 1 "$1")" = "$columns" ] || fail "$1: header $(head -n 1 "$1")"
    awk -F, -v dtype="$2" -v limit="$3" '
        NR == 1 { next }
        NF != 21 { print "fields: " $0; exit 1 }
        $1 == "fma" || $1 == "amx" {
            if (!($12 > 0 && $14 == 0 && $16 == 0 && $17 > 0 && $19 == "compute")) { print "slice: " $0; exit 1 }
            if ($3 != ($1 == "amx" ? "bf16" : "f32") || $21 != 1) { print "slice: " $0; exit 1 }
            next
        }
        $3 != dtype && $3 != "f32" { print "dtype: " $0; exit 1 }
        !($12 > 0 && $13 > 0 && $13 <= $12 && $15 >= 0 && $16 >= 0) { print "times: " $0; exit 1 }
        {
            tokens = $1 == "paged" || $1 == "naive" ? $4 * ($9 + $10) : $9 + $4 * $10
            bytes = tokens * 2 * $6 * ($3 == "f32" ? 4 * $7 : $3 == "i8" ? $7 + 4 : 2 * $7)
            work = $1 == "read" ? 0 : 4 * $5 * $7 * $4 * ($9 + $10)
        }
        $14 != bytes { print "bytes: " $0; exit 1 }
        ($18 - work / bytes) ^ 2 > 0.0001 { print "intensity: " $0; exit 1 }
        $19 != "memory" && $19 != "compute" { print "bound: " $0; exit 1 }
        !($21 >= 0) || ($1 == "read" && $21 != 0) { print "frac_compute: " $0; exit 1 }
        !($20 <= limit) || ($1 != "read" && $20 == 0) { print "error: " $0; exit 1 }
    ' "$1" || fail "$1"
}

# has FILE TEXT: the variants are in the CSV; what another library does may be said to be skipped in TEXT instead.
has() {
    for variant in paged paged_shared chunk read fma; do
        grep -q "^$variant," "$1" || fail "$1: no $variant"
    done
    for variant in naive paper onednn amx; do
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

# Several rows of a sequence: the pairs of a row and a token that it sees are those of a trapezium.
run --variants paper,$ours --batch 3 --rows 33 --heads 2 --kv-heads 1 --csv "$tmp/rows.csv" >"$tmp/rows.txt" ||
    fail "rows"
grep -q "^paper: SKIP: not supported" "$tmp/rows.txt" || fail "rows, paper: $(cat "$tmp/rows.txt")"
awk -F, '
    NR == 1 || $1 == "read" { next }
    !($20 <= 1e-5) { print "error: " $0; exit 1 }
    { work = 4 * 32 * 2 * 3 * 33 * (166 + 198) / 2 }
    ($18 - work / $14) ^ 2 > 0.0001 { print "intensity: " $0; exit 1 }
    { names = names $1 " " }
    END { if (names != "paged+33rows paged_shared+33rows chunk+33rows ") { print names; exit 1 } }
    ' "$tmp/rows.csv" || fail "rows"
run --variants chunk --heads 1 --head-dim 16 --grid prefill --warm --csv - >"$tmp/prefill.csv" 2>/dev/null ||
    fail "grid prefill"
shapes=$(cut -d, -f1,4,9,10 "$tmp/prefill.csv" | tail -n +2 | tr '\n' ' ')
[ "$shapes" = "chunk+128rows,1,2048,128 chunk+256rows,1,2048,256 chunk+512rows,1,2048,512 \
chunk+128rows,1,4096,128 chunk+256rows,1,4096,256 chunk+512rows,1,4096,512 " ] || fail "grid prefill: $shapes"

# What only this library does.  The numbers of a window are those of the tokens that are seen.
run --variants naive,onednn,$ours --kv-heads 2 --softcap 20 --window 50 --sink-tokens 3 --alibi --sinks \
    --csv "$tmp/added.csv" >"$tmp/added.txt" || fail "attention that is not plain"
[ "$(grep -c "SKIP: not supported" "$tmp/added.txt")" -eq 2 ] || fail "baselines: $(cat "$tmp/added.txt")"
awk -F, '
    NR == 1 { next }
    !($20 <= 1e-5) { print "error: " $0; exit 1 }
    { bytes = ($1 == "paged+all" ? 4 * 53 : 3 + 4 * 50) * 2 * 2 * 32 * 4 }
    $14 != bytes { print "bytes: " $0; exit 1 }
    { names = names $1 " " }
    END { if (names != "paged+all paged_shared+all chunk+all read ") { print names; exit 1 } }
    ' "$tmp/added.csv" || fail "attention that is not plain"

# grid_of_variants OPTION...: chunk as it is, with each addition, with all.
grid_of_variants() {
    run --variant-grid --passes 2 --csv "$tmp/variants.csv" "$@" >"$tmp/variants.txt" || fail "variant grid $*"
    [ "$(cut -d, -f1 "$tmp/variants.csv" | grep chunk | tr '\n' ' ')" = \
        "chunk chunk+softcap chunk+window chunk+alibi chunk+sinks chunk+all " ] || fail "variant grid $*"
    [ "$(grep -c "of the plain time" "$tmp/variants.txt")" -eq 6 ] || fail "ratios: $(cat "$tmp/variants.txt")"
    grep -q "^chunk .* 1.00 of the plain time" "$tmp/variants.txt" || fail "ratio: $(cat "$tmp/variants.txt")"
}
grid_of_variants --dtype bf16
grid_of_variants --kernel generic --heads 2 --kv-heads 1 --shared 0 --window 30 --sink-tokens 5

run --dtype i8 --kv-heads 2 --csv "$tmp/i8.csv" >"$tmp/i8.txt" || fail "i8"
check "$tmp/i8.csv" i8 5e-3
for variant in paged paged_shared chunk; do
    grep -q "^$variant,.*,i8," "$tmp/i8.csv" || grep -q "^$variant: SKIP: ." "$tmp/i8.txt" || fail "i8, $variant"
done
[ "$(grep -c "^[nop][a-z]*: SKIP: not supported" "$tmp/i8.txt")" -eq 3 ] || fail "i8: $(cat "$tmp/i8.txt")"

run --variants $ours --private 0 --kernel generic --chunk 32 --csv - >"$tmp/all.csv" 2>/dev/null || fail "all shared"
check "$tmp/all.csv" f32 1e-5
[ "$(grep -c ,generic, "$tmp/all.csv")" -eq 3 ] || fail "--kernel generic"

# Beyond a span; uncut runs only if it is asked for.
run --variants chunk,uncut --shared 2048 --heads 2 --csv - >"$tmp/uncut.csv" 2>/dev/null || fail "uncut"
check "$tmp/uncut.csv" f32 1e-5
[ "$(cut -d, -f1 "$tmp/uncut.csv" | tail -n +2 | tr '\n' ' ')" = "chunk uncut " ] || fail "uncut"
! grep -q ^uncut "$tmp/f32.csv" || fail "uncut runs unasked"

# More threads than heads, and batches of different numbers of rows over one store.
run --variants $ours --batch 64 --heads 24 --kv-heads 3 --threads 6 --csv - >"$tmp/threads.csv" 2>/dev/null ||
    fail "threads"
check "$tmp/threads.csv" f32 1e-5

# One fma row: what a row is of the same run, by its own columns (which are rounded).
awk -F, '$1 == "fma" { peak = $17 }
    { kernel[NR] = $2; rate[NR] = $17; part[NR] = $21 }
    END {
        for (i = 2; i <= NR; i++)
            if (kernel[i] !~ /amx/ && (rate[i] / peak - part[i]) ^ 2 > (0.001 + 0.01 / peak) ^ 2) {
                print i ": " rate[i] " of " peak " is not " part[i]
                exit 1
            }
    }' "$tmp/f32.csv" || fail "frac_compute"

# grid NAME SHAPES: one chunk row for each, in that order.
grid() {
    run --variants chunk --heads 1 --head-dim 16 --grid "$1" --warm --csv - >"$tmp/grid.csv" 2>/dev/null ||
        fail "grid $1"
    check "$tmp/grid.csv" f32 1e-5
    shapes=$(tail -n +2 "$tmp/grid.csv" | awk -F, '{ printf "%s%s/%s/%s", (NR > 1 ? " " : ""), $4, $9, $10 }')
    [ "$shapes" = "$2" ] || fail "grid $1: $shapes"
}
grid table3 "4/0/70 4/1024/70 4/2048/70 4/4096/70"
grid figure3 "4/1024/256 4/1024/512 4/1024/1024 4/1024/2048 4/2048/256 4/2048/512 4/2048/1024 4/2048/2048 \
4/4096/256 4/4096/512 4/4096/1024 4/4096/2048"
grid figure4 "16/2048/64 32/2048/64 48/2048/64 64/2048/64 80/2048/64 96/2048/64"
grid batch "1/1024/64 1/2048/64 2/1024/64 2/2048/64 4/1024/64 4/2048/64 8/1024/64 8/2048/64 16/1024/64 16/2048/64 \
32/1024/64 32/2048/64 64/1024/64 64/2048/64 128/1024/64 128/2048/64"

run --variants $ours --quick --grid figure4 >"$tmp/quick.txt" || fail "quick figure4"
[ "$(grep -c " x, .* x$" "$tmp/quick.txt")" -eq 6 ] || fail "quick figure4: $(cat "$tmp/quick.txt")"
run --variants $ours --quick >"$tmp/quick.txt" || fail "quick"
grep -q " x, .* x$" "$tmp/quick.txt" || fail "quick: $(cat "$tmp/quick.txt")"

# Through the public interface.
run --pack --memory 1 >"$tmp/pack.txt" || fail "pack"
grep -q "^batch 4, heads 4 / 4 of 32, .* private 70, f32, 2 threads" "$tmp/pack.txt" || fail "pack"
grep -Eq "storing is [0-9.]+% of a decode step" "$tmp/pack.txt" || fail "pack: $(cat "$tmp/pack.txt")"
run --balance --heads 2 --head-dim 16 --kv-heads 1 --memory 1 >"$tmp/balance.txt" || fail "balance"
for batch in even "one long" "long and short" deep "deep and flat"; do
    grep -Eq "^$batch  +2  +1( +[0-9.]+){3} x( +[12].[0-9][0-9]){3}$" "$tmp/balance.txt" ||
        fail "balance, $batch: $(cat "$tmp/balance.txt")"
done

"$attend" --help >"$tmp/help.txt" || fail "--help"
for variant in naive paper onednn paged paged_shared chunk uncut read fma amx; do
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
refuses --backend nonsense
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
refuses --softcap 0
refuses --softcap 3x
refuses --window 0
refuses --rows 0
refuses --rows 65
refuses --variant-grid --quick
refuses --pack --balance
refuses --balance --threads 1
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
