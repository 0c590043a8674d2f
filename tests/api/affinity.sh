#!/bin/sh
# More threads than CPUs, as a process finds it that starts so: OpenMP counts CPUs once, and here may wait as it likes.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

have taskset || skip "taskset not found"
[ -x "$build/tests/api/test_threads" ] || skip "no unit tests in this build"

cpu=$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')
unset OMP_WAIT_POLICY
taskset -c "$cpu" "$build/tests/api/test_threads" || fail "with one CPU"
