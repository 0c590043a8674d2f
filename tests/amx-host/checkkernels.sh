#!/bin/sh
# The kernel amx, each fold by itself: all cases that are drawn are for it.
exec "$CATTN_BUILDDIR/tests/amx-host/checkkernels" --kernel amx
