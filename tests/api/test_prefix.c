/* Pins, invalidation and eviction on demand, in and out of steps: case by case, and random calls against a naive model
 * that knows at any time which chunks are cached, who refers to them, and in which order they would be evicted. */
#include "support/engine.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32, DEPTH = 4, KINDS = 3, LONGEST = DEPTH * CHUNK + 1 };

static struct engine e;

static void start(uint64_t slots, uint32_t flags)
{
    struct cattn_config config = engine_config(slots * CHUNK);
    config.flags = flags;
    engine_init(&e, &config, 3);
}

/* A prompt: chunks of the kinds given, which differ in their first token, and one token more. */
static size_t prompt_of(const char *kinds, int32_t *tokens)
{
    size_t n = 0;
    for (; kinds[n / CHUNK]; n++)
        tokens[n] = (int32_t)(1000 * (kinds[n / CHUNK] - 'a') + n % CHUNK);
    tokens[n++] = 999999;
    return n;
}

static int32_t tokens[LONGEST + CHUNK];

static void prefill(struct toy *toy, const char *kinds, uint64_t space)
{
    engine_prefill(&e, toy, space, tokens, prompt_of(kinds, tokens), 0);
}

/* Caches a prompt to which nothing refers. */
static void leave(const char *kinds, uint64_t space)
{
    struct toy toy;
    prefill(&toy, kinds, space);
    engine_close(&e, &toy);
}

static const void *name_of(const uint64_t *space)
{
    return *space ? space : NULL;
}

static int pin(const char *kinds, uint64_t space)
{
    size_t n = prompt_of(kinds, tokens);
    return cattn_prefix_pin(e.cache, name_of(&space), space ? sizeof space : 0, tokens, n, NULL);
}

static int unpin(const char *kinds, uint64_t space)
{
    size_t n = prompt_of(kinds, tokens);
    return cattn_prefix_unpin(e.cache, name_of(&space), space ? sizeof space : 0, tokens, n, NULL);
}

static int invalidate(uint64_t space)
{
    return cattn_namespace_invalidate(e.cache, name_of(&space), space ? sizeof space : 0);
}

static uint64_t evict(uint64_t n)
{
    uint64_t n_evicted = 12345;
    ck_assert_int_eq(cattn_cache_evict(e.cache, n, &n_evicted), CATTN_OK);
    return n_evicted;
}

static size_t cached(const char *kinds, uint64_t space)
{
    struct toy toy;
    size_t n = engine_open(&e, &toy, space, tokens, prompt_of(kinds, tokens));
    engine_close(&e, &toy);
    return n;
}

static void expect(uint64_t used, uint64_t evictable, uint64_t pins, uint64_t pinned)
{
    struct cattn_stats stats = engine_stats(&e);
    CHECK(stats.used_slots == used && stats.evictable_slots == evictable && stats.n_pins == pins &&
              stats.pinned_slots == pinned && stats.free_slots == stats.n_slots - used - evictable,
          "used %d, evictable %d, pins %d, pinned %d", (int)stats.used_slots, (int)stats.evictable_slots,
          (int)stats.n_pins, (int)stats.pinned_slots);
    ck_assert_int_eq(cattn_cache_selfcheck(e.cache), CATTN_OK);
}

/* ---- case by case */

