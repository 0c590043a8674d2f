/* The caller's struct: which versions are read, which values are refused, and that a refused one changes nothing. */
#include "variant.h"

#include "support/engine.h"
#include "support/suite.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 3 };

static const float slopes[HEADS] = {0.5f, 0, -2}, sinks[HEADS] = {-INFINITY, 3, -0.0f};

static struct cattn_variant full(void)
{
    return (struct cattn_variant){.size = sizeof(struct cattn_variant),
                                  .scale = 0.25f,
                                  .softcap = 30,
                                  .window = UINT32_MAX,
                                  .n_sink_tokens = 4,
                                  .alibi_slopes = slopes,
                                  .sinks = sinks};
}

static bool reads(const struct cattn_variant *from)
{
    struct cattn_variant to;
    return cattn_variant_read(&to, from, HEADS);
}

static void expect_plain(const struct cattn_variant *v)
{
    ck_assert_uint_eq(v->size, sizeof(*v));
    ck_assert(v->scale == 0 && v->softcap == 0 && !v->window && !v->n_sink_tokens);
    ck_assert(!v->alibi_slopes && !v->sinks);
}

START_TEST(none_is_the_plain_one)
{
    struct cattn_variant to, empty = {.size = sizeof(empty)};
    memset(&to, 0xff, sizeof(to));
    ck_assert(cattn_variant_read(&to, NULL, HEADS));
    expect_plain(&to);
    memset(&to, 0xff, sizeof(to));
    ck_assert(cattn_variant_read(&to, &empty, HEADS));
    expect_plain(&to);
}
END_TEST

START_TEST(every_field_is_read)
{
    struct cattn_variant to, from = full();
    ck_assert(cattn_variant_read(&to, &from, HEADS));
    ck_assert_mem_eq(&to, &from, sizeof(to));
}
END_TEST

/* The struct of the first version, whose padding is anything. */
START_TEST(the_first_version_is_read)
{
    struct first {
        size_t size;
        float scale;
    };
    union {
        struct first first;
        unsigned char bytes[sizeof(struct first)];
    } old;
    struct cattn_variant to;
    memset(&old, 0xff, sizeof(old));
    old.first.size = sizeof(old.first);
    old.first.scale = 0.5f;
    unsigned char *exact = malloc(sizeof(old)); /* nothing behind it may be touched */
    memcpy(exact, &old, sizeof(old));
    ck_assert(cattn_variant_read(&to, (const struct cattn_variant *)(const void *)exact, HEADS));
    free(exact);
    ck_assert(to.scale == 0.5f);
    to.scale = 0;
    expect_plain(&to);
}
END_TEST

START_TEST(other_sizes)
{
    struct {
        struct cattn_variant variant;
        unsigned char more[16];
    } later = {.variant = full()};
    later.variant.size = sizeof(later);
    ck_assert(reads(&later.variant));
    later.more[15] = 1; /* something that this library does not know is asked for */
    ck_assert(!reads(&later.variant));
    static const size_t sizes[] = {
        0, 1, sizeof(size_t), 2 * sizeof(size_t) + 1, sizeof(struct cattn_variant) - 1, 1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct cattn_variant v = full();
        v.size = sizes[i];
        ck_assert_msg(!reads(&v), "size %zu", sizes[i]);
    }
}
END_TEST

START_TEST(bad_values)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1, -FLT_MIN, -1e-45f};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct cattn_variant v = full();
        v.scale = bad[i];
        ck_assert_msg(!reads(&v), "scale %g", bad[i]);
        v = full();
        v.softcap = bad[i];
        ck_assert_msg(!reads(&v), "softcap %g", bad[i]);
    }
}
END_TEST

START_TEST(bad_values_in_arrays)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++)
        for (size_t head = 0; head < HEADS; head++) {
            float x[HEADS + 1] = {1, 2, 3, NAN}; /* the last is not one of theirs */
            struct cattn_variant v = full();
            v.alibi_slopes = x;
            ck_assert(reads(&v));
            x[head] = bad[i];
            ck_assert_msg(!reads(&v), "slope %g of head %zu", bad[i], head);
            v = full();
            v.sinks = x;
            ck_assert_msg(reads(&v) == (bad[i] == -INFINITY), "sink %g of head %zu", bad[i], head);
        }
}
END_TEST

