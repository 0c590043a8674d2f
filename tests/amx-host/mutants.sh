#!/bin/sh
# mutants.sh [NAME...]: breaks the kernels amx and amxf32, and the twins of its instructions, in one place at a time, and sees
# whether the tests on the CPU notice.  `make check-amx-mutants` runs it in the build directory, with in its environment
# MUTANT_COMPILE (a C compiler and its flags), MUTANT_LINK (libtool and all) and MUTANT_LIBS.  Without names: all.
#
# A mutant is  NAME FILE OCCURRENCE PATTERN REPLACEMENT, separated by tabs: FILE is `tiles`, or the kernel that is to
# notice; OCCURRENCE counts the lines with the pattern.
#
# Left out, since they change no result: an empty state that is raised all the same (zeros times zero), values of no
# block added, a group whose turn is not noted (it is never found again), rows that are always looked at one by one, and
# fewer groups than there are.  So is a group's n before the first fold: only memory that happens to look like a group
# would be taken for one.
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
    m query_halves amx 1 'cvtne2ps_pbh\(second, first\)\)' 'cvtne2ps_pbh(first, second))'
    # ---- scores
    for i in 1 2 3 4; do
        m "zero$i" amx $i '_tile_zero\([0-3]\)' ''
    done
    m query_step amx 1 'q0 \+ 64 \* i' 'q0 + 32 * i'
    m query_rows amx 1 'q1 \+ 64 \* i' 'q0 + 64 * i'
    m key_step amx 1 'k0 \+ TILE_BYTES \* i' 'k0'
    m key_tile amx 1 'k1 \+ TILE_BYTES \* i' 'k0 + TILE_BYTES * i'
    m second_rows amx 1 '_tile_dpbf16ps\(3, 5, 7\)' '_tile_dpbf16ps(3, 4, 7)'
    m score_rows amx 1 's1 = s0 \+ TILE_ROWS \* CATTN_BLOCK' 's1 = s0'
    m score_columns amx 1 '1, s0 \+ 16' '1, s0'
    m hidden_tokens amx 1 'every == whole && ' ''
    m hidden_of_last amx 1 'every &= block' 'every = block'
    m hidden_of_row amx 1 'visible\[__builtin_ctz\(seeing\)\]' 'visible[n]'
    m seen_by_all amx 1 '^ +block->visible\[r\] = whole' ''
    m plain_capped amx 1 ' && !\(all->scoring.cap > 0\)' ''
    m plain_sloped amx 1 ' && !all->slope' ''
    m plain_adjusted amx 1 'if \(!block->plain\)' 'if (1)'
    m never_adjusted amx 1 'if \(!block->plain\)' 'if (0)'
    m scaled_twice amx 1 'block->plain \? f->all->scoring.scale : 1' 'f->all->scoring.scale'
    m bias_of_row amx 1 'g->row\[r\], block->first' 'r, block->first'
    m bias_of_block amx 1 'block->first = f->first \+ \(uint64_t\)i \* f->block_tokens' 'block->first = f->first'
    m score_tiles amx 2 'u->group->n > TILE_ROWS' '0'
    # ---- maxima
    m second_granule amx 1 'block->end - block->begin > CATTN_GRANULE' '0'
    m no_second_granule amx 1 'block->end - block->begin > CATTN_GRANULE' '1'
    m maximum_lanes amx 1 '_mm512_unpacklo_pd\(two\[2 \* i\]' '_mm512_unpackhi_pd(two[2 * i]'
    m maximum_begin amx 1 's\[first_row\] \+ block->begin' 's[first_row]'
    m maximum_rows amx 1 's\[first_row\] \+ block->begin' 's[0] + block->begin'
    m maximum_scale amx 1 'vec_set\(factor_of\(f, block\)\)' 'vec_set(1)'
    m maximum_before amx 1 'g->m \+ first_row' 'g->m'
    m maximum_kept amx 1 'if \(raised\)' 'if (0)'
    m rows_not_there amx 1 'raised & \(uint32_t\)cattn_first_bits\(g->n - first_row\)' 'raised'
    m rows_raised amx 1 'first \+ r, ceilf' 'r, ceilf'
    m raise_slack amx 1 'vec_set\(8\)' 'vec_set(800)'
    m values_later amx 1 '^ +add_values\(f, u, b\);' ''
    m values_twice amx 1 '^ +u->waiting = end;' ''
    m raise_empty amx 1 'vec_set\(-INFINITY\), _CMP_EQ_OQ' 'vec_set(0), _CMP_LE_OQ'
    m raise_empty_state amx 1 'g->state\[r\]\[0\] = g->m\[r\];' ''
    m raise_row amx 1 'g->o \+ r \* g->o_step' 'g->o'
    m raise_sum amx 1 'vec_store\(l, vec_mul\(vec_load\(l\), factor\)\)' ''
    m raise_values amx 1 'i < f->v_tiles; i\+\+' 'i + 1 < f->v_tiles; i++'
    m raise_state amx 1 '= g->state\[r\]\[0\] = m' '= m'
    m raise_group amx 1 'g->m\[r\] = g->state\[r\]\[0\] = m' 'g->state[r][0] = m'
    m whole_maximum amx 1 'ceilf\(largest\[r\]\)' 'largest[r]'
    # ---- weights
    m product_unrounded amx 1 'vec_sub\(vec_mul\(vec_load\(s \+ CATTN_GRANULE \* i\), factor\), m\)' '_mm512_fmsub_ps(vec_load(s + CATTN_GRANULE * i), factor, m)'
    m sum_unrounded amx 1 'return _mm512_dpbf16_ps\(sum, both, .*' 'return vec_add(sum, vec_add(first, second));'
    m no_maximum amx 1 'vec_max\(vec_set\(w.m\[r\]\), vec_set\(-FLT_MAX\)\)' 'vec_set(w.m[r])'
    m power amx 1 '0x1.63e658p-1f' '0x1.6p-1f'
    m weights_of amx 1 'weighing_of\(f, u, b - 1\)' 'weighing_of(f, u, b)'
    m score_buffer amx 1 '\.s = block->s\[0\]' '.s = f->scratch->s[0][0]'
    m weigh_factor amx 1 '\.factor = factor_of\(f, block\)' '.factor = factor_of(f, u->block)'
    m score_buffers amx 1 'n_scored\+\+ % 2' 'n_scored++ % 1'
    m score_buffer_of_unit amx 1 'scratch->n_scored\+\+ % 2' 'b % 2'
    m weight_buffers amx 1 'p\[u->n\+\+\]' 'p[u->n++ % 2]'
    m rows_a_time amx 1 '\(w->n \+ n_products - 1\) / n_products' 'w->n / n_products'
    m products_of_one_tile amx 1 'f->k_tiles \* N_PARTS \* \(uint32_t\)R' 'f->k_tiles * N_PARTS * 2'
    m products_of_two_tiles amx 1 'f->k_tiles \* N_PARTS \* \(uint32_t\)R' 'f->k_tiles * N_PARTS * (uint32_t)(R * R)'
    m rows_again amx 1 'w->row = stop' ''
    m sum_of_row amx 1 'w.state\[r\] \+ CATTN_STATE_L' 'w.state[0] + CATTN_STATE_L'
    m weigh_begin amx 1 'w.s \+ w.begin \+ r' 'w.s + r'
    m weigh_begin_to amx 1 'w.begin \* MOST_ROWS \+ r' 'r'
    m weigh_second amx 1 'all.end - all.begin > CATTN_GRANULE' '0'
    m weigh_no_second amx 1 'all.end - all.begin > CATTN_GRANULE' '1'
    m weigh_second_from amx 1 's \+ CATTN_GRANULE \* i \+ 16' 's + 16'
    m weigh_second_to amx 1 'p \+ i \* MOST_ROWS \* CATTN_GRANULE' 'p'
    # ---- from unit to unit
    m last_weights amx 1 'if \(last\)' 'if (0)'
    m last_block amx 1 'last->n - 1' '0'
    m last_values amx 1 '^ +add_values\(f, scratch->last, scratch->last->n\)' ';'
    m last_value amx 1 'add_values\(f, scratch->last, scratch->last->n\)' 'add_values(f, scratch->last, scratch->last->n - 1)'
    m last_unit amx 1 '^ +scratch->last = u;' ''
    m first_unit amx 1 '^ +scratch->last = NULL;' ''
    m units amx 1 'n_units\+\+ % 2' 'n_units++ % 1'
    m unit_waiting amx 1 'u->n = u->waiting = 0' 'u->n = 0'
    m drain_weights amx 1 '^ +weigh_rows\(&w, w.n\);' ''
    m drain_block amx 2 'last->n - 1' '0'
    m drain_values amx 1 'add_values\(f, last, last->n\)' ''
    m drain_again amx 1 'f->scratch->last = NULL' ''
    m drain_for_group amx 1 '^ +drain\(f\);' ''
    m drain_at_end amx 1 '^ +drain\(&f\);' ''
    # ---- values
    m value_rows amx 1 'p\[TILE_ROWS\], 64' 'p[0], 64'
    m value_weights amx 1 'block->p\[granule\], v, ' 'block->p[0], v, '
    m value_column amx 1 'v \+ TILE_BYTES, 64' 'v, 64'
    m value_granule amx 1 'block->v \+ granule \* f->v_step' 'block->v'
    m value_tiles amx 1 'u->group->n > TILE_ROWS' '0'
    m value_tile amx 1 'u->group->n > TILE_ROWS' '1'
    m sums_rows amx 1 'o1 = o0 \+ TILE_ROWS \* ' 'o1 = o0 + '
    m sums_left amx 1 '_tile_stored\(3, o1 \+ 16, o_bytes\)' ''
    m last_column amx 1 'if \(column < f->v_tiles\)' 'if (0)'
    # ---- groups
    m stage_stays amx 1 'leave_group\(&f, &scratch->group\[i\]\)' ''
    m stage_replaced amx 1 '^ +leave_group\(f, g\);' '    g->n = 0;'
    m stage_passed amx 1 'g->n && g->o == g->staged_o' 'g->n'
    m stage_left amx 1 '^ +g->n = 0;' ''
    m stage_other_rows amx 1 ' && g->seeing == seeing' ''
    m stage_other_turn amx 1 ' && g->turn == turn' ''
    m stage_of_none amx 1 'g->n && g->turn == turn' 'g->turn == turn'
    m stage_queries amx 1 'all->q \+ g->row\[i\]' 'all->q + i'
    m stage_sums amx 1 'i \* v_pad, o_of\(all, g->row\[i\]\)' 'i * v_pad, o_of(all, g->row[0])'
    m stage_copied amx 1 'memcpy\(o_of\(f->all, g->row\[i\]\)' 'memcpy(o_of(f->all, g->row[0])'
    m stage_step amx 1 'o_step = v_pad' 'o_step = all->state_stride'
    m stage_places amx 1 'p \+= MOST_ROWS \* query_bytes\(layout\)' ''
    m stage_bytes amx 1 'MOST_GROUPS \* group' '(MOST_GROUPS - 1) * group'
    m rows_apart amx 1 ' && g->row\[g->n - 1\] - g->row\[0\] == g->n - 1' ''
    m rows_few amx 1 'g->n % TILE_ROWS == 0 && ' ''
    m sums_step amx 1 'g->o_step = all->state_stride' 'g->o_step = all->layout->v_pad'
    m group_seeing amx 1 '^ +g->seeing = seeing;' ''
    m group_state amx 1 'g->state\[g->n\] = all->states \+ row' 'g->state[g->n] = all->states + rows[0]'
    m group_maximum amx 1 'g->m\[g->n\] = g->state\[g->n\]\[0\]' 'g->m[g->n] = -INFINITY'
    # ---- blocks
    m all_see_any amx 1 'all &= position' 'all |= position'
    m all_see_row amx 1 'f->all->position\[rows\[r\]\]' 'f->all->position[rows[0]]'
    m all_see_first amx 1 'position >= first \+ others' 'position >= first'
    m all_see_block amx 1 '\(uint64_t\)n \* f->block_tokens - 1' '(uint64_t)f->block_tokens - 1'
    m all_see_last amx 1 'position >= first \+ others' 'position + 1 >= first + others'
    m all_see_behind amx 1 ' && distance < f->all->scoring.window' ''
    m all_see_window amx 1 'distance < f->all->scoring.window' 'distance <= f->all->scoring.window'
    m all_see_in_window amx 1 'position - first;' 'position - first - others;'
    m all_see_rows amx 1 'all \? \(uint32_t\)cattn_first_bits\(n_rows\)' 'all ? UINT32_MAX'
    m none_see amx 1 'if \(!same\)' 'if (0)'
    m look_first amx 1 'f->first \+ \(uint64_t\)i \* f->block_tokens, f->block_tokens\)' 'f->first, f->block_tokens)'
    m look_one amx 1 'all \? NULL : visible\[b\]' 'all ? NULL : visible[0]'
    m end_of_whole amx 1 'visible \? 0 : whole' 'visible ? 0 : 1'
    m begin_early amx 1 'some & UINT32_MAX \? 0 : CATTN_GRANULE' '0'
    m begin_late amx 1 'some & UINT32_MAX \? 0' 'some & 1 ? 0'
    m end_late amx 1 '\? 2 \* CATTN_GRANULE : CATTN_GRANULE' '? 2 * CATTN_GRANULE : 2 * CATTN_GRANULE'
    m end_early amx 1 'some >> CATTN_GRANULE \?' 'some >> (CATTN_GRANULE + 1) ?'
    m same_rows amx 1 'seeing\[b\] == same;' 'seeing[b];'
    m next_blocks amx 1 'set_block\(f, u, first \+ b' 'set_block(f, u, first'
    m block_of_chunk amx 1 'offset = i % f->per_chunk' 'offset = 0'
    m values_of_chunk amx 1 '\(f->v_bytes - f->k_bytes\)' 'f->v_bytes'
    m last_blocks amx 1 'smaller\(f.n_blocks - i, MOST_BLOCKS\)' 'smaller(f.n_blocks - i, MOST_BLOCKS - 1)'
    m turn_rows amx 1 'turn \* MOST_ROWS' 'turn * TILE_ROWS'
    m last_rows amx 1 'smaller\(n_rows - done, MOST_ROWS\)' 'MOST_ROWS'
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
    # ---- two halves of an f32
    m split_low amxf32 1 'pairs_of\(first_low, second_low\)' 'pairs_of(first_low, first_low)'
    m split_rounding amxf32 1 'set1_epi32\(0x8000\)' 'setzero_si512()'
    m split_pairs amxf32 1 '_mm512_srli_epi32\(_mm512_castps_si512\(first\), 16\)' '_mm512_castps_si512(first)'
    m split_infinite amxf32 1 'limited = vec_min\(most, .*' 'limited = x;'
    m split_nan amxf32 1 'return _mm512_mask_mov_ps\(limited, .*' 'return limited;'
    m split_query_plane amxf32 1 'to, to \+ plane, finite' 'to, to + 32, finite'
    m split_sum amxf32 1 'vec_add\(first, first_low\)' 'first'
    m split_score_low amxf32 1 '\+ f->k_plane \+ TILE_BYTES' '+ TILE_BYTES'
    m split_score_query amxf32 1 'q0 \+ f->q_plane' 'q0'
    m split_value_low amxf32 1 'v \+ f->v_plane, ' 'v, '
    m split_value_weight amxf32 1 'p\[GRANULES \+ granule\]' 'p[granule]'
    m split_padding amxf32 1 'd \+ 16 < n \?' '1 ?'
    m split_key_granule amxf32 1 'split->k \+ 2 \* g \* f->k_step' 'split->k + 0 * f->k_step'
    m split_key_half amxf32 1 '\(2 \* g \+ 1\)' '(2 * g)'
    m split_value_granule amxf32 1 'split->v \+ g \* f->v_step' 'split->v + 0 * f->v_step'
    m split_again amxf32 1 'split->granules \|= needed' 'split->granules = 3'
    m split_other amxf32 1 'split->granules = 0' ''
    m split_two_at_once amxf32 1 'n_split\+\+ % \(2 \* MOST_BLOCKS\)' 'n_split++ % MOST_BLOCKS'
    m split_last_fold amxf32 1 'split->block = UINT32_MAX' ''
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
    for file in amx.c amxf32.c amx_tmpl.h; do
        cp "$src/backends/cpu/$file" "$work/backends/cpu/$file"
    done
    for file in tiles.h twins.h amx.c amxf32.c test_tiles.c; do
        cp "$src/tests/amx-host/$file" "$work"
    done
    case $2 in
    tiles) file=tiles.h ;;
    *) file=backends/cpu/amx_tmpl.h ;;
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
        [ "${test#*/}" != checkkernels ] || objects="$objects $MUTANT_CHECKKERNELS" arguments="--kernel $2"
        $MUTANT_COMPILE -c -o "$work/amxf32.o" "$work/amxf32.c" || return 1
        # shellcheck disable=SC2086
        build "$work/amx.c" "$work/amxf32.o" $objects tests/amx-host/on_amx.o || return 1
        # shellcheck disable=SC2086
        if notices $arguments; then echo "$1: ${test#*/}" && return; fi
    done
    echo "$1: survives"
    return 1
}

try_all "$@"
