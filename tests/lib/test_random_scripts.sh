#!/bin/sh
# Random scripts on the model and on the C tree.  CATTN_SCRIPT_SEEDS: how many (100).
src=${CATTN_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
shared=${CATTN_SHARED-$src/../shared}
script=${CATTN_BUILDDIR:-.}/tests/lib/script
python=${PYTHON3:-python3}
seeds=${CATTN_SCRIPT_SEEDS:-100}

[ -f "$shared/model/model.py" ] || { echo "SKIP: shared/model/model.py not found"; exit 77; }
command -v "$python" >/dev/null 2>&1 || { echo "SKIP: python3 not found"; exit 77; }

run() { "$python" "$src/tests/lib/random_scripts.py" "$shared/model" "$script" "$@"; }
run "$seeds" 1 && run $((seeds / 4 + 1)) 100001 --constant-hash && run $((seeds / 4 + 1)) 200001 --fail
