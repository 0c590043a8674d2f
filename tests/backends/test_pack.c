/* Keys and values on their way into a block: all pairs of data types, and what i8 makes of numbers. */
#include "pack.h"
#include "support/dtype.h"
#include "support/guard.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 };

struct block {
    struct cattn_layout layout;
    unsigned char *bytes;
};

static struct block block_of(uint32_t kv_dtype, uint32_t dim)
{
    struct cattn_shape shape = {.n_layers = 1,
                                .n_kv_heads = 1,
                                .head_dim = dim,
                                .v_head_dim = dim,
                                .chunk_tokens = CHUNK,
                                .kv_dtype = kv_dtype,
                                .n_slots = 1};
    struct block b = {.layout = cattn_layout_of(&shape)};
    b.bytes = aligned_alloc(64, b.layout.block_bytes);
    memset(b.bytes, 0xff, b.layout.block_bytes);
    return b;
}

/* The key, the value of token t. */
static double stored(const struct block *b, int is_value, uint32_t t, uint32_t d)
{
    return is_value ? cattn_stored_v(&b->layout, b->bytes, t, d) : cattn_stored_k(&b->layout, b->bytes, t, d);
}

static void pack_with(const struct cattn_packing *packing, struct block *b, int is_value, uint32_t t, const void *x,
                      uint32_t dtype)
{
    (is_value ? packing->value : packing->key)(&b->layout, b->bytes, t, x, dtype, 0);
}

static void pack(struct block *b, int is_value, uint32_t t, const void *x, uint32_t dtype)
{
    pack_with(cattn_packing_find(), b, is_value, t, x, dtype);
}

/* Finite numbers of many sizes, in the type of the caller; *wide gets their values. */
static void draw(struct rng *rng, void *x, double *wide, uint32_t dtype, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double number = ldexp((double)rng_below(rng, 2001) - 1000, (int)rng_below(rng, 12) - 20);
        dtype_store(dtype, x, i, number);
        wide[i] = dtype_load(dtype, x, i);
    }
}

static void check_pair(uint32_t io_dtype, uint32_t kv_dtype, uint32_t dim)
{
    struct rng rng;
    struct block b = block_of(kv_dtype, dim);
    double wide[300];
    const size_t bytes = dim * dtype_size(io_dtype);
    void *x = guard_alloc(bytes, GUARD_END);
    rng_init(&rng, dim);
    for (int is_value = 0; is_value < 2; is_value++)
        for (uint32_t t = 0; t < CHUNK; t++) {
            const uint32_t pad = is_value ? b.layout.v_pad : b.layout.k_pad;
            memset(b.bytes, 0xff, b.layout.block_bytes);
            memset(wide, 0, sizeof wide);
            draw(&rng, x, wide, io_dtype, dim);
            pack(&b, is_value, t, x, io_dtype);
            dtype_round_vector(kv_dtype, wide, dim);
            for (uint32_t u = 0; u < CHUNK; u++)
                for (uint32_t d = 0; d < pad; d++) {
                    double got = stored(&b, is_value, u, d);
                    /* A stored i8 comes back through a multiplication in f32. */
                    double slack = kv_dtype == CATTN_I8 ? 0x1p-24 * fabs(wide[d]) : 0;
                    CHECK(u == t ? fabs(got - wide[d]) <= slack : isnan(got),
                          "%s to %s, dim %u, %s of token %u: %a in d %u of token %u, not %a", dtype_name(io_dtype),
                          dtype_name(kv_dtype), dim, is_value ? "value" : "key", t, got, d, u, wide[d]);
                }
        }
    guard_free(x, bytes, GUARD_END);
    free(b.bytes);
}

/* What is read ends where the vector does, what is written is the token's alone. */
START_TEST(all_pairs)
{
    static const uint32_t dims[] = {1, 5, 16, 18, 33, 64};
    for (uint32_t io_dtype = CATTN_F32; io_dtype <= CATTN_BF16; io_dtype++)
        for (uint32_t kv_dtype = CATTN_F32; kv_dtype <= CATTN_I8; kv_dtype++)
            for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
                check_pair(io_dtype, kv_dtype, dims[i]);
}
END_TEST

/* The best there is stores what the plain one does, whatever it is given; but the bytes of a vector of i8 whose scale
 * is not a number mean nothing. */
static void check_equal(struct rng *rng, uint32_t io_dtype, uint32_t kv_dtype, uint32_t dim)
{
    struct block one = block_of(kv_dtype, dim), other = block_of(kv_dtype, dim);
    const size_t bytes = dim * dtype_size(io_dtype);
    unsigned char *x = guard_alloc(bytes, GUARD_END);
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t t = (uint32_t)rng_below(rng, CHUNK);
        for (size_t k = 0; k < bytes; k++)
            x[k] = (unsigned char)rng_next(rng);
        for (uint32_t d = 0; (i % 2 || kv_dtype == CATTN_I8) && io_dtype != CATTN_I8 && d < dim; d++)
            dtype_store(io_dtype, x, d, ldexp((double)rng_below(rng, 4097) - 2048, (int)rng_below(rng, 40) - 30));
        for (int is_value = 0; is_value < 2; is_value++) {
            pack_with(&cattn_packing_plain, &one, is_value, t, x, io_dtype);
            pack(&other, is_value, t, x, io_dtype);
        }
        CHECK(memcmp(one.bytes, other.bytes, one.layout.block_bytes) == 0, "%s to %s, dim %u, token %u",
              dtype_name(io_dtype), dtype_name(kv_dtype), dim, t);
    }
    guard_free(x, bytes, GUARD_END);
    free(one.bytes);
    free(other.bytes);
}

