/* The pool: where things lie, and what is true of them after every write and copy. */
#include "plain.h"
#include "support/dtype.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t dims[] = {1, 2, 7, 15, 16, 17, 32, 33, 80, 128};

static struct cattn_shape shape_of(uint32_t dtype, uint32_t dim, uint32_t v_dim, uint32_t chunk, uint32_t n_slots)
{
    return (struct cattn_shape){.n_layers = 2,
                                .n_heads = 3,
                                .n_kv_heads = 3,
                                .head_dim = dim,
                                .v_head_dim = v_dim,
                                .chunk_tokens = chunk,
                                .io_dtype = CATTN_F32,
                                .kv_dtype = dtype,
                                .n_slots = n_slots,
                                .n_threads = 1};
}

/* ---- layout ----------------------------------------------------------------------------------------- */

/* Every token and dimension, padding included, has a place of its own, and the places fill the room exactly. */
static void check_places(const struct cattn_layout *l, size_t (*index)(const struct cattn_layout *, size_t, size_t),
                         uint32_t pad)
{
    size_t n = (size_t)l->chunk_tokens * pad;
    unsigned char *taken = calloc(n, 1);
    for (size_t t = 0; t < l->chunk_tokens; t++)
        for (size_t d = 0; d < pad; d++) {
            size_t i = index(l, t, d);
            CHECK(i < n && !taken[i], "dtype %u, dims %u and %u, chunk %u: token %zu, d %zu at %zu of %zu", l->dtype,
                  l->k_dim, l->v_dim, l->chunk_tokens, t, d, i, n);
            taken[i] = 1;
        }
    free(taken);
}

START_TEST(places)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++)
        for (uint32_t chunk = 32; chunk <= 256; chunk *= 2)
            for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
                struct cattn_shape shape = shape_of(dtype, dims[i], dims[(i + 3) % 10], chunk, 5);
                struct cattn_layout l = cattn_layout_of(&shape);
                ck_assert(l.k_pad >= l.k_dim && l.v_pad >= l.v_dim);
                check_places(&l, cattn_k_index, l.k_pad);
                check_places(&l, cattn_v_index, l.v_pad);
                ck_assert_uint_eq(l.v_offset % 64, 0);
                ck_assert_uint_eq(l.block_bytes % 64, 0);
                ck_assert_uint_ge(l.v_offset, (size_t)chunk * l.k_pad * dtype_size(dtype));
                size_t scales = dtype == CATTN_I8 ? 2 * chunk * sizeof(float) : 0;
                ck_assert_uint_ge(l.scales_offset - l.v_offset, (size_t)chunk * l.v_pad * dtype_size(dtype));
                ck_assert_uint_eq(l.block_bytes - l.scales_offset, scales);
            }
}
END_TEST

/* Offsets that do not fit in 32 bits, in bytes and in elements. */
START_TEST(a11_large_offsets)
{
    struct cattn_shape shape = shape_of(CATTN_F32, 4096, 4096, 256, UINT32_MAX / 2);
    shape.n_layers = 2;
    struct cattn_layout l = cattn_layout_of(&shape);
    ck_assert_uint_eq(l.block_bytes, (size_t)256 * 4096 * 4 * 2);
    size_t head = l.block_bytes * shape.n_slots;
    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t h = 0; h < 3; h++)
            ck_assert_uint_eq(cattn_head_offset(&l, layer, h), head * (3 * layer + h));
}
END_TEST

/* ---- the pool --------------------------------------------------------------------------------------- */

struct fixture {
    struct cattn_pool pool;
    struct cattn_shape shape;
    struct rng rng;
    float *k, *v; /* rows of the calls */
    size_t n_rows;
};

static void open_pool(struct fixture *f, const struct cattn_shape *shape, size_t n_rows)
{
    memset(f, 0, sizeof *f);
    f->shape = *shape;
    f->n_rows = n_rows;
    rng_init(&f->rng, shape->head_dim);
    ck_assert_int_eq(cattn_pool_open(&f->pool, shape), CATTN_OK);
    f->k = malloc(n_rows * shape->n_kv_heads * shape->head_dim * sizeof(float));
    f->v = malloc(n_rows * shape->n_kv_heads * shape->v_head_dim * sizeof(float));
}

static void soil(struct fixture *f)
{
    memset(f->pool.bytes, 0xff, f->pool.n_bytes);
}

static void close_pool(struct fixture *f)
{
    cattn_pool_close(&f->pool);
    free(f->k);
    free(f->v);
}

