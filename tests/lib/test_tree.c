#include "tree.h"

#include "chunkattention.h"
#include "support/suite.h"

#include <string.h>

#define C 4

static struct cattn_tree tree;

static void make(uint32_t n_slots, bool retain)
{
    ck_assert_int_eq(cattn_tree_init(&tree, n_slots, C, retain, 12345), CATTN_OK);
}

static uint32_t root_of(const char *name)
{
    uint32_t root = cattn_roots_find(&tree.roots, name, strlen(name));
    if (root == CATTN_NONE)
        ck_assert_int_eq(cattn_roots_add(&tree.roots, name, strlen(name), &root), CATTN_OK);
    return root;
}

static uint64_t hash_below(uint32_t parent, uint32_t root, const int32_t *tokens)
{
    return cattn_tree_hash(&tree, cattn_tree_above(&tree, parent, root), tokens);
}

static void publish(uint32_t slot)
{
    const struct cattn_slot *x = &tree.slots[slot];
    cattn_tree_publish(&tree, slot, hash_below(x->parent, x->root, cattn_tree_tokens(&tree, slot)));
}

/* A published chunk with one reference. */
static uint32_t add(uint32_t parent, uint32_t root, int32_t a, int32_t b, int32_t c, int32_t d)
{
    uint32_t slot = cattn_tree_take(&tree, parent, root, 0);
    memcpy(cattn_tree_tokens(&tree, slot), (int32_t[]){a, b, c, d}, C * sizeof(int32_t));
    cattn_tree_set_fill(&tree, slot, C);
    publish(slot);
    return slot;
}

static uint32_t find(uint32_t parent, uint32_t root, const int32_t *tokens)
{
    return cattn_tree_find(&tree, parent, root, tokens, hash_below(parent, root, tokens));
}

static void expect(uint32_t used, uint32_t free, uint32_t evictable)
{
    ck_assert_uint_eq(cattn_tree_used(&tree), used);
    ck_assert_uint_eq(tree.n_free, free);
    ck_assert_uint_eq(tree.n_evictable, evictable);
}

