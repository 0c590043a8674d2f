/* Merging attention over two sets of tokens: no tokens are neutral bit by bit, the order is free within rounding, and
 * the result is attention over both. */
#include "chunkattention.h"
#include "support/dtype.h"
#include "support/guard.h"
#include "support/oracle.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#  include <xmmintrin.h>
#endif

/* A partial and its buffers, pressed against pages that cannot be touched. */
struct side {
    struct cattn_partial partial;
    uint32_t dtype, rows, heads, dim;
    size_t bytes;
};

static struct side side_new(uint32_t dtype, uint32_t rows, uint32_t heads, uint32_t dim, size_t pad)
{
    struct side s = {.dtype = dtype, .rows = rows, .heads = heads, .dim = dim};
    const size_t head = dim + pad, row = heads * head + 2 * pad;
    s.bytes = ((rows - 1) * row + (heads - 1) * head + dim) * dtype_size(dtype);
    s.partial = (struct cattn_partial){.size = sizeof s.partial,
                                       .out = guard_alloc(s.bytes, GUARD_END),
                                       .lse = guard_alloc(rows * heads * sizeof(float), GUARD_END)};
    if (pad) {
        s.partial.out_head = head;
        s.partial.out_row = row;
    }
    return s;
}

static void side_free(struct side *s)
{
    guard_free(s->partial.out, s->bytes, GUARD_END);
    guard_free(s->partial.lse, s->rows * s->heads * sizeof(float), GUARD_END);
}

static size_t at(const struct side *s, uint32_t row, uint32_t head, uint32_t d)
{
    const size_t in_head = s->partial.out_head ? s->partial.out_head : s->dim;
    const size_t in_row = s->partial.out_row ? s->partial.out_row : s->heads * s->dim;
    return row * in_row + head * in_head + d;
}

static double out_of(const struct side *s, uint32_t row, uint32_t head, uint32_t d)
{
    return dtype_load(s->dtype, s->partial.out, at(s, row, head, d));
}

static void set_out(struct side *s, uint32_t row, uint32_t head, uint32_t d, double x)
{
    dtype_store(s->dtype, s->partial.out, at(s, row, head, d), x);
}

static float *lse_of(const struct side *s, uint32_t row, uint32_t head)
{
    return &s->partial.lse[row * s->heads + head];
}

static double uniform(struct rng *rng)
{
    return (double)(rng_next(rng) >> 11) * 0x1p-52 - 1;
}

static void fill(struct side *s, struct rng *rng, double spread)
{
    for (uint32_t row = 0; row < s->rows; row++)
        for (uint32_t head = 0; head < s->heads; head++) {
            *lse_of(s, row, head) = (float)(spread * uniform(rng));
            for (uint32_t d = 0; d < s->dim; d++)
                set_out(s, row, head, d, uniform(rng));
        }
}

/* Of no tokens: what `out` has is not looked at. */
static void empty(struct side *s)
{
    memset(s->partial.out, 0xff, s->bytes);
    for (uint32_t i = 0; i < s->rows * s->heads; i++)
        s->partial.lse[i] = -INFINITY;
}

static void copy(struct side *to, const struct side *from)
{
    memcpy(to->partial.out, from->partial.out, from->bytes);
    memcpy(to->partial.lse, from->partial.lse, from->rows * from->heads * sizeof(float));
}

static int equal(const struct side *a, const struct side *b)
{
    return !memcmp(a->partial.out, b->partial.out, a->bytes) &&
           !memcmp(a->partial.lse, b->partial.lse, a->rows * a->heads * sizeof(float));
}

static void merge(struct side *into, const struct side *other)
{
    ck_assert_int_eq(
        cattn_merge_states(&into->partial, &other->partial, into->rows, into->heads, into->dim, into->dtype), CATTN_OK);
}

struct shape {
    uint32_t rows, heads, dim;
    size_t pad;
};

static const struct shape shapes[] = {{1, 1, 1, 0}, {3, 5, 24, 0}, {2, 3, 7, 3}, {1, 2, 1024, 0}, {4, 1, 1, 1}};

typedef void shape_test(const struct shape *shape, uint32_t dtype, struct rng *rng);

static void for_each_shape(shape_test *test)
{
    struct rng rng;
    rng_init(&rng, 1);
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            test(&shapes[i], dtype, &rng);
}

