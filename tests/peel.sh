#!/bin/sh
# peel.sh FEATURE TEST ...
# For `make check-isa`: writes, for each test that runs kernels, a script below tests/isa/FEATURE that runs it as on a
# CPU without this feature, and prints the names of the scripts.  None when there is nothing to peel off: this machine
# (or this build) has no kernel that needs the feature.
set -eu
feature=$1
shift

kernels() { CATTN_CPU_MASK=$1 bench/chunkllama --list-kernels; }

if [ "$(kernels none)" = "$(kernels "$feature")" ]; then
    echo "$feature: not on this machine, nothing to peel off" >&2
    exit
fi
for test in "$@"; do
    case $test in
    *.sh) command="\"\$CATTN_SRCDIR/$test\"" run=sh ;;
    tests/api/* | tests/backends/* | tests/llama/*) command=./$test run= ;;
    *) continue ;;
    esac
    script=tests/isa/$feature/${test#tests/}
    script=${script%.sh}.sh
    mkdir -p "${script%/*}"
    echo "CATTN_CPU_MASK=$feature exec $run $command" > "$script"
    echo "$script"
done
