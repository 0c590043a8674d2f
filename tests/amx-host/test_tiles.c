/* The twins of tiles.h: against the manual, one number after the other; against the instructions, where the processor
 * has them; what they read and write; and what they refuse. */
#include "tiles.h"

#include "chunkattention.h"
#include "cpu.h"
#include "support/dtype.h"
#include "support/guard.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <signal.h>

/* Three tiles that go together: c += a b. */
struct shape {
    uint8_t rows, inner, columns; /* inner: pairs */
};

static const struct shape shapes[] = {{16, 16, 16}, {16, 16, 1}, {1, 16, 16}, {7, 3, 5}, {16, 1, 16}, {1, 1, 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, C = 3, A = 0, B = 7 };

static struct twin_config config_of(const struct shape *s)
{
    struct twin_config config = {.palette = 1};
    config.rows[C] = config.rows[A] = s->rows;
    config.rows[B] = s->inner;
    config.row_bytes[C] = config.row_bytes[B] = (uint16_t)(4 * s->columns);
    config.row_bytes[A] = (uint16_t)(4 * s->inner);
    return config;
}

/* Rows of the largest tile each. */
struct operands {
    uint32_t a[16][16], b[16][16];
    float c[16][16];
};

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Of common size, or any bits: denormal, infinite, not a number. */
static float some_float(struct rng *rng, bool any)
{
    const uint32_t bits = (uint32_t)rng_next(rng);
    return any ? float_of(bits) : ldexpf((float)(int32_t)bits, -31);
}

static uint32_t some_pair(struct rng *rng, bool any)
{
    uint16_t pair[2];
    for (int i = 0; i < 2; i++)
        if (any)
            pair[i] = (uint16_t)rng_next(rng);
        else
            dtype_store(CATTN_BF16, pair, (size_t)i, some_float(rng, false));
    return pair[0] | (uint32_t)pair[1] << 16;
}

static void draw_operands(struct operands *x, struct rng *rng, bool any)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            x->a[i][j] = some_pair(rng, any);
            x->b[i][j] = some_pair(rng, any);
            x->c[i][j] = some_float(rng, any);
        }
}

static void check_same(float got, float expected, const char *what)
{
    uint32_t x, y;
    memcpy(&x, &got, sizeof x);
    memcpy(&y, &expected, sizeof y);
    CHECK(x == y || (isnan(got) && isnan(expected)), "%s: %a, not %a", what, got, expected);
}

/* ---- the manual ------------------------------------------------------------------------------------------------- */

/* Called with the control word that the manual asks for. */
TWIN_APART void multiply_by_manual(const struct shape *s, struct operands *x)
{
    for (int m = 0; m < s->rows; m++)
        for (int n = 0; n < s->columns; n++) {
            float sums[2] = {0, 0};
            for (int k = 0; k < s->inner; k++) {
                sums[0] = fmaf(float_of(x->a[m][k] << 16), float_of(x->b[k][n] << 16), sums[0]);
                sums[1] = fmaf(float_of(x->a[m][k] & 0xffff0000), float_of(x->b[k][n] & 0xffff0000), sums[1]);
            }
            x->c[m][n] += sums[0] + sums[1];
        }
}

TWIN_APART void multiply_pairs_by_manual(struct operands *x)
{
    for (int i = 0; i < 16; i++) {
        const float odd = fmaf(float_of(x->a[0][i] & 0xffff0000), float_of(x->b[0][i] & 0xffff0000), x->c[0][i]);
        x->c[0][i] = fmaf(float_of(x->a[0][i] << 16), float_of(x->b[0][i] << 16), odd);
    }
}

static void multiply(const struct shape *s, struct operands *x)
{
    const struct twin_config config = config_of(s);
    twin_loadconfig(&config);
    twin_loadd(A, x->a, sizeof *x->a);
    twin_loadd(B, x->b, sizeof *x->b);
    twin_loadd(C, x->c, sizeof *x->c);
    twin_dpbf16ps(C, A, B);
    twin_stored(C, x->c, sizeof *x->c);
    twin_release();
}

static __m512 multiply_pairs(const struct operands *x)
{
    const __m512i a = _mm512_loadu_si512(x->a[0]), b = _mm512_loadu_si512(x->b[0]);
    return twin_dpbf16_ps(_mm512_loadu_ps(x->c[0]), (__m512bh)a, (__m512bh)b);
}

/* Rounding upwards, denormals kept: the instructions do not mind. */
enum { CONTROLS = 3 };
static const unsigned controls[CONTROLS] = {0x1f80, 0x9fc0, 0x5f80};

