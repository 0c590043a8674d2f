#include "work.h"

#include "chunkattention.h"
#include "support/suite.h"

#include <string.h>

#define C 4

static struct cattn_work work;

static void build(const struct cattn_work_path *paths, size_t n, int share)
{
    size_t n_chunks = 0;
    for (size_t i = 0; i < n; i++)
        n_chunks += paths[i].n_chunks;
    ck_assert_int_eq(cattn_work_reserve(&work, n, n_chunks, 0), CATTN_OK);
    cattn_work_build(&work, paths, n, share);
}

static struct cattn_work_path path(const uint32_t *slots, uint32_t n_chunks, uint64_t length)
{
    return (struct cattn_work_path){slots, n_chunks, 1, length - 1};
}

static void expect_run(size_t i, uint32_t first_chunk, uint32_t n_chunks, const uint32_t *slots, uint32_t n_items,
                       const uint32_t *items)
{
    ck_assert_uint_lt(i, work.n_runs);
    const struct cattn_work_run *run = &work.runs[i];
    ck_assert_uint_eq(run->first_chunk, first_chunk);
    ck_assert_uint_eq(run->n_chunks, n_chunks);
    ck_assert_mem_eq(work.slots + run->slots, slots, n_chunks * sizeof(*slots));
    ck_assert_uint_eq(run->n_items, n_items);
    ck_assert_mem_eq(work.run_items + run->items, items, n_items * sizeof(*items));
}

static void setup(void)
{
    ck_assert_int_eq(cattn_work_init(&work, 100, C), CATTN_OK);
}

static void teardown(void)
{
    cattn_work_release(&work);
}

/* 1 2 3 is common to the items 0, 1, 3; 4 to 0 and 3; item 2 is alone; item 1 ends where the common path does. */
static const uint32_t a[] = {1, 2, 3, 4, 5}, b[] = {1, 2, 3}, c[] = {9}, d[] = {1, 2, 3, 4, 6, 7};

static size_t tree_of_four(struct cattn_work_path *paths)
{
    paths[0] = path(a, 5, 18);
    paths[1] = path(b, 3, 12);
    paths[2] = path(c, 1, 3);
    paths[3] = path(d, 6, 24);
    return 4;
}

START_TEST(runs_are_what_the_same_items_see)
{
    struct cattn_work_path paths[4];
    build(paths, tree_of_four(paths), 1);
    ck_assert_uint_eq(work.n_runs, 5);
    expect_run(0, 0, 3, a, 3, (uint32_t[]){0, 1, 3});
    expect_run(1, 3, 1, a + 3, 2, (uint32_t[]){0, 3});
    expect_run(2, 4, 1, a + 4, 1, (uint32_t[]){0});
    expect_run(3, 0, 1, c, 1, (uint32_t[]){2});
    expect_run(4, 4, 2, d + 4, 1, (uint32_t[]){3});
    uint64_t shared, unshared;
    cattn_work_count_tokens(&work, 0, 0, &shared, &unshared);
    ck_assert_uint_eq(unshared, 18 + 12 + 3 + 24);
    ck_assert_uint_eq(shared, 12 + 4 + 2 + 3 + 8);
}
END_TEST

START_TEST(without_sharing_each_item_has_one_run)
{
    struct cattn_work_path paths[4];
    build(paths, tree_of_four(paths), 0);
    ck_assert_uint_eq(work.n_runs, 4);
    expect_run(0, 0, 5, a, 1, (uint32_t[]){0});
    expect_run(3, 0, 6, d, 1, (uint32_t[]){3});
    uint64_t shared, unshared;
    cattn_work_count_tokens(&work, 0, 0, &shared, &unshared);
    ck_assert_uint_eq(unshared, 18 + 12 + 3 + 24);
    ck_assert_uint_eq(shared, unshared);
}
END_TEST

START_TEST(rows_are_in_the_order_of_the_items)
{
    struct cattn_work_path paths[] = {{a, 5, 3, 15}, {b, 3, 1, 11}, {d, 6, 24, 0}};
    build(paths, 3, 1);
    ck_assert_uint_eq(work.n_items, 3);
    ck_assert_uint_eq(work.n_rows, 28);
    ck_assert_uint_eq(work.items[1].first_row, 3);
    ck_assert_uint_eq(work.items[2].first_row, 4);
    ck_assert_uint_eq(work.items[2].n_rows, 24);
    ck_assert_uint_eq(work.items[0].position, 15);
}
END_TEST

