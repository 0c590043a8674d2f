#!/bin/sh
# summary.sh BUILD [OTHER_BUILD ...]
# Adds up what `make check` left in the logs of one or several builds.  The last line is
#     N passed, M failed, K skipped
# where a test of Check counts as one and so does a shell test.  A test counts once, however many builds ran it: it
# failed if it failed in any of them.  The status is 0 if nothing failed and something passed.
#
# A skipped test says "SKIP: reason".  One whose reason names the shared material, as in "shared/models", although the
# folder is there, counts as failed.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
shared=${CATTN_SHARED-$here/../shared}
if [ -d "$shared" ]; then have_shared=1; else have_shared=0; fi

# One line a test program: name, passed, failed, skipped.
count() {
    awk -v name="$1" -v have_shared="$have_shared" -v build="$2" '
        FILENAME ~ /\.trs$/ { if ($1 == ":test-result:") result = $2; next }
        /^[0-9]+%: Checks: / {
            gsub(/,/, "")
            checks += $3; bad += $5 + $7
        }
        /^SKIP: / {
            skips++
            if (have_shared && / shared\//) { must_run++; print build "/" name ": " $0 > "/dev/stderr" }
        }
        END {
            if (result == "SKIP" && !skips) skips = 1
            if (result != "PASS" && result != "SKIP") {
                if (!bad) bad = 1
                print build "/" name ": " (result ? result : "no result") > "/dev/stderr"
            }
            if (!checks) checks = result == "PASS" ? 1 + skips : skips
            if (checks < bad + skips) checks = bad + skips
            print name, checks - bad - skips, bad + must_run, skips - must_run
        }' "$3.trs" "$3.log"
}

for build in "$@"; do
    (cd "$build" && find tests -name '*.trs' | sort) | while read -r trs; do
        name=${trs%.trs}
        [ -f "$build/$name.log" ] || : > "$build/$name.log"
        count "$name" "$build" "$build/$name"
    done
done | awk '
    !($1 in total) { total[$1] = $2 + $3 + $4; skipped[$1] = $4 }
    $3 > failed[$1] { failed[$1] = $3 }
    END {
        for (t in total) {
            f = failed[t]
            p = total[t] - skipped[t] - f
            if (p < 0) p = 0
            sum_p += p; sum_f += f; sum_s += skipped[t]
        }
        printf "%d passed, %d failed, %d skipped\n", sum_p, sum_f, sum_s
        exit sum_f > 0 || sum_p == 0
    }'
