#!/bin/sh
# mutants.sh [NAME...]: breaks the kernel amx, and the twins of its instructions, in one place at a time, and sees
# whether the tests on the CPU notice.  `make check-amx-mutants` runs it in the build directory, with in its environment
# MUTANT_COMPILE (a C compiler and its flags), MUTANT_LINK (libtool and all) and MUTANT_LIBS.  Without names: all.
#
# A mutant is  NAME FILE OCCURRENCE PATTERN REPLACEMENT, separated by tabs: FILE is `amx` or `tiles`; OCCURRENCE counts
# the lines with the pattern.
set -eu
src=${CATTN_SRCDIR:?}
work=tests/amx-host/mutants.d
rm -rf "$work"
mkdir -p "$work/backends/cpu"
trap 'rm -rf "$work"' EXIT

list() {
    # ---- queries
    m query_padding amx 1 'memset\(to \+ n, 0, ' 'memset(to + n, 0, 0 * '
    m query_reads_on amx 1 'n < 16 \? n : 16' '16'
    m query_halves amx 1 'cvtne2ps_pbh\(high, low\)\)' 'cvtne2ps_pbh(low, high))'
    # ---- scores
    for i in 1 2 3 4; do
        m "zero$i" amx $i '_tile_zero\([0-3]\)' ''
    done
    m query_step amx 1 'q0 \+ 64 \* i' 'q0 + 32 * i'
    m query_rows amx 1 'q1 \+ 64 \* i' 'q0 + 64 * i'
    m key_step amx 1 'k0 \+ TILE_BYTES \* i' 'k0'
    m key_tile amx 1 'k1 \+ TILE_BYTES \* i' 'k0 + TILE_BYTES * i'
    m second_rows amx 1 '_tile_dpbf16ps\(3, 5, 7\)' '_tile_dpbf16ps(3, 4, 7)'
    m score_rows amx 1 's\[b % 2\]\[TILE_ROWS\] \+ t' 's[b % 2][0] + t'
    m score_columns amx 1 '1, s0 \+ 16' '1, s0'
    m hidden_tokens amx 1 '!biased && block->visible\[r\] == all' '!biased'
    m scaled_twice amx 1 'factor\[r\] = 1;' 'factor[r] = scale;'
    m bias_of_row amx 1 'g->row\[r\], block->first' 'r, block->first'
    # ---- maxima
    m second_granule amx 1 'block->end - block->begin > CATTN_GRANULE' '0'
    m maximum_lanes amx 1 '_mm512_unpacklo_pd\(two\[2 \* i\]' '_mm512_unpackhi_pd(two[2 * i]'
    m rows_not_there amx 1 '\(uint32_t\)cattn_first_bits\(scratch->group.n - first_row\)' 'UINT32_MAX'
    m values_later amx 1 'if \(waiting < b\)' 'if (0)'
    m values_twice amx 1 '^ +waiting = b;' ''
    m raise_sum amx 1 'vec_store\(l, vec_mul\(vec_load\(l\), factor\)\)' ''
    m raise_values amx 1 'i < f->v_tiles; i\+\+' 'i + 1 < f->v_tiles; i++'
    m raise_state amx 1 '= g->state\[r\]\[0\] = m' '= m'
    m whole_maximum amx 1 'ceilf\(largest\[r\]\)' 'largest[r]'
    # ---- weights
    m product_unrounded amx 1 'vec_sub\(vec_mul\(vec_load\(s \+ t\), factor\), m\)' '_mm512_fmsub_ps(vec_load(s + t), factor, m)'
    m sum_unrounded amx 1 '_mm512_dpbf16_ps\(sum, p, ones\)' 'vec_add(sum, vec_add(low, high))'
    m no_maximum amx 1 'own_m > -INFINITY \? own_m : 0' 'own_m'
    m power amx 1 '0x1.63e658p-1f' '0x1.6p-1f'
    m weights_of amx 1 'weigh \? b - 1 : b' 'b'
    m score_buffer amx 1 's\[b % 2\]\[0\], scratch->p' 's[0][0], scratch->p'
    m rows_a_step amx 1 '\(n \+ n_steps - 1\) / n_steps' 'n / n_steps'
    m weigh_begin amx 1 'size_t t = w.begin' 'size_t t = 0'
    # ---- values
    m value_rows amx 1 'p\[b\]\[granule\]\[TILE_ROWS\], 64' 'p[b][granule][0], 64'
    m value_column amx 1 'v \+ TILE_BYTES, 64' 'v, 64'
    m value_granule amx 1 'block->v \+ granule \* f->v_step' 'block->v'
    m sums_rows amx 1 'o1 = o0 \+ TILE_ROWS \* ' 'o1 = o0 + '
    m sums_left amx 1 '_tile_stored\(3, o1 \+ 16, o_bytes\)' ''
    m last_column amx 1 'if \(column < f->v_tiles\)' 'if (0)'
    # ---- stages
    m stage_stays amx 1 'leave_stage\(&f, &scratch->stage\[i\]\)' ''
    m stage_replaced amx 1 '^ +leave_stage\(f, stage\);' ''
    m stage_passed amx 2 '^ +leave_stage\(f, stage\);' ''
    m stage_other_rows amx 1 ' && memcmp\(stage->row, .*\) == 0' ''
    m stage_step amx 1 'o_step = all->layout->v_pad' 'o_step = all->state_stride'
    m rows_apart amx 1 ' && g->row\[g->n - 1\] - g->row\[0\] == g->n - 1' ''
    # ---- blocks
    m begin_early amx 1 'some & UINT32_MAX \? 0 : CATTN_GRANULE' '0'
    m begin_late amx 1 'some & UINT32_MAX \? 0' 'some & 1 ? 0'
    m end_late amx 1 '\? 2 \* CATTN_GRANULE : CATTN_GRANULE' '? 2 * CATTN_GRANULE : 2 * CATTN_GRANULE'
    m end_early amx 1 'some >> CATTN_GRANULE \?' 'some >> (CATTN_GRANULE + 1) ?'
    m same_rows amx 1 'seeing\[end\] == seeing\[begin\];' 'seeing[end];'
    m block_of_chunk amx 1 '\(i % f->per_chunk\) \* f->block_tokens' '0 * f->block_tokens'
    m values_of_chunk amx 1 'token / CATTN_GRANULE \* f->v_step - ' 'token / CATTN_GRANULE * f->v_step + 0 * '
    m last_blocks amx 1 'smaller\(f.n_blocks - i, MOST_BLOCKS\)' 'smaller(f.n_blocks - i, MOST_BLOCKS - 1)'
    m release amx 1 '_tile_release\(\)' ''
    # ---- what the instructions do
    m even tiles 1 'slli_epi32\(pairs, 16\)' 'slli_epi32(pairs, 15)'
    m odd tiles 1 '_mm512_add_ps\(even, odd\)' 'even'
    m sum_at_end tiles 1 '_mm512_setzero_ps\(\), odd = even' '_mm512_load_ps(sums), odd = _mm512_setzero_ps()'
    m pair_order tiles 1 'twin_odd\(a\), twin_odd\(b\), sums' 'twin_odd(b), twin_even(a), sums'
    m control tiles 1 '_mm_setcsr\(TWIN_CONTROL\)' ''
    m control_of_pairs tiles 2 '_mm_setcsr\(TWIN_CONTROL\)' ''
    m control_left tiles 1 '_mm_setcsr\(saved\)' ''
    m rounding tiles 1 '0x7fff\)\)\)' '0x8000)))'
    m rounding_tiny tiles 1 '0x00800000' '0'
    m rounding_nan tiles 1 'is_nan, bits, _mm512_set1_epi32\(0x00400000\)' 'is_nan, y, _mm512_setzero_si512()'
    m load_too_much tiles 1 'step, tile->row_bytes\)' 'step, TWIN_ROW_BYTES)'
    m store_too_much tiles 1 'tile->row\[r\].bytes, tile->row_bytes' 'tile->row[r].bytes, tile->row_bytes + 4'
    m zeroing tiles 1 'memset\(tile->row, 0, sizeof tile->row\)' ''
    m zeroed_tiles tiles 1 'memset\(&twin, 0, sizeof twin\)' ''
    m released tiles 1 'twin.configured = false' ''
    m refusing tiles 1 'if \(fine\)' 'if (1)'
}

