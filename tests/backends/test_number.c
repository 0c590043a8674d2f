/* The library's 16-bit numbers against those of the tests, which are written by value: every pattern, and what lies
 * between. */
#include "number.h"
#include "support/dtype.h"
#include "support/random.h"
#include "support/suite.h"

#include <float.h>
#include <math.h>

static uint16_t to_bits(uint32_t dtype, float x)
{
    return dtype == CATTN_F16 ? cattn_to_f16(x) : cattn_to_bf16(x);
}

static float from_bits(uint32_t dtype, uint16_t bits)
{
    return dtype == CATTN_F16 ? cattn_from_f16(bits) : cattn_from_bf16(bits);
}

/* Rounded as the tests round; a NaN has many patterns. */
static void check_rounding(uint32_t dtype, float x)
{
    uint16_t got = to_bits(dtype, x), expected;
    dtype_store(dtype, &expected, 0, x);
    if (isnan(x))
        CHECK(isnan(dtype_load(dtype, &got, 0)), "%s of NaN %#x: %#x", dtype_name(dtype), cattn_bits(x), got);
    else
        CHECK(got == expected, "%s of %a: %#x, not %#x", dtype_name(dtype), x, got, expected);
}

START_TEST(every_pattern)
{
    for (uint32_t dtype = CATTN_F16; dtype <= CATTN_BF16; dtype++)
        for (uint32_t i = 0; i <= UINT16_MAX; i++) {
            uint16_t bits = (uint16_t)i;
            double expected = dtype_load(dtype, &bits, 0);
            float got = from_bits(dtype, bits);
            if (isnan(expected)) {
                CHECK(isnan(got), "%s %#x: %a, not NaN", dtype_name(dtype), i, got);
                CHECK(isnan(from_bits(dtype, to_bits(dtype, got))), "%s %#x and back", dtype_name(dtype), i);
            } else {
                CHECK(got == expected && !signbit(got) == !signbit(expected), "%s %#x: %a, not %a", dtype_name(dtype),
                      i, got, expected);
                CHECK(to_bits(dtype, got) == bits, "%s %#x and back: %#x", dtype_name(dtype), i, to_bits(dtype, got));
            }
        }
}
END_TEST

/* Half way between neighbours, and as little as possible to either side of it. */
START_TEST(ties)
{
    for (uint32_t dtype = CATTN_F16; dtype <= CATTN_BF16; dtype++)
        for (uint32_t i = 0; i < UINT16_MAX; i++) {
            float low = from_bits(dtype, (uint16_t)i), high = from_bits(dtype, (uint16_t)(i + 1));
            if (!isfinite(low) || !isfinite(high) || signbit(low) != signbit(high))
                continue;
            float middle = low + (high - low) / 2;
            check_rounding(dtype, middle);
            check_rounding(dtype, nextafterf(middle, low));
            check_rounding(dtype, nextafterf(middle, high));
        }
}
END_TEST

START_TEST(largest_and_smallest)
{
    static const float edges[] = {
        0.0f,        65504.0f,        65519.996f, 65520.0f, 65536.0f,     0x1.fep127f, 0x1.fefffep127f,
        0x1.ffp127f, FLT_MAX,         INFINITY,   NAN,      FLT_MIN,      0x1p-149f,   0x1p-24f,
        0x1p-25f,    0x1.000002p-25f, 0x1.8p-25f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f};
    for (uint32_t dtype = CATTN_F16; dtype <= CATTN_BF16; dtype++)
        for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
            check_rounding(dtype, edges[i]);
            check_rounding(dtype, -edges[i]);
        }
}
END_TEST

START_TEST(random_numbers)
{
    enum { N = 1000000 };
    struct rng rng;
    rng_init(&rng, 0);
    for (uint32_t dtype = CATTN_F16; dtype <= CATTN_BF16; dtype++)
        for (size_t i = 0; i < N; i++)
            check_rounding(dtype, cattn_float((uint32_t)rng_next(&rng)));
}
END_TEST

START_TEST(arrays)
{
    enum { N = 37, FIRST = 5 };
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++) {
        uint32_t room[N], expected[N];
        float row[N + 1] = {0};
        ck_assert_uint_eq(cattn_dtype_size(dtype), dtype_size(dtype));
        for (size_t i = 0; i < N; i++) {
            cattn_put(room, dtype, i, (float)i / 3);
            dtype_store(dtype, expected, i, (float)i / 3);
        }
        ck_assert_mem_eq(room, expected, N * dtype_size(dtype));
        cattn_load_row(row, room, dtype, FIRST, N - FIRST);
        for (size_t i = FIRST; i < N; i++) {
            ck_assert(cattn_load(room, dtype, i) == dtype_load(dtype, expected, i));
            ck_assert(row[i - FIRST] == dtype_load(dtype, expected, i));
        }
        ck_assert(row[N - FIRST] == 0);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("number");
    tcase_add_test(tcase, every_pattern);
    tcase_add_test(tcase, ties);
    tcase_add_test(tcase, largest_and_smallest);
    tcase_add_test(tcase, random_numbers);
    tcase_add_test(tcase, arrays);
    return suite_run(tcase);
}