static void neutral(const struct shape *shape, uint32_t dtype, struct rng *rng)
{
    struct side x = side_new(dtype, shape->rows, shape->heads, shape->dim, shape->pad), into = x, none = x;
    into = side_new(dtype, shape->rows, shape->heads, shape->dim, shape->pad);
    none = side_new(dtype, shape->rows, shape->heads, shape->dim, shape->pad);
    fill(&x, rng, 1e5);
    set_out(&x, 0, 0, 0, -0.0);
    empty(&none);
    copy(&into, &x);
    merge(&into, &none);
    CHECK(equal(&into, &x), "x, then nothing: %s, dim %u", dtype_name(dtype), shape->dim);
    copy(&into, &none);
    merge(&into, &x);
    CHECK(equal(&into, &x), "nothing, then x: %s, dim %u", dtype_name(dtype), shape->dim);
    copy(&into, &none);
    merge(&into, &none);
    CHECK(equal(&into, &none), "nothing, twice: %s, dim %u", dtype_name(dtype), shape->dim);
    side_free(&x), side_free(&into), side_free(&none);
}

START_TEST(no_tokens_are_neutral)
{
    for_each_shape(neutral);
}
END_TEST

/* Each element is off by an own rounding in each of two merges, and by those of the weights. */
static void check_near(const struct side *a, const struct side *b, const char *what)
{
    for (uint32_t row = 0; row < a->rows; row++)
        for (uint32_t head = 0; head < a->heads; head++) {
            const double l = *lse_of(a, row, head), m = *lse_of(b, row, head);
            CHECK(fabs(l - m) <= 2e-7 * (1 + fabs(l)), "%s: lse %.9g, %.9g", what, l, m);
            for (uint32_t d = 0; d < a->dim; d++) {
                const double x = out_of(a, row, head, d), y = out_of(b, row, head, d);
                /* the weights come from rounded logarithms */
                const double error = 4 * dtype_epsilon(a->dtype) + 2 * fmax(fabs(l), 1) * 0x1p-22;
                CHECK(fabs(x - y) <= error, "%s, %s: %.9g, %.9g", what, dtype_name(a->dtype), x, y);
            }
        }
}

static void associative(const struct shape *shape, uint32_t dtype, struct rng *rng)
{
    static const double spreads[] = {0, 1, 20, 300};
    for (size_t i = 0; i < 4; i++) {
        struct side s[4];
        for (size_t k = 0; k < 4; k++) {
            s[k] = side_new(dtype, shape->rows, shape->heads, shape->dim, shape->pad);
            fill(&s[k], rng, spreads[i]);
        }
        copy(&s[3], &s[1]); /* s0 + (s1 + s2), (s0 + s1) + s2, (s2 + s1) + s0 */
        merge(&s[3], &s[2]);
        struct side right = side_new(dtype, shape->rows, shape->heads, shape->dim, shape->pad);
        copy(&right, &s[0]);
        merge(&right, &s[3]);
        copy(&s[3], &s[2]);
        merge(&s[3], &s[1]);
        merge(&s[3], &s[0]);
        merge(&s[0], &s[1]);
        merge(&s[0], &s[2]);
        check_near(&s[0], &right, "grouped");
        check_near(&s[0], &s[3], "backwards");
        side_free(&right);
        for (size_t k = 0; k < 4; k++)
            side_free(&s[k]);
    }
}

START_TEST(the_order_is_free_within_rounding)
{
    for_each_shape(associative);
}
END_TEST

/* ---- against attention over both ---------------------------------------------------------------------- */

enum { TOKENS = 40, HEAD_DIM = 6, V_DIM = 9 };

static void attend(const double *q, const double *k, const double *v, size_t n, const struct cattn_variant *variant,
                   struct side *s, uint32_t row)
{
    double out[V_DIM];
    *lse_of(s, row, 0) = n ? (float)oracle_row(q, k, v, n, HEAD_DIM, V_DIM, variant, 0, out) : -INFINITY;
    for (uint32_t d = 0; n && d < V_DIM; d++)
        set_out(s, row, 0, d, out[d]);
}

