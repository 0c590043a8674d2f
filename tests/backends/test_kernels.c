/* Every kernel of the CPU backend that runs here, against the oracle and against `generic`: shapes, data types,
 * variants, lengths around each chunk, buffers pressed against guard pages, outputs and pools full of NaN. */
#include "cache.h"
#include "store.h"
#include "support/bounds.h"
#include "support/dtype.h"
#include "support/engine.h"
#include "support/oracle.h"
#include "support/suite.h"
#include "support/variant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const uint32_t head_dims[] = {1, 2, 3, 7, 8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 120, 127, 128, 160, 192, 256};
static const uint32_t ratios[][2] = {{1, 1}, {8, 1}, {8, 4}, {9, 3}, {12, 2}, {5, 1}, {28, 4}, {32, 8}};
static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 16, 33};
static const uint32_t chunks[] = {32, 64, 128, 256};
static const uint32_t io_dtypes[] = {CATTN_F32, CATTN_F16, CATTN_BF16};
static const uint32_t kv_dtypes[] = {CATTN_F32, CATTN_F16, CATTN_BF16, CATTN_I8};

struct kernel_case {
    uint32_t head_dim, v_head_dim, heads, kv_heads, rows, length, chunk, io_dtype, kv_dtype;
    uint32_t shared; /* chunks that the sequences have in common */
    uint32_t threads;
    enum engine_form form;
    enum guard_side guard;
    size_t pad;
    unsigned parts; /* of the variant, whose values follow from the salt */
    double gain;
    uint64_t salt;
};

enum { N_SEQUENCES = 3 };

static void describe(const struct kernel_case *c, const char *kernel, char *text, size_t size)
{
    snprintf(text, size,
             "%s: head_dim %u, v_head_dim %u, heads %u/%u, rows %u, length %u, chunk %u, io %s, kv %s, shared %u, "
             "threads %u, form %d, guard %d, pad %zu, variant %u, gain %g, salt %llu",
             kernel, c->head_dim, c->v_head_dim, c->heads, c->kv_heads, c->rows, c->length, c->chunk,
             dtype_name(c->io_dtype), dtype_name(c->kv_dtype), c->shared, c->threads, (int)c->form, (int)c->guard,
             c->pad, c->parts, c->gain, (unsigned long long)c->salt);
}

static struct cattn_variant *variant_of(const struct kernel_case *c)
{
    struct cattn_variant *variant = variant_new(c->heads);
    variant_draw(variant, c->parts, c->salt, c->heads, c->chunk, c->length);
    return variant;
}

/* Sequence 0 has the length and the rows of the case, the others are near.  All start with the same chunks. */
static void run_case(const struct kernel_case *c, const char *kernel, struct trace **traces)
{
    uint32_t longest = c->length + 40;
    struct cattn_config config = {.size = sizeof config,
                                  .backend = "cpu",
                                  .kernel = kernel,
                                  .n_layers = 1,
                                  .n_heads = c->heads,
                                  .n_kv_heads = c->kv_heads,
                                  .head_dim = c->head_dim,
                                  .v_head_dim = c->v_head_dim,
                                  .chunk_tokens = c->chunk,
                                  .io_dtype = c->io_dtype,
                                  .kv_dtype = c->kv_dtype,
                                  .n_threads = c->threads};
    config.max_tokens = (uint64_t)N_SEQUENCES * (longest + 2 * c->chunk);
    struct engine e;
    struct toy toys[N_SEQUENCES];
    struct engine_item items[N_SEQUENCES];
    int32_t *tokens = malloc(longest * N_SEQUENCES * sizeof *tokens);
    engine_init(&e, &config, c->salt);
    e.guard = c->guard;
    e.pad = c->pad;
    struct cattn_variant *variant = variant_of(c);
    e.variant = c->parts ? variant : NULL;
    e.gain = c->gain;
    e.check_rows = test_full() ? 0 : 2;
    cattn_store_fill_nan(e.cache->store);
    e.form = FORM_WRITE;
    random_tokens(&e.rng, tokens, longest * N_SEQUENCES, 50000);
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        int32_t *own = tokens + i * longest;
        uint32_t rows = i == 0 ? c->rows : i, length = c->length + (i ? (uint32_t)rng_below(&e.rng, 40) : 0);
        memcpy(own, tokens, (size_t)c->shared * c->chunk * sizeof *own);
        if (length > rows)
            engine_prefill(&e, &toys[i], 0, own, length - rows, 512);
        else
            engine_open(&e, &toys[i], 0, NULL, 0);
        length = (uint32_t)toys[i].length + rows;
        toys[i].trace = traces[i] = trace_new(&e, length);
        items[i] =
            (struct engine_item){.toy = &toys[i], .tokens = own + length - rows, .n_tokens = rows, .min_rows = rows};
    }
    e.form = c->form;
    engine_step(&e, items, N_SEQUENCES);
    for (uint32_t i = 0; i < N_SEQUENCES; i++)
        engine_close(&e, &toys[i]);
    engine_check(&e, NULL, 0);
    engine_free(&e);
    variant_free(variant);
    free(tokens);
}