static void draw(struct fixture *f)
{
    for (size_t i = 0; i < f->n_rows * f->shape.n_kv_heads * f->shape.head_dim; i++)
        f->k[i] = (float)(int64_t)rng_next(&f->rng) * 0x1p-62f;
    for (size_t i = 0; i < f->n_rows * f->shape.n_kv_heads * f->shape.v_head_dim; i++)
        f->v[i] = (float)(int64_t)rng_next(&f->rng) * 0x1p-62f;
}

static void write_all(struct fixture *f, struct cattn_work_write *writes, size_t n_writes, uint32_t layer)
{
    const struct cattn_shape *s = &f->shape;
    struct cattn_work work = {.chunk_tokens = s->chunk_tokens, .n_writes = n_writes, .writes = writes};
    struct cattn_call call = {.layer = layer,
                              .k = f->k,
                              .v = f->v,
                              .k_head = s->head_dim,
                              .v_head = s->v_head_dim,
                              .k_row = (size_t)s->n_kv_heads * s->head_dim,
                              .v_row = (size_t)s->n_kv_heads * s->v_head_dim};
    for (uint32_t head = 0; head < s->n_kv_heads; head++)
        cattn_pool_write(&f->pool, &work, &call, head);
}

static const unsigned char *block_of(const struct fixture *f, uint32_t layer, uint32_t head, uint32_t slot)
{
    return cattn_pool_blocks(&f->pool, layer, head) + slot * f->pool.layout.block_bytes;
}

static double stored_k(const struct fixture *f, uint32_t layer, uint32_t head, uint32_t slot, size_t t, size_t d)
{
    const struct cattn_layout *l = &f->pool.layout;
    const unsigned char *block = block_of(f, layer, head, slot);
    if (l->dtype == CATTN_I8)
        return (block[cattn_k_index(l, t, d)] - 128) * (double)cattn_k_scales(l, block)[t];
    return dtype_load(l->dtype, block, cattn_k_index(l, t, d));
}

static double stored_v(const struct fixture *f, uint32_t layer, uint32_t head, uint32_t slot, size_t t, size_t d)
{
    const struct cattn_layout *l = &f->pool.layout;
    const unsigned char *block = block_of(f, layer, head, slot);
    if (l->dtype == CATTN_I8)
        return (int8_t)block[l->v_offset + cattn_v_index(l, t, d)] * (double)cattn_v_scales(l, block)[t];
    return dtype_load(l->dtype, block + l->v_offset, cattn_v_index(l, t, d));
}

/* A vector as it should be stored, zero from dim to pad. */
static const double *given(const float *x, const struct fixture *f, uint32_t dim, uint32_t pad, size_t row,
                           uint32_t head)
{
    static double vector[CATTN_MAX_HEAD_DIM];
    for (size_t d = 0; d < pad; d++)
        vector[d] = d < dim ? (double)x[(row * f->shape.n_kv_heads + head) * dim + d] : 0;
    dtype_round_vector(f->shape.kv_dtype, vector, pad);
    return vector;
}

/* Token t of the slot is row `row` of the last call, padding zero. */
static void expect_token(const struct fixture *f, uint32_t layer, uint32_t slot, size_t t, size_t row)
{
    const struct cattn_layout *l = &f->pool.layout;
    for (uint32_t head = 0; head < f->shape.n_kv_heads; head++) {
        const double *expected = given(f->k, f, l->k_dim, l->k_pad, row, head);
        for (size_t d = 0; d < l->k_pad; d++)
            ck_assert(stored_k(f, layer, head, slot, t, d) == expected[d]);
        expected = given(f->v, f, l->v_dim, l->v_pad, row, head);
        for (size_t d = 0; d < l->v_pad; d++)
            ck_assert(stored_v(f, layer, head, slot, t, d) == expected[d]);
    }
}

/* V between the length and the end of its granule is zero. */
static void expect_clear_rest(const struct fixture *f, uint32_t layer, uint32_t slot, uint32_t length)
{
    for (uint32_t head = 0; head < f->shape.n_kv_heads; head++)
        for (uint32_t t = length; t % CATTN_GRANULE; t++)
            for (size_t d = 0; d < f->pool.layout.v_pad; d++)
                CHECK(stored_v(f, layer, head, slot, t, d) == 0, "token %u behind length %u", t, length);
}

