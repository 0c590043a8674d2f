#!/bin/sh
# The manual pages are complete and clean: doc/chunkattention.3 names every function and status of the header,
# doc/chunkattention.7 every environment variable that the library reads, and the example compiles.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

page=doc/chunkattention.3
concepts=doc/chunkattention.7
header=$src/include/chunkattention.h

# words FILE: the names of the library in it, one a line.
words() {
    tr -c 'A-Za-z0-9_' '\n' < "$1" | grep -E '^(cattn|CATTN)_[A-Za-z0-9_]+$' | sort -u
}

# entries FILE: the functions that it has a line for.
entries() {
    sed -n 's/^\.BI\{0,1\} \(cattn_[a-z0-9_]*\)(.*/\1/p' "$1" | sort
}

# lacks NAMED: the words on standard input that are not in that list.
lacks() {
    sort -u > "$tmp/wanted"
    comm -23 "$tmp/wanted" "$1" | tr '\n' ' '
}

entries "$src/$page" > "$tmp/entries"
words "$src/$page" > "$tmp/words"
words "$src/$concepts" > "$tmp/concepts"

$CC -E -DCATTN_BUILD "$header" | grep -v '^#' | tr '\n;' ' \n' > "$tmp/declarations"
sed -n 's/.*visibility("default").*[ *]\(cattn_[a-z0-9_]*\) *(.*/\1/p' "$tmp/declarations" > "$tmp/functions"
[ -s "$tmp/functions" ] || fail "found no declaration in the header"
missing=$(lacks "$tmp/entries" < "$tmp/functions")
[ -z "$missing" ] || fail "$page does not have: $missing- add an entry to the .SS of its group, of the form
.TP
.BI NAME( argument \", \" argument )
One or two sentences: what it is for, and its trap if it has one."

# The other way round: nothing is described that is gone.
grep '^cattn_' "$tmp/words" > "$tmp/described"
tr -c 'A-Za-z0-9_' '\n' < "$header" | sort -u > "$tmp/header-words"
gone=$(comm -23 "$tmp/described" "$tmp/header-words" | tr '\n' ' ')
[ -z "$gone" ] || fail "$page still has: $gone- the header does not; take it out"

missing=$(tr -c 'A-Za-z0-9_' '\n' < "$header" | grep -E '^CATTN_E[A-Z]+$' | grep -v '^CATTN_EVENT' |
    lacks "$tmp/words")
[ -z "$missing" ] || fail "$page does not have: $missing- add a .TP with its meaning to .SH ERRORS"

missing=$(find "$src/lib" "$src/backends" -name '*.[ch]' -exec grep -ohE '"CATTN_[A-Z_]+"' {} + | tr -d '"' |
    lacks "$tmp/concepts")
[ -z "$missing" ] || fail "$concepts does not have: $missing- add a .TP with its meaning to .SH ENVIRONMENT"

awk '/^\.EX/ { inside = 1; next } /^\.EE/ { inside = 0 } inside' "$src/$page" | sed 's/\\e/\\/g; s/\\-/-/g' \
    > "$tmp/example.c"
[ -s "$tmp/example.c" ] || fail "$page has no example"
$CC -std=c11 -Wall -Wextra -Werror -I"$src/include" -fsyntax-only "$tmp/example.c" || fail "the example of $page"

checked=
for file in "$page" "$concepts"; do
    if have mandoc; then
        mandoc -Tlint -W warning "$src/$file" || fail "$file: mandoc complains"
        checked=1
    fi
    if have groff; then
        groff -man -Tutf8 -ww -z "$src/$file" > "$tmp/said" 2>&1 || fail "$file: $(cat "$tmp/said")"
        [ ! -s "$tmp/said" ] || fail "$file: $(cat "$tmp/said")"
        checked=1
    fi
done
[ -n "$checked" ] || echo "note: neither mandoc nor groff; the form of the pages was not looked at"