START_TEST(wrong_arguments_are_refused)
{
    start(8, 0);
    leave("ab", 0);
    struct cattn_stats before = engine_stats(&e), after;
    size_t n = prompt_of("ab", tokens);
    ck_assert_int_eq(cattn_prefix_pin(NULL, NULL, 0, tokens, n, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_pin(e.cache, NULL, 1, tokens, n, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_pin(e.cache, NULL, 0, NULL, n, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_pin(e.cache, NULL, 0, NULL, 0, NULL), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_pin(e.cache, NULL, 0, tokens, CHUNK - 1, NULL), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_pin(e.cache, "x", 1, tokens, n, NULL), CATTN_ENOTFOUND);
    ck_assert_int_eq(pin("aba", 0), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_prefix_unpin(NULL, NULL, 0, tokens, n, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_unpin(e.cache, NULL, 1, tokens, n, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_prefix_unpin(e.cache, NULL, 0, NULL, n, NULL), CATTN_EINVAL);
    ck_assert_int_eq(unpin("ab", 0), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_namespace_invalidate(NULL, NULL, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_invalidate(e.cache, NULL, 1), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_invalidate(e.cache, "x", 1), CATTN_OK);
    ck_assert_int_eq(cattn_cache_evict(NULL, 1, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_evict(e.cache, 0, NULL), CATTN_OK);
    after = engine_stats(&e);
    ck_assert_mem_eq(&before, &after, sizeof before);
    engine_free(&e);
}
END_TEST

START_TEST(what_is_pinned_stays)
{
    start(8, 0);
    leave("ab", 0);
    leave("ac", 0);
    expect(0, 3, 0, 0);
    ck_assert_int_eq(pin("ab", 0), CATTN_OK);
    ck_assert_int_eq(pin("ab", 0), CATTN_OK);
    ck_assert_int_eq(pin("a", 0), CATTN_OK);
    expect(2, 1, 3, 2);
    ck_assert_uint_eq(evict(UINT64_MAX), 1);
    expect(2, 0, 3, 2);
    ck_assert_uint_eq(cached("ab", 0), 2 * CHUNK);
    ck_assert_int_eq(unpin("ac", 0), CATTN_ENOTFOUND);
    ck_assert_int_eq(unpin("ab", 0), CATTN_OK);
    ck_assert_int_eq(unpin("ab", 0), CATTN_OK);
    ck_assert_int_eq(unpin("ab", 0), CATTN_ENOTFOUND);
    expect(1, 1, 1, 1);
    ck_assert_uint_eq(evict(5), 1);
    ck_assert_uint_eq(cached("ab", 0), CHUNK);
    ck_assert_int_eq(unpin("a", 0), CATTN_OK);
    expect(0, 1, 0, 0);
    ck_assert_uint_eq(engine_stats(&e).evictions, 2);
    engine_free(&e);
}
END_TEST

/* Pinned chunks are not room: a step that needs it is refused, and runs once they are unpinned. */
START_TEST(a_pool_pinned_full_runs_nothing)
{
    struct toy toy;
    start(4, 0);
    leave("abc", 0);
    ck_assert_int_eq(pin("abc", 0), CATTN_OK);
    size_t n = prompt_of("cc", tokens);
    ck_assert_uint_eq(engine_open(&e, &toy, 0, tokens, n), 0);
    struct engine_item item = {.toy = &toy, .tokens = tokens, .n_tokens = (uint32_t)n};
    ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_EFULL);
    ck_assert_uint_eq(cached("abc", 0), 3 * CHUNK);
    ck_assert_int_eq(unpin("abc", 0), CATTN_OK);
    prompt_of("cc", tokens);
    engine_feed(&e, &toy, tokens, n);
    engine_check(&e, &toy, 1);
    engine_close(&e, &toy);
    engine_free(&e);
}
END_TEST

START_TEST(pins_keep_what_would_not_be_retained)
{
    struct toy toy;
    start(8, CATTN_NO_RETAIN);
    prefill(&toy, "ab", 0);
    ck_assert_int_eq(pin("ab", 0), CATTN_OK);
    engine_close(&e, &toy);
    expect(2, 0, 1, 2);
    ck_assert_uint_eq(cached("ab", 0), 2 * CHUNK);
    ck_assert_int_eq(unpin("ab", 0), CATTN_OK);
    expect(0, 0, 0, 0);
    engine_free(&e);
}
END_TEST

START_TEST(an_invalidated_namespace_starts_empty)
{
    struct toy old, young, other;
    start(20, 0);
    prefill(&old, "ab", 0);
    prefill(&other, "ab", 7);
    leave("ac", 0);
    ck_assert_int_eq(pin("ac", 0), CATTN_OK);
    expect(7, 0, 1, 2); /* a, b and a tail, twice; c */
    ck_assert_int_eq(invalidate(0), CATTN_OK);
    expect(6, 0, 0, 0);
    ck_assert_int_eq(unpin("ac", 0), CATTN_ENOTFOUND);
    ck_assert_uint_eq(cached("ab", 0), 0);
    ck_assert_uint_eq(cached("ab", 7), 2 * CHUNK);
    prefill(&young, "ab", 0);
    expect(9, 0, 0, 0);
    for (int i = 0; i < CHUNK; i++) { /* the old sequence goes on, and what it fills is its own */
        int32_t next = i;
        engine_feed(&e, &old, &next, 1);
    }
    expect(10, 0, 0, 0);
    engine_close(&e, &old);
    expect(6, 0, 0, 0);
    ck_assert_uint_eq(cached("ab", 0), 2 * CHUNK);
    engine_check(&e, &young, 1);
    engine_close(&e, &young);
    engine_close(&e, &other);
    engine_free(&e);
}
END_TEST

static struct cattn_usage stats_of(uint64_t space)
{
    struct cattn_usage stats = {.size = sizeof stats};
    ck_assert_int_eq(cattn_namespace_stats(e.cache, name_of(&space), space ? sizeof space : 0, &stats), CATTN_OK);
    return stats;
}

START_TEST(each_namespace_has_counts_of_its_own)
{
    struct toy toy;
    struct cattn_usage stats = {.size = sizeof stats};
    start(20, 0);
    leave("ab", 0);
    leave("abc", 0);
    leave("ab", 7);
    stats = stats_of(0);
    ck_assert(stats.hits == 2 * CHUNK && stats.misses == 3 * CHUNK + 2 && stats.evictions == 0 && stats.n_slots == 3);
    stats = stats_of(7);
    ck_assert(stats.hits == 0 && stats.misses == 2 * CHUNK + 1 && stats.n_sequences == 0 && stats.n_slots == 2);
    ck_assert_uint_eq(evict(1), 1);
    ck_assert(stats_of(0).evictions + stats_of(7).evictions == 1 && stats_of(0).n_slots == 2);
    prefill(&toy, "ab", 0);
    ck_assert_uint_eq(evict(UINT64_MAX), 2); /* all of the other one */
    ck_assert_int_eq(cattn_namespace_stats(e.cache, &(uint64_t){7}, sizeof(uint64_t), &stats), CATTN_ENOTFOUND);
    ck_assert_int_eq(invalidate(0), CATTN_OK);
    ck_assert_int_eq(cattn_namespace_stats(e.cache, NULL, 0, &stats), CATTN_ENOTFOUND);
    ck_assert_int_eq(cattn_namespace_stats(NULL, NULL, 0, &stats), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_stats(e.cache, NULL, 1, &stats), CATTN_EINVAL);
    ck_assert_int_eq(cattn_namespace_stats(e.cache, NULL, 0, NULL), CATTN_EINVAL);
    stats.size--;
    ck_assert_int_eq(cattn_namespace_stats(e.cache, NULL, 0, &stats), CATTN_EINVAL);
    engine_close(&e, &toy);
    engine_free(&e);
}
END_TEST

/* What a step holds is neither evicted nor taken back; what it computes cannot be pinned before it ends. */
START_TEST(all_of_it_in_the_middle_of_a_step)
{
    struct toy toy;
    start(20, 0);
    leave("ab", 0);
    size_t n = prompt_of("abc", tokens);
    ck_assert_uint_eq(engine_open(&e, &toy, 0, NULL, 0), 0); /* so that the step matches and holds */
    ck_assert_int_eq(engine_begin(&e, &(struct engine_item){&toy, tokens, (uint32_t)n, 0}, 1), CATTN_OK);
    expect(4, 0, 0, 0);
    ck_assert_uint_eq(evict(UINT64_MAX), 0);
    ck_assert_int_eq(pin("abc", 0), CATTN_ENOTFOUND);
    ck_assert_int_eq(pin("ab", 0), CATTN_OK);
    ck_assert_int_eq(invalidate(0), CATTN_OK);
    ck_assert_int_eq(pin("ab", 0), CATTN_ENOTFOUND);
    ck_assert_uint_eq(cached("ab", 0), 0);
    engine_layers(&e);
    engine_end(&e);
    engine_check(&e, &toy, 1);
    expect(4, 0, 0, 0);
    ck_assert_uint_eq(cached("abc", 0), 0);
    engine_close(&e, &toy);
    expect(0, 0, 0, 0);
    engine_free(&e);
}
END_TEST

/* ---- the naive model */

enum { MAX_NODES = 4096, MAX_ACTORS = 8, SPACES = 2 };

/* A chunk that is cached, or that the open step makes. */
struct node {
    int parent; /* -1 - root: a first chunk */
    char kind;
    int published, refs, pins; /* pins that end here */
    unsigned long since;       /* without references: when the last one went */
};

struct actor {
    struct toy toy;
    enum { ABSENT, OPEN, FED, IN_STEP, CLOSED_IN_STEP } state;
    char kinds[DEPTH + 1];
    int root, path[DEPTH], n_path; /* nodes it refers to */
    int n_held;                    /* of them, before the step */
};

static struct node nodes[MAX_NODES];
static int n_nodes, roots[SPACES], last_root, n_pins;
static unsigned long now;
static struct actor actors[MAX_ACTORS];
static struct actor *batch[MAX_ACTORS];
static size_t n_batch, seen[8];

enum event { PINNED, UNPINNED, NOT_FOUND, INVALIDATED, EVICTED, ENDED, ABORTED, PENDING };

static int alive(int node)
{
    return nodes[node].kind != 0;
}

static int root_of(int node)
{
    while (node >= 0)
        node = nodes[node].parent;
    return -1 - node;
}

static int is_current(int root)
{
    for (int space = 0; space < SPACES; space++)
        if (roots[space] == root)
            return 1;
    return 0;
}

static int find_node(int parent, char kind)
{
    for (int i = 0; i < n_nodes; i++)
        if (nodes[i].kind == kind && nodes[i].parent == parent)
            return i;
    return -1;
}

/* The published path of the kinds; its length. */
static int find_path(int root, const char *kinds, int *path)
{
    int n = 0, parent = -1 - root;
    for (; kinds[n]; n++) {
        int node = find_node(parent, kinds[n]);
        if (node < 0 || !nodes[node].published)
            break;
        path[n] = parent = node;
    }
    return n;
}

static void release(int node)
{
    if (--nodes[node].refs)
        return;
    if (nodes[node].published && is_current(root_of(node)))
        nodes[node].since = ++now;
    else
        nodes[node].kind = 0;
}

static void release_path(const int *path, int from, int to)
{
    while (to > from)
        release(path[--to]);
}

static int is_pinned(int node)
{
    int pinned = nodes[node].pins > 0;
    for (int i = 0; i < n_nodes && !pinned; i++)
        pinned = alive(i) && nodes[i].parent == node && is_pinned(i);
    return pinned;
}

/* What the cache says of each namespace. */
static void compare_spaces(void)
{
    for (uint64_t space = 0; space < SPACES; space++) {
        struct cattn_usage stats = {.size = sizeof stats};
        uint64_t slots = 0, evictable = 0, pinned = 0, open = 0, closed = 0;
        int root = roots[space];
        for (int i = 0; i < n_nodes; i++) {
            if (!alive(i) || root_of(i) != root)
                continue;
            slots++;
            evictable += !nodes[i].refs;
            pinned += is_pinned(i);
        }
        for (int i = 0; i < MAX_ACTORS; i++) {
            if (actors[i].state == ABSENT || actors[i].root != root)
                continue;
            slots += actors[i].state >= FED;
            open += actors[i].state != CLOSED_IN_STEP;
            closed += actors[i].state == CLOSED_IN_STEP;
        }
        int status = cattn_namespace_stats(e.cache, name_of(&space), space ? sizeof space : 0, &stats);
        ck_assert_int_eq(status, slots + open + closed ? CATTN_OK : CATTN_ENOTFOUND);
        if (status == CATTN_OK)
            CHECK(stats.n_slots == slots && stats.evictable_slots == evictable && stats.pinned_slots == pinned &&
                      stats.n_sequences == open,
                  "space %d: %d slots, %d evictable, %d pinned, %d sequences", (int)space, (int)stats.n_slots,
                  (int)stats.evictable_slots, (int)stats.pinned_slots, (int)stats.n_sequences);
    }
}

static void compare(void)
{
    uint64_t used = 0, evictable = 0, pinned = 0;
    for (int i = 0; i < n_nodes; i++) {
        used += alive(i) && nodes[i].refs;
        evictable += alive(i) && !nodes[i].refs;
        pinned += alive(i) && is_pinned(i);
    }
    for (int i = 0; i < MAX_ACTORS; i++) /* tails */
        used += actors[i].state >= FED;
    expect(used, evictable, (uint64_t)n_pins, pinned);
    compare_spaces();
}

/* ---- calls on both */

static void draw_kinds(char *kinds)
{
    size_t n = rng_below(&e.rng, DEPTH + 1);
    for (size_t i = 0; i < n; i++)
        kinds[i] = (char)('a' + rng_below(&e.rng, KINDS));
    kinds[n] = 0;
}

static struct actor *pick(int state)
{
    for (size_t i = rng_below(&e.rng, MAX_ACTORS), n = 0; n < MAX_ACTORS; n++, i = (i + 1) % MAX_ACTORS)
        if ((int)actors[i].state == state)
            return &actors[i];
    return NULL;
}

static void do_open(void)
{
    struct actor *a = pick(ABSENT);
    uint64_t space = rng_below(&e.rng, SPACES);
    if (!a)
        return;
    draw_kinds(a->kinds);
    a->root = roots[space];
    a->n_path = find_path(a->root, a->kinds, a->path);
    for (int i = 0; i < a->n_path; i++)
        nodes[a->path[i]].refs++;
    size_t n = engine_open(&e, &a->toy, space, tokens, prompt_of(a->kinds, tokens));
    CHECK(n == (size_t)a->n_path * CHUNK, "%zu tokens cached, not %d chunks", n, a->n_path);
    a->state = OPEN;
}

static void do_close(void)
{
    struct actor *a = pick((int)rng_between(&e.rng, OPEN, IN_STEP));
    if (!a)
        return;
    if (a->state == IN_STEP) {
        ck_assert_int_eq(cattn_seq_close(e.cache, a->toy.seq), CATTN_OK);
        a->state = CLOSED_IN_STEP;
        return;
    }
    engine_close(&e, &a->toy);
    release_path(a->path, 0, a->n_path);
    a->state = ABSENT;
}

static void do_pin(void)
{
    char kinds[DEPTH + 1];
    int path[DEPTH];
    uint64_t space = rng_below(&e.rng, SPACES);
    draw_kinds(kinds);
    int n = find_path(roots[space], kinds, path), found = n > 0 && !kinds[n];
    ck_assert_int_eq(pin(kinds, space), found ? CATTN_OK : CATTN_ENOTFOUND);
    seen[found ? PINNED : NOT_FOUND]++;
    if (!found)
        return;
    for (int i = 0; i < n; i++)
        nodes[path[i]].refs++;
    nodes[path[n - 1]].pins++;
    n_pins++;
}

static void do_unpin(void)
{
    char kinds[DEPTH + 1];
    int path[DEPTH];
    uint64_t space = rng_below(&e.rng, SPACES);
    draw_kinds(kinds);
    int n = find_path(roots[space], kinds, path), found = n > 0 && !kinds[n] && nodes[path[n - 1]].pins;
    ck_assert_int_eq(unpin(kinds, space), found ? CATTN_OK : CATTN_ENOTFOUND);
    if (!found)
        return;
    seen[UNPINNED]++;
    nodes[path[n - 1]].pins--;
    n_pins--;
    release_path(path, 0, n);
}

static void do_invalidate(void)
{
    uint64_t space = rng_below(&e.rng, SPACES);
    int root = roots[space];
    ck_assert_int_eq(invalidate(space), CATTN_OK);
    roots[space] = ++last_root;
    for (int i = 0; i < n_nodes; i++)
        while (alive(i) && root_of(i) == root && nodes[i].pins) {
            nodes[i].pins--;
            n_pins--;
            for (int k = i; k >= 0; k = nodes[k].parent)
                nodes[k].refs--;
        }
    for (int i = n_nodes; i-- > 0;) /* a parent was made before its children */
        if (alive(i) && root_of(i) == root && !nodes[i].refs)
            nodes[i].kind = 0;
    seen[INVALIDATED]++;
}

static void do_evict(void)
{
    uint64_t n = rng_below(&e.rng, 5), n_evicted = 0;
    for (; n_evicted < n; n_evicted++) {
        int oldest = -1;
        for (int i = 0; i < n_nodes; i++)
            if (alive(i) && !nodes[i].refs && (oldest < 0 || nodes[i].since < nodes[oldest].since))
                oldest = i;
        if (oldest < 0)
            break;
        nodes[oldest].kind = 0;
        seen[EVICTED]++;
    }
    ck_assert_uint_eq(evict(n), n_evicted);
}

static void operate(void)
{
    static void (*const calls[])(void) = {do_open, do_open, do_close, do_pin, do_pin, do_unpin, do_unpin, do_evict};
    if (rng_chance(&e.rng, 4))
        do_invalidate();
    else
        calls[rng_below(&e.rng, 8)]();
    compare();
}

/* ---- steps */

static int node_for(int parent, char kind)
{
    int node = find_node(parent, kind);
    if (node >= 0) {
        seen[PENDING] += !nodes[node].published;
        return node;
    }
    ck_assert_int_lt(n_nodes, MAX_NODES);
    nodes[n_nodes] = (struct node){.parent = parent, .kind = kind};
    return n_nodes++;
}

static int begin(void)
{
    static int32_t texts[MAX_ACTORS][LONGEST];
    struct engine_item items[MAX_ACTORS];
    n_batch = 0;
    for (int i = 0; i < MAX_ACTORS; i++) {
        struct actor *a = &actors[i];
        if (a->state != OPEN || rng_chance(&e.rng, 30))
            continue;
        size_t n = prompt_of(a->kinds, texts[n_batch]);
        items[n_batch] =
            (struct engine_item){&a->toy, texts[n_batch] + a->toy.length, (uint32_t)(n - a->toy.length), 0};
        batch[n_batch++] = a;
        a->n_held = a->n_path;
        for (; a->kinds[a->n_path]; a->n_path++) {
            int parent = a->n_path ? a->path[a->n_path - 1] : -1 - a->root;
            a->path[a->n_path] = node_for(parent, a->kinds[a->n_path]);
            nodes[a->path[a->n_path]].refs++;
        }
        a->state = IN_STEP;
    }
    ck_assert_int_eq(engine_begin(&e, items, n_batch), CATTN_OK);
    compare();
    return n_batch > 0;
}

static void finish(void)
{
    int aborted = rng_chance(&e.rng, 25);
    if (aborted)
        engine_abort(&e);
    else
        engine_end(&e);
    for (size_t i = 0; i < n_batch; i++) {
        struct actor *a = batch[i];
        for (int k = 0; k < a->n_path && !aborted; k++)
            nodes[a->path[k]].published = 1;
        if (aborted) {
            release_path(a->path, a->n_held, a->n_path);
            a->n_path = a->n_held;
        }
    }
    for (size_t i = 0; i < n_batch; i++) {
        struct actor *a = batch[i];
        if (a->state == CLOSED_IN_STEP) {
            toy_free(&a->toy);
            release_path(a->path, 0, a->n_path);
        }
        a->state = a->state == CLOSED_IN_STEP ? ABSENT : aborted ? OPEN : FED;
    }
    seen[aborted ? ABORTED : ENDED]++;
}

static void step(void)
{
    if (begin()) {
        for (uint64_t n = rng_below(&e.rng, 4); n; n--)
            operate();
        engine_layers(&e);
        for (uint64_t n = rng_below(&e.rng, 4); n; n--)
            operate();
        finish();
    } else {
        engine_end(&e); /* an empty one */
    }
    compare();
}

static void script(uint64_t number, int n_calls)
{
    n_nodes = n_pins = 0;
    for (int i = 0; i < SPACES; i++)
        roots[i] = ++last_root;
    start(400, 0);
    rng_init(&e.rng, number);
    for (int i = 0; i < n_calls; i++) {
        if (rng_chance(&e.rng, 70))
            operate();
        else
            step();
    }
    for (int i = 0; i < MAX_ACTORS; i++) {
        if (actors[i].state != ABSENT)
            engine_close(&e, &actors[i].toy);
        actors[i].state = ABSENT;
    }
    engine_free(&e);
}

START_TEST(random_calls_agree_with_a_naive_model)
{
    for (uint64_t number = 0; number < (test_full() ? 500u : 20u); number++)
        script(number, 400);
    for (int event = PINNED; event <= PENDING; event++)
        CHECK(seen[event] > 0, "event %d was never seen", event);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("prefix");
    tcase_add_test(tests, wrong_arguments_are_refused);
    tcase_add_test(tests, what_is_pinned_stays);
    tcase_add_test(tests, a_pool_pinned_full_runs_nothing);
    tcase_add_test(tests, pins_keep_what_would_not_be_retained);
    tcase_add_test(tests, an_invalidated_namespace_starts_empty);
    tcase_add_test(tests, each_namespace_has_counts_of_its_own);
    tcase_add_test(tests, all_of_it_in_the_middle_of_a_step);
    tcase_add_test(tests, random_calls_agree_with_a_naive_model);
    return suite_run(tests);
}