/* What bounds all rows of a head. */
static struct bound bound_of_head(const struct kernel_case *c, const char *kernel, const struct cattn_variant *variant,
                                  uint32_t head)
{
    const double root = sqrt(c->head_dim);
    const struct row_size size = {c->gain * root, 4 * root, 1, c->length + 40};
    return bound_of_row(kernel, c->io_dtype, c->kv_dtype, c->head_dim, variant, head, &size);
}

/* Two kernels differ by no more than each may from the oracle. */
static void compare_row(const struct kernel_case *c, const struct cattn_variant *variant, const char *kernel,
                        const unsigned char *x, const unsigned char *y, const char *text)
{
    const uint32_t dv = c->v_head_dim ? c->v_head_dim : c->head_dim;
    const size_t out_bytes = (size_t)c->heads * dv * dtype_size(c->io_dtype);
    for (uint32_t h = 0; h < c->heads; h++) {
        const struct bound a = bound_of_head(c, kernel, variant, h), b = bound_of_head(c, "generic", variant, h);
        for (size_t i = h * dv; i < (h + 1) * (size_t)dv; i++) {
            double difference = dtype_load(c->io_dtype, x, i) - dtype_load(c->io_dtype, y, i);
            CHECK(fabs(difference) <= a.out + b.out + 4 * dtype_epsilon(c->io_dtype),
                  "differs from generic by %g in head %u: %s; %s", difference, h, text, variant_text(variant));
        }
        double l = dtype_load(CATTN_F32, x + out_bytes, h), m = dtype_load(CATTN_F32, y + out_bytes, h);
        CHECK(fabs(l - m) <= a.score + b.score + 1e-6 * fabs(m), "lse %g, generic has %g: %s; %s", l, m, text,
              variant_text(variant));
    }
}

static void compare_traces(const struct kernel_case *c, const char *kernel, const struct trace *a,
                           const struct trace *b, const char *text)
{
    struct cattn_variant *variant = variant_of(c);
    for (size_t p = 0; p < a->capacity; p++) {
        ck_assert_int_eq(a->known[p], b->known[p]);
        if (a->known[p])
            compare_row(c, variant, kernel, a->rows + p * a->row_bytes, b->rows + p * b->row_bytes, text);
    }
    variant_free(variant);
}

static int is_supported(const struct kernel_case *c, const char *kernel)
{
    struct cattn_config config = {.size = sizeof config,
                                  .backend = "cpu",
                                  .kernel = kernel,
                                  .n_layers = 1,
                                  .n_heads = c->heads,
                                  .n_kv_heads = c->kv_heads,
                                  .head_dim = c->head_dim,
                                  .v_head_dim = c->v_head_dim,
                                  .chunk_tokens = c->chunk,
                                  .io_dtype = c->io_dtype,
                                  .kv_dtype = c->kv_dtype,
                                  .max_tokens = 1};
    cattn_cache *cache = NULL;
    int status = cattn_cache_create(&config, &cache);
    CHECK(status == CATTN_OK || (status == CATTN_ENOTSUP && strcmp(kernel, "generic")) || c->kv_dtype == CATTN_I8,
          "%s: %s", kernel, cattn_strerror(status));
    cattn_cache_destroy(cache);
    return status == CATTN_OK;
}

