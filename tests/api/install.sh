#!/bin/sh
# The library is installed below a folder, and programs are built there with pkg-config and with CMake: shared and
# static, C and C++.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

install_below "$tmp/root"
[ -f "$includedir/chunkattention.h" ] || fail "no header"
for section in 3 7; do
    [ -n "$(find "$tmp/root" -path "*/man$section/chunkattention.$section*")" ] || fail "no manual page in section $section"
done
version=$(sed -n 's/^Version: //p' "$libdir/pkgconfig/chunkattention.pc")
consumer=$src/tests/api/consumer.c

# run NAME PROGRAM: it prints the version.
run() {
    said=$(run_installed "$2") || fail "$1: status $?"
    [ "$said" = "$version" ] || fail "$1: said '$said'"
    echo "$1: ok"
}

if have "$PKG_CONFIG"; then
    cflags=$($PKG_CONFIG --cflags chunkattention)
    # shellcheck disable=SC2046,SC2086 # lists of words
    if [ -f "$libdir/libchunkattention.so" ]; then
        $CC -std=c99 $CFLAGS $cflags "$consumer" -o "$tmp/shared" $($PKG_CONFIG --libs chunkattention)
        run "C, shared" "$tmp/shared"
        if have "$CXX"; then
            $CXX -std=c++11 $cflags -x c++ "$consumer" -o "$tmp/cxx" $($PKG_CONFIG --libs chunkattention)
            run "C++, shared" "$tmp/cxx"
        fi
    fi
    # shellcheck disable=SC2046,SC2086
    if [ -f "$libdir/libchunkattention.a" ]; then
        # In a folder without the shared library the linker takes the static one.
        mkdir "$tmp/static.lib"
        cp "$libdir/libchunkattention.a" "$tmp/static.lib"
        $CC -std=c99 $CFLAGS $cflags "$consumer" -o "$tmp/static" -L"$tmp/static.lib" \
            $($PKG_CONFIG --static --libs chunkattention | sed "s|-L$libdir||")
        run "C, static" "$tmp/static"
    fi
else
    echo "note: no pkg-config"
fi

if have "$CMAKE"; then
    # The package finds its files wherever the whole was moved.
    mv "$tmp/root" "$tmp/moved"
    libdir=$tmp/moved$CATTN_LIBDIR
    mkdir "$tmp/cmake"
    cat > "$tmp/cmake/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.10)
project(consumer C)
find_package(ChunkAttention ${WANT} REQUIRED)
add_executable(consumer ${SOURCE})
target_link_libraries(consumer ChunkAttention::chunkattention)
if(TARGET ChunkAttention::static)
    add_executable(consumer_static ${SOURCE})
    target_link_libraries(consumer_static ChunkAttention::static)
endif()
TEXT
    find_package_of() {
        rm -rf "$tmp/cmake/build"
        $CMAKE -S "$tmp/cmake" -B "$tmp/cmake/build" -DCMAKE_C_COMPILER="${CC%% *}" -DCMAKE_C_FLAGS="$CFLAGS" \
            -DSOURCE="$consumer" -DWANT="$1" -DChunkAttention_DIR="$libdir/cmake/ChunkAttention" > "$tmp/cmake.log" 2>&1
    }
    find_package_of "$version" || { cat "$tmp/cmake.log"; fail "find_package"; }
    $CMAKE --build "$tmp/cmake/build" >> "$tmp/cmake.log" 2>&1 || { cat "$tmp/cmake.log"; fail "CMake build"; }
    run "CMake" "$tmp/cmake/build/consumer"
    [ ! -f "$libdir/libchunkattention.a" ] || run "CMake, static" "$tmp/cmake/build/consumer_static"
    ! find_package_of 99.0 || fail "find_package takes version 99.0"
else
    echo "note: no cmake"
fi