START_TEST(a_chunk_is_found_below_its_parent_only)
{
    make(8, true);
    uint32_t root = root_of("a"), other = root_of("b");
    uint32_t x = add(CATTN_NONE, root, 1, 2, 3, 4), y = add(x, root, 1, 2, 3, 4);
    int32_t tokens[] = {1, 2, 3, 4}, others[] = {1, 2, 3, 5};
    ck_assert_uint_eq(find(CATTN_NONE, root, tokens), x);
    ck_assert_uint_eq(find(x, root, tokens), y);
    ck_assert_uint_eq(find(y, root, tokens), CATTN_NONE);
    ck_assert_uint_eq(find(CATTN_NONE, other, tokens), CATTN_NONE);
    ck_assert_uint_eq(find(CATTN_NONE, root, others), CATTN_NONE);
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(names_are_bytes_with_a_length)
{
    make(2, true);
    const char *names[] = {"", "\0", "a", "a\0", "a\0b", "\0a"};
    size_t lengths[] = {0, 1, 1, 2, 3, 2};
    uint32_t roots[6];
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(cattn_roots_find(&tree.roots, names[i], lengths[i]), CATTN_NONE);
        ck_assert_int_eq(cattn_roots_add(&tree.roots, names[i], lengths[i], &roots[i]), CATTN_OK);
        cattn_roots_acquire(&tree.roots, roots[i]);
    }
    for (int i = 0; i < 6; i++)
        ck_assert_uint_eq(cattn_roots_find(&tree.roots, names[i], lengths[i]), roots[i]);
    for (int i = 0; i < 6; i++) {
        cattn_roots_drop(&tree.roots, roots[i]);
        ck_assert_uint_eq(cattn_roots_find(&tree.roots, names[i], lengths[i]), CATTN_NONE);
    }
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(many_names_come_and_go)
{
    make(2, true);
    uint32_t roots[1000];
    for (uint32_t i = 0; i < 1000; i++) {
        ck_assert_int_eq(cattn_roots_add(&tree.roots, &i, sizeof(i), &roots[i]), CATTN_OK);
        cattn_roots_acquire(&tree.roots, roots[i]);
        if (i % 3 == 2)
            cattn_roots_drop(&tree.roots, roots[i - 1]);
    }
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert_uint_eq(cattn_roots_find(&tree.roots, &i, sizeof(i)), i % 3 == 1 && i < 999 ? CATTN_NONE : roots[i]);
    ck_assert_uint_eq(tree.roots.last_id, 1000);
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(a_partial_match_takes_the_longest_and_the_newest)
{
    make(16, true);
    uint32_t root = root_of("a"), length;
    uint32_t x = add(CATTN_NONE, root, 1, 2, 3, 4), y = add(CATTN_NONE, root, 1, 2, 5, 6);
    uint32_t z = add(CATTN_NONE, root, 7, 7, 7, 7);
    ck_assert_uint_eq(cattn_tree_find_partial(&tree, CATTN_NONE, root, (int32_t[]){1, 2, 3}, 3, &length), x);
    ck_assert_uint_eq(length, 3);
    ck_assert_uint_eq(cattn_tree_find_partial(&tree, CATTN_NONE, root, (int32_t[]){1, 2, 9}, 3, &length), y);
    ck_assert_uint_eq(length, 2);
    ck_assert_uint_eq(cattn_tree_find_partial(&tree, CATTN_NONE, root, (int32_t[]){7}, 1, &length), z);
    ck_assert_uint_eq(length, 1);
    ck_assert_uint_eq(cattn_tree_find_partial(&tree, CATTN_NONE, root, (int32_t[]){2}, 1, &length), CATTN_NONE);
    ck_assert_uint_eq(length, 0);
    ck_assert_uint_eq(cattn_tree_find_partial(&tree, CATTN_NONE, root, NULL, 0, &length), CATTN_NONE);
    cattn_tree_unpublish(&tree, y);
    ck_assert_uint_eq(cattn_tree_find_partial(&tree, CATTN_NONE, root, (int32_t[]){1, 2, 9}, 3, &length), x);
    for (int32_t i = 0; i < 8; i++)
        add(CATTN_NONE, root, 1, 9, i, i);
    ck_assert_uint_ne(cattn_tree_find_partial(&tree, CATTN_NONE, root, (int32_t[]){1, 2, 3}, 3, &length), x);
    ck_assert_uint_eq(length, 1);
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(leaves_are_evicted_first_and_the_longest_unused)
{
    make(4, true);
    uint32_t root = root_of("a");
    uint32_t x = add(CATTN_NONE, root, 1, 1, 1, 1), y = add(x, root, 2, 2, 2, 2), z = add(CATTN_NONE, root, 3, 3, 3, 3);
    cattn_tree_unref(&tree, y);
    cattn_tree_unref(&tree, x);
    cattn_tree_unref(&tree, z);
    expect(0, 1, 3);
    cattn_tree_acquire(&tree, x);
    expect(1, 1, 2);
    cattn_tree_unref(&tree, x);
    cattn_tree_evict(&tree, 1);
    ck_assert_uint_eq(tree.slots[y].root, CATTN_NONE);
    cattn_tree_evict(&tree, 1);
    ck_assert_uint_eq(tree.slots[z].root, CATTN_NONE);
    cattn_tree_evict(&tree, 100);
    expect(0, 4, 0);
    ck_assert_uint_eq(tree.evictions, 3);
    ck_assert_uint_eq(tree.peak_used, 3);
    ck_assert_uint_eq(tree.stored_tokens, 0);
    ck_assert_uint_eq(cattn_roots_find(&tree.roots, "a", 1), CATTN_NONE); /* gone with its last chunk */
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(nothing_is_retained_if_so_asked)
{
    make(4, false);
    uint32_t root = root_of("a");
    cattn_tree_unref(&tree, add(CATTN_NONE, root, 1, 1, 1, 1));
    expect(0, 4, 0);
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(pins_are_counted)
{
    make(4, true);
    uint32_t root = root_of("a");
    uint32_t x = add(CATTN_NONE, root, 1, 2, 3, 4), y = add(x, root, 5, 6, 7, 8);
    int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    cattn_tree_unref(&tree, y);
    cattn_tree_unref(&tree, x);
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, tokens, 3), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_tree_pin(&tree, "b", 1, tokens, 8), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, tokens, 9), CATTN_OK);
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, tokens, 8), CATTN_OK);
    expect(2, 2, 0);
    cattn_tree_evict(&tree, 2);
    expect(2, 2, 0);
    ck_assert_int_eq(cattn_tree_unpin(&tree, "a", 1, tokens, 4), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_tree_unpin(&tree, "a", 1, tokens, 8), CATTN_OK);
    expect(2, 2, 0);
    ck_assert_int_eq(cattn_tree_unpin(&tree, "a", 1, tokens, 8), CATTN_OK);
    ck_assert_int_eq(cattn_tree_unpin(&tree, "a", 1, tokens, 8), CATTN_ENOTFOUND);
    expect(0, 2, 2);
    tree.n_pins = UINT32_MAX;
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, tokens, 8), CATTN_ENOMEM);
    expect(0, 2, 2);
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(an_invalidated_name_starts_empty)
{
    make(8, true);
    uint32_t root = root_of("a");
    int32_t tokens[] = {1, 2, 3, 4};
    uint32_t x = add(CATTN_NONE, root, 1, 2, 3, 4), y = add(CATTN_NONE, root, 2, 2, 3, 4);
    cattn_tree_unref(&tree, y);
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, tokens, 4), CATTN_OK);
    cattn_tree_invalidate(&tree, "a", 1);
    cattn_tree_invalidate(&tree, "no such name", 12);
    expect(1, 7, 0); /* the pin is gone, the reference of add() is not */
    ck_assert_uint_eq(cattn_roots_find(&tree.roots, "a", 1), CATTN_NONE);
    uint32_t fresh = root_of("a");
    ck_assert_uint_ne(fresh, root);
    ck_assert_uint_eq(find(CATTN_NONE, fresh, tokens), CATTN_NONE);
    ck_assert_uint_eq(find(CATTN_NONE, root, tokens), x);
    cattn_tree_unref(&tree, x);
    expect(0, 8, 0);
    cattn_tree_release(&tree);
}
END_TEST

