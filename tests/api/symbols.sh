#!/bin/sh
# The shared library exports the functions marked CATTN_API in the header, and nothing else; what is global in the
# static one carries the prefix.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

have nm || skip "nm not found"

# A declaration a line; CATTN_API shows as the attribute it stands for.
$CC -E -DCATTN_BUILD "$src/include/chunkattention.h" | grep -v '^#' | tr '\n;' ' \n' |
    sed -n 's/.*visibility("default").*[ *]\(cattn_[a-z0-9_]*\) *(.*/\1/p' | sort > "$tmp/declared"
[ -s "$tmp/declared" ] || fail "found no declaration in the header"

checked=
if [ -f "$build/.libs/libchunkattention.so" ]; then
    nm -D --defined-only "$build/.libs/libchunkattention.so" | awk '{ print $NF }' | sort > "$tmp/exported"
    diff "$tmp/declared" "$tmp/exported" || fail "declared (<) and exported (>) differ"
    checked=1
fi
if [ -f "$build/.libs/libchunkattention.a" ]; then
    nm -g --defined-only "$build/.libs/libchunkattention.a" 2>/dev/null |
        awk 'NF == 3 && $3 !~ /^cattn_/ { print $3 }' > "$tmp/strangers"
    [ ! -s "$tmp/strangers" ] || { cat "$tmp/strangers"; fail "global names without the prefix"; }
    checked=1
fi
[ -n "$checked" ] || fail "no library in $build/.libs"