START_TEST(writes_are_found_again)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            struct cattn_shape shape = shape_of(dtype, dims[i], dims[(i + 5) % 10], 64, 4);
            struct fixture f;
            open_pool(&f, &shape, 64);
            soil(&f);
            draw(&f);
            /* Two slots in one call: the end of one, the start of another; row 10 on. */
            struct cattn_work_write writes[] = {{.slot = 3, .begin = 40, .end = 64, .row = 10, .dirty = 40},
                                                {.slot = 1, .begin = 0, .end = 21, .row = 34}};
            write_all(&f, writes, 2, 1);
            for (size_t t = 0; t < 24; t++)
                expect_token(&f, 1, 3, 40 + t, 10 + t);
            for (size_t t = 0; t < 21; t++)
                expect_token(&f, 1, 1, t, 34 + t);
            expect_clear_rest(&f, 1, 1, 21);
            /* Nothing else was touched. */
            ck_assert(isnan(stored_v(&f, 1, 0, 3, 39, 0)) && isnan(stored_k(&f, 1, 2, 3, 39, 0)));
            ck_assert(isnan(stored_v(&f, 1, 0, 1, 32, 0)) && isnan(stored_k(&f, 1, 0, 1, 32, 0)));
            ck_assert(isnan(stored_v(&f, 0, 2, 3, 63, 0)) && isnan(stored_v(&f, 1, 1, 2, 0, 0)));
            close_pool(&f);
        }
}
END_TEST

/* A slot's life: taken full of NaN, written on, cut back, written on.  `dirty` is as the core keeps it. */
static void live_on(uint32_t dtype)
{
    enum { CHUNK = 128, LIVES = 20, WRITES = 25 };
    struct fixture f;
    struct cattn_shape shape = shape_of(dtype, 3, 5, CHUNK, 2);
    open_pool(&f, &shape, CHUNK);
    for (size_t life = 0; life < LIVES; life++) {
        uint32_t length = 0, dirty = 0;
        soil(&f);
        for (size_t i = 0; i < WRITES; i++) {
            uint32_t n = (uint32_t)rng_between(&f.rng, 1, rng_chance(&f.rng, 70) ? 3 : 70);
            if (length + n > CHUNK || rng_chance(&f.rng, 30))
                length = (uint32_t)rng_below(&f.rng, length + 1);
            if (length + n > CHUNK)
                continue;
            draw(&f);
            /* Some rows have NaN, and are taken back or written again. */
            int bad = rng_chance(&f.rng, 30);
            for (size_t j = 0; bad && j < (size_t)CHUNK * 3 * 5; j++)
                f.v[j] = NAN;
            struct cattn_work_write write = {.slot = 1, .begin = length, .end = length + n, .row = 2, .dirty = dirty};
            if (write.row + n > CHUNK)
                write.row = 0;
            write_all(&f, &write, 1, 0);
            if (dirty < length + n)
                dirty = length + n;
            if (!bad) {
                for (uint32_t t = 0; t < n; t++)
                    expect_token(&f, 0, 1, length + t, write.row + t);
                length += n;
            }
            expect_clear_rest(&f, 0, 1, bad ? length + n : length);
        }
    }
    close_pool(&f);
}

START_TEST(dirty_rule)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++)
        live_on(dtype);
}
END_TEST

START_TEST(copies)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100};
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct cattn_shape shape = shape_of(dtype, 17, 33, 128, 3);
            struct fixture f;
            open_pool(&f, &shape, 128);
            soil(&f);
            draw(&f);
            struct cattn_work_write write = {.slot = 2, .begin = 0, .end = 101, .row = 3};
            for (uint32_t layer = 0; layer < 2; layer++)
                write_all(&f, &write, 1, layer);
            cattn_pool_copy(&f.pool, 2, 0, lengths[i]);
            for (uint32_t layer = 0; layer < 2; layer++) {
                for (size_t t = 0; t < 101; t++)
                    expect_token(&f, layer, 2, t, 3 + t);
                for (size_t t = 0; t < lengths[i]; t++)
                    expect_token(&f, layer, 0, t, 3 + t);
                expect_clear_rest(&f, layer, 0, lengths[i]);
                ck_assert(isnan(stored_v(&f, layer, 1, 1, 0, 0)));
            }
            close_pool(&f);
        }
}
END_TEST

START_TEST(a_slot_is_cleared_and_no_other)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++) {
        struct cattn_shape shape = shape_of(dtype, 17, 33, 64, 3);
        struct fixture f;
        open_pool(&f, &shape, 1);
        memset(f.pool.bytes, 0x5a, f.pool.n_bytes);
        cattn_pool_clear(&f.pool, 1);
        size_t block = f.pool.layout.block_bytes;
        for (size_t i = 0; i < f.pool.n_bytes; i++)
            CHECK(f.pool.bytes[i] == (i / block % 3 == 1 ? 0 : 0x5a), "dtype %u, byte %zu", dtype, i);
        close_pool(&f);
    }
}
END_TEST

