/* The algebra of states: the empty one is neutral, merging is a weighted sum, a NaN is not lost; and the same bits with
 * all sets of instructions. */
#include "arithmetic.h"
#include "chunkattention.h"
#include "state.h"
#include "support/dtype.h"
#include "support/guard.h"
#include "support/random.h"
#include "support/suite.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { V_DIM = 19, V_PAD = 32, FLOATS = CATTN_STATE_O + V_PAD };

struct state {
    float f[FLOATS];
};

/* Where the library sees it: aligned. */
struct place {
    _Alignas(64) struct state state;
};

static const struct cattn_states *states; /* under test */

/* The plain ones, then the fastest unless that is all there is. */
static void take_states(int i)
{
    states = i ? cattn_states_find() : &cattn_states_plain;
}

static int n_states(void)
{
    return cattn_states_find() == &cattn_states_plain ? 1 : 2;
}

static struct state empty_state(void)
{
    struct place p;
    memset(&p, 0xff, sizeof p);
    cattn_state_clear(p.state.f, V_PAD);
    return p.state;
}

/* With whole numbers up to `most` for l and o; every sum of a few of them is exact. */
static struct state whole_state(struct rng *rng, float m, unsigned most)
{
    struct state s = empty_state();
    s.f[0] = m;
    for (size_t i = CATTN_STATE_L; i < FLOATS; i++)
        s.f[i] = (float)(1 + rng_below(rng, most));
    return s;
}

static struct state filled_state(float m, float l, float o)
{
    struct state s = empty_state();
    s.f[0] = m;
    for (size_t i = CATTN_STATE_L; i < FLOATS; i++)
        s.f[i] = i < CATTN_STATE_O ? l : o;
    return s;
}

static struct state merged(struct state into, struct state later)
{
    struct place a = {into}, b = {later};
    states->merge(a.state.f, b.state.f, V_PAD);
    return a.state;
}

static void finish(struct state s, void *out, uint32_t dtype, float *lse)
{
    struct place p = {s};
    states->finish(p.state.f, V_DIM, out, dtype, lse);
}

static int equal(const struct state *a, const struct state *b)
{
    const size_t n = FLOATS - CATTN_STATE_L;
    return a->f[0] == b->f[0] && !memcmp(a->f + CATTN_STATE_L, b->f + CATTN_STATE_L, n * sizeof *a->f);
}

START_TEST(empty_is_neutral)
{
    take_states(_i);
    struct rng rng;
    rng_init(&rng, 1);
    struct state empty = empty_state(), both = merged(empty, empty);
    ck_assert(equal(&both, &empty));
    for (int m = -200; m <= 200; m += 50) {
        struct state x = whole_state(&rng, (float)m, 1 << 24);
        for (size_t i = CATTN_STATE_L; i < FLOATS; i++)
            x.f[i] /= 3; /* bits in every place */
        x.f[CATTN_STATE_O + 1] = -0.0f;
        struct state before = merged(empty, x), after = merged(x, empty);
        CHECK(equal(&before, &x), "empty, then x with m %d", m);
        CHECK(equal(&after, &x), "x with m %d, then empty", m);
    }
}
END_TEST

/* Each part is weighed by 2^m. */
START_TEST(merge_is_a_weighted_sum)
{
    take_states(_i);
    struct rng rng;
    rng_init(&rng, 2);
    for (int a = -12; a <= 12; a++) {
        struct state x = whole_state(&rng, (float)a, 100), y = whole_state(&rng, 3, 100), z = merged(x, y);
        float top = a > 3 ? (float)a : 3;
        ck_assert(z.f[0] == top);
        for (size_t i = CATTN_STATE_L; i < FLOATS; i++) {
            double expected = ldexp(x.f[i], a - (int)top) + ldexp(y.f[i], 3 - (int)top);
            CHECK(z.f[i] == expected, "m %d and 3, float %zu: %a, not %a", a, i, z.f[i], expected);
        }
    }
}
END_TEST

