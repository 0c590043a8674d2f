#!/bin/sh
# Prints what to configure a build under sanitizers with: clang, where it and their run-times are installed, else the
# compiler given.
# Usage: sanitizer_cc.sh CC SANITIZERS
try=$(mktemp -d) || exit 1
trap 'rm -rf "$try"' EXIT
echo 'int main(void) { return 0; }' > "$try/try.c"
if clang -fsanitize="$2" -o "$try/try" "$try/try.c" >/dev/null 2>&1 && "$try/try" >/dev/null 2>&1; then
    echo CC=clang --disable-openmp
else
    echo "CC=$1"
fi