static void expect_plain(const struct cattn_layout *l, const unsigned char *block, size_t t, const unsigned char *plain)
{
    size_t size = dtype_size(l->dtype);
    float scales[2] = {1, 1};
    if (l->dtype == CATTN_I8)
        memcpy(scales, plain + l->k_dim + l->v_dim, sizeof scales);
    for (size_t d = 0; d < l->k_dim; d++) {
        double x = l->dtype == CATTN_I8 ? (double)(int8_t)plain[d] : dtype_load(l->dtype, plain, d);
        CHECK((float)x * scales[0] == cattn_stored_k(l, block, t, d), "K: dtype %u, token %zu, d %zu", l->dtype, t, d);
    }
    plain += l->k_dim * size;
    for (size_t d = 0; d < l->v_dim; d++) {
        double x = l->dtype == CATTN_I8 ? (double)(int8_t)plain[d] : dtype_load(l->dtype, plain, d);
        CHECK((float)x * scales[1] == cattn_stored_v(l, block, t, d), "V: dtype %u, token %zu, d %zu", l->dtype, t, d);
    }
}

/* What is got is what is stored, and put elsewhere it makes the same block, padding and all, piece by piece into a slot
 * that had anything in it. */
static void check_plain(uint32_t dtype, uint32_t dim, uint32_t v_dim, uint32_t chunk)
{
    struct cattn_shape shape = shape_of(dtype, dim, v_dim, chunk, 2);
    struct fixture from, to;
    open_pool(&from, &shape, chunk);
    open_pool(&to, &shape, 1);
    soil(&to);
    draw(&from);
    struct cattn_work_write write = {.slot = 1, .begin = 0, .end = chunk, .row = 0};
    write_all(&from, &write, 1, 1);
    const struct cattn_layout *l = &from.pool.layout;
    size_t bytes = cattn_plain_bytes(l);
    ck_assert_uint_eq(bytes, (dim + v_dim) * dtype_size(dtype) + (dtype == CATTN_I8 ? 8 : 0));
    unsigned char *plain = malloc(chunk * bytes + 1);
    for (uint32_t head = 0; head < 3; head++) {
        const unsigned char *block = cattn_pool_blocks(&from.pool, 1, head) + l->block_bytes;
        plain[chunk * bytes] = 0xa5;
        cattn_pool_get(&from.pool, 1, 1, head, 0, chunk, plain);
        ck_assert_uint_eq(plain[chunk * bytes], 0xa5);
        for (uint32_t t = 0; t < chunk; t++)
            expect_plain(l, block, t, plain + t * bytes);
        for (uint32_t t = chunk; t > 0; t -= 32) {
            cattn_pool_get(&from.pool, 1, 1, head, t - 32, 32, plain);
            cattn_pool_put(&to.pool, 0, 1, head, t - 32, 32, plain);
        }
        CHECK(!memcmp(cattn_pool_blocks(&to.pool, 1, head), block, l->block_bytes), "dtype %u, dims %u and %u, head %u",
              dtype, dim, v_dim, head);
    }
    for (size_t i = 0; i < to.pool.n_bytes / 2; i++)
        ck_assert_uint_eq(to.pool.bytes[i], 0xff);
    free(plain);
    close_pool(&from);
    close_pool(&to);
}

START_TEST(plain_tokens_make_the_same_blocks)
{
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_I8; dtype++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (uint32_t chunk = 32; chunk <= 256; chunk *= 8)
                check_plain(dtype, dims[i], dims[(i + 3) % 10], chunk);
}
END_TEST

/* The last slot of a pool of several GB, of which nothing else is touched. */
START_TEST(a11_last_slot_of_a_large_pool)
{
    struct cattn_shape shape = shape_of(CATTN_F32, 512, 512, 256, 3000);
    struct fixture f;
    if (sizeof(size_t) < 8)
        return;
    open_pool(&f, &shape, 40);
    ck_assert_uint_gt(f.pool.n_bytes, UINT64_C(16) << 30);
    draw(&f);
    struct cattn_work_write write = {.slot = 2999, .begin = 216, .end = 256, .row = 0, .dirty = 216};
    write_all(&f, &write, 1, 1);
    for (size_t t = 0; t < 40; t++)
        expect_token(&f, 1, 2999, 216 + t, t);
    ck_assert(stored_k(&f, 0, 0, 0, 0, 0) == 0);
    close_pool(&f);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("store");
    tcase_add_test(tcase, places);
    tcase_add_test(tcase, a11_large_offsets);
    tcase_add_test(tcase, writes_are_found_again);
    tcase_add_test(tcase, dirty_rule);
    tcase_add_test(tcase, copies);
    tcase_add_test(tcase, a_slot_is_cleared_and_no_other);
    tcase_add_test(tcase, plain_tokens_make_the_same_blocks);
    tcase_add_test(tcase, a11_last_slot_of_a_large_pool);
    return suite_run(tcase);
}
