#!/bin/sh
# bench/plots/registers finds in what ptxas says the figures of each kernel.
. "$CATTN_SRCDIR/tests/api/common.sh"

registers=$src/bench/plots/registers
cat >"$tmp/build.log" <<'LOG'
nvcc -Xptxas -v -c kernels.cu
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4foldi' for 'sm_80'
ptxas info    : Function properties for _Z4foldi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 29 registers, used 0 barriers, 368 bytes cmem[0]
ptxas info    : Compiling entry function '_Z4foldi' for 'sm_90'
ptxas info    : Function properties for _Z4foldi
    48 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 48 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 17.1 ms
LOG
sh "$registers" "$tmp/build.log" >"$tmp/all.md" || fail "a log"
[ "$(wc -l <"$tmp/all.md")" -eq 4 ] || fail "rows"
grep -Eq '^\| (fold|_Z4foldi) \| sm_80 \| 29 \| 0 \| 0 \| 0 / 0 \|$' "$tmp/all.md" || fail "no spills"
grep -Eq '^\| (fold|_Z4foldi) \| sm_90 \| 168 \| 1024 \| 48 \| 16 / 20 \|$' "$tmp/all.md" || fail "spills"
sh "$registers" --spills "$tmp/build.log" >"$tmp/spills.md" || fail "--spills"
[ "$(grep -c fold "$tmp/spills.md")" -eq 1 ] || fail "rows of --spills"
! echo nothing | sh "$registers" >"$tmp/none.md" || fail "a log without kernels"
