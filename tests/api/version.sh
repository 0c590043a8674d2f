#!/bin/sh
# The version is the same wherever it is written.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

header=$src/include/chunkattention.h
macro() { awk -v name="CATTN_VERSION_$1" '$1 == "#define" && $2 == name { gsub(/"/, ""); print $3 }' "$header"; }

configured=$(sed -n 's/^AC_INIT(\[libchunkattention\], \[\([^]]*\)\].*/\1/p' "$src/configure.ac")
numbers=$(macro MAJOR).$(macro MINOR).$(macro PATCH)
string=$(macro STRING)
news=$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' "$src/NEWS.md" | sed 1q)
pc=$(sed -n 's/^Version: //p' "$build/chunkattention.pc")

for other in "$numbers" "$string" "$news" "$pc"; do
    [ "$other" = "$configured" ] ||
        fail "configure.ac: $configured, header: $numbers and $string, NEWS.md: $news, chunkattention.pc: $pc"
done
