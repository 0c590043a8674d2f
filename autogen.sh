#!/bin/sh
# Makes configure and Makefile.in from configure.ac and Makefile.am.
set -eu
cd "$(dirname "$0")"

missing=
for tool in autoreconf automake libtoolize; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    echo "autogen.sh: not found:$missing (Debian packages: autoconf automake libtool pkg-config)" >&2
    exit 1
fi

mkdir -p build-aux
exec autoreconf --install --force "$@"
