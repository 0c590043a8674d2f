/* The features of the processor, and the mask that takes them away. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "cpu.h"
#include "support/suite.h"

#include <stdlib.h>

enum {
    LEVEL_0 = CATTN_CPU_BASELINE,
    LEVEL_2 = LEVEL_0 | CATTN_CPU_AVX2,
    LEVEL_512 = LEVEL_2 | CATTN_CPU_AVX512,
    ALL = LEVEL_512 | CATTN_CPU_VNNI | CATTN_CPU_AMX
};

static const struct {
    const char *mask;
    uint32_t left;
} masks[] = {
    {NULL, ALL},
    {"", ALL},
    {"none", ALL},
    {"amx", LEVEL_512 | CATTN_CPU_VNNI},
    {"vnni", LEVEL_512 | CATTN_CPU_AMX},
    {"vnni,amx", LEVEL_512},
    {"amx,vnni", LEVEL_512},
    {"amx,amx", LEVEL_512 | CATTN_CPU_VNNI},
    {"none,amx", LEVEL_512 | CATTN_CPU_VNNI},
    {"avx512", LEVEL_2},
    {"avx512,amx", LEVEL_2},
    {"avx2", LEVEL_0},
    {"amx,vnni,avx512,avx2", LEVEL_0},
};

static const char *const unknown[] = {"all", "AMX",      "amx ",     " amx", "amx;vnni", "amx vnni",
                                      "avx", "avx5123",  "0",        "amx,", ",amx",     "amx,,vnni",
                                      ",",   "amx,sse2", "sse2,amx", " ",    "avx512f"};

START_TEST(a_mask_takes_what_it_names_and_what_needs_it)
{
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
        ck_assert_msg(cattn_cpu_unmasked(masks[i].mask) == masks[i].left, "%s leaves %#x, not %#x", masks[i].mask,
                      cattn_cpu_unmasked(masks[i].mask), masks[i].left);
}
END_TEST

START_TEST(an_unknown_name_leaves_nothing)
{
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        ck_assert_msg(cattn_cpu_unmasked(unknown[i]) == 0, "'%s'", unknown[i]);
        setenv("CATTN_CPU_MASK", unknown[i], 1);
        ck_assert_msg(cattn_cpu_features() == 0, "'%s'", unknown[i]);
    }
}
END_TEST

START_TEST(the_environment_is_read_at_each_call)
{
    unsetenv("CATTN_CPU_MASK");
    uint32_t here = cattn_cpu_features();
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        if (masks[i].mask)
            setenv("CATTN_CPU_MASK", masks[i].mask, 1);
        ck_assert_uint_eq(cattn_cpu_features(), here & masks[i].left);
    }
    unsetenv("CATTN_CPU_MASK");
    ck_assert_uint_eq(cattn_cpu_features(), here);
}
END_TEST

START_TEST(a_feature_comes_with_what_it_needs)
{
    unsetenv("CATTN_CPU_MASK");
    uint32_t here = cattn_cpu_features();
    ck_assert(here & CATTN_CPU_BASELINE);
    ck_assert(!(here & CATTN_CPU_AVX512) || here & CATTN_CPU_AVX2);
    ck_assert(!(here & (CATTN_CPU_VNNI | CATTN_CPU_AMX)) || here & CATTN_CPU_AVX512);
    ck_assert_uint_ge(cattn_cpu_count(), 1);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("cpu");
    tcase_add_test(tcase, a_mask_takes_what_it_names_and_what_needs_it);
    tcase_add_test(tcase, an_unknown_name_leaves_nothing);
    tcase_add_test(tcase, the_environment_is_read_at_each_call);
    tcase_add_test(tcase, a_feature_comes_with_what_it_needs);
    return suite_run(tcase);
}
