#!/bin/sh
# Prints the compiler for a build under sanitizers: clang, where it and their run-times are installed, else the one given.
# Usage: sanitizer_cc.sh CC SANITIZERS
try=$(mktemp -d) || exit 1
trap 'rm -rf "$try"' EXIT
echo 'int main(void) { return 0; }' > "$try/try.c"
if clang -fsanitize="$2" -o "$try/try" "$try/try.c" >/dev/null 2>&1 && "$try/try" >/dev/null 2>&1; then
    echo clang
else
    echo "$1"
fi
