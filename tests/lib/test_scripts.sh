#!/bin/sh
# The model's directed scripts on the C tree: the same lines, also when every hash collides, and when every allocation of
# every call fails first.  CATTN_BUILDDIR: where script was built.  CATTN_SHARED: the folder that has the model.
src=${CATTN_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
shared=${CATTN_SHARED-$src/../shared}
script=${CATTN_BUILDDIR:-.}/tests/lib/script

[ -d "$shared/model/scripts" ] || { echo "SKIP: shared/model/scripts not found"; exit 77; }
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

n=0 failed=0
for text in "$shared"/model/scripts/*.txt; do
    for option in '' --constant-hash --fail; do
        # shellcheck disable=SC2086 # no option is no word
        "$script" $option "$text" >"$out" 2>&1
        if diff "${text%.txt}.out" "$out"; then n=$((n + 1)); else failed=$((failed + 1)); echo "FAIL: $option $text"; fi
    done
done
echo "$n scripts equal, $failed differ"
[ "$n" -gt 0 ] && [ "$failed" -eq 0 ]
