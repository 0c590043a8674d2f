#!/bin/sh
# Instructions beyond the baseline stay in the objects of their instruction set.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

have objdump || skip "objdump not found"
# shellcheck disable=SC2086 # a list of words
$CC $CFLAGS -dM -E - </dev/null > "$tmp/macros"
grep -q '__x86_64__' "$tmp/macros" || skip "not an x86-64 build"
! grep -q '__AVX__' "$tmp/macros" || skip "CFLAGS ask for AVX everywhere"

cd "$build"
# Prints the files among "$@" that hold an instruction which matches.
holders() {
    pattern=$1
    shift
    for object in "$@"; do
        # Not in one pipe: grep -q would close it early.
        objdump -d --no-show-raw-insn "$object" > "$tmp/code"
        ! grep -Eq "$pattern" "$tmp/code" || echo "$object"
    done
}

objects=$(find lib backends -name '*.o' | sort)
[ -n "$objects" ] || fail "no objects"
# Prints the objects whose instruction set matches.
built_for() { echo "$objects" | grep -E "libcattn_($1)_la-" || :; }
baseline=$(echo "$objects" | grep -Ev 'libcattn_(avx2|avx512|vnni|amx)_la-')
avx2=$(built_for avx2)
avx512=$(built_for avx512)
vnni=$(built_for vnni)
amx=$(built_for amx)
tile='%tmm|(ld|st)tilecfg|tilerelease'
bf16='vdpbf16ps|vcvtne2?ps2bf16'
vnni_only='vpdp(bu|ws)sds?'

# shellcheck disable=SC2086 # lists of words
{
    # Any VEX or EVEX encoding of a vector instruction, not only the wide ones.
    found=$(holders '[[:space:]]v[a-z0-9]+ .*%[xyz]mm' $baseline)
    [ -z "$found" ] || fail "AVX instructions in baseline objects: $found"
    found=$(holders '%zmm' $avx2)
    [ -z "$found" ] || fail "AVX-512 instructions in AVX2 objects: $found"
    [ "$(holders '%ymm' $avx2)" = "$avx2" ] || fail "AVX2 objects without AVX: $avx2"
    [ "$(holders '%zmm' $avx512)" = "$avx512" ] || fail "AVX-512 objects without AVX-512: $avx512"
    found=$(holders "$tile|$bf16" $baseline $avx2 $avx512 $vnni)
    [ -z "$found" ] || fail "AMX or BF16 instructions outside of AMX objects: $found"
    [ "$(holders "$tile" $amx)" = "$amx" ] || fail "AMX objects without tiles: $amx"
    found=$(holders "$vnni_only" $baseline $avx2 $avx512 $amx)
    [ -z "$found" ] || fail "VNNI instructions outside of VNNI objects: $found"
    [ "$(holders "$vnni_only" $vnni)" = "$vnni" ] || fail "VNNI objects without VNNI: $vnni"
}
