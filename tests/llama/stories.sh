#!/bin/sh
# The real model gives the recorded tokens: see stories.py.  CHUNKLLAMA: the program that runs it.
: "${CATTN_SRCDIR:=$(pwd)}" "${CATTN_BUILDDIR:=$(pwd)}" "${CATTN_SHARED:=$CATTN_SRCDIR/../shared}"

for name in stories260K.gguf stories260k_greedy.json stories260k_edges.json stories260k_logits.f32; do
    if test ! -f "$CATTN_SHARED/models/$name"; then
        echo "SKIP: shared/models/$name not found"
        exit 77
    fi
done
: "${PYTHON3:=python3}"
if ! "$PYTHON3" -c '' 2>/dev/null; then
    echo "SKIP: shared/models is there but python3 is not found"
    exit 77
fi
exec "$PYTHON3" "$CATTN_SRCDIR/tests/llama/stories.py" "${CHUNKLLAMA-$CATTN_BUILDDIR/bench/chunkllama}" \
    "$CATTN_SHARED/models" "$@"
