/* Whoever listens knows what is cached. */
#include "churn.h"
#include "failing_memory.h"
#include "support/suite.h"

#include <string.h>

enum { C = 4, MAX_ENTRIES = 256 };

struct entry {
    uint64_t hash, parent;
    int32_t tokens[C];
    char name[8];
};

static struct small small;
static struct entry entries[MAX_ENTRIES]; /* what the events told of */
static size_t n_entries, n_seen[4], n_crossed;
static bool in_call, readers; /* readers: some namespaces read another one */

/* ---- the mirror */

static struct entry *find(uint64_t hash)
{
    for (size_t i = 0; i < n_entries; i++)
        if (entries[i].hash == hash)
            return &entries[i];
    return NULL;
}

static uint64_t fnv(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* crosses: the parent is a chunk of another namespace. */
static uint64_t hash_of(const struct cattn_event *event, bool crosses)
{
    uint64_t hash = event->parent ? event->parent : UINT64_C(14695981039346656037);
    if (!event->parent || crosses) {
        unsigned char length[8] = {(unsigned char)event->ns_len};
        hash = fnv(fnv(hash, length, 8), event->ns, event->ns_len);
    }
    for (size_t i = 0; i < event->n_tokens; i++) {
        uint32_t token = (uint32_t)event->tokens[i];
        unsigned char bytes[4] = {token & 255, token >> 8 & 255, token >> 16 & 255, token >> 24};
        hash = fnv(hash, bytes, 4);
    }
    return hash;
}

static void publish(const struct cattn_event *event)
{
    struct entry *parent = find(event->parent);
    ck_assert(parent || !event->parent);
    bool crosses = parent && (strlen(parent->name) != event->ns_len || memcmp(parent->name, event->ns, event->ns_len));
    ck_assert(!crosses || readers);
    n_crossed += crosses;
    ck_assert_uint_eq(event->hash, hash_of(event, crosses));
    ck_assert_ptr_null(find(event->hash));
    ck_assert_uint_lt(n_entries, MAX_ENTRIES);
    struct entry *entry = &entries[n_entries++];
    *entry = (struct entry){.hash = event->hash, .parent = event->parent};
    memcpy(entry->tokens, event->tokens, sizeof entry->tokens);
    memcpy(entry->name, event->ns, event->ns_len);
}

static void take_away(const struct cattn_event *event)
{
    struct entry *entry = find(event->hash);
    ck_assert_ptr_nonnull(entry);
    ck_assert_uint_eq(entry->parent, event->parent);
    ck_assert_mem_eq(entry->tokens, event->tokens, sizeof entry->tokens);
    ck_assert_uint_eq(strlen(entry->name), event->ns_len);
    for (size_t i = 0; i < n_entries; i++)
        ck_assert_uint_ne(entries[i].parent, event->hash);
    *entry = entries[--n_entries];
}

static void clear(const struct cattn_event *event)
{
    size_t before = n_entries;
    ck_assert(!event->n_tokens && !event->hash && !event->parent && !event->tokens);
    for (size_t i = n_entries; i-- > 0;)
        if (strlen(entries[i].name) == event->ns_len && !memcmp(entries[i].name, event->ns, event->ns_len))
            entries[i] = entries[--n_entries];
    ck_assert_uint_lt(n_entries, before);
}

static void listen(void *context, const struct cattn_event *event)
{
    ck_assert_ptr_eq(context, &small);
    ck_assert_uint_eq(event->size, sizeof *event);
    ck_assert_uint_le(event->kind, CATTN_EVENT_CLEARED);
    ck_assert(!in_call);
    in_call = true;
    n_seen[event->kind]++;
    if (event->kind != CATTN_EVENT_CLEARED)
        ck_assert_uint_eq(event->n_tokens, C);
    if (event->kind == CATTN_EVENT_PUBLISHED)
        publish(event);
    else if (event->kind == CATTN_EVENT_REMOVED)
        take_away(event);
    else
        clear(event);
    in_call = false;
}

/* ---- and what it should show */

static uint64_t expected_hash(const struct cattn_tree *tree, uint32_t slot)
{
    uint32_t path[64], n = 0;
    struct cattn_event event = {.n_tokens = C};
    uint32_t above = CATTN_NONE;
    for (; slot != CATTN_NONE; slot = tree->slots[slot].parent)
        path[n++] = slot;
    while (n) {
        uint32_t root = tree->slots[path[--n]].root;
        event.ns = cattn_roots_at(&tree->roots, root)->name;
        event.ns_len = cattn_roots_at(&tree->roots, root)->name_length;
        event.tokens = cattn_tree_tokens(tree, path[n]);
        event.parent = hash_of(&event, root != above);
        above = root;
    }
    return event.parent;
}

static void compare(void)
{
    const struct cattn_tree *tree = &small.cache->tree;
    size_t n = 0;
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        const struct cattn_slot *x = &tree->slots[slot];
        if (x->root == CATTN_NONE || !x->published || !cattn_roots_at(&tree->roots, x->root)->current)
            continue;
        const struct entry *entry = find(expected_hash(tree, slot));
        ck_assert_ptr_nonnull(entry);
        ck_assert_mem_eq(entry->tokens, cattn_tree_tokens(tree, slot), sizeof entry->tokens);
        n++;
    }
    ck_assert_uint_eq(n, n_entries);
}

