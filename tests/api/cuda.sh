#!/bin/sh
# A library that was built with the CUDA backend works where there is no driver: it is loaded, says that the backend is
# not usable, and computes on the CPU.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

cat > "$tmp/program.c" <<'TEXT'
#include <chunkattention.h>
#include <stdio.h>
#include <string.h>

static int find(const char *name)
{
    for (unsigned i = 0; cattn_backend_name(i); i++) {
        if (!strcmp(cattn_backend_name(i), name))
            return 1;
    }
    return 0;
}

int main(void)
{
    struct cattn_config config = {.size = sizeof(config), .n_layers = 1, .n_heads = 1, .n_kv_heads = 1,
                                  .head_dim = 64, .io_dtype = CATTN_F16, .kv_dtype = CATTN_F16, .max_tokens = 64};
    struct cattn_info info = {.size = sizeof(info)};
    cattn_cache *cache;
    if (!find("cuda") || !find("cpu"))
        return puts("a backend is missing"), 1;
    if (cattn_cache_create(&config, &cache) || cattn_cache_info(cache, &info) || strcmp(info.backend, "cpu"))
        return puts("the default is not the CPU"), 1;
    cattn_cache_destroy(cache);
    if (cattn_backend_usable("cuda"))
        return puts("usable"), 77;
    config.backend = "cuda";
    if (cattn_cache_create(&config, &cache) != CATTN_ENOTSUP || cattn_backend_kernel("cuda", 0))
        return puts("cuda is there, and is not"), 1;
    return 0;
}
TEXT

# run NAME PROGRAM: it says nothing.
run() {
    status=0
    said=$(env -u CATTN_BACKEND -u CATTN_KERNEL CUDA_VISIBLE_DEVICES= LD_LIBRARY_PATH="$build/.libs" "$2" 2>&1) ||
        status=$?
    [ "$status" -ne 77 ] || skip "the device cannot be hidden"
    [ "$status" -eq 0 ] && [ -z "$said" ] || fail "$1: status $status, said '$said'"
    echo "$1: ok"
}

libs=$(sed -n 's/^Libs.private: //p' "$build/chunkattention.pc")
# shellcheck disable=SC2086 # lists of words
if [ -f "$build/.libs/libchunkattention.so" ]; then
    $CC -std=c99 $CFLAGS -I"$src/include" "$tmp/program.c" -o "$tmp/shared" -L"$build/.libs" -lchunkattention
    run "shared" "$tmp/shared"
    ! LD_LIBRARY_PATH="$build/.libs" ldd "$tmp/shared" | grep -E 'libcuda|not found' || fail "needs libraries of CUDA"
fi
# shellcheck disable=SC2086
if [ -f "$build/.libs/libchunkattention.a" ]; then
    $CC -std=c99 $CFLAGS -I"$src/include" "$tmp/program.c" -o "$tmp/static" "$build/.libs/libchunkattention.a" $libs
    run "static" "$tmp/static"
fi
[ -s "$build/backends/cuda/kernels.txt" ] || fail "the build did not say what its kernels take"
# Which kernels fit exactly differs from one nvcc to the next: none spills with 13.0, and 16 bytes with 11.8.
spilled=$(awk '$(NF - 2) > 32' "$build/backends/cuda/kernels.txt")
[ -z "$spilled" ] || fail "registers are spilled: $spilled"