START_TEST(products_are_those_of_the_manual)
{
    struct operands got, expected;
    struct rng rng;
    rng_init(&rng, 1);
    for (int i = 0; i < 40 * N_SHAPES; i++) {
        const struct shape *s = &shapes[i % N_SHAPES];
        draw_operands(&got, &rng, i % 4 == 0);
        expected = got;
        _mm_setcsr(controls[i % CONTROLS]);
        multiply(s, &got);
        ck_assert_uint_eq(_mm_getcsr() & ~0x3fu, controls[i % CONTROLS]);
        _mm_setcsr(TWIN_CONTROL);
        multiply_by_manual(s, &expected);
        _mm_setcsr(controls[0]);
        for (int j = 0; j < 256; j++)
            check_same(got.c[j / 16][j % 16], expected.c[j / 16][j % 16], "a product of tiles");
    }
}
END_TEST

START_TEST(pairs_are_those_of_the_manual)
{
    struct operands x;
    struct rng rng;
    float got[16];
    rng_init(&rng, 2);
    for (int i = 0; i < 200; i++) {
        draw_operands(&x, &rng, i % 2);
        _mm_setcsr(controls[i % CONTROLS]);
        _mm512_storeu_ps(got, multiply_pairs(&x));
        _mm_setcsr(TWIN_CONTROL);
        multiply_pairs_by_manual(&x);
        _mm_setcsr(controls[0]);
        for (int j = 0; j < 16; j++)
            check_same(got[j], x.c[0][j], "a product of pairs");
    }
}
END_TEST

START_TEST(rounding_is_that_of_bf16)
{
    static const float some[] = {1 + 0x1p-8f, 1 + 0x3p-8f, 0x1.fffffep127f, INFINITY, -0x1p-130f, -0x1p-126f,
                                 NAN,         -0.0f};
    enum { N_SOME = sizeof some / sizeof *some };
    float x[2][16];
    uint16_t got[32], expected;
    struct rng rng;
    rng_init(&rng, 3);
    for (int i = 0; i < 200; i++) {
        for (int j = 0; j < 32; j++)
            x[j / 16][j % 16] = i == 0 ? some[j % N_SOME] : some_float(&rng, i % 2);
        _mm512_storeu_si512(got, (__m512i)twin_cvtne2ps_pbh(_mm512_loadu_ps(x[1]), _mm512_loadu_ps(x[0])));
        for (int j = 0; j < 32; j++) {
            const float from = x[j / 16][j % 16];
            dtype_store(CATTN_BF16, &expected, 0, fpclassify(from) == FP_SUBNORMAL ? copysignf(0, from) : from);
            check_same(float_of((uint32_t)got[j] << 16), float_of((uint32_t)expected << 16), "a rounded number");
        }
    }
}
END_TEST

/* ---- the instructions ------------------------------------------------------------------------------------------- */

__attribute__((target("avx512bf16"))) static void check_vectors(struct rng *rng)
{
    struct operands x;
    float got[16], expected[16];
    uint16_t rounded[2][32];
    for (int i = 0; i < 1000; i++) {
        draw_operands(&x, rng, i % 2);
        const __m512bh a = (__m512bh)_mm512_loadu_si512(x.a[0]), b = (__m512bh)_mm512_loadu_si512(x.b[0]);
        const __m512 c = _mm512_loadu_ps(x.c[0]), d = _mm512_loadu_ps(x.c[1]);
        _mm512_storeu_ps(got, multiply_pairs(&x));
        _mm512_storeu_ps(expected, _mm512_dpbf16_ps(c, a, b));
        _mm512_storeu_si512(rounded[0], (__m512i)twin_cvtne2ps_pbh(c, d));
        _mm512_storeu_si512(rounded[1], (__m512i)_mm512_cvtne2ps_pbh(c, d));
        for (int j = 0; j < 16; j++)
            check_same(got[j], expected[j], "vdpbf16ps");
        ck_assert_mem_eq(rounded[0], rounded[1], sizeof *rounded);
    }
}

__attribute__((target("amx-tile,amx-bf16"))) static void multiply_by_processor(const struct shape *s,
                                                                               struct operands *x)
{
    const struct twin_config config = config_of(s);
    _tile_loadconfig(&config);
    __asm__ volatile("" : : : "memory");
    _tile_loadd(0, x->a, sizeof *x->a);
    _tile_stream_loadd(7, x->b, sizeof *x->b);
    _tile_loadd(3, x->c, sizeof *x->c);
    _tile_dpbf16ps(3, 0, 7);
    _tile_stored(3, x->c, sizeof *x->c);
    _tile_release();
}

static void check_tiles(struct rng *rng)
{
    struct operands got, expected;
    for (int i = 0; i < 100 * N_SHAPES; i++) {
        draw_operands(&got, rng, i % 4 == 0);
        expected = got;
        multiply(&shapes[i % N_SHAPES], &got);
        multiply_by_processor(&shapes[i % N_SHAPES], &expected);
        for (int j = 0; j < 256; j++)
            check_same(got.c[j / 16][j % 16], expected.c[j / 16][j % 16], "tdpbf16ps");
    }
}