static void start(uint32_t n_slots, uint32_t flags)
{
    n_entries = 0;
    small = small_make(n_slots, C, 1, flags);
    ck_assert_int_eq(cattn_events_open(&small.cache->tree.events, n_slots, C, listen, &small), CATTN_OK);
}

/* ---- tests */

static void read_first_name(void)
{
    struct cattn_namespace_config config = {.size = sizeof config, .public_ns = churn_names[0]};
    config.public_ns_len = strlen(churn_names[0]);
    for (int i = 1; i < CHURN_NAMES; i++)
        ck_assert_int_eq(cattn_namespace_set(small.cache, churn_names[i], strlen(churn_names[i]), &config), CATTN_OK);
}

START_TEST(events_mirror_the_tree)
{
    struct rng rng;
    for (uint64_t number = 0; number < (test_full() ? 2000u : 60u); number++) {
        rng_init(&rng, number);
        start((uint32_t)rng_between(&rng, 2, 40), number % 4 ? 0 : CATTN_NO_RETAIN);
        readers = number % 2;
        if (readers)
            read_first_name();
        churn(&small, &rng, 200, compare);
        small_free(&small);
    }
    for (int kind = CATTN_EVENT_PUBLISHED; kind <= CATTN_EVENT_CLEARED; kind++)
        ck_assert_uint_gt(n_seen[kind], 0);
    ck_assert_uint_gt(n_crossed, 0);
}
END_TEST

static void expect(size_t published, size_t removed, size_t cleared)
{
    ck_assert_uint_eq(n_seen[CATTN_EVENT_PUBLISHED], published);
    ck_assert_uint_eq(n_seen[CATTN_EVENT_REMOVED], removed);
    ck_assert_uint_eq(n_seen[CATTN_EVENT_CLEARED], cleared);
    compare();
    memset(n_seen, 0, sizeof n_seen);
}

START_TEST(each_change_is_told_once)
{
    cattn_seq fork;
    memset(n_seen, 0, sizeof n_seen);
    start(16, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(1, 10), 10);
    expect(2, 0, 0);
    ck_assert_int_eq(small_append(&small, seq, small_tokens(11, 2), 2), CATTN_OK);
    expect(1, 0, 0);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 11), CATTN_OK); /* the fork has it: a borrow */
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "ns", 2, small_tokens(1, 8), 8, NULL), CATTN_OK);
    expect(0, 0, 0);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, fork, 11), CATTN_OK); /* now it is a tail again */
    expect(0, 1, 0);
    ck_assert_int_eq(small_append(&small, fork, small_tokens(50, 1), 1), CATTN_OK);
    expect(1, 0, 0);
    small_prefill(&small, small_tokens(1, 10), 10); /* all but a tail is there */
    expect(0, 0, 0);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "other", 5), CATTN_OK);
    expect(0, 0, 0);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "ns", 2), CATTN_OK);
    expect(0, 0, 1);
    ck_assert_int_eq(small_append(&small, fork, small_tokens(60, 4), 4), CATTN_OK); /* under the old root */
    ck_assert_int_eq(cattn_seq_close(small.cache, fork), CATTN_OK);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "ns", 2), CATTN_OK);
    expect(0, 0, 0);
    cattn_seq again = small_prefill(&small, small_tokens(1, 10), 10);
    expect(2, 0, 0);
    ck_assert_int_eq(cattn_seq_close(small.cache, again), CATTN_OK);
    ck_assert_int_eq(cattn_cache_evict(small.cache, 1, NULL), CATTN_OK);
    expect(0, 1, 0);
    small_free(&small);
}
END_TEST