/* Where nothing is rounded the order does not matter; where something is, the later state is scaled and then added. */
START_TEST(merge_order)
{
    take_states(_i);
    struct rng rng;
    rng_init(&rng, 3);
    for (int a = -3; a <= 3; a++)
        for (int b = -3; b <= 3; b++) {
            struct state x = whole_state(&rng, (float)a, 64), y = whole_state(&rng, (float)b, 64);
            struct state z = whole_state(&rng, 0, 64);
            struct state left = merged(merged(x, y), z), right = merged(x, merged(y, z));
            struct state back = merged(z, merged(y, x));
            CHECK(equal(&left, &right) && equal(&left, &back), "m %d, %d, 0", a, b);
        }
    struct state one = filled_state(0, 1, 1), small = filled_state(-24, 1, 1), smaller = filled_state(-25, 1, 1);
    struct state in_order = merged(merged(one, small), small), grouped = merged(one, merged(small, small));
    ck_assert(in_order.f[CATTN_STATE_L] == 1); /* a half unit each: to even, twice */
    ck_assert(grouped.f[CATTN_STATE_L] == 1 + 0x1p-23f);
    grouped = merged(merged(smaller, smaller), one);
    ck_assert(grouped.f[0] == 0 && grouped.f[CATTN_STATE_O] == 1);
}
END_TEST

/* The weight of a state far below is zero, not less than nothing. */
START_TEST(merge_far_apart)
{
    take_states(_i);
    struct state high = filled_state(1000, 5, 7), low = filled_state(-1000, 3, 2);
    struct state a = merged(high, low), b = merged(low, high);
    ck_assert(equal(&a, &high));
    ck_assert(equal(&b, &high));
}
END_TEST

START_TEST(finish_divides)
{
    take_states(_i);
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++) {
        struct state s = filled_state(3, 0.25f, 0);
        uint32_t room[V_DIM + 1], untouched = UINT32_MAX;
        float lse = 0;
        memset(room, 0xff, sizeof room);
        for (size_t i = 0; i < V_DIM; i++)
            s.f[CATTN_STATE_O + i] = (float)i - 4; /* l is 4 */
        finish(s, room, dtype, &lse);
        for (size_t i = 0; i < V_DIM; i++)
            ck_assert(dtype_load(dtype, room, i) == ((double)i - 4) / 4);
        ck_assert_mem_eq((char *)room + V_DIM * dtype_size(dtype), &untouched, dtype_size(dtype));
        ck_assert(lse == (float)(5 * log(2)));
        finish(s, room, dtype, NULL);
    }
}
END_TEST

START_TEST(finish_of_empty)
{
    take_states(_i);
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++) {
        struct state s = empty_state();
        uint32_t room[V_DIM], zero[V_DIM] = {0};
        float lse = 0;
        memset(room, 0xff, sizeof room);
        finish(s, room, dtype, &lse);
        ck_assert_mem_eq(room, zero, V_DIM * dtype_size(dtype));
        ck_assert(lse == -INFINITY);
    }
}
END_TEST

static void check_nan(struct state s, const char *what)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++) {
        uint32_t room[V_DIM] = {0};
        float lse = 0;
        finish(s, room, dtype, &lse);
        for (size_t i = 0; i < V_DIM; i++)
            CHECK(isnan(dtype_load(dtype, room, i)), "%s: %g", what, dtype_load(dtype, room, i));
        CHECK(isnan(lse), "%s: lse %g", what, lse);
    }
}

static void check_nan_of(float m)
{
    struct state nan = filled_state(m, NAN, NAN), low = filled_state(-5, 1, 2), high = filled_state(9, 3, 1);
    check_nan(nan, "alone");
    check_nan(merged(nan, low), "before a lower one");
    check_nan(merged(nan, high), "before a higher one");
    check_nan(merged(low, nan), "after a lower one");
    check_nan(merged(high, nan), "after a higher one");
    check_nan(merged(empty_state(), nan), "after an empty one");
    check_nan(merged(nan, empty_state()), "before an empty one");
    check_nan(merged(merged(merged(low, nan), high), empty_state()), "in the middle");
}