START_TEST(processor_agrees)
{
    struct rng rng;
    rng_init(&rng, 4);
    if (__builtin_cpu_supports("avx512bf16"))
        check_vectors(&rng);
    if (cattn_cpu_features() & CATTN_CPU_AMX)
        check_tiles(&rng);
}
END_TEST

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* Rows of a tile in memory are those of `rows`, or zero, and what lies between them is as guard_alloc left it. */
static void check_rows(const unsigned char *memory, size_t size, long step, long row_bytes, const unsigned char *rows)
{
    for (size_t i = 0; i < size; i++)
        ck_assert_uint_eq(memory[i], (long)i % step >= row_bytes ? 0xff : rows ? rows[i] : 0);
}

/* Tiles between pages without access, with their rows together or apart. */
START_TEST(moves_touch_no_other_byte)
{
    for (int i = 0; i < 4 * N_SHAPES; i++) {
        const struct shape *s = &shapes[i % N_SHAPES];
        const struct twin_config config = config_of(s);
        const enum guard_side side = i / N_SHAPES % 2 ? GUARD_END : GUARD_START;
        const long bytes = config.row_bytes[C], step = bytes + (i / N_SHAPES < 2 ? 0 : 24);
        const size_t size = (size_t)((s->rows - 1) * step + bytes);
        unsigned char *from = guard_alloc(size, side), *to = guard_alloc(size, side);
        for (size_t j = 0; j < size; j++)
            from[j] = (unsigned char)(j % 251 + 1);
        twin_loadconfig(&config);
        twin_stored(C, to, step);
        check_rows(to, size, step, bytes, NULL);
        twin_loadd(C, from, step);
        twin_stored(C, to, step);
        check_rows(to, size, step, bytes, from);
        twin_zero(C);
        twin_stored(C, to + (s->rows - 1) * step, -step);
        check_rows(to, size, step, bytes, NULL);
        twin_loadd(C, from, step); /* which the next configuration clears */
        twin_release();
        guard_free(from, size, side);
        guard_free(to, size, side);
    }
}
END_TEST

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static struct twin_config config;
static char bytes[1024];

/* clang-format off */
static void configure_palette(void) { config.palette = 0; twin_loadconfig(&config); }
static void configure_start(void) { config.start_row = 1; twin_loadconfig(&config); }
static void configure_reserved(void) { config.reserved[13] = 1; twin_loadconfig(&config); }
static void configure_more_columns(void) { config.no_row_bytes[0] = 64; twin_loadconfig(&config); }
static void configure_more_rows(void) { config.no_rows[7] = 1; twin_loadconfig(&config); }
static void configure_rows(void) { config.rows[A] = 17; twin_loadconfig(&config); }
static void configure_columns(void) { config.row_bytes[A] = 68; twin_loadconfig(&config); }
static void configure_odd_columns(void) { config.row_bytes[A] = 6; twin_loadconfig(&config); }
static void configure_no_rows(void) { config.rows[A] = 0; twin_loadconfig(&config); }
static void configure_twice(void) { twin_loadconfig(&config); twin_loadconfig(&config); }
static void release_twice(void) { twin_loadconfig(&config); twin_release(); twin_release(); }
static void use_unconfigured(void) { twin_zero(A); }
static void use_released(void) { twin_loadconfig(&config); twin_release(); twin_loadd(A, bytes, 64); }
static void use_other(void) { twin_loadconfig(&config); twin_stored(1, bytes, 64); }
static void use_far(void) { twin_loadconfig(&config); twin_zero(8); }
static void use_twice(void) { twin_loadconfig(&config); twin_dpbf16ps(C, A, A); }
static void use_wrong_rows(void) { config.rows[C] = 15; twin_loadconfig(&config); twin_dpbf16ps(C, A, B); }
static void use_wrong_columns(void) { config.row_bytes[C] = 60; twin_loadconfig(&config); twin_dpbf16ps(C, A, B); }
static void use_wrong_inner(void) { config.rows[B] = 15; twin_loadconfig(&config); twin_dpbf16ps(C, A, B); }
/* clang-format on */

static void (*const wrong[])(void) = {configure_palette,
                                      configure_start,
                                      configure_reserved,
                                      configure_more_columns,
                                      configure_more_rows,
                                      configure_rows,
                                      configure_columns,
                                      configure_odd_columns,
                                      configure_no_rows,
                                      configure_twice,
                                      release_twice,
                                      use_unconfigured,
                                      use_released,
                                      use_other,
                                      use_far,
                                      use_twice,
                                      use_wrong_rows,
                                      use_wrong_columns,
                                      use_wrong_inner};

START_TEST(refused)
{
    config = config_of(&shapes[0]);
    wrong[_i]();
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("tiles");
    tcase_add_test(tcase, products_are_those_of_the_manual);
    tcase_add_test(tcase, pairs_are_those_of_the_manual);
    tcase_add_test(tcase, rounding_is_that_of_bf16);
    tcase_add_test(tcase, processor_agrees);
    tcase_add_test(tcase, moves_touch_no_other_byte);
    tcase_add_loop_test_raise_signal(tcase, refused, SIGABRT, 0, sizeof wrong / sizeof *wrong);
    return suite_run(tcase);
}