/* 1 when the kernel takes the case. */
static int check_case(const struct kernel_case *c, const char *kernel)
{
    struct trace *own[N_SEQUENCES], *reference[N_SEQUENCES];
    char text[400];
    describe(c, kernel, text, sizeof text);
    if (getenv("CATTN_TEST_VERBOSE"))
        fprintf(stderr, "%s\n", text);
    if (!is_supported(c, kernel))
        return 0;
    run_case(c, kernel, own);
    if (strcmp(kernel, "generic")) {
        run_case(c, "generic", reference);
        for (size_t i = 0; i < N_SEQUENCES; i++) {
            compare_traces(c, kernel, own[i], reference[i], text);
            trace_free(reference[i]);
        }
    }
    for (size_t i = 0; i < N_SEQUENCES; i++)
        trace_free(own[i]);
    return 1;
}

/* A length near the multiple'th multiple of the chunk. */
static uint32_t length_near(uint32_t chunk, uint32_t multiple, int offset, uint32_t rows)
{
    int64_t length = (int64_t)chunk * multiple + offset;
    return length < (int64_t)rows ? rows : (uint32_t)length;
}

static void fill_in(struct kernel_case *c, struct rng *rng)
{
    static const int offsets[] = {-33, -32, -31, -17, -16, -15, -9, -8, -7, -1, 0, 1, 2, 7, 8, 15, 16, 17, 31};
    const uint32_t *ratio = ratios[rng_below(rng, COUNT(ratios))];
    uint32_t multiple = (uint32_t)rng_below(rng, 4);
    c->heads = ratio[0];
    c->kv_heads = ratio[1];
    c->rows = row_counts[rng_below(rng, COUNT(row_counts))];
    c->chunk = chunks[rng_below(rng, COUNT(chunks))];
    c->length = length_near(c->chunk, multiple, offsets[rng_below(rng, COUNT(offsets))], c->rows);
    c->shared = c->length > c->rows ? (uint32_t)rng_below(rng, (c->length - c->rows) / c->chunk + 1) : 0;
    c->v_head_dim = rng_chance(rng, 70) ? 0 : head_dims[rng_below(rng, COUNT(head_dims))];
    c->threads = (uint32_t)rng_between(rng, 1, 2);
    c->form = (enum engine_form)rng_below(rng, N_FORMS);
    c->guard = rng_chance(rng, 50) ? GUARD_END : GUARD_START;
    c->pad = rng_chance(rng, 40) ? rng_between(rng, 1, 9) : 0;
    c->parts = variant_parts(rng);
    c->gain = rng_chance(rng, 20) ? 40 : 3;
    c->salt = rng_next(rng);
}

static uint64_t cost(const struct kernel_case *c)
{
    uint32_t dv = c->v_head_dim ? c->v_head_dim : c->head_dim;
    return (uint64_t)(c->rows + 2) * c->heads * (c->length + 20) * (c->head_dim + dv) +
           (uint64_t)40 * c->kv_heads * (c->length + 20) * (c->head_dim + dv);
}