START_TEST(nan_propagates)
{
    take_states(_i);
    check_nan_of(2);
    check_nan_of(-INFINITY); /* no score was a number */
}
END_TEST

/* ---- the same bits ---------------------------------------------------------------------------------- */

/* A state and outputs with nothing around them. */
struct guarded {
    size_t n_floats, out_bytes;
    float *into, *later, *lse;
    unsigned char *out;
};

static struct guarded guarded_open(uint32_t v_dim, uint32_t v_pad, uint32_t dtype)
{
    struct guarded g = {.n_floats = cattn_state_floats(v_pad), .out_bytes = v_dim * dtype_size(dtype)};
    g.into = guard_alloc(g.n_floats * sizeof(float), GUARD_END);
    g.later = guard_alloc(g.n_floats * sizeof(float), GUARD_END);
    g.lse = guard_alloc(sizeof(float), GUARD_END);
    g.out = guard_alloc(g.out_bytes, GUARD_END);
    return g;
}

static void guarded_close(struct guarded *g)
{
    guard_free(g->into, g->n_floats * sizeof(float), GUARD_END);
    guard_free(g->later, g->n_floats * sizeof(float), GUARD_END);
    guard_free(g->lse, sizeof(float), GUARD_END);
    guard_free(g->out, g->out_bytes, GUARD_END);
}