START_TEST(extreme_values_are_allowed)
{
    static const float large[HEADS] = {FLT_MAX, -FLT_MAX, 1e-45f};
    struct cattn_variant v = {.size = sizeof(v),
                              .scale = FLT_MAX,
                              .softcap = FLT_MAX,
                              .window = 1,
                              .n_sink_tokens = UINT32_MAX,
                              .alibi_slopes = large,
                              .sinks = large};
    ck_assert(reads(&v));
}
END_TEST

/* ---- through the interface ---------------------------------------------------------------------------- */

typedef int call(struct engine *e, const struct cattn_io *io);

static int attend(struct engine *e, const struct cattn_io *io)
{
    return cattn_step_attend(e->step, 0, io);
}

static int attend_part(struct engine *e, const struct cattn_io *io)
{
    return cattn_step_attend_part(e->step, 0, io, 0, 1);
}

/* A call with a bad variant, alone and with K and V: no output, no K and V stored, no bytes counted. */
static void refuse(call *make, const struct cattn_variant *variant)
{
    struct cattn_config config = engine_config(256);
    struct engine e;
    struct toy toy;
    struct cattn_io io;
    int32_t tokens[40] = {0};
    config.n_heads = HEADS;
    engine_init(&e, &config, 1);
    engine_prefill(&e, &toy, 0, tokens, 37, 0);
    struct engine_item item = {.toy = &toy, .tokens = tokens + 37, .n_tokens = 3};
    ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
    struct cattn_stats before = engine_stats(&e);
    engine_load(&e, 0, &io);
    io.variant = variant;
    ck_assert_int_eq(make(&e, &io), CATTN_EINVAL);
    struct cattn_stats after = engine_stats(&e);
    ck_assert_mem_eq(&before, &after, sizeof(before));
    for (size_t i = 0; i < e.out.bytes; i++)
        ck_assert_uint_eq(((unsigned char *)e.out.data)[i], 0xff);
    for (size_t i = 0; i < e.lse.bytes; i++)
        ck_assert_uint_eq(((unsigned char *)e.lse.data)[i], 0xff);
    io.variant = NULL;
    io.k = io.v = NULL;
    ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_ESTATE); /* the layer is not written */
    ck_assert_int_eq(cattn_step_end(e.step), CATTN_ESTATE);
    engine_layers(&e);
    engine_end(&e);
    engine_close(&e, &toy);
    engine_free(&e);
}

START_TEST(a_bad_variant_changes_nothing)
{
    static const float bad_slopes[HEADS] = {0, 0, NAN}, bad_sinks[HEADS] = {0, INFINITY, 0};
    struct cattn_variant bad[6];
    for (size_t i = 0; i < 6; i++)
        bad[i] = full();
    bad[0].size = sizeof(size_t);
    bad[1].scale = -1;
    bad[2].scale = NAN;
    bad[3].softcap = INFINITY;
    bad[4].alibi_slopes = bad_slopes;
    bad[5].sinks = bad_sinks;
    for (size_t i = 0; i < 6; i++) {
        refuse(attend, &bad[i]);
        refuse(attend_part, &bad[i]);
    }
}
END_TEST

