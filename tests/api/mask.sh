#!/bin/sh
# CATTN_CPU_MASK: each level of the processor can be forced, and what is chosen and what is listed follow it.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

chunkllama=$build/bench/chunkllama
[ -x "$chunkllama" ] || fail "bench/chunkllama was not built"
unset CATTN_KERNEL CATTN_BACKEND || :

# kernels MASK: those that it leaves, best first, in one line.
kernels() { CATTN_CPU_MASK=$1 "$chunkllama" --list-kernels | tr '\n' ' '; }

# chosen MASK: the kernel that a cache gets.
chosen() {
    CATTN_CPU_MASK=$1 "$chunkllama" --shape 260k --kv-dtype bf16 --threads 1 --prompt a --n-predict 1 --stats 2>&1 >/dev/null |
        sed -n 's/.*kernel \([a-z0-9]*\).*/\1/p'
}

# without PATTERN: the kernels of this machine whose names do not match.
without() {
    for kernel in $all; do
        echo "$kernel" | grep -Eqx "$1" || printf '%s ' "$kernel"
    done
}

all=$(kernels '')
[ "$(kernels none)" = "$all" ] || fail "none: $(kernels none)"
for level in "amx:amx.*" "vnni:.*vnni" "amx,vnni:amx.*|.*vnni" "avx512:amx.*|avx512.*" "avx2:amx.*|avx.*"; do
    mask=${level%%:*}
    expected=$(without "${level#*:}")
    [ "$(kernels "$mask")" = "$expected" ] || fail "$mask leaves $(kernels "$mask"), not $expected"
    case " $expected" in
    *" $(chosen "$mask") "*) ;;
    *) fail "$mask: a cache gets '$(chosen "$mask")', not one of $expected" ;;
    esac
done
[ "$(kernels avx2)" = "generic " ] || fail "avx2 leaves $(kernels avx2)"

for mask in sse2 AVX2 avx2, "avx2 amx"; do
    [ -z "$(kernels "$mask")" ] || fail "'$mask' is not understood, but leaves $(kernels "$mask")"
    ! CATTN_CPU_MASK=$mask "$chunkllama" --shape 260k --prompt a >"$tmp/out" 2>&1 || fail "'$mask' goes unnoticed"
    grep -q "not usable" "$tmp/out" || fail "'$mask': $(cat "$tmp/out")"
done
