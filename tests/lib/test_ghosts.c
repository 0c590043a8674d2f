#include "ghosts.h"

#include "chunkattention.h"
#include "support/suite.h"

START_TEST(what_was_added_is_there_until_another_takes_its_place)
{
    struct cattn_ghosts ghosts;
    ck_assert_int_eq(cattn_ghosts_init(&ghosts, 5), CATTN_OK);
    ck_assert(!cattn_ghosts_have(&ghosts, 0) && !cattn_ghosts_have(&ghosts, 3));
    cattn_ghosts_add(&ghosts, 3);
    cattn_ghosts_add(&ghosts, 4);
    ck_assert(cattn_ghosts_have(&ghosts, 3) && cattn_ghosts_have(&ghosts, 4) && !cattn_ghosts_have(&ghosts, 11));
    cattn_ghosts_add(&ghosts, 11); /* 8 places */
    ck_assert(!cattn_ghosts_have(&ghosts, 3) && cattn_ghosts_have(&ghosts, 11));
    cattn_ghosts_remove(&ghosts, 3);
    ck_assert(cattn_ghosts_have(&ghosts, 11));
    cattn_ghosts_remove(&ghosts, 11);
    ck_assert(!cattn_ghosts_have(&ghosts, 11) && cattn_ghosts_have(&ghosts, 4));
    cattn_ghosts_add(&ghosts, 0);
    ck_assert(!cattn_ghosts_have(&ghosts, 0));
    cattn_ghosts_release(&ghosts);
}
END_TEST

START_TEST(one_place_is_enough)
{
    struct cattn_ghosts ghosts;
    ck_assert_int_eq(cattn_ghosts_init(&ghosts, 1), CATTN_OK);
    cattn_ghosts_add(&ghosts, UINT64_MAX);
    ck_assert(cattn_ghosts_have(&ghosts, UINT64_MAX));
    cattn_ghosts_add(&ghosts, 7);
    ck_assert(!cattn_ghosts_have(&ghosts, UINT64_MAX) && cattn_ghosts_have(&ghosts, 7));
    cattn_ghosts_release(&ghosts);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("ghosts");
    tcase_add_test(tests, what_was_added_is_there_until_another_takes_its_place);
    tcase_add_test(tests, one_place_is_enough);
    return suite_run(tests);
}