/* Numbers near the largest float give numbers: outputs within the values, whatever becomes of the weights. */
START_TEST(extreme_values_give_numbers)
{
    static const float large[HEADS] = {FLT_MAX, 0, 1e-45f}, sinks_of[HEADS] = {FLT_MAX, -FLT_MAX, 0};
    const struct cattn_variant cases[] = {
        {.size = sizeof(*cases), .softcap = FLT_MAX},    {.size = sizeof(*cases), .softcap = 1e-45f},
        {.size = sizeof(*cases), .scale = FLT_MIN},      {.size = sizeof(*cases), .scale = FLT_MAX, .softcap = 1},
        {.size = sizeof(*cases), .alibi_slopes = large}, {.size = sizeof(*cases), .sinks = sinks_of}};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
            struct cattn_config config = engine_config(256);
            struct engine e;
            struct toy toy;
            struct cattn_io io;
            int32_t tokens[80];
            config.n_heads = HEADS;
            config.kernel = choice.kernel;
            config.kv_dtype = choice.kv_dtype;
            engine_init(&e, &config, i);
            random_tokens(&e.rng, tokens, 80, 1000);
            e.variant = &cases[i];
            engine_open(&e, &toy, 0, NULL, 0);
            struct engine_item item = {.toy = &toy, .tokens = tokens, .n_tokens = 80};
            ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
            engine_load(&e, 0, &io);
            ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_OK);
            for (size_t j = 0; j < e.out.bytes / sizeof(float); j++)
                CHECK(fabsf(((float *)e.out.data)[j]) <= 1.02f, "%s, kv %u, case %zu: %g", choice.kernel,
                      choice.kv_dtype, i, ((float *)e.out.data)[j]);
            for (size_t j = 0; j < e.lse.bytes / sizeof(float); j++)
                CHECK(isfinite(((float *)e.lse.data)[j]), "%s, case %zu", choice.kernel, i);
            engine_end(&e);
            engine_close(&e, &toy);
            engine_free(&e);
        }
}
END_TEST

/* Sums near the largest float against a cap that only they exceed, and values as large as three tokens may have. */
START_TEST(the_largest_numbers)
{
    const struct cattn_variant variant = {.size = sizeof(variant), .scale = 0x1p-100f, .softcap = 0x1p24f};
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        struct cattn_config config = engine_config(64);
        struct engine e;
        struct toy toy;
        struct cattn_io io;
        const int32_t tokens[3] = {1, 2, 3};
        const float value = choice.kv_dtype == CATTN_F16 ? 0x1p15f : 0x1p118f;
        config.head_dim = 16;
        config.kernel = choice.kernel;
        config.kv_dtype = choice.kv_dtype;
        engine_init(&e, &config, 1);
        e.variant = &variant;
        engine_open(&e, &toy, 0, NULL, 0);
        struct engine_item item = {.toy = &toy, .tokens = tokens, .n_tokens = 3};
        ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
        engine_load(&e, 0, &io);
        for (size_t i = 0; i < e.q.bytes / sizeof(float); i++)
            ((float *)e.q.data)[i] = 0x1p110f;
        for (size_t i = 0; i < e.k.bytes / sizeof(float); i++)
            ((float *)e.k.data)[i] = 0x1p13f;
        for (size_t i = 0; i < e.v.bytes / sizeof(float); i++)
            ((float *)e.v.data)[i] = value;
        ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_OK);
        for (size_t i = 0; i < e.lse.bytes / sizeof(float); i++)
            CHECK(fabsf(((float *)e.lse.data)[i] - 0x1p24f) < 0x1p10f, "%s, kv %u: %g", choice.kernel, choice.kv_dtype,
                  ((float *)e.lse.data)[i]);
        for (size_t i = 0; i < e.out.bytes / sizeof(float); i++)
            CHECK(fabsf(((float *)e.out.data)[i] / value - 1) < 0.02f, "%s, kv %u: %g", choice.kernel, choice.kv_dtype,
                  ((float *)e.out.data)[i]);
        engine_end(&e);
        engine_close(&e, &toy);
        engine_free(&e);
    }
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("variant");
    tcase_add_test(tests, none_is_the_plain_one);
    tcase_add_test(tests, every_field_is_read);
    tcase_add_test(tests, the_first_version_is_read);
    tcase_add_test(tests, other_sizes);
    tcase_add_test(tests, bad_values);
    tcase_add_test(tests, bad_values_in_arrays);
    tcase_add_test(tests, extreme_values_are_allowed);
    tcase_add_test(tests, a_bad_variant_changes_nothing);
    tcase_add_test(tests, extreme_values_give_numbers);
    tcase_add_test(tests, the_largest_numbers);
    return suite_run(tests);
}