/* Every chunk that is published is found, and no other, while they come and go; with a hash that says something (0) and
 * one that does not (1). */
START_TEST(the_index_holds_what_is_published)
{
    enum { N = 64 };
    uint32_t slots[N], random = 1;
    make(N, true);
    tree.constant_hash = _i;
    uint32_t root = root_of("a"), parent = CATTN_NONE;
    memset(slots, 0xff, sizeof(slots));
    for (int step = 0; step < 5000; step++) {
        random = random * 1664525 + 1013904223;
        int32_t i = (int32_t)(random >> 26);
        if (slots[i] == CATTN_NONE) {
            slots[i] = add(parent, root, i % 3, i, -i, 0);
        } else {
            cattn_tree_unref(&tree, slots[i]);
            cattn_tree_evict(&tree, 1);
            slots[i] = CATTN_NONE;
        }
        for (i = 0; i < N; i++)
            ck_assert_uint_eq(find(parent, root, (int32_t[]){i % 3, i, -i, 0}), slots[i]);
        for (int32_t first = 0; first < 3; first++) {
            uint32_t n = 0, expected = 0;
            for (uint32_t x = cattn_tree_find_first(&tree, parent, root, first); x != CATTN_NONE;
                 x = tree.slots[x].older)
                n++;
            for (i = first; i < N; i += 3)
                expected += slots[i] != CATTN_NONE;
            ck_assert_uint_eq(n, expected);
        }
    }
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(chunks_may_be_one_token_long)
{
    ck_assert_int_eq(cattn_tree_init(&tree, 3, 1, true, 1), CATTN_OK);
    uint32_t root = root_of("a"), parent = CATTN_NONE;
    for (int32_t token = 0; token < 3; token++) {
        uint32_t slot = cattn_tree_take(&tree, parent, root, 0);
        *cattn_tree_tokens(&tree, slot) = token;
        cattn_tree_set_fill(&tree, slot, 1);
        publish(slot);
        parent = slot;
    }
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, (int32_t[]){0, 1, 2}, 3), CATTN_OK);
    ck_assert_int_eq(cattn_tree_pin(&tree, "a", 1, (int32_t[]){0, 2}, 2), CATTN_ENOTFOUND);
    cattn_tree_release(&tree);
}
END_TEST

START_TEST(a_pool_of_many_slots_costs_nothing)
{
    make(1u << 28, true);
    add(CATTN_NONE, root_of("a"), 1, 2, 3, 4);
    expect(1, (1u << 28) - 1, 0);
    cattn_tree_release(&tree);
}
END_TEST