/* Every head_dim with every pair of data types; the rest at random, cases that take long less often. */
START_TEST(sampled)
{
    struct rng rng;
    for (unsigned k = 0; cattn_kernel_name(k); k++) {
        const char *kernel = cattn_kernel_name(k);
        size_t n_run = 0;
        for (size_t i = 0; i < 2 * COUNT(head_dims) * 12; i++) {
            struct kernel_case c = {.head_dim = head_dims[i / 12 % COUNT(head_dims)],
                                    .io_dtype = io_dtypes[i % 3],
                                    .kv_dtype = kv_dtypes[i / 3 % 4]};
            rng_init(&rng, i);
            do
                fill_in(&c, &rng);
            while (cost(&c) > (rng_chance(&rng, 3) ? 40000000u : 6000000u));
            n_run += (size_t)check_case(&c, kernel);
        }
        CHECK(n_run > 0, "%s takes no case", kernel);
    }
}
END_TEST

/* Each head_dim, ratio, number of rows and chunk in the plainest form, some with a part of a variant. */
START_TEST(each_value)
{
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t i = 0; i < COUNT(head_dims); i++) {
            const uint32_t *ratio = ratios[i % COUNT(ratios)];
            struct kernel_case c = {.head_dim = head_dims[i],
                                    .heads = ratio[0],
                                    .kv_heads = ratio[1],
                                    .rows = row_counts[i % COUNT(row_counts)],
                                    .chunk = chunks[i % COUNT(chunks)],
                                    .kv_dtype = choice.kv_dtype,
                                    .threads = 1,
                                    .guard = GUARD_END,
                                    .gain = 3,
                                    .salt = i};
            c.length = c.chunk + c.rows + (uint32_t)i;
            c.shared = 1;
            c.parts = (i + k) % 3 ? 0 : 1u << i % 5;
            ck_assert(check_case(&c, choice.kernel));
        }
}
END_TEST

static void product_of_lengths(struct kernel_case c, const char *kernel)
{
    for (uint32_t multiple = 0; multiple <= 3; multiple++)
        for (int offset = -1; offset <= 1; offset++)
            for (size_t r = 0; r < COUNT(row_counts); r++) {
                c.rows = row_counts[r];
                c.length = length_near(c.chunk, multiple, offset, c.rows);
                c.shared = (c.length - c.rows) / c.chunk;
                c.salt++;
                c.guard = c.salt % 2 ? GUARD_END : GUARD_START;
                c.pad = c.salt % 3 ? 0 : 5;
                c.form = (enum engine_form)(c.salt % N_FORMS);
                c.parts = c.salt % 2 ? 0 : (unsigned)(c.salt / 2 % (VARIANT_ALL + 1));
                check_case(&c, kernel);
            }
}

START_TEST(whole_product)
{
    if (!test_full())
        return;
    for (unsigned k = 0; cattn_kernel_name(k); k++)
        for (size_t i = 0; i < COUNT(head_dims) * COUNT(ratios) * COUNT(chunks) * 12; i++) {
            size_t j = i / 12;
            struct kernel_case c = {
                .io_dtype = io_dtypes[i % 3], .kv_dtype = kv_dtypes[i / 3 % 4], .threads = 1, .gain = 3};
            c.head_dim = head_dims[j % COUNT(head_dims)];
            j /= COUNT(head_dims);
            c.heads = ratios[j % COUNT(ratios)][0];
            c.kv_heads = ratios[j % COUNT(ratios)][1];
            c.chunk = chunks[j / COUNT(ratios)];
            c.salt = i * 1000;
            product_of_lengths(c, cattn_kernel_name(k));
        }
}
END_TEST

