# Read by the shell tests here; make check sets their environment.
set -eu
export LC_ALL=C

src=$CATTN_SRCDIR
build=$CATTN_BUILDDIR
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

fail() { echo "FAIL: $*"; exit 1; }
skip() { echo "SKIP: $*"; exit 77; }
have() { [ -n "$1" ] && command -v "${1%% *}" >/dev/null 2>&1; }

# Installs this build below a folder, quietly, and points pkg-config there.
install_below() {
    root=$1
    (
        unset MAKEFLAGS MFLAGS MAKELEVEL || :
        make -C "$build" install DESTDIR="$root" >"$tmp/install.log" 2>&1
    ) || { cat "$tmp/install.log"; fail "make install"; }
    libdir=$root$CATTN_LIBDIR
    includedir=$root$CATTN_INCLUDEDIR
    PKG_CONFIG_SYSROOT_DIR=$root
    PKG_CONFIG_LIBDIR=$libdir/pkgconfig
    PKG_CONFIG_PATH=
    PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1
    PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
    export PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_LIBDIR PKG_CONFIG_PATH
    export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS PKG_CONFIG_ALLOW_SYSTEM_LIBS
}

# Runs a program with the library just installed.
run_installed() {
    LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}
