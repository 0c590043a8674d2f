/* The host twins of the tile instructions of AMX, and of the two of AVX512_BF16 that backends/cpu/amx.c uses, in plain
 * AVX-512.  What they do is from the "Operation" sections of the Intel SDM (LDTILECFG, TILELOADD, TILESTORED,
 * TDPBF16PS, VDPBF16PS, VCVTNE2PS2BF16).  A use that would fault, or that only a mistake can explain, aborts with a
 * message. */
#ifndef TEST_TILES_H
#define TEST_TILES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TWIN_TILES = 8, TWIN_ROWS = 16, TWIN_ROW_BYTES = 64 };

/* As it lies in memory. */
struct twin_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[TWIN_TILES], no_row_bytes[8];
    uint8_t rows[TWIN_TILES], no_rows[8];
};

union twin_row {
    _Alignas(TWIN_ROW_BYTES) unsigned char bytes[TWIN_ROW_BYTES];
    uint32_t pairs[TWIN_ROW_BYTES / 4]; /* of bf16 */
    float f32[TWIN_ROW_BYTES / 4];
};

/* What lies outside of rows and row_bytes is zero. */
struct twin_tile {
    unsigned rows, row_bytes;
    union twin_row row[TWIN_ROWS];
};

static _Thread_local struct {
    bool configured;
    uint64_t n_products; /* since then */
    struct twin_tile tile[TWIN_TILES];
} twin;

/* Tile products of all threads, counted as their tiles are released; NULL: not counted. */
extern uint64_t *twin_n_products;

static inline void twin_check(bool fine, const char *instruction, const char *wrong)
{
    if (fine)
        return;
    fprintf(stderr, "%s: %s\n", instruction, wrong);
    abort();
}

/* ---- configuration --------------------------------------------------------------------------------------------- */

static inline bool twin_all_zero(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    while (n && !*p)
        p++, n--;
    return n == 0;
}

/* An older configuration may be replaced on a processor; here it means that nobody released the tiles. */
static inline void twin_loadconfig(const void *memory)
{
    static const char name[] = "ldtilecfg";
    struct twin_config c;
    memcpy(&c, memory, sizeof c);
    twin_check(!twin.configured, name, "the tiles are still in use");
    twin_check(c.palette == 1 && c.start_row == 0, name, "not palette 1 from row 0 on");
    twin_check(twin_all_zero(c.reserved, sizeof c.reserved) && twin_all_zero(c.no_row_bytes, sizeof c.no_row_bytes) &&
                   twin_all_zero(c.no_rows, sizeof c.no_rows),
               name, "reserved bytes that are not zero");
    memset(&twin, 0, sizeof twin);
    for (int t = 0; t < TWIN_TILES; t++) {
        const unsigned rows = c.rows[t], row_bytes = c.row_bytes[t];
        twin_check(rows <= TWIN_ROWS && row_bytes <= TWIN_ROW_BYTES && row_bytes % 4 == 0, name, "no such tile");
        twin_check(!rows == !row_bytes, name, "a tile of no rows or no columns");
        twin.tile[t].rows = rows;
        twin.tile[t].row_bytes = row_bytes;
    }
    twin.configured = true;
}

static inline void twin_release(void)
{
    twin_check(twin.configured, "tilerelease", "no tiles are in use"); /* which a processor would not mind */
    if (twin_n_products)
        __atomic_fetch_add(twin_n_products, twin.n_products, __ATOMIC_RELAXED);
    twin.configured = false;
}

static inline struct twin_tile *twin_of(int t, const char *instruction)
{
    twin_check(twin.configured, instruction, "no tiles are in use");
    twin_check(t >= 0 && t < TWIN_TILES && twin.tile[t].rows, instruction, "a tile that is not configured");
    return &twin.tile[t];
}

/* ---- moves: memcpy, so that a sanitizer sees the bytes ---------------------------------------------------------- */

static inline void twin_zero(int t)
{
    struct twin_tile *tile = twin_of(t, "tilezero");
    memset(tile->row, 0, sizeof tile->row);
}

