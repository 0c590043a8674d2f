#!/bin/sh
# mutants.sh [NAME...]: breaks the CUDA kernels, and what they ask of the device, in one place at a time, and sees
# whether the tests on the CPU notice.  `make check-cuda-mutants` runs it in the build directory, with in its environment
# MUTANT_COMPILE (a C++ compiler and its flags), MUTANT_LINK (libtool and all) and MUTANT_LIBS.  Without names: all.
#
# A mutant is  NAME FILE BUILD OCCURRENCE PATTERN REPLACEMENT, separated by tabs: FILE is `kernels` or `ptx`; BUILD is
# the sanitizer of the build that must notice, or plain; OCCURRENCE counts the lines with the pattern.
set -eu
src=${CATTN_SRCDIR:?}
work=tests/cuda-host/mutants.d
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

list() {
    # ---- kernels: barriers, waits
    for i in 1 2 3 4 5 6; do
        m "barrier$i" kernels thread $i '^ +ptx_barrier\(\);' ';'
    done
    m warp_barrier kernels thread 1 '^ +ptx_warp_barrier\(\);$' ';'
    for i in 1 2 3 4; do
        m "wait$i" kernels plain $i '^ +ptx_copy_wait<[0-9]>\(\);' ';'
    done
    m late_wait kernels plain 2 'ptx_copy_wait<2>' 'ptx_copy_wait<3>'
    # ---- kernels: a place too far
    m read_queries kernels address 1 'smaller\(i, w.n_rows - 1\)' 'smaller(i, w.n_rows)'
    m read_query kernels address 1 'd < c.head_dim \?' 'd <= c.head_dim ?'
    m read_keys kernels plain 1 'i < left \? 16' 'i <= left ? 16'
    m write_output kernels plain 1 'd >= c.v_head_dim' 'd > c.v_head_dim'
    m see_next kernels plain 1 't <= position\)' 't <= position + 1)'
    m see_less kernels plain 1 't <= position\)' 't < position)'
    m window kernels plain 1 '< w.window\) \|' '<= w.window) |'
    m sink_tokens kernels plain 1 't < w.sinks\)\);' 't <= w.sinks));'
    # ---- kernels: states
    m unseen_rows kernels plain 1 'if \(p.seen\[i / 2\]\)' 'if (true)'
    m no_rescale kernels plain 1 'd\[i\] = fmaf\(d\[i\], p.alpha\[i / 2\], tile\[i\]\)' 'd[i] += tile[i]'
    m fold_all kernels plain 1 'i < s.n; i \+= FOLD_AHEAD' 'i + 1 < s.n; i += FOLD_AHEAD'
    m store_more kernels plain 1 'plan.writes\[i / c.n_kv_heads\]' 'plan.writes[0]'
    m advance kernels plain 1 'row_positions\[i\] \+= a.delta' 'row_positions[i] += 0'
    # ---- what the device does
    m ptx_thread ptx plain 1 'return exec_now.thread' 'return exec_now.thread / 2 * 2'
    m ptx_block_x ptx plain 1 'return exec_now.block_x' 'return exec_now.block_x / 2'
    m ptx_block_y ptx plain 1 'return exec_now.block_y' 'return exec_now.block_y + 1'
    m ptx_grid_x ptx plain 1 'return exec_now.grid_x' 'return exec_now.grid_x + 1'
    m ptx_shared ptx address 1 'return exec_now.shared' 'return exec_now.shared + 16'
    m ptx_barrier ptx thread 1 'exec_barrier\(\);' ';'
    m ptx_warp_barrier ptx thread 1 'exec_warp_barrier\(\);' ';'
    m ptx_copy16 ptx plain 1 'exec_copy16\(shared, global, bytes\)' 'exec_copy16(shared, global, 16)'
    m ptx_copy_commit ptx plain 1 'exec_copy_commit\(\);' ';'
    m ptx_copy_wait ptx plain 1 'exec_copy_wait\(N\)' 'exec_copy_wait(N + 1)'
    m ptx_ldmatrix_x4 ptx plain 1 'row = lane / 4, column = lane % 4 \* 2' 'row = lane / 4, column = (lane + 1) % 4 * 2'
    m ptx_ldmatrix_x4_trans ptx plain 1 'column = lane / 4, row = lane % 4 \* 2' 'row = lane / 4, column = lane % 4 * 2'
    m ptx_mma_a ptx plain 1 'a\[g \+ i / 2 % 2 \* 8\]\[2 \* t \+ i % 2 \+ i / 4 \* 8\]' 'a[g + i / 4 * 8][2 * t + i % 2 + i / 2 % 2 * 8]'
    m ptx_mma_b ptx plain 1 'b\[2 \* t \+ i % 2 \+ i / 2 \* 8\]\[g\]' 'b[t + i / 2 * 4 + i % 2 * 8][g]'
    m ptx_mma_d ptx plain 1 'd\[lane / 4 \+ i / 2 \* 8\]\[lane % 4 \* 2 \+ i % 2\]' 'd[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2]'
    m ptx_mma_f16 ptx plain 1 'ptx_mma_all<ptx_f16_to_f32>\)' 'ptx_mma_all<ptx_bf16_to_f32>)'
    m ptx_mma_bf16 ptx plain 1 'ptx_mma_all<ptx_bf16_to_f32>\)' 'ptx_mma_all<ptx_f16_to_f32>)'
    m ptx_pack_f16 ptx plain 1 'ptx_f32_to_f16\(high\) << 16 \| ptx_f32_to_f16\(low\)' 'ptx_f32_to_f16(low) << 16 | ptx_f32_to_f16(high)'
    m ptx_pack_bf16 ptx plain 1 'ptx_f32_to_bf16\(high\) << 16 \| ptx_f32_to_bf16\(low\)' 'ptx_f32_to_bf16(low) << 16 | ptx_f32_to_bf16(high)'
    m ptx_f16_to_f32 ptx plain 1 '0x1p112f' '0x1p111f'
    m ptx_bf16_to_f32 ptx plain 1 'return ptx_float\(\(uint32_t\)x << 16\)' 'return ptx_float((uint32_t)x << 15)'
    m ptx_f32_to_f16 ptx plain 1 '0xfff \+ \(magnitude' '0 * (magnitude'
    m ptx_f32_to_bf16 ptx plain 1 'bits \+ 0x7fff \+' 'bits + 0x8000 +'
    m ptx_exp2 ptx plain 1 'ptx_flush\(exp2f' 'ptx_flush(expf'
    m ptx_exp2_flush ptx plain 1 'return ptx_flush\(exp2f\(ptx_flush\(x\)\)\)' 'return exp2f(x)'
    m ptx_mul ptx plain 1 'return a \* b' 'return a * b * 1.01f'
    m ptx_shuffle_xor ptx plain 1 '\(int\)ptx_thread\(\) \^ mask\)' '(int)ptx_thread() ^ (mask + 1))'
    m ptx_shuffle ptx plain 1 'ptx_shuffle_bits\(ptx_bits\(x\), lane\)' 'ptx_shuffle_bits(ptx_bits(x), lane + 1)'
    m ptx_any ptx plain 1 'int lane = x != 0' 'int lane = x == 0'
    m ptx_all ptx plain 1 'return !ptx_any\(!x\)' 'return ptx_any(x)'
}

