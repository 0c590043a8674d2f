/* The host twins of its instructions in place of those of a kernel on tiles, which is included after this: it then runs
 * on any CPU with AVX-512. */
#ifndef TEST_TWINS_H
#define TEST_TWINS_H

#include "cpu.h"
#include "tiles.h"

/* After <immintrin.h>; some are functions there, some are macros. */
#undef _tile_dpbf16ps
#undef _tile_loadd
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_zero
#define _mm512_cvtne2ps_pbh twin_cvtne2ps_pbh
#define _mm512_dpbf16_ps    twin_dpbf16_ps
#define _tile_dpbf16ps      twin_dpbf16ps
#define _tile_loadconfig    twin_loadconfig
#define _tile_loadd         twin_loadd
#define _tile_release       twin_release
#define _tile_stored        twin_stored
#define _tile_stream_loadd  twin_loadd /* by another way through the caches */
#define _tile_zero          twin_zero

#define CATTN_CPU_AMX CATTN_CPU_AVX512 /* what it needs */

#endif
