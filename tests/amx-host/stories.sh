#!/bin/sh
# The real model on the kernel amx: the tests of stories.py that store K and V as bf16.
CHUNKLLAMA=$CATTN_BUILDDIR/tests/amx-host/chunkllama exec sh "$CATTN_SRCDIR/tests/llama/stories.sh" \
    test_narrow test_bits