START_TEST(lengths_advance_without_a_new_structure)
{
    struct cattn_work_path paths[4];
    build(paths, tree_of_four(paths), 1);
    uint64_t structure = work.structure, revision = work.revision, shared, before, unshared;
    cattn_work_count_tokens(&work, 0, 0, &before, &unshared);
    const struct cattn_work_path later[] = {{.position = 18}, {.position = 11}, {.position = 3}, {.position = 23}};
    ck_assert_uint_eq(cattn_work_advance(&work, later), 2);
    ck_assert_uint_eq(work.structure, structure);
    ck_assert_uint_ne(work.revision, revision);
    ck_assert_uint_eq(work.items[0].position, 18);
    cattn_work_count_tokens(&work, 0, 0, &shared, &unshared);
    ck_assert_uint_eq(shared, before + 2);
    revision = work.revision;
    build(paths, 4, 1);
    ck_assert_uint_ne(work.structure, structure);
    ck_assert_uint_ne(work.revision, revision);
}
END_TEST

START_TEST(writes_are_kept_in_order)
{
    struct cattn_work_path paths[4];
    build(paths, tree_of_four(paths), 1);
    ck_assert_int_eq(cattn_work_reserve(&work, 4, 15, 2), CATTN_OK);
    cattn_work_add_write(&work, &(struct cattn_work_write){5, 1, 2, 0, 3});
    cattn_work_add_write(&work, &(struct cattn_work_write){9, 2, 3, 2, 0});
    ck_assert_uint_eq(work.n_writes, 2);
    ck_assert_uint_eq(work.writes[0].slot, 5);
    ck_assert_uint_eq(work.writes[1].row, 2);
    cattn_work_clear_writes(&work);
    ck_assert_uint_eq(work.n_writes, 0);
    cattn_work_add_write(&work, &(struct cattn_work_write){7, 0, 1, 0, 0});
    build(paths, 4, 1);
    ck_assert_uint_eq(work.n_writes, 0);
}
END_TEST

START_TEST(nothing_is_a_list_too)
{
    build(NULL, 0, 1);
    ck_assert_uint_eq(work.n_runs + work.n_items + work.n_rows, 0);
}
END_TEST

/* Random paths of a tree in which slot s hangs below slot s / 3: each item meets its path, in order, in the fewest
 * runs. */
START_TEST(random_trees_are_covered)
{
    enum { ITEMS = 12, DEPTH = 6 };
    static uint32_t slots[ITEMS][DEPTH];
    struct cattn_work_path paths[ITEMS];
    uint32_t random = (uint32_t)_i;
    for (size_t i = 0; i < ITEMS; i++) {
        random = random * 1664525 + 1013904223;
        uint32_t slot = 1 + (random >> 8) % 99, n = 0;
        for (uint32_t s = slot; s; s /= 3)
            n++;
        for (uint32_t k = n, s = slot; k--; s /= 3)
            slots[i][k] = s;
        paths[i] = path(slots[i], n, (uint64_t)n * C);
    }
    build(paths, ITEMS, 1);
    ck_assert_uint_lt(work.n_runs, 2 * ITEMS);
    uint32_t next[ITEMS] = {0}, before = UINT32_MAX, sharers[ITEMS] = {0};
    for (size_t i = 0; i < work.n_runs; i++) {
        const struct cattn_work_run *run = &work.runs[i];
        ck_assert(run->n_items == 1 || before > 1);
        before = run->n_items;
        for (uint32_t k = 0; k < run->n_items; k++) {
            uint32_t item = work.run_items[run->items + k];
            ck_assert(!k || item > work.run_items[run->items + k - 1]);
            ck_assert_uint_eq(run->first_chunk, next[item]);
            ck_assert_mem_eq(work.slots + run->slots, slots[item] + next[item], run->n_chunks * sizeof(uint32_t));
            next[item] += run->n_chunks;
            ck_assert(!sharers[item] || run->n_items < sharers[item]);
            sharers[item] = run->n_items;
        }
    }
    for (size_t i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(next[i], paths[i].n_chunks);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("work");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, runs_are_what_the_same_items_see);
    tcase_add_test(tests, without_sharing_each_item_has_one_run);
    tcase_add_test(tests, rows_are_in_the_order_of_the_items);
    tcase_add_test(tests, lengths_advance_without_a_new_structure);
    tcase_add_test(tests, writes_are_kept_in_order);
    tcase_add_test(tests, nothing_is_a_list_too);
    tcase_add_loop_test(tests, random_trees_are_covered, 1, 200);
    return suite_run(tests);
}