. "$src/tests/support/mutants.sh"

# build SOURCE OBJECTS...: a program of the source, of the twins or the kernel as they are now, and of what there is.
build() {
    source=$1
    shift
    # shellcheck disable=SC2086 # lists of words
    $MUTANT_COMPILE -c -o "$work/mutant.o" "$source" &&
        $MUTANT_LINK -o "$work/mutant" "$work/mutant.o" "$@" $MUTANT_LIBS && return
    echo "$name: cannot be built"
    return 1
}

# notices ARGUMENTS...: the program fails.
notices() {
    ! CK_VERBOSITY=silent timeout 300 "$work/mutant" "$@" > "$work/log" 2>&1
}

# try NAME FILE OCCURRENCE PATTERN REPLACEMENT
try() {
    cp "$src/backends/cpu/amx.c" "$work/backends/cpu/amx.c"
    cp "$src/tests/amx-host/tiles.h" "$src/tests/amx-host/amx.c" "$src/tests/amx-host/test_tiles.c" "$work"
    case $2 in
    amx) file=backends/cpu/amx.c ;;
    *) file=tiles.h ;;
    esac
    if ! mutate "$work/$file" "$3" "$4" "$5" > "$work/mutated"; then
        echo "$1: no such line" && return 1
    fi
    mv "$work/mutated" "$work/$file"
    if [ "$2" = tiles ]; then
        build "$work/test_tiles.c" tests/amx-host/on_amx.o tests/libamxhost.la || return 1
        if notices; then echo "$1: test_tiles"; else echo "$1: survives" && return 1; fi
        return
    fi
    for test in backends/checkkernels api/test_contract backends/test_kernels api/test_cases api/test_promise; do
        objects=tests/$test.o arguments=
        [ "${test#*/}" != checkkernels ] || objects="$objects $MUTANT_CHECKKERNELS" arguments="--kernel amx"
        # shellcheck disable=SC2086
        build "$work/amx.c" $objects tests/amx-host/on_amx.o || return 1
        # shellcheck disable=SC2086
        if notices $arguments; then echo "$1: ${test#*/}" && return; fi
    done
    echo "$1: survives"
    return 1
}

try_all "$@"