/* The last slots of a pool whose arrays are beyond 4 GB. */
START_TEST(a11_slots_beyond_32_bits)
{
    uint32_t n = 1u << 28;
    if (sizeof(size_t) < 8)
        return;
    make(n, true);
    ck_assert_uint_eq((size_t)((char *)cattn_tree_tokens(&tree, n - 1) - (char *)tree.tokens),
                      (size_t)(n - 1) * C * sizeof(int32_t));
    tree.n_touched = n - 2;
    tree.n_free = 2;
    uint32_t root = root_of("a");
    uint32_t x = add(CATTN_NONE, root, 1, 2, 3, 4), y = add(x, root, 5, 6, 7, 8);
    int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t path[2];
    ck_assert_uint_eq(x, n - 2);
    ck_assert_uint_eq(cattn_tree_match(&tree, root, tokens, 2, path), 2);
    ck_assert(path[0] == x && path[1] == y);
    cattn_tree_unref(&tree, y);
    cattn_tree_unref(&tree, x);
    cattn_tree_evict(&tree, 2);
    ck_assert_uint_eq(cattn_tree_match(&tree, root_of("a"), tokens, 2, path), 0);
    cattn_tree_release(&tree);
}
END_TEST

/* Matches of every length, with chunks that are hashed ahead and none. */
START_TEST(a_match_goes_as_far_as_the_tree)
{
    enum { N = 40 };
    int32_t tokens[N * C];
    uint32_t slots[N], path[N];
    make(N, true);
    tree.constant_hash = _i;
    uint32_t root = root_of("a");
    for (uint32_t i = 0; i < N * C; i++)
        tokens[i] = (int32_t)(i / C % 3);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t n = 0; n <= N; n++) {
            ck_assert_uint_eq(cattn_tree_match(&tree, root, tokens, n, path), n < i ? n : i);
            ck_assert(!memcmp(path, slots, (n < i ? n : i) * sizeof(*path)));
        }
        const int32_t *t = tokens + (size_t)i * C;
        slots[i] = add(i ? slots[i - 1] : CATTN_NONE, root, t[0], t[1], t[2], t[3]);
    }
    tokens[20 * C + 1]++;
    ck_assert_uint_eq(cattn_tree_match(&tree, root, tokens, N, path), 20);
    cattn_tree_release(&tree);
}
END_TEST

/* Hashes tell apart chunks that differ in one token, in the order of tokens, or in what is above. */
START_TEST(hashes_depend_on_all_tokens)
{
    make(2, true);
    uint64_t above = cattn_tree_above(&tree, CATTN_NONE, root_of("a"));
    uint64_t other = cattn_tree_above(&tree, CATTN_NONE, root_of("b"));
    int32_t tokens[C] = {1, 2, 3, 4};
    uint64_t hash = cattn_tree_hash(&tree, above, tokens);
    ck_assert(hash != cattn_tree_hash(&tree, other, tokens));
    ck_assert(hash != cattn_tree_hash(&tree, hash, tokens));
    for (int i = 0; i < C; i++) {
        tokens[i] ^= INT32_MIN;
        ck_assert(hash != cattn_tree_hash(&tree, above, tokens));
        tokens[i] ^= INT32_MIN;
    }
    ck_assert(hash != cattn_tree_hash(&tree, above, (int32_t[]){2, 1, 3, 4}));
    ck_assert(hash != cattn_tree_hash(&tree, above, (int32_t[]){3, 4, 1, 2}));
    ck_assert_uint_eq(hash, cattn_tree_hash(&tree, above, tokens));
    cattn_tree_release(&tree);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("tree");
    tcase_add_test(tests, a_chunk_is_found_below_its_parent_only);
    tcase_add_test(tests, names_are_bytes_with_a_length);
    tcase_add_test(tests, many_names_come_and_go);
    tcase_add_test(tests, a_partial_match_takes_the_longest_and_the_newest);
    tcase_add_test(tests, leaves_are_evicted_first_and_the_longest_unused);
    tcase_add_test(tests, nothing_is_retained_if_so_asked);
    tcase_add_test(tests, pins_are_counted);
    tcase_add_test(tests, an_invalidated_name_starts_empty);
    tcase_add_loop_test(tests, the_index_holds_what_is_published, 0, 2);
    tcase_add_test(tests, chunks_may_be_one_token_long);
    tcase_add_test(tests, a_pool_of_many_slots_costs_nothing);
    tcase_add_test(tests, a11_slots_beyond_32_bits);
    tcase_add_loop_test(tests, a_match_goes_as_far_as_the_tree, 0, 2);
    tcase_add_test(tests, hashes_depend_on_all_tokens);
    return suite_run(tests);
}
