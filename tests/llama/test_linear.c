/* Matrix products: right, and by plain loops the same bits whatever is computed together. */
#include "llama/linear.h"
#include "llama/packed.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *random_numbers(struct rng *rng, size_t n)
{
    float *numbers = malloc((n + 1) * sizeof *numbers);

    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)rng_below(rng, 20001) / 10000.0f - 1.0f;
    return numbers;
}

static void compare_with_double(const struct linear *linear, struct rng *rng, size_t rows, size_t n_in, size_t n_out)
{
    float *x = random_numbers(rng, rows * n_in), *w = random_numbers(rng, n_in * n_out);
    float *y = malloc((rows * n_out + 1) * sizeof *y);

    for (size_t i = 0; i <= rows * n_out; i++)
        y[i] = NAN;
    linear_apply(linear, rows, n_in, n_out, x, w, y);
    for (size_t i = 0; i < rows * n_out; i++) {
        double sum = 0, size = 0;

        for (size_t j = 0; j < n_in; j++) {
            sum += (double)x[i / n_out * n_in + j] * w[i % n_out * n_in + j];
            size += fabs((double)x[i / n_out * n_in + j] * w[i % n_out * n_in + j]);
        }
        CHECK(fabs(y[i] - sum) <= 1e-6 * size + 1e-30, "%s: %zu rows, %zu in, %zu out: %g, not %g", linear->name, rows,
              n_in, n_out, y[i], sum);
    }
    CHECK(isnan(y[rows * n_out]), "written past the end");
    free(x);
    free(w);
    free(y);
}

START_TEST(test_products)
{
    struct linear linear;
    struct rng rng;

    rng_init(&rng, 0x73);
    for (int exact = 0; exact < 2; exact++) {
        linear_init(&linear, exact, 2);
        ck_assert_ptr_null(linear.refused);
        ck_assert(!exact || !linear.product);
        for (int round = 0; round < 100; round++)
            compare_with_double(&linear, &rng, rng_below(&rng, 9), rng_between(&rng, 1, 70), rng_between(&rng, 1, 40));
        compare_with_double(&linear, &rng, 33, 257, 129);
    }
}
END_TEST

START_TEST(test_fixed_order)
{
    enum { ROWS = 21, IN = 203, OUT = 150 };
    struct rng rng;
    struct linear linear;
    float *first = malloc(ROWS * OUT * sizeof *first), *y = malloc(ROWS * OUT * sizeof *y);

    rng_init(&rng, 0x74);
    float *x = random_numbers(&rng, ROWS * IN), *w = random_numbers(&rng, IN * OUT);
    linear_init(&linear, true, 1);
    linear_apply(&linear, ROWS, IN, OUT, x, w, first);
    for (unsigned n_threads = 1; n_threads <= 5; n_threads++) {
        linear_init(&linear, true, n_threads);
        for (size_t piece = 1; piece <= ROWS; piece += 4) {
            memset(y, 0xff, ROWS * OUT * sizeof *y);
            for (size_t row = 0; row < ROWS; row += piece) {
                const size_t n = ROWS - row < piece ? ROWS - row : piece;

                linear_apply(&linear, n, IN, OUT, x + row * IN, w, y + row * OUT);
            }
            ck_assert_int_eq(memcmp(y, first, ROWS * OUT * sizeof *y), 0);
        }
    }
    free(x);
    free(w);
    free(first);
    free(y);
}
END_TEST

static void right(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y)
{
    for (size_t i = 0; i < rows * n_out; i++) {
        double sum = 0;

        for (size_t j = 0; j < n_in; j++)
            sum += (double)x[i / n_out * n_in + j] * weights[i % n_out * n_in + j];
        y[i] = (float)sum;
    }
}

static void leaves_one_out(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y)
{
    right(rows, n_in, n_out, x, weights, y);
    if (rows * n_out > 200)
        y[rows * n_out - 1] = NAN;
}

static void skips_the_tail(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y)
{
    right(rows, n_in, n_out, x, weights, y);
    for (size_t i = 0; n_in % 4 && i < rows * n_out; i++)
        y[i] -= x[i / n_out * n_in + n_in - 1] * weights[i % n_out * n_in + n_in - 1];
}