/* One head of one value: the scores are the keys, times the one query, and exact.  They may be off by `error`. */
static void check_scores(const struct kernel_choice *choice, const double *scores, size_t n, double error)
{
    const char *kernel = choice->kernel;
    const uint32_t kv_dtype = choice->kv_dtype;
    const struct row_size size = {.v = 4};
    struct cattn_config config = {.size = sizeof config,
                                  .backend = "cpu",
                                  .kernel = kernel,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 1,
                                  .chunk_tokens = 32,
                                  .kv_dtype = kv_dtype,
                                  .max_tokens = n + 32,
                                  .n_threads = 1};
    struct cattn_variant variant = {.size = sizeof variant, .scale = 1};
    struct cattn_io io = {.size = sizeof io, .variant = &variant};
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    size_t n_cached;
    float *q = malloc(n * sizeof *q), *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
    float *out = malloc(n * sizeof *out), *lse = malloc(n * sizeof *lse);
    double *wide_k = malloc(n * sizeof *wide_k), *wide_v = malloc(n * sizeof *wide_v), expected;
    int32_t *tokens = calloc(n, sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        q[i] = 1;
        wide_k[i] = scores[i];
        dtype_round_vector(kv_dtype, &wide_k[i], 1);
        k[i] = (float)wide_k[i];
        v[i] = (float)(wide_v[i] = (double)(i % 8) - 3);
    }
    io.q = q, io.k = k, io.v = v, io.out = out, io.lse = lse;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, tokens, n, &seq, &n_cached), CATTN_OK);
    struct cattn_item item = {.seq = seq, .tokens = tokens, .n_tokens = (uint32_t)n};
    ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_OK);
    for (size_t i = 0; i < n; i++) {
        double one = 1, lse_expected = oracle_row(&one, wide_k, wide_v, i + 1, 1, 1, &variant, 0, &expected);
        struct bound bound = bound_of_row(kernel, CATTN_F32, kv_dtype, 1, &variant, 0, &size);
        if (isnan(lse_expected)) /* no token counts */
            continue;
        CHECK(fabs(out[i] - expected) < bound.out + 2 * size.v * error, "%s, kv %s, row %zu: %g, not %g", kernel,
              dtype_name(kv_dtype), i, out[i], expected);
        CHECK(fabs(lse[i] - lse_expected) <= 1e-5 + bound.score + 1e-6 * fabs(lse_expected),
              "%s, kv %s, lse of row %zu: %g, not %g", kernel, dtype_name(kv_dtype), i, lse[i], lse_expected);
    }
    cattn_cache_destroy(cache);
    free(q), free(k), free(v), free(out), free(lse), free(wide_k), free(wide_v), free(tokens);
}

/* Scores far from zero: minus infinity has no stand-in that a real score could be smaller than. */
START_TEST(extreme_scores)
{
    enum { N = 100 };
    static const double levels[] = {-1e5, -1e30, 1e5, 1e30, -3e4, 3e4, 0, -0x1p-130};
    struct kernel_choice choice;
    double scores[N];
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t l = 0; l <= COUNT(levels); l++) {
            for (size_t i = 0; i < N; i++)
                scores[i] = l < COUNT(levels) ? levels[l] : levels[i * i % COUNT(levels)];
            for (size_t i = 0; i < N && choice.kv_dtype == CATTN_F16; i++)
                scores[i] = (l % 2 ? 60000 : -60000) + (double)(i % 7) * (l % 2 ? -0x1p12 : 0x1p12);
            check_scores(&choice, scores, N, 0);
        }
}
END_TEST

/* The maximum climbs, falls and leaps, by less and by more than the slack of the running maximum. */
START_TEST(climbing_scores)
{
    enum { N = 300 };
    static const double slopes[] = {0.01, 0.5, 3, 9, -0.5, -9};
    struct kernel_choice choice;
    double scores[N];
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (size_t s = 0; s < COUNT(slopes); s++) {
            for (size_t i = 0; i < N; i++)
                scores[i] = slopes[s] * (double)i + (i % 40 == 39 ? 11 : 0);
            /* Scores up to N * slope are known to half a unit in the last place. */
            check_scores(&choice, scores, N, N * fabs(slopes[s]) * 0x1p-23);
        }
}
END_TEST

/* Tokens whose score is minus infinity count for nothing, also where a row has seen no other yet. */
START_TEST(scores_of_minus_infinity)
{
    enum { N = 100 };
    struct kernel_choice choice;
    double scores[N];
    for (size_t i = 0; i < N; i++)
        scores[i] = i < 70 && i != 5 ? -INFINITY : (double)(i % 7);
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        if (choice.kv_dtype != CATTN_I8) {
            check_scores(&choice, scores, N, 0);
            check_scores(&choice, scores + 6, N - 6, 0);
        }
}
END_TEST