static cattn_seq prefill(const char *name, const int32_t *tokens, uint32_t n)
{
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(small.cache, name, strlen(name), NULL, 0, &seq, NULL), CATTN_OK);
    ck_assert_int_eq(small_append(&small, seq, tokens, n), CATTN_OK);
    return seq;
}

START_TEST(a_public_namespace_is_cleared_with_its_readers)
{
    memset(n_seen, 0, sizeof n_seen);
    readers = true;
    start(16, 0);
    read_first_name();
    prefill(churn_names[0], small_tokens(1, 4), 4);
    cattn_seq seq = prefill(churn_names[1], small_tokens(1, 10), 10);
    expect(2, 0, 0);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, churn_names[0], strlen(churn_names[0])), CATTN_OK);
    expect(0, 0, 2);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    expect(0, 0, 0);
    small_free(&small);
}
END_TEST

/* ---- through the interface */

static size_t n_told;

static void count(void *context, const struct cattn_event *event)
{
    ck_assert_ptr_eq(context, &n_told);
    ck_assert_uint_eq(event->kind, CATTN_EVENT_PUBLISHED);
    ck_assert_uint_eq(event->n_tokens, 32);
    ck_assert_int_eq(event->tokens[0], n_told ? 33 : 1);
    n_told++;
}

START_TEST(the_config_names_the_listener)
{
    struct cattn_config config = {.size = sizeof config,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 1,
                                  .chunk_tokens = 32,
                                  .max_tokens = 1000,
                                  .on_event = count,
                                  .event_context = &n_told};
    static float rows[100];
    struct cattn_io io = {.size = sizeof io, .q = rows, .k = rows, .v = rows, .out = (float[100]){0}};
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, "n", 1, NULL, 0, &seq, NULL), CATTN_OK);
    struct cattn_item item = small_item(seq, small_tokens(1, 70), 70);
    ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_OK);
    ck_assert_uint_eq(n_told, 0);
    ck_assert_int_eq(cattn_step_end(step), CATTN_OK);
    ck_assert_uint_eq(n_told, 2);
    cattn_cache_destroy(cache);
    ck_assert_uint_eq(n_told, 2);
}
END_TEST

START_TEST(without_memory_there_is_no_cache)
{
    struct cattn_config config = {.size = sizeof config,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 1,
                                  .max_tokens = 1000,
                                  .flags = CATTN_CONCURRENT,
                                  .on_event = count};
    cattn_cache *cache;
    int status = CATTN_ENOMEM;
    for (size_t fail_at = 1; status == CATTN_ENOMEM; fail_at++) {
        failing_memory_set(fail_at);
        status = cattn_cache_create(&config, &cache);
        ck_assert_int_eq(status, failing_memory_hit() ? CATTN_ENOMEM : CATTN_OK);
        failing_memory_set(0);
    }
    ck_assert_ptr_nonnull(cache->tree.events.hashes);
    cattn_cache_destroy(cache);
    config.on_event = NULL; /* unset costs nothing */
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_ptr_null(cache->tree.events.hashes);
    cattn_cache_destroy(cache);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("events");
    tcase_add_test(tests, events_mirror_the_tree);
    tcase_add_test(tests, each_change_is_told_once);
    tcase_add_test(tests, a_public_namespace_is_cleared_with_its_readers);
    tcase_add_test(tests, the_config_names_the_listener);
    tcase_add_test(tests, without_memory_there_is_no_cache);
    return suite_run(tests);
}