static void does_nothing(size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights, float *y)
{
    (void)rows, (void)n_in, (void)n_out, (void)x, (void)weights, (void)y;
}

START_TEST(test_wrong_products)
{
    ck_assert(linear_is_right(right));
    ck_assert(!linear_is_right(leaves_one_out));
    ck_assert(!linear_is_right(skips_the_tail));
    ck_assert(!linear_is_right(does_nothing));
}
END_TEST

START_TEST(test_choice)
{
    static const struct linear_library wrong[] = {{"A", skips_the_tail}, {"B", does_nothing}, {NULL, NULL}};
    static const struct linear_library mixed[] = {{"A", does_nothing}, {"B", right}, {"C", right}, {NULL, NULL}};
    struct linear linear;
    struct rng rng;

    rng_init(&rng, 0x78);
    linear_init(&linear, true, 1);
    linear_choose(&linear, wrong);
    ck_assert_str_eq(linear.name, "plain loops");
    ck_assert_str_eq(linear.refused, "A");
    compare_with_double(&linear, &rng, 3, 33, 17);

    linear_init(&linear, true, 1);
    linear_choose(&linear, mixed);
    ck_assert_str_eq(linear.name, "B");
    ck_assert_str_eq(linear.refused, "A");
    compare_with_double(&linear, &rng, 3, 33, 17);
}
END_TEST

/* Weights keep their addresses as long as they are packed. */
static void compare_packed(struct packed *packed, struct rng *rng, float *w, size_t n_in, size_t n_out, double error)
{
    static const size_t rows[] = {1, 2, 7, 32, 33, 256, 257, 600};
    float *x = random_numbers(rng, 600 * n_in);
    float *y = malloc((600 * n_out + 1) * sizeof *y);

    ck_assert_int_eq(packed_add(packed, w, n_in, n_out), 0);
    ck_assert_int_eq(packed_add(packed, w, n_in, n_out), 0);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (size_t i = 0; i <= 600 * n_out; i++)
            y[i] = NAN;
        ck_assert_int_eq(packed_apply(packed, rows[r], x, w, y), 0);
        for (size_t i = 0; i < rows[r] * n_out; i++) {
            double sum = 0, size = 0;

            for (size_t j = 0; j < n_in; j++) {
                sum += (double)x[i / n_out * n_in + j] * w[i % n_out * n_in + j];
                size += fabs((double)x[i / n_out * n_in + j] * w[i % n_out * n_in + j]);
            }
            CHECK(fabs(y[i] - sum) <= error * size, "%zu rows, %zu in, %zu out: %g, not %g", rows[r], n_in, n_out, y[i],
                  sum);
        }
        CHECK(isnan(y[rows[r] * n_out]), "written past the end");
    }
    free(x);
    free(y);
}

START_TEST(test_packed)
{
    struct rng rng;

    rng_init(&rng, 0x79);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct packed *packed = packed_create(bf16);

        if (!packed || (bf16 && !packed_likes_bf16())) {
            packed_destroy(packed);
            return; /* a build without oneDNN, or a CPU for which it has no such products */
        }
        const float strange = 1;
        float y;
        ck_assert_int_eq(packed_apply(packed, 1, &strange, &strange, &y), -1);
        float *w[70];
        for (size_t i = 0; i < 70; i++) {
            const size_t n_in = i ? 8 + i % 2 * 59 : 40, n_out = i ? 3 + i % 2 * 2 : 24;

            w[i] = random_numbers(&rng, n_in * n_out);
            compare_packed(packed, &rng, w[i], n_in, n_out, bf16 ? 0.008 : 1e-6);
        }
        for (size_t i = 0; i < 70; i++)
            free(w[i]);
        packed_destroy(packed);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("linear");

    tcase_add_test(tcase, test_products);
    tcase_add_test(tcase, test_fixed_order);
    tcase_add_test(tcase, test_wrong_products);
    tcase_add_test(tcase, test_choice);
    tcase_add_test(tcase, test_packed);
    return suite_run(tcase);
}
