#include "memory.h"
#include "support/suite.h"

#include <stdint.h>
#include <string.h>

START_TEST(a_product_that_does_not_fit_is_refused)
{
    size_t half = SIZE_MAX / 2 + 1, capacity = 0;
    ck_assert_ptr_null(cattn_malloc(half, 2));
    ck_assert_ptr_null(cattn_malloc(SIZE_MAX, 1));
    ck_assert_ptr_null(cattn_calloc(half, 2));
    ck_assert_ptr_null(cattn_realloc(NULL, half, 4));
    ck_assert_ptr_null(cattn_malloc_aligned(half, 2));
    ck_assert_ptr_null(cattn_pool_alloc(half, 2, true));
    ck_assert_ptr_null(cattn_grow(NULL, &capacity, half, 8));
    ck_assert_uint_eq(capacity, 0);
}
END_TEST

START_TEST(nothing_is_something)
{
    void *memory[] = {cattn_malloc(0, 8), cattn_calloc(8, 0), cattn_realloc(NULL, 0, 0), cattn_malloc_aligned(0, 1)};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        ck_assert_ptr_nonnull(memory[i]);
        cattn_free(memory[i]);
    }
    cattn_free(NULL);
    cattn_pool_free(NULL, 1, 1);
}
END_TEST

START_TEST(aligned_memory_is_aligned)
{
    for (size_t n = 1; n < 200; n += 13) {
        void *memory = cattn_malloc_aligned(n, 3);
        ck_assert_uint_eq((uintptr_t)memory % CATTN_ALIGNMENT, 0);
        memset(memory, 1, 3 * n);
        cattn_free(memory);
    }
}
END_TEST

START_TEST(arrays_grow_by_half)
{
    size_t capacity = 0, moves = 0;
    uint64_t *array = NULL;
    for (size_t n = 1; n <= 10000; n++) {
        size_t before = capacity;
        array = cattn_grow(array, &capacity, n, sizeof(*array));
        ck_assert_ptr_nonnull(array);
        ck_assert_uint_ge(capacity, n);
        moves += capacity != before;
        array[n - 1] = n;
    }
    for (size_t n = 0; n < 10000; n++)
        ck_assert_uint_eq(array[n], n + 1);
    ck_assert_uint_lt(moves, 30);
    cattn_free(array);
}
END_TEST

START_TEST(a_big_pool_is_zero_and_costs_nothing)
{
    size_t gigabyte = (size_t)1 << 30;
    unsigned char *pool = cattn_pool_alloc(64, gigabyte, false);
    ck_assert_ptr_nonnull(pool);
    ck_assert_uint_eq((uintptr_t)pool % 4096, 0);
    for (size_t i = 0; i < 64; i += 21) {
        ck_assert_uint_eq(pool[i * gigabyte], 0);
        pool[i * gigabyte] = 1;
    }
    cattn_pool_free(pool, 64, gigabyte);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("memory");
    tcase_add_test(tests, a_product_that_does_not_fit_is_refused);
    tcase_add_test(tests, nothing_is_something);
    tcase_add_test(tests, aligned_memory_is_aligned);
    tcase_add_test(tests, arrays_grow_by_half);
    tcase_add_test(tests, a_big_pool_is_zero_and_costs_nothing);
    return suite_run(tests);
}