START_TEST(equal_bits)
{
    static const uint32_t dims[] = {1, 16, 31, 64, 129, 256};
    struct rng rng;
    rng_init(&rng, 5);
    for (uint32_t io_dtype = CATTN_F32; io_dtype <= CATTN_I8; io_dtype++)
        for (uint32_t kv_dtype = io_dtype == CATTN_I8 ? CATTN_I8 : CATTN_F32; kv_dtype <= CATTN_I8; kv_dtype++)
            for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
                check_equal(&rng, io_dtype, kv_dtype, dims[i]);
}
END_TEST

START_TEST(clearing)
{
    for (uint32_t kv_dtype = CATTN_F32; kv_dtype <= CATTN_I8; kv_dtype++)
        for (uint32_t t = 0; t < CHUNK; t++) {
            struct block b = block_of(kv_dtype, 20);
            cattn_clear_v(&b.layout, b.bytes, t);
            for (uint32_t u = 0; u < CHUNK; u++)
                for (uint32_t d = 0; d < b.layout.v_pad; d++) {
                    int cleared = u >= t && u < (t + 31) / 32 * 32;
                    CHECK(cleared ? stored(&b, 1, u, d) == 0 : isnan(stored(&b, 1, u, d)), "%s: token %u, from %u",
                          dtype_name(kv_dtype), u, t);
                }
            free(b.bytes);
        }
}
END_TEST

/* As the header says: off by max|x| / 254 and a quarter of a percent of that, for vectors of any size. */
START_TEST(i8_is_near)
{
    static const float sizes[] = {1, 0x1p-111f, 0x1p-80f, 3e37f, 3.4e38f, 1e-3f, 254};
    enum { DIM = 48 };
    struct rng rng;
    struct block b = block_of(CATTN_I8, DIM);
    rng_init(&rng, 1);
    for (size_t i = 0; i < 700; i++) {
        float x[DIM], largest = 0;
        for (uint32_t d = 0; d < DIM; d++) {
            x[d] = sizes[i % 7] * (float)((double)(int64_t)rng_next(&rng) * 0x1p-63);
            largest = fmaxf(largest, fabsf(x[d]));
        }
        if (i % 2)
            x[i % DIM] = largest = i % 4 == 1 ? sizes[i % 7] : -sizes[i % 7];
        for (int is_value = 0; is_value < 2; is_value++) {
            pack(&b, is_value, i % CHUNK, x, CATTN_F32);
            for (uint32_t d = 0; d < DIM; d++) {
                double error = stored(&b, is_value, i % CHUNK, d) - (double)x[d];
                CHECK(fabs(error) <= fabs((double)largest) / 254 * 1.0025, "%a is stored as %a, of at most %a", x[d],
                      error + (double)x[d], largest);
            }
        }
    }
    free(b.bytes);
}
END_TEST

START_TEST(i8_at_the_edges)
{
    enum { DIM = 3 };
    static const float ends[][DIM] = {{0, 0, 0}, {0x1p-149f, -0x1p-149f, 0}, {0x1p-113f, 0, 0x1p-149f}, {-0.0f, 0, 0}};
    struct block b = block_of(CATTN_I8, DIM);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (int is_value = 0; is_value < 2; is_value++) {
            pack(&b, is_value, 7, ends[i], CATTN_F32);
            for (uint32_t d = 0; d < DIM; d++)
                CHECK(fabs(stored(&b, is_value, 7, d) - (double)ends[i][d]) <= 0x1p-119, "%a is stored as %a",
                      ends[i][d], stored(&b, is_value, 7, d));
        }
    /* Half way between two bytes: to the even one. */
    float ties[DIM] = {127, 2.5f, -3.5f};
    pack(&b, 0, 5, ties, CATTN_F32);
    pack(&b, 1, 5, ties, CATTN_F32);
    ck_assert(stored(&b, 0, 5, 1) == 2 && stored(&b, 0, 5, 2) == -4);
    ck_assert(stored(&b, 1, 5, 1) == 2 && stored(&b, 1, 5, 2) == -4);
    free(b.bytes);
}
END_TEST

/* What is not finite spoils its own token and no other. */
START_TEST(i8_without_numbers)
{
    enum { DIM = 20 };
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    struct block b = block_of(CATTN_I8, DIM);
    float good[DIM], x[DIM];
    for (uint32_t d = 0; d < DIM; d++)
        good[d] = (float)d;
    for (uint32_t t = 0; t < CHUNK; t++)
        for (int is_value = 0; is_value < 2; is_value++) {
            memcpy(x, good, sizeof x);
            if (t % 2)
                x[t % DIM] = bad[t / 2 % 4];
            pack(&b, is_value, t, x, CATTN_F32);
        }
    for (uint32_t t = 0; t < CHUNK; t++)
        for (uint32_t d = 0; d < DIM; d++)
            for (int is_value = 0; is_value < 2; is_value++) {
                double got = stored(&b, is_value, t, d);
                CHECK(t % 2 ? isnan(got) : fabs(got - d) < 0.1, "token %u: %g", t, got);
            }
    free(b.bytes);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("pack");
    tcase_add_test(tcase, all_pairs);
    tcase_add_test(tcase, equal_bits);
    tcase_add_test(tcase, clearing);
    tcase_add_test(tcase, i8_is_near);
    tcase_add_test(tcase, i8_at_the_edges);
    tcase_add_test(tcase, i8_without_numbers);
    return suite_run(tcase);
}