static inline void twin_loadd(int t, const void *memory, long step)
{
    struct twin_tile *tile = twin_of(t, "tileloadd");
    memset(tile->row, 0, sizeof tile->row);
    for (unsigned r = 0; r < tile->rows; r++)
        memcpy(tile->row[r].bytes, (const char *)memory + (long)r * step, tile->row_bytes);
}

static inline void twin_stored(int t, void *memory, long step)
{
    const struct twin_tile *tile = twin_of(t, "tilestored");
    for (unsigned r = 0; r < tile->rows; r++)
        memcpy((char *)memory + (long)r * step, tile->row[r].bytes, tile->row_bytes);
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

/* It does not look at the control word: to nearest, denormals are zero, nothing is trapped.  So the twins set it, and
 * what they compute is in functions of their own, which a compiler does not mix with what changes it. */
enum { TWIN_CONTROL = 0x9fc0 };
#define TWIN_APART static __attribute__((noinline, unused))

/* The first and the second numbers of sixteen pairs. */
static inline __m512 twin_even(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static inline __m512 twin_odd(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* Even and odd products have a sum each over all of a row, from zero on; both together are then added to what was
 * there. */
TWIN_APART void twin_multiply(struct twin_tile *to, const struct twin_tile *a, const struct twin_tile *b)
{
    const __mmask16 columns = (__mmask16)((1u << b->row_bytes / 4) - 1);
    for (unsigned m = 0; m < to->rows; m++) {
        float *sums = to->row[m].f32;
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (unsigned k = 0; k < b->rows; k++) {
            const __m512i x = _mm512_set1_epi32((int)a->row[m].pairs[k]), y = _mm512_load_si512(&b->row[k]);
            even = _mm512_fmadd_ps(twin_even(x), twin_even(y), even);
            odd = _mm512_fmadd_ps(twin_odd(x), twin_odd(y), odd);
        }
        _mm512_mask_store_ps(sums, columns, _mm512_add_ps(_mm512_load_ps(sums), _mm512_add_ps(even, odd)));
    }
}

static inline void twin_dpbf16ps(int to, int a, int b)
{
    static const char name[] = "tdpbf16ps";
    struct twin_tile *c = twin_of(to, name), *x = twin_of(a, name), *y = twin_of(b, name);
    const unsigned saved = _mm_getcsr();
    twin_check(to != a && to != b && a != b, name, "a tile in two places");
    twin_check(c->rows == x->rows && c->row_bytes == y->row_bytes && x->row_bytes / 4 == y->rows, name,
               "tiles that do not go together");
    twin.n_products++;
    _mm_setcsr(TWIN_CONTROL);
    twin_multiply(c, x, y);
    _mm_setcsr(saved);
}

/* Of a pair the second product comes first. */
TWIN_APART __m512 twin_multiply_pairs(__m512 sums, __m512i a, __m512i b)
{
    sums = _mm512_fmadd_ps(twin_odd(a), twin_odd(b), sums);
    return _mm512_fmadd_ps(twin_even(a), twin_even(b), sums);
}

static inline __m512 twin_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b)
{
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(TWIN_CONTROL);
    sums = twin_multiply_pairs(sums, (__m512i)a, (__m512i)b);
    _mm_setcsr(saved);
    return sums;
}

/* To nearest even, in the upper half of each lane; a NaN becomes a quiet one, a denormal zero. */
static inline __m512i twin_round(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __mmask16 is_zero = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
    __m512i y = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    y = _mm512_mask_or_epi32(y, is_nan, bits, _mm512_set1_epi32(0x00400000));
    y = _mm512_mask_andnot_epi32(y, is_zero, _mm512_set1_epi32(0x7fffffff), bits);
    return _mm512_and_si512(y, _mm512_set1_epi32((int)0xffff0000));
}

/* The sixteen of `low` first. */
static inline __m512bh twin_cvtne2ps_pbh(__m512 high, __m512 low)
{
    const __m256i first = _mm512_cvtepi32_epi16(_mm512_srli_epi32(twin_round(low), 16));
    const __m256i second = _mm512_cvtepi32_epi16(_mm512_srli_epi32(twin_round(high), 16));
    return (__m512bh)_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

#endif
