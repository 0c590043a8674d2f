#!/bin/sh
# The public header compiles alone, and twice, as C99, C11 and C++11.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

cat > "$tmp/header.c" <<'TEXT'
#include <chunkattention.h>
#include <chunkattention.h>
int header_only(void);
int header_only(void) { return CATTN_OK; }
TEXT
cp "$tmp/header.c" "$tmp/header.cc"
strict="-pedantic-errors -Wall -Wextra -Wundef -Wshadow -Werror -I$src/include -fsyntax-only"

for std in c99 c11; do
    # shellcheck disable=SC2086 # lists of words
    $CC -std=$std $strict -Wstrict-prototypes "$tmp/header.c" || fail "not clean as $std"
done
if have "$CXX"; then
    # shellcheck disable=SC2086
    $CXX -std=c++11 $strict "$tmp/header.cc" || fail "not clean as c++11"
else
    echo "note: no C++ compiler"
fi