/* More query heads on a KV head, and more rows, than are worked on together; and the same bits on any number of
 * threads, most of which find nothing to do. */
START_TEST(large_groups)
{
    static const uint32_t shapes[][3] = {{300, 1, 1}, {300, 1, 3}, {71, 1, 5}, {64, 4, 9},
                                         {257, 1, 2}, {1, 1, 300}, {3, 1, 130}};
    static const uint32_t threads[] = {1, 7, 16};
    const char *kernel = NULL;
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        if (choice.kernel == kernel) /* one data type of each will do */
            continue;
        kernel = choice.kernel;
        for (size_t i = 0; i < COUNT(shapes); i++) {
            struct kernel_case c = {.head_dim = 16,
                                    .heads = shapes[i][0],
                                    .kv_heads = shapes[i][1],
                                    .rows = shapes[i][2],
                                    .chunk = 64,
                                    .length = 1024 + 100 + shapes[i][2],
                                    .shared = 1024 / 64,
                                    .kv_dtype = choice.kv_dtype,
                                    .parts = i % 2 ? VARIANT_ALL : 0,
                                    .form = FORM_ATTEND,
                                    .guard = GUARD_END,
                                    .gain = 3,
                                    .salt = i};
            struct trace *one[N_SEQUENCES], *many[N_SEQUENCES];
            char text[400];
            for (size_t t = 0; t < COUNT(threads); t++) {
                c.threads = threads[t];
                describe(&c, kernel, text, sizeof text);
                run_case(&c, kernel, t ? many : one);
                for (size_t j = 0; t && j < N_SEQUENCES; j++) {
                    CHECK(!choice.exact || trace_differences(one[j], many[j]) == 0, "%s", text);
                    trace_free(many[j]);
                }
            }
            for (size_t j = 0; j < N_SEQUENCES; j++)
                trace_free(one[j]);
        }
    }
}
END_TEST

/* The vector kernels do the same operations, whatever the instructions: the same bits. */
START_TEST(vector_kernels_agree)
{
    static const uint32_t dims[] = {1, 7, 24, 64, 130}, rows[] = {1, 2, 5, 33};
    struct kernel_case c = {.threads = 1, .heads = 6, .kv_heads = 3, .chunk = 64, .gain = 3, .guard = GUARD_END};
    for (size_t i = 0; i < COUNT(dims) * COUNT(kv_dtypes); i++) {
        struct trace *avx2[N_SEQUENCES], *avx512[N_SEQUENCES];
        char text[400];
        c.head_dim = dims[i % COUNT(dims)];
        c.kv_dtype = kv_dtypes[i / COUNT(dims)];
        c.rows = rows[i % COUNT(rows)];
        c.length = 150 + 11 * (uint32_t)i;
        c.shared = 1;
        c.salt = i;
        describe(&c, "avx512", text, sizeof text);
        if (!is_supported(&c, "avx2") || !is_supported(&c, "avx512"))
            return;
        run_case(&c, "avx2", avx2);
        run_case(&c, "avx512", avx512);
        for (size_t j = 0; j < N_SEQUENCES; j++) {
            CHECK(trace_differences(avx2[j], avx512[j]) == 0, "%zu outputs differ from those of avx2: %s",
                  trace_differences(avx2[j], avx512[j]), text);
            trace_free(avx2[j]);
            trace_free(avx512[j]);
        }
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("kernels");
    tcase_add_test(tcase, vector_kernels_agree);
    tcase_add_test(tcase, each_value);
    tcase_add_test(tcase, large_groups);
    tcase_add_test(tcase, extreme_scores);
    tcase_add_test(tcase, climbing_scores);
    tcase_add_test(tcase, scores_of_minus_infinity);
    tcase_add_test(tcase, sampled);
    tcase_add_test(tcase, whole_product);
    return suite_run(tcase);
}
