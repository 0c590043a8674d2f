#!/bin/sh
# The program of README.md has at most 40 lines, compiles against the installed library and prints what the README says.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

# block LANGUAGE: the first one fenced as this.
block() {
    awk -v fence="\`\`\`$1" '
        $0 == fence && !done { inside = 1; next }
        inside && /^```/ { inside = 0; done = 1 }
        inside' "$src/README.md"
}

block c > "$tmp/program.c"
block text > "$tmp/expected"
lines=$(wc -l < "$tmp/program.c")
[ "$lines" -gt 0 ] && [ "$lines" -le 40 ] || fail "the program has $lines lines"

install_below "$tmp/root"
libs=-lchunkattention
if [ ! -f "$libdir/libchunkattention.so" ]; then
    libs="$libs $OPENMP_CFLAGS -lm"
fi
# shellcheck disable=SC2086 # lists of words
$CC -std=c11 -Wall -Wextra -Werror $CFLAGS -I"$includedir" "$tmp/program.c" -o "$tmp/program" -L"$libdir" $libs
run_installed "$tmp/program" > "$tmp/said" || fail "status $?"
diff "$tmp/expected" "$tmp/said" || fail "README.md (<) and the program (>) say different things"