. "$src/tests/support/mutants.sh"

# link NAME BUILD OBJECTS...
link() {
    name=$1 flag=
    [ "$2" = plain ] || flag="-fsanitize=$2"
    build=$2
    shift 2
    # shellcheck disable=SC2086 # lists of words
    $MUTANT_LINK $flag -export-dynamic -o "$work/$name" "tests/cuda-host/exec-$build.o" "$@" $MUTANT_LIBS
}

# notices PROGRAM: it fails, by a test or a sanitizer.
notices() {
    ! CK_VERBOSITY=silent timeout 300 "$work/$1" > "$work/log" 2>&1
}

# compile OBJECT SOURCE: with the mutated twin.
compile() {
    # shellcheck disable=SC2086
    $MUTANT_COMPILE -I"$work" $flag -include "$work/ptx.h" -x c++ -c -o "$work/$1" "$2"
}

# try NAME FILE BUILD OCCURRENCE PATTERN REPLACEMENT
try() {
    flag=
    [ "$3" = plain ] || flag="-fsanitize=$3"
    cp "$src/backends/cuda/kernels.cu" "$work/kernels.cu"
    cp "$src/tests/cuda-host/ptx.h" "$work/ptx.h"
    case $2 in
    kernels) file=kernels.cu ;;
    *) file=ptx.h ;;
    esac
    if ! mutate "$work/$file" "$4" "$5" "$6" > "$work/mutated"; then
        echo "$1: no such line" && return 1
    fi
    mv "$work/mutated" "$work/$file"
    if [ "$2" = ptx ]; then
        compile exec.o "$src/tests/cuda-host/test_exec.cc"
        link exec "$3" "$work/exec.o"
        if notices exec; then echo "$1: test_exec" && return; fi
    fi
    compile kernels.o "$work/kernels.cu"
    link kernels "$3" "$work/kernels.o" tests/libcudahostkernels.la
    if notices kernels; then echo "$1: test_kernels" && return; fi
    echo "$1: survives"
    return 1
}

try_all "$@"