static float any_bits(struct rng *rng)
{
    const uint32_t bits = (uint32_t)rng_next(rng);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The only NaN is the one that processors make: which of two goes on is for the compiler to say. */
static float any_number(struct rng *rng)
{
    static const float special[] = {0,       -0.0f,        INFINITY, -INFINITY, FLT_TRUE_MIN, -FLT_TRUE_MIN,
                                    FLT_MIN, -FLT_MIN / 2, FLT_MAX,  -FLT_MAX,  -NAN};
    const float x = any_bits(rng);
    return rng_chance(rng, 3) ? special[rng_below(rng, sizeof special / sizeof *special)] : isnan(x) ? -NAN : x;
}

/* Halfway between two numbers of half the size, often, and within their range. */
static float short_number(struct rng *rng)
{
    return ldexpf((float)rng_below(rng, 1 << 14) - (1 << 13), (int)rng_below(rng, 44) - 38);
}

enum kind { SHORT, NUMBERS, BITS, N_KINDS };

/* BITS: o is anything, l is not. */
static void draw_state(struct rng *rng, float *state, size_t n_floats, enum kind kind)
{
    for (size_t i = 0; i < n_floats; i++)
        state[i] = kind == NUMBERS                      ? any_number(rng)
                   : kind == BITS && i >= CATTN_STATE_O ? any_bits(rng)
                   : kind == BITS || i < CATTN_STATE_O  ? (float)(i % 3) / 3
                                                        : short_number(rng);
    if (kind == SHORT && rng_chance(rng, 50))
        for (size_t i = CATTN_STATE_L; i < CATTN_STATE_O; i++)
            state[i] = i == CATTN_STATE_L + 5; /* o is the output */
    state[0] = rng_chance(rng, 10) ? -INFINITY : (float)rng_below(rng, 300) - 150;
}

/* What one table makes of a state and of another. */
static void merge_with(const struct cattn_states *table, struct guarded *g, const struct guarded *from, uint32_t v_pad)
{
    memcpy(g->into, from->into, g->n_floats * sizeof(float));
    memcpy(g->later, from->later, g->n_floats * sizeof(float));
    table->merge(g->into, g->later, v_pad);
}

/* Taking is merging, but that nothing is left. */
static void check_take(const struct cattn_states *table, struct guarded *g, const struct guarded *from, uint32_t v_pad)
{
    merge_with(table, g, from, v_pad);
    float *merged = malloc(g->n_floats * sizeof(float));
    memcpy(merged, g->into, g->n_floats * sizeof(float));
    memcpy(g->into, from->into, g->n_floats * sizeof(float));
    table->take(g->into, g->later, v_pad);
    CHECK(!memcmp(g->into, merged, g->n_floats * sizeof(float)), "taken otherwise than merged, v_pad %u", v_pad);
    CHECK(g->later[0] == -INFINITY, "m %g is left", g->later[0]);
    for (size_t i = CATTN_STATE_L; i < g->n_floats; i++)
        CHECK(g->later[i] == 0 && !signbit(g->later[i]), "%g is left at %zu", g->later[i], i);
    free(merged);
}

static void check_equal(struct rng *rng, uint32_t v_dim, uint32_t dtype, enum kind kind)
{
    const uint32_t v_pad = (v_dim + 15) / 16 * 16;
    struct guarded from = guarded_open(v_dim, v_pad, dtype), a = guarded_open(v_dim, v_pad, dtype),
                   b = guarded_open(v_dim, v_pad, dtype);
    const size_t bytes = from.n_floats * sizeof(float);
    for (int i = 0; i < 100; i++) {
        draw_state(rng, from.into, from.n_floats, kind);
        draw_state(rng, from.later, from.n_floats, kind == BITS ? SHORT : kind);
        for (int is_merged = 0; is_merged < 2; is_merged++) {
            cattn_states_plain.finish(from.into, v_dim, a.out, dtype, a.lse);
            states->finish(from.into, v_dim, b.out, dtype, b.lse);
            CHECK(!memcmp(a.out, b.out, a.out_bytes), "%s, dim %u, kind %d", dtype_name(dtype), v_dim, kind);
            CHECK(!memcmp(a.lse, b.lse, sizeof(float)), "lse %a and %a, kind %d", *a.lse, *b.lse, kind);
            check_take(&cattn_states_plain, &a, &from, v_pad);
            check_take(states, &b, &from, v_pad);
            merge_with(&cattn_states_plain, &a, &from, v_pad);
            merge_with(states, &b, &from, v_pad);
            CHECK(!memcmp(a.into, b.into, bytes) && !memcmp(a.later, b.later, bytes), "dim %u, kind %d", v_dim, kind);
            memcpy(from.into, a.into, bytes);
        }
    }
    guarded_close(&from);
    guarded_close(&a);
    guarded_close(&b);
}

static void check_all_equal(uint64_t salt)
{
    static const uint32_t dims[] = {1, 7, 15, 16, 17, 33, 64, 128, 129, 255};
    struct rng rng;
    rng_init(&rng, salt);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++)
            for (enum kind kind = 0; kind < N_KINDS; kind++)
                check_equal(&rng, dims[i], dtype, kind);
}

/* With the arithmetic of the caller, and with that of the library. */
START_TEST(equal_bits)
{
    take_states(_i);
    check_all_equal(4);
    const uint64_t saved = cattn_enter_arithmetic();
    check_all_equal(5);
    cattn_leave_arithmetic(saved);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("state");
    tcase_add_loop_test(tcase, empty_is_neutral, 0, n_states());
    tcase_add_loop_test(tcase, merge_is_a_weighted_sum, 0, n_states());
    tcase_add_loop_test(tcase, merge_order, 0, n_states());
    tcase_add_loop_test(tcase, merge_far_apart, 0, n_states());
    tcase_add_loop_test(tcase, finish_divides, 0, n_states());
    tcase_add_loop_test(tcase, finish_of_empty, 0, n_states());
    tcase_add_loop_test(tcase, nan_propagates, 0, n_states());
    tcase_add_loop_test(tcase, equal_bits, 1, n_states());
    return suite_run(tcase);
}