/* Row i has the first i tokens on one side; a learned sink is on the other. */
START_TEST(tokens_in_two_sets)
{
    struct rng rng;
    const float sinks[2] = {1.5f, -INFINITY};
    const struct cattn_variant with_sink = {.scale = 1, .sinks = &sinks[0]}, without = {.scale = 1};
    rng_init(&rng, 2);
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++)
        for (double gain = 0.5; gain < 1e4; gain *= 8) {
            struct side a = side_new(dtype, TOKENS, 1, V_DIM, 0), b = side_new(dtype, TOKENS, 1, V_DIM, 2);
            double q[HEAD_DIM], k[TOKENS * HEAD_DIM], v[TOKENS * V_DIM], expected[V_DIM];
            for (size_t i = 0; i < HEAD_DIM; i++)
                q[i] = gain * uniform(&rng);
            for (size_t i = 0; i < TOKENS * HEAD_DIM; i++)
                k[i] = uniform(&rng);
            for (size_t i = 0; i < TOKENS * V_DIM; i++)
                v[i] = uniform(&rng);
            for (uint32_t n = 0; n < TOKENS; n++) {
                attend(q, k, v, n, &without, &a, n);
                attend(q, k + n * HEAD_DIM, v + n * V_DIM, TOKENS - n, &with_sink, &b, n);
            }
            merge(&a, &b);
            double lse = oracle_row(q, k, v, TOKENS, HEAD_DIM, V_DIM, &with_sink, 0, expected);
            for (uint32_t n = 0; n < TOKENS; n++) {
                CHECK(fabs(*lse_of(&a, n, 0) - lse) <= 2e-7 * (1 + fabs(lse)), "lse %g, not %g", *lse_of(&a, n, 0),
                      lse);
                for (uint32_t d = 0; d < V_DIM; d++)
                    CHECK(fabs(out_of(&a, n, 0, d) - expected[d]) <=
                              2.5 * dtype_epsilon(dtype) + fmax(fabs(lse), 1) * 0x1p-22,
                          "%s, %u tokens of %d: %g, not %g", dtype_name(dtype), n, TOKENS, out_of(&a, n, 0, d),
                          expected[d]);
            }
            side_free(&a), side_free(&b);
        }
}
END_TEST

static void check_pair(float l, float m, double expected, double expected_lse)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++) {
        struct side a = side_new(dtype, 1, 1, 2, 0), b = side_new(dtype, 1, 1, 2, 0);
        for (uint32_t d = 0; d < 2; d++) {
            set_out(&a, 0, 0, d, 1);
            set_out(&b, 0, 0, d, 3);
        }
        *lse_of(&a, 0, 0) = l;
        *lse_of(&b, 0, 0) = m;
        merge(&a, &b);
        for (uint32_t d = 0; d < 2; d++)
            CHECK(fabs(out_of(&a, 0, 0, d) - expected) <= 3 * dtype_epsilon(dtype), "lse %g and %g: %g, not %g", l, m,
                  out_of(&a, 0, 0, d), expected);
        CHECK(*lse_of(&a, 0, 0) == (float)expected_lse, "lse %g and %g: %g, not %g", l, m, *lse_of(&a, 0, 0),
              expected_lse);
        side_free(&a), side_free(&b);
    }
}

START_TEST(far_apart)
{
    check_pair(0, 0, 2, log(2));
    check_pair(1e30f, 1e30f, 2, 1e30f);
    check_pair(-1e30f, -1e30f, 2, -1e30f);
    check_pair(1e30f, -1e30f, 1, 1e30f);
    check_pair(-1e30f, 1e30f, 3, 1e30f);
    check_pair(1e5f, 1e5f - 1000, 1, 1e5f);
    check_pair(-3e38f, 3e38f, 3, 3e38f);
    check_pair(0, 80, 3, 80);
    check_pair((float)log(3), 0, 1.5, log(4));
}
END_TEST

/* What is not a number on one side is not a number in the result, for that row and head alone. */
START_TEST(nan_stays_where_it_is)
{
    struct rng rng;
    rng_init(&rng, 3);
    for (int which = 0; which < 2; which++) {
        struct side a = side_new(CATTN_F32, 3, 2, 4, 0), b = side_new(CATTN_F32, 3, 2, 4, 0);
        fill(&a, &rng, 3);
        fill(&b, &rng, 3);
        struct side *bad = which ? &a : &b;
        *lse_of(bad, 1, 1) = NAN;
        for (uint32_t d = 0; d < 4; d++)
            set_out(bad, 1, 1, d, NAN);
        merge(&a, &b);
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t d = 0; d < 4; d++)
                ck_assert_int_eq(isnan(out_of(&a, i / 2, i % 2, d)) != 0, i == 3);
        for (uint32_t i = 0; i < 6; i++)
            ck_assert_int_eq(isnan(*lse_of(&a, i / 2, i % 2)) != 0, i == 3);
        side_free(&a), side_free(&b);
    }
}
END_TEST

