#!/bin/sh
# The kernels on tiles, each fold by itself: all cases that are drawn are for them.
set -e
"$CATTN_BUILDDIR/tests/amx-host/checkkernels" --kernel amx
"$CATTN_BUILDDIR/tests/amx-host/checkkernels" --kernel amxf32
