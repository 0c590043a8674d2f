/* A build that cannot save says so, writes nothing and reads nothing. */
#include "support/engine.h"
#include "support/suite.h"

#include <stdio.h>

START_TEST(prefixes_are_neither_saved_nor_loaded)
{
    const char *path = "nosave.out";
    struct engine e;
    struct cattn_config config = engine_config(64);
    uint64_t n_tokens = 77;
    engine_init(&e, &config, 1);
    ck_assert_int_eq(cattn_prefix_save(e.cache, path, NULL, 0), CATTN_ENOTSUP);
    ck_assert_ptr_null(fopen(path, "r"));
    ck_assert_int_eq(cattn_prefix_load(e.cache, path, NULL, 0, &n_tokens), CATTN_ENOTSUP);
    ck_assert_uint_eq(n_tokens, 77);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("nosave");
    tcase_add_test(tests, prefixes_are_neither_saved_nor_loaded);
    return suite_run(tests);
}