START_TEST(padding_is_left_alone)
{
    struct rng rng;
    rng_init(&rng, 4);
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++) {
        struct side a = side_new(dtype, 3, 4, 5, 2), b = side_new(dtype, 3, 4, 5, 0);
        fill(&a, &rng, 3);
        fill(&b, &rng, 3);
        merge(&a, &b);
        const unsigned char *bytes = a.partial.out;
        const size_t size = dtype_size(dtype);
        for (size_t i = 0; i < a.bytes / size; i++)
            if (i % a.partial.out_row % a.partial.out_head >= 5 || i % a.partial.out_row >= 4 * a.partial.out_head)
                for (size_t j = 0; j < size; j++)
                    ck_assert_int_eq(bytes[i * size + j], 0xff);
        side_free(&a), side_free(&b);
    }
}
END_TEST

#define EXPECT(...)                                                                                                    \
  do {                                                                                                                 \
    struct cattn_partial into = a.partial, other = b.partial;                                                          \
    size_t rows = 2;                                                                                                   \
    uint32_t heads = 3, dim = 4, dtype = CATTN_F32;                                                                    \
    __VA_ARGS__;                                                                                                       \
    ck_assert_int_eq(cattn_merge_states(&into, &other, rows, heads, dim, dtype), CATTN_EINVAL);                        \
    ck_assert(equal(&a, &before));                                                                                     \
  } while (0)

START_TEST(bad_arguments)
{
    struct rng rng;
    struct side a = side_new(CATTN_F32, 2, 3, 4, 0), b = side_new(CATTN_F32, 2, 3, 4, 0);
    struct side before = side_new(CATTN_F32, 2, 3, 4, 0);
    rng_init(&rng, 5);
    fill(&a, &rng, 3);
    fill(&b, &rng, 3);
    copy(&before, &a);
    EXPECT(into.size = 0);
    EXPECT(into.size--);
    EXPECT(other.size = SIZE_MAX);
    EXPECT(into.out = NULL);
    EXPECT(into.lse = NULL);
    EXPECT(other.out = NULL);
    EXPECT(other.lse = NULL);
    EXPECT(other.out = into.out);
    EXPECT(other.lse = into.lse);
    EXPECT(heads = 0);
    EXPECT(dim = 0);
    EXPECT(dtype = CATTN_I8);
    EXPECT(dtype = 77);
    ck_assert_int_eq(cattn_merge_states(NULL, &b.partial, 2, 3, 4, CATTN_F32), CATTN_EINVAL);
    ck_assert_int_eq(cattn_merge_states(&a.partial, NULL, 2, 3, 4, CATTN_F32), CATTN_EINVAL);
    struct cattn_partial none = {.size = sizeof none}, nothing = none;
    ck_assert_int_eq(cattn_merge_states(&none, &nothing, 0, 3, 4, CATTN_F32), CATTN_OK);
    side_free(&a), side_free(&b), side_free(&before);
}
END_TEST

/* Whatever arithmetic the caller has set up, the library's own decides the bits, and the caller's is as before. */
START_TEST(arithmetic_of_the_caller)
{
#if defined(__SSE__)
    struct rng rng;
    struct side a = side_new(CATTN_F32, 2, 3, 40, 0), b = side_new(CATTN_F32, 2, 3, 40, 0);
    struct side c = side_new(CATTN_F32, 2, 3, 40, 0);
    rng_init(&rng, 6);
    fill(&a, &rng, 3);
    fill(&b, &rng, 3);
    copy(&c, &a);
    merge(&c, &b);
    const unsigned saved = _mm_getcsr(), odd = 0x1f80 | 0x8000 | 0x4000; /* flush denormals, round up */
    _mm_setcsr(odd);
    const int status = cattn_merge_states(&a.partial, &b.partial, 2, 3, 40, CATTN_F32);
    const unsigned left = _mm_getcsr();
    _mm_setcsr(saved);
    ck_assert_int_eq(status, CATTN_OK);
    ck_assert_uint_eq(left & ~0x3fu, odd);
    ck_assert(equal(&a, &c));
    side_free(&a), side_free(&b), side_free(&c);
#endif
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("merge");
    tcase_add_test(tcase, no_tokens_are_neutral);
    tcase_add_test(tcase, the_order_is_free_within_rounding);
    tcase_add_test(tcase, tokens_in_two_sets);
    tcase_add_test(tcase, far_apart);
    tcase_add_test(tcase, nan_stays_where_it_is);
    tcase_add_test(tcase, padding_is_left_alone);
    tcase_add_test(tcase, bad_arguments);
    tcase_add_test(tcase, arithmetic_of_the_caller);
    return suite_run(tcase);
}
