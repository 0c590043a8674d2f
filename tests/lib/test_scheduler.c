/* Schedules on a tree of small chunks.  What a request generates is a function of its text, so that whatever the
 * schedule each must come to the text that it has alone; and every choice is looked at again by a model that knows no
 * index and no counters. */
#include "failing_memory.h"
#include "scheduler.h"
#include "small.h"
#include "support/random.h"
#include "support/suite.h"

#include <string.h>

#define MOST_REQUESTS 256
#define MOST_TEXT     512
#define VOCABULARY    7

struct expected {
    int32_t text[MOST_TEXT];
    size_t n_prompt, n, n_seen; /* n_seen: tokens whose rows came */
    const char *ns;
    uint32_t waited, ahead; /* those that waited when it came */
    cattn_request id;
    bool submitted, running, done;
};

struct run {
    struct small small;
    struct cattn_sched *sched;
    struct cattn_sched_config config;
    struct expected all[MOST_REQUESTS];
    uint32_t n;
    uint32_t n_steps;
    bool reads; /* "other" reads "ns" */
};

static struct run *make_run(uint32_t n_slots, struct cattn_sched_config config)
{
    static struct run run;
    memset(&run, 0, sizeof(run));
    config.size = sizeof(config);
    run.config = config;
    run.small = small_make(n_slots, 4, 1, 0);
    ck_assert_int_eq(cattn_sched_create(run.small.cache, &config, &run.sched), CATTN_OK);
    return &run;
}

static void read_public(struct run *run)
{
    struct cattn_namespace_config config = {.size = sizeof(config), .public_ns = "ns", .public_ns_len = 2};
    ck_assert_int_eq(cattn_namespace_set(run->small.cache, "other", 5, &config), CATTN_OK);
    run->reads = true;
}

static void free_run(struct run *run)
{
    cattn_sched_destroy(run->sched);
    small_free(&run->small);
}

static int32_t next_token(const int32_t *text, size_t n)
{
    uint32_t hash = 5;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (uint32_t)text[i]) * 16777619u;
    return (int32_t)((hash >> 8) % VOCABULARY);
}

/* One that begins with n_shared times `group` and goes on with its own. */
static struct expected *make_request(struct run *run, int32_t group, size_t n_shared, size_t n_own, size_t n_new)
{
    struct expected *x = &run->all[run->n];
    ck_assert_uint_lt(run->n, MOST_REQUESTS);
    ck_assert_uint_le(n_shared + n_own + n_new, MOST_TEXT);
    for (size_t i = 0; i < n_shared; i++)
        x->text[x->n_prompt++] = 100 * group + (int32_t)i;
    for (size_t i = 0; i < n_own; i++)
        x->text[x->n_prompt++] = 10000 + 100 * (int32_t)run->n + (int32_t)i;
    x->n = x->n_prompt + n_new;
    for (size_t i = x->n_prompt; i < x->n; i++)
        x->text[i] = next_token(x->text, i);
    x->ns = "ns";
    run->n++;
    return x;
}

static struct cattn_request_config config_of(const struct run *run, const struct expected *x)
{
    return (struct cattn_request_config){.size = sizeof(struct cattn_request_config),
                                         .ns = x->ns,
                                         .ns_len = strlen(x->ns),
                                         .tokens = x->text,
                                         .n_tokens = x->n_prompt,
                                         .max_new = x->n - x->n_prompt,
                                         .tag = (uint64_t)(x - run->all)};
}

static int submit_as(struct run *run, struct expected *x, int32_t priority, uint64_t arrival)
{
    struct cattn_request_config config = config_of(run, x);
    struct cattn_sched_counts stats = {.size = sizeof(stats)};
    config.priority = priority;
    config.arrival = arrival;
    ck_assert_int_eq(cattn_sched_stats(run->sched, &stats), CATTN_OK);
    int status = cattn_sched_submit(run->sched, &config, &x->id);
    x->submitted = status == CATTN_OK;
    x->ahead = (uint32_t)stats.n_waiting;
    return status;
}

static void submit(struct run *run, struct expected *x)
{
    ck_assert_int_eq(submit_as(run, x, 0, 0), CATTN_OK);
}

/* ---- the model of the choice: walks over everything, with no index */

/* Whether requests in one namespace see what those in another one store. */
static bool sees(const struct run *run, const char *ns, const void *other, size_t length)
{
    return (strlen(ns) == length && !memcmp(ns, other, length)) ||
           (run->reads && !strcmp(ns, "other") && length == 2 && !memcmp(other, "ns", 2));
}

static bool path_is(const struct cattn_tree *tree, uint32_t slot, const struct expected *x, size_t n_chunks)
{
    for (; n_chunks && slot != CATTN_NONE; n_chunks--, slot = tree->slots[slot].parent) {
        if (memcmp(cattn_tree_tokens(tree, slot), x->text + (n_chunks - 1) * tree->chunk_tokens,
                   tree->chunk_tokens * sizeof(int32_t)))
            return false;
    }
    return !n_chunks && slot == CATTN_NONE;
}

static bool is_seen(const struct run *run, const struct expected *x, uint32_t slot)
{
    const struct cattn_tree *tree = &run->small.cache->tree;
    const struct cattn_slot *s = &tree->slots[slot];
    if (s->root == CATTN_NONE || !s->published)
        return false;
    const struct cattn_root *root = cattn_roots_at(&tree->roots, s->root);
    return root->current && sees(run, x->ns, root->name, root->name_length);
}

/* How good a path of k chunks is of those that are as long: what is found behind it, then how much of it is public. */
static size_t rank_of(const struct run *run, const struct expected *x, size_t n, uint32_t leaf, size_t k)
{
    const struct cattn_tree *tree = &run->small.cache->tree;
    size_t c = tree->chunk_tokens, behind = 0, n_public = 0;
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        size_t common = 0;
        if (!is_seen(run, x, slot) || tree->slots[slot].parent != leaf)
            continue;
        while (common < c && k * c + common < n - 1 && cattn_tree_tokens(tree, slot)[common] == x->text[k * c + common])
            common++;
        behind = common > behind ? common : behind;
    }
    for (uint32_t slot = leaf; slot != CATTN_NONE; slot = tree->slots[slot].parent)
        n_public += cattn_roots_at(&tree->roots, tree->slots[slot].root)->name_length != strlen(x->ns);
    return behind * MOST_TEXT + n_public;
}

/* Whole chunks of the first n - 1 tokens that are published; *in_use: that somebody refers to. */
static size_t count_cached(const struct run *run, const struct expected *x, size_t n, size_t *in_use)
{
    const struct cattn_tree *tree = &run->small.cache->tree;
    size_t best = 0, best_rank = 0;
    uint32_t leaf = CATTN_NONE;
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        for (size_t k = 1; is_seen(run, x, slot) && k <= (n - 1) / tree->chunk_tokens; k++) {
            if (k < best || !path_is(tree, slot, x, k))
                continue;
            size_t rank = rank_of(run, x, n, slot, k);
            if (k > best || rank > best_rank) {
                best = k;
                best_rank = rank;
                leaf = slot;
            }
        }
    }
    *in_use = 0;
    for (uint32_t slot = leaf; slot != CATTN_NONE; slot = tree->slots[slot].parent)
        *in_use += tree->slots[slot].refs > 0;
    return best;
}

static uint64_t slots_of(const struct run *run, const struct cattn_want *want, uint64_t percent)
{
    uint64_t left = want->max_new - (want->n_tokens - want->n_prompt), n = (left * percent + 99) / 100;
    return (want->n_tokens + (n ? n - 1 : 0) + 3) / run->small.cache->tree.chunk_tokens + 1;
}

static bool model_fits(const struct run *run, const struct cattn_want *want, size_t in_use)
{
    uint64_t percent = want->n_preempted || !run->config.output_percent ? 100 : run->config.output_percent;
    uint64_t taken = cattn_tree_used(&run->small.cache->tree);
    for (uint32_t i = 0; i < run->sched->n_running; i++) {
        const struct cattn_want *other = &run->sched->wants[run->sched->running[i]];
        const struct cattn_sequence *sequence = cattn_sequence_find(run->small.cache, other->seq);
        uint64_t slots = slots_of(run, other, percent), held = sequence->n_chunks + sequence->owns;
        taken += slots > held ? slots - held : 0;
    }
    return taken + slots_of(run, want, percent) - in_use <= run->small.cache->tree.n_slots;
}

static bool model_is_coming(const struct run *run, const struct expected *x, size_t n, size_t cached)
{
    for (uint32_t i = 0; i < run->sched->n_running; i++) {
        const struct cattn_want *other = &run->sched->wants[run->sched->running[i]];
        const struct expected *y = &run->all[other->tag];
        size_t common = 0;
        if (!sees(run, x->ns, y->ns, strlen(y->ns)))
            continue;
        while (common < n - 1 && common < other->n_tokens && x->text[common] == y->text[common])
            common++;
        if (other->n_tokens - other->n_held > 1 && common / 4 > cached && common / 4 > other->n_held / 4)
            return true;
    }
    return false;
}

/* What the next choice must be, from the rules in the header alone. */
static uint32_t model_choice(const struct run *run)
{
    const struct cattn_sched *sched = run->sched;
    uint32_t order[MOST_REQUESTS], n = 0, best = CATTN_NONE;
    size_t best_shared = 0, best_cached = 0;
    int32_t highest = INT32_MIN;
    for (uint32_t i = 0; i < sched->n_wants; i++) {
        if (sched->wants[i].id && !sched->wants[i].seq)
            order[n++] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = i + 1; k < n; k++) {
            const struct cattn_want *a = &sched->wants[order[i]], *b = &sched->wants[order[k]];
            if (b->arrival < a->arrival || (b->arrival == a->arrival && b->order < a->order)) {
                uint32_t swap = order[i];
                order[i] = order[k];
                order[k] = swap;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (sched->wants[order[i]].n_passed >= sched->wants[order[i]].most_passed)
            n = i + 1;
    }
    for (uint32_t i = 0; i < n; i++)
        highest = sched->wants[order[i]].priority > highest ? sched->wants[order[i]].priority : highest;
    for (uint32_t i = 0; i < n; i++) {
        const struct cattn_want *want = &sched->wants[order[i]];
        const struct expected *x = &run->all[want->tag];
        size_t shared, cached = count_cached(run, x, want->n_tokens, &shared);
        bool overdue = want->n_passed >= want->most_passed;
        if (want->priority != highest || (!overdue && model_is_coming(run, x, want->n_tokens, cached)))
            continue;
        if (run->config.policy == CATTN_FCFS)
            return model_fits(run, want, shared) ? order[i] : CATTN_NONE;
        if ((best == CATTN_NONE || shared > best_shared || (shared == best_shared && cached > best_cached)) &&
            model_fits(run, want, shared)) {
            best = order[i];
            best_shared = shared;
            best_cached = cached;
        }
    }
    return best;
}

/* ---- steps */

static void check_item(struct run *run, const struct cattn_item *item, const struct cattn_turn *turn)
{
    struct expected *x = &run->all[turn->tag];
    size_t length, end;
    ck_assert_uint_eq(turn->request, x->id);
    ck_assert_int_eq(cattn_seq_length(run->small.cache, item->seq, &length), CATTN_OK);
    end = length + item->n_tokens;
    ck_assert_uint_le(end, x->n - 1); /* the last one that is generated is not stored */
    ck_assert_int_eq(memcmp(item->tokens, x->text + length, item->n_tokens * sizeof(int32_t)), 0);
    ck_assert_uint_eq(item->position + item->n_rows, end);
    if (turn->needs_token)
        ck_assert_uint_ge(end, x->n_prompt);
    ck_assert_int_eq(turn->is_last, turn->needs_token && end + 1 == x->n);
    x->running = true;
}

static void check_batch(struct run *run, const struct cattn_batch *batch)
{
    uint32_t most = run->config.max_rows ? run->config.max_rows : 256 + 512, n_rows = 0, n_generating = 0;
    for (size_t i = 0; i < batch->n_items; i++) {
        check_item(run, &batch->items[i], &batch->turns[i]);
        n_rows += batch->items[i].n_rows;
    }
    ck_assert_uint_eq(n_rows, batch->n_rows);
    ck_assert_uint_le(n_rows, most);
    for (uint32_t i = 0; i < run->sched->n_running; i++) {
        const struct cattn_want *want = &run->sched->wants[run->sched->running[i]];
        n_generating += want->n_tokens == want->n_held + 1;
    }
    for (size_t i = 0; i < batch->n_items; i++)
        n_generating -= batch->turns[i].needs_token && batch->items[i].n_tokens == 1;
    ck_assert_uint_eq(n_generating, 0); /* who generates does so in every step */
}

static void finish_batch(struct run *run, const struct cattn_batch *batch)
{
    int32_t tokens[MOST_REQUESTS];
    small_finish(&run->small);
    for (size_t i = 0; i < batch->n_items; i++) {
        struct expected *x = &run->all[batch->turns[i].tag];
        size_t n;
        tokens[i] = -1;
        if (x->done)
            continue;
        ck_assert_int_eq(cattn_seq_length(run->small.cache, batch->items[i].seq, &n), CATTN_OK);
        if (batch->turns[i].needs_token)
            tokens[i] = x->text[n];
        x->done = batch->turns[i].is_last;
    }
    ck_assert_int_eq(cattn_sched_commit(run->sched, tokens, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_cache_selfcheck(run->small.cache), CATTN_OK);
}

/* Who was put back is less important than all that run, or as important and younger; and nobody is put back twice. */
static void check_put_back(const struct run *run, const uint32_t *n_before)
{
    const struct cattn_sched *sched = run->sched;
    for (uint32_t i = 0; i < sched->n_wants; i++) {
        const struct cattn_want *want = &sched->wants[i];
        ck_assert_uint_le(want->n_preempted, 1);
        if (!want->id || want->n_preempted == n_before[i])
            continue;
        for (uint32_t k = 0; k < sched->n_running; k++) {
            const struct cattn_want *other = &sched->wants[sched->running[k]];
            ck_assert(other->priority > want->priority ||
                      (other->priority == want->priority && cattn_want_before(other, want)));
        }
    }
}

/* Whether there was something to do. */
static bool run_step(struct run *run)
{
    struct cattn_batch batch;
    uint64_t n_admitted = run->sched->stats.n_admitted;
    uint32_t n_before[MOST_REQUESTS];
    for (uint32_t i = 0; i < run->sched->n_wants; i++)
        n_before[i] = run->sched->wants[i].n_preempted;
    uint32_t choice = run->sched->n_running < run->sched->max_batch ? model_choice(run) : CATTN_NONE;
    ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_OK);
    if (run->sched->stats.n_admitted > n_admitted && !run->sched->stats.n_preempted)
        ck_assert_uint_eq(run->sched->running[run->sched->n_running - (run->sched->stats.n_admitted - n_admitted)],
                          choice);
    check_put_back(run, n_before);
    if (!batch.n_items)
        return false;
    check_batch(run, &batch);
    finish_batch(run, &batch);
    run->n_steps++;
    return true;
}

static void run_all(struct run *run)
{
    while (run_step(run))
        ck_assert_uint_lt(run->n_steps, 100000);
    for (uint32_t i = 0; i < run->n; i++)
        ck_assert(!run->all[i].submitted || run->all[i].done);
    struct cattn_sched_counts stats = {.size = sizeof(stats)};
    ck_assert_int_eq(cattn_sched_stats(run->sched, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.n_waiting, 0);
    ck_assert_uint_eq(stats.n_running, 0);
    ck_assert_uint_eq(stats.n_submitted, stats.n_finished + stats.n_cancelled);
    ck_assert_uint_eq(cattn_tree_used(&run->small.cache->tree), 0);
}

/* ---- tests */

START_TEST(one_request_runs_to_its_end)
{
    struct run *run = make_run(16, (struct cattn_sched_config){0});
    submit(run, make_request(run, 1, 6, 3, 5));
    run_all(run);
    ck_assert_uint_eq(run->n_steps, 5); /* the prompt gives the first token */
    ck_assert(!run_step(run));
    free_run(run);
}
END_TEST

START_TEST(batches_and_pieces_stay_within_their_bounds)
{
    struct run *run = make_run(200, (struct cattn_sched_config){.max_batch = 3, .max_rows = 5});
    for (int i = 0; i < 12; i++)
        submit(run, make_request(run, 1 + i % 3, 9, 5, 4));
    run_all(run);
    ck_assert_uint_eq(run->sched->stats.peak_running, 3);
    free_run(run);
}
END_TEST

/* 1.5 requests fit: with all that they may generate counted in one runs at a time, else the younger one is put back,
 * once. */
START_TEST(a_small_pool_makes_progress)
{
    for (uint32_t percent = 0; percent <= 100; percent += 50) {
        struct run *run =
            make_run(16, (struct cattn_sched_config){.output_percent = percent ? percent : 1, .policy = percent == 50});
        for (int i = 0; i < 6; i++)
            submit(run, make_request(run, i, 8, 4, 30)); /* 41 tokens: 11 slots and one */
        run_all(run);
        ck_assert_uint_le(run->sched->stats.n_preempted, 6);
        if (percent == 100)
            ck_assert_uint_eq(run->sched->stats.n_preempted, 0);
        if (!percent)
            ck_assert_uint_ge(run->sched->stats.n_preempted, 1);
        free_run(run);
    }
}
END_TEST

START_TEST(equal_prompts_are_computed_once)
{
    struct run *run = make_run(100, (struct cattn_sched_config){.max_batch = 4, .max_rows = 52});
    for (int i = 0; i < 4; i++)
        submit(run, make_request(run, 1, 40, i, 3));
    run_all(run);
    struct cattn_stats stats = {.size = sizeof(stats)};
    ck_assert_int_eq(cattn_cache_stats(run->small.cache, &stats), CATTN_OK);
    /* one whole prompt; of the others what follows the whole chunks, and what is generated */
    ck_assert_uint_le(stats.misses, 40 + 4 * (3 + 3 + 4));
    ck_assert_uint_gt(run->sched->stats.n_deferred, 0);
    free_run(run);
}
END_TEST

/* Also for a namespace that reads the one where they are computed. */
START_TEST(what_becomes_public_is_waited_for)
{
    struct run *run = make_run(100, (struct cattn_sched_config){.max_batch = 4, .max_rows = 16});
    struct cattn_stats stats = {.size = sizeof(stats)};
    read_public(run);
    for (int i = 0; i < 4; i++) {
        struct expected *x = make_request(run, 1, 40, i, 3);
        x->ns = i ? "other" : "ns";
        submit(run, x);
    }
    run_all(run);
    ck_assert_int_eq(cattn_cache_stats(run->small.cache, &stats), CATTN_OK);
    ck_assert_uint_le(stats.misses, 40 + 4 * (3 + 3 + 4));
    ck_assert_uint_gt(run->sched->stats.n_deferred, 0);
    free_run(run);

    run = make_run(100, (struct cattn_sched_config){.max_batch = 4, .max_rows = 16});
    read_public(run);
    for (int i = 0; i < 2; i++) {
        struct expected *x = make_request(run, 1, 40, i, 3);
        x->ns = i ? "ns" : "other";
        submit(run, x);
    }
    run_all(run);
    ck_assert_uint_eq(run->sched->stats.n_deferred, 0); /* the other way round there is nothing to come */
    free_run(run);
}
END_TEST

/* One that did not fit does when more of its prompt is there. */
START_TEST(a_setting_is_heeded_at_once)
{
    struct run *run = make_run(14, (struct cattn_sched_config){.max_batch = 4});
    struct expected *blocker = make_request(run, 1, 9, 0, 20), *x = make_request(run, 2, 8, 1, 10);
    ck_assert_int_eq(cattn_seq_close(run->small.cache, small_prefill(&run->small, x->text, 8)), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_pin(run->small.cache, "ns", 2, x->text, 8, NULL), CATTN_OK);
    x->ns = "other";
    submit(run, blocker);
    submit(run, x);
    for (int i = 0; i < 3; i++)
        run_step(run);
    ck_assert(blocker->running && !x->running);
    read_public(run);
    run_step(run);
    ck_assert(x->running && !blocker->done);
    ck_assert_int_eq(cattn_prefix_unpin(run->small.cache, "ns", 2, x->text, 8, NULL), CATTN_OK);
    run_all(run);
    free_run(run);
}
END_TEST

START_TEST(first_come_first_served)
{
    struct run *run = make_run(100, (struct cattn_sched_config){.max_batch = 1, .max_rows = 64});
    for (int i = 0; i < 5; i++) { /* arrivals 4 3 2 1 0 */
        struct expected *x = make_request(run, 10 + i, 5, 0, 2);
        ck_assert_int_eq(submit_as(run, x, 0, 4 - (uint64_t)i), CATTN_OK);
    }
    struct expected *urgent = make_request(run, 20, 5, 0, 2);
    ck_assert_int_eq(submit_as(run, urgent, 1, 9), CATTN_OK);
    ck_assert(run_step(run));
    ck_assert(urgent->running);
    for (int i = 4; i >= 0; i--) {
        ck_assert(!run->all[i].running);
        ck_assert(run_step(run) && run_step(run));
        ck_assert(run->all[i].running);
    }
    run_all(run);
    free_run(run);
}
END_TEST

/* While one of a group runs its companions come next, however they arrived. */
START_TEST(those_that_share_run_together)
{
    struct run *run = make_run(100, (struct cattn_sched_config){.policy = CATTN_PREFIX, .max_batch = 3, .ageing = 100});
    for (int i = 0; i < 9; i++)
        submit(run, make_request(run, 1 + i % 3, 12, 5, 6));
    ck_assert(run_step(run)); /* one of each, as nothing is cached yet */
    for (int i = 0; i < 5; i++)
        ck_assert(run_step(run));
    run_all(run);
    uint64_t read = run->small.cache->read_bytes, unshared = run->small.cache->read_bytes_unshared;
    ck_assert_uint_le(read, unshared);
    ck_assert_uint_gt(run->sched->stats.most_passed, 0);
    free_run(run);
}
END_TEST

/* A stream of requests that share what is cached cannot keep a stranger out for ever. */
START_TEST(nobody_is_passed_for_ever)
{
    for (uint32_t ageing = 1; ageing <= 4; ageing++) {
        struct run *run =
            make_run(60, (struct cattn_sched_config){.policy = CATTN_PREFIX, .max_batch = 1, .ageing = ageing});
        submit(run, make_request(run, 1, 20, 1, 2));
        ck_assert(run_step(run));
        struct expected *stranger = make_request(run, 2, 9, 0, 2);
        submit(run, make_request(run, 1, 20, 2, 2));
        submit(run, stranger);
        for (uint32_t n = 0; !stranger->done; n++) {
            submit(run, make_request(run, 1, 20, 3, 2));
            ck_assert(run_step(run));
            ck_assert_uint_lt(n, 100);
        }
        run_all(run);
        ck_assert_uint_le(run->sched->stats.most_passed, ageing - 1); /* one was ahead of it */
        free_run(run);
    }
}
END_TEST

START_TEST(priorities_come_first_but_starve_nobody)
{
    struct run *run = make_run(60, (struct cattn_sched_config){.max_batch = 1, .ageing = 3});
    struct expected *low = make_request(run, 1, 5, 0, 2);
    ck_assert_int_eq(submit_as(run, low, -5, 0), CATTN_OK);
    for (uint32_t n = 0; !low->done; n++) {
        ck_assert_int_eq(submit_as(run, make_request(run, 2, 5, 1, 1), 7, 0), CATTN_OK);
        ck_assert(run_step(run));
        ck_assert_uint_le(n, 4);
    }
    run_all(run);
    free_run(run);
}
END_TEST

START_TEST(cancel_in_any_state)
{
    struct run *run = make_run(60, (struct cattn_sched_config){.max_batch = 3, .max_rows = 6});
    struct cattn_batch batch;
    for (int i = 0; i < 6; i++)
        submit(run, make_request(run, 1, 9, 1 + i, 4));
    ck_assert_int_eq(cattn_sched_cancel(run->sched, run->all[5].id), CATTN_OK); /* waits */
    ck_assert_int_eq(cattn_sched_cancel(run->sched, run->all[5].id), CATTN_EINVAL);
    run->all[5].done = true;
    ck_assert(run_step(run));
    ck_assert_int_eq(cattn_sched_cancel(run->sched, run->all[0].id), CATTN_OK); /* in the middle of its prompt */
    run->all[0].done = true;
    ck_assert_int_eq(cattn_cache_selfcheck(run->small.cache), CATTN_OK);
    while (!run->all[1].running)
        ck_assert(run_step(run));
    ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_OK);
    check_batch(run, &batch);
    cattn_request cancelled = batch.turns[0].request;
    uint64_t tag = batch.turns[0].tag;
    int32_t last = batch.items[0].tokens[batch.items[0].n_tokens - 1];
    ck_assert_int_eq(cattn_sched_cancel(run->sched, cancelled), CATTN_OK); /* in the open step */
    ck_assert_int_eq(cattn_sched_cancel(run->sched, cancelled), CATTN_EINVAL);
    run->all[tag].done = true;
    submit(run, make_request(run, 3, 2, 1, 2)); /* whose record must be another one */
    ck_assert_int_eq(batch.items[0].tokens[batch.items[0].n_tokens - 1], last);
    finish_batch(run, &batch);
    run_all(run);
    ck_assert_uint_eq(run->sched->stats.n_cancelled, 3);
    free_run(run);
}
END_TEST

START_TEST(an_aborted_step_is_run_again)
{
    struct run *run = make_run(60, (struct cattn_sched_config){.max_batch = 3, .max_rows = 6});
    struct cattn_batch batch;
    int32_t tokens[3] = {0};
    for (int i = 0; i < 3; i++)
        submit(run, make_request(run, 1, 9, 1 + i, 4));
    ck_assert_int_eq(cattn_sched_commit(run->sched, tokens, NULL), CATTN_ESTATE);
    ck_assert_int_eq(cattn_sched_revert(run->sched), CATTN_ESTATE);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_OK);
        ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_ESTATE);
        ck_assert_int_eq(cattn_sched_commit(run->sched, tokens, NULL), CATTN_ESTATE);
        ck_assert_int_eq(cattn_sched_revert(run->sched), CATTN_ESTATE);
        check_batch(run, &batch);
        ck_assert_int_eq(cattn_step_abort(run->small.step), CATTN_OK);
        ck_assert_int_eq(cattn_sched_commit(run->sched, tokens, NULL), CATTN_ESTATE);
        ck_assert_int_eq(cattn_sched_revert(run->sched), CATTN_OK);
        ck_assert(run_step(run));
    }
    run_all(run);
    free_run(run);
}
END_TEST

START_TEST(a_stop_ends_a_request)
{
    struct run *run = make_run(60, (struct cattn_sched_config){.max_batch = 2, .max_rows = 4});
    struct cattn_batch batch;
    unsigned char stops[2] = {1, 1};
    for (int i = 0; i < 2; i++)
        submit(run, make_request(run, 1 + i, 9, 1, 4));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_OK);
        run->all[batch.turns[0].tag].done = true;
        small_finish(&run->small);
        ck_assert_int_eq(cattn_sched_commit(run->sched, NULL, stops), CATTN_OK); /* in its prompt, even */
    }
    run_all(run);
    free_run(run);
}
END_TEST

static int try_submit(struct run *run, void (*spoil)(struct cattn_request_config *))
{
    int32_t tokens[] = {1, 2, 3};
    struct cattn_request_config config = {
        .size = sizeof(config), .ns = "ns", .ns_len = 2, .tokens = tokens, .n_tokens = 3, .max_new = 4};
    cattn_request id;
    spoil(&config);
    return cattn_sched_submit(run->sched, &config, &id);
}

static void no_tokens(struct cattn_request_config *config)
{
    config->n_tokens = 0;
}

static void null_tokens(struct cattn_request_config *config)
{
    config->tokens = NULL;
}

static void negative_token(struct cattn_request_config *config)
{
    static const int32_t tokens[] = {1, -1, 3};
    config->tokens = tokens;
}

static void null_name(struct cattn_request_config *config)
{
    config->ns = NULL;
}

static void nothing_new(struct cattn_request_config *config)
{
    config->max_new = 0;
}

static void bad_size(struct cattn_request_config *config)
{
    config->size = 8;
}

static void endless(struct cattn_request_config *config)
{
    config->max_new = UINT64_MAX;
}

static void too_long(struct cattn_request_config *config)
{
    config->max_new = 8 * 4 - 3 - 4 + 2; /* tokens - 1 + the slot more */
}

static void just_right(struct cattn_request_config *config)
{
    config->max_new = 8 * 4 - 3 - 4 + 1;
}

START_TEST(bad_requests_are_refused)
{
    struct run *run = make_run(8, (struct cattn_sched_config){0});
    struct cattn_request_info info = {.size = sizeof(info)};
    void (*const bad[])(struct cattn_request_config *) = {no_tokens, null_tokens, negative_token,
                                                          null_name, nothing_new, bad_size};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(try_submit(run, bad[i]), CATTN_EINVAL);
    ck_assert_int_eq(try_submit(run, endless), CATTN_ETOOBIG);
    ck_assert_int_eq(try_submit(run, too_long), CATTN_ETOOBIG);
    ck_assert_int_eq(cattn_sched_submit(run->sched, NULL, NULL), CATTN_EINVAL);
    ck_assert_uint_eq(run->sched->stats.n_submitted, 0);
    ck_assert_int_eq(try_submit(run, just_right), CATTN_OK);
    ck_assert_int_eq(cattn_sched_request_info(run->sched, 0, &info), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sched_cancel(run->sched, UINT64_MAX), CATTN_EINVAL);
    free_run(run);
}
END_TEST

static void refuse(const struct run *run, cattn_request id)
{
    struct cattn_request_info info = {.size = sizeof(info)};
    ck_assert_int_eq(cattn_sched_request_info(run->sched, id, &info), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sched_cancel(run->sched, id), CATTN_EINVAL);
}

static cattn_request submit_one(cattn_sched *sched)
{
    int32_t token = 1;
    struct cattn_request_config config = {.size = sizeof(config), .tokens = &token, .n_tokens = 1, .max_new = 1};
    cattn_request id;
    ck_assert_int_eq(cattn_sched_submit(sched, &config, &id), CATTN_OK);
    return id;
}

/* Stale ones, those with a bit flipped, and those of another scheduler of the same cache. */
START_TEST(numbers_of_no_request_are_refused)
{
    enum { N = 20 };
    struct run *run = make_run(8, (struct cattn_sched_config){0});
    struct cattn_sched *other;
    struct cattn_request_info info = {.size = sizeof(info)};
    ck_assert_int_eq(cattn_sched_create(run->small.cache, NULL, &other), CATTN_OK);
    cattn_request stale = submit_one(run->sched);
    ck_assert_int_eq(cattn_sched_cancel(run->sched, stale), CATTN_OK);
    for (int i = 0; i < N; i++) {
        cattn_request id = submit_one(run->sched);
        refuse(run, submit_one(other));
        refuse(run, stale);
        for (int bit = 0; bit < 64; bit++)
            refuse(run, id ^ UINT64_C(1) << bit);
        ck_assert_int_eq(cattn_sched_request_info(run->sched, id, &info), CATTN_OK);
    }
    for (int i = 0; i < 100000; i++) {
        cattn_request id = submit_one(run->sched);
        ck_assert_uint_ne(id, stale);
        ck_assert_int_eq(cattn_sched_cancel(run->sched, id), CATTN_OK);
        ck_assert_int_eq(cattn_sched_cancel(run->sched, stale), CATTN_EINVAL);
    }
    ck_assert_uint_eq(run->sched->stats.n_waiting, N);
    run->sched->n_wants = CATTN_PLACES;
    run->sched->free = CATTN_NONE;
    ck_assert_int_eq(try_submit(run, just_right), CATTN_ENOMEM);
    run->sched->n_wants = N;
    cattn_sched_destroy(other);
    free_run(run);
}
END_TEST

START_TEST(bad_configurations_are_refused)
{
    struct small small = small_make(4, 4, 1, 0);
    struct cattn_sched_config good = {.size = sizeof(good)}, bad = good;
    struct cattn_sched *sched;
    bad.policy = 2;
    ck_assert_int_eq(cattn_sched_create(small.cache, &bad, &sched), CATTN_EINVAL);
    bad = good;
    bad.max_batch = 3;
    bad.max_rows = 2;
    ck_assert_int_eq(cattn_sched_create(small.cache, &bad, &sched), CATTN_EINVAL);
    bad = good;
    bad.output_percent = 101;
    ck_assert_int_eq(cattn_sched_create(small.cache, &bad, &sched), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sched_create(NULL, &good, &sched), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sched_create(small.cache, &good, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sched_create(small.cache, NULL, &sched), CATTN_OK);
    cattn_sched_destroy(sched);
    cattn_sched_destroy(NULL);
    small_free(&small);
}
END_TEST

/* What others hold is not there; when they let go it is. */
START_TEST(slots_of_others_are_respected)
{
    struct run *run = make_run(12, (struct cattn_sched_config){.output_percent = 1});
    struct cattn_batch batch;
    int32_t tokens[32];
    memcpy(tokens, small_tokens(5000, 32), sizeof(tokens));
    cattn_seq seq = small_prefill(&run->small, tokens, 32);
    struct expected *x = make_request(run, 1, 9, 0, 20); /* 28 tokens: 7 slots and one */
    submit(run, x);
    for (int i = 0; i < 8; i++)
        run_step(run);
    ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_EFULL);
    ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_EFULL);
    ck_assert_ptr_null(run->small.cache->open_step);
    ck_assert_int_eq(cattn_seq_close(run->small.cache, seq), CATTN_OK);
    run_all(run);
    free_run(run);
}
END_TEST

/* ---- quotas */

static int set_quota(const struct run *run, const char *ns, uint64_t reserve, uint64_t limit)
{
    struct cattn_namespace_config config = {.size = sizeof(config), .reserve_slots = reserve, .limit_slots = limit};
    return cattn_namespace_set(run->small.cache, ns, strlen(ns), &config);
}

static struct cattn_usage usage_of(const struct run *run, const char *ns)
{
    struct cattn_usage usage = {.size = sizeof(usage)};
    int status = cattn_namespace_stats(run->small.cache, ns, strlen(ns), &usage);
    ck_assert(status == CATTN_OK || status == CATTN_ENOTFOUND);
    return usage;
}

static bool is_running(const struct run *run, const struct expected *x)
{
    struct cattn_request_info info = {.size = sizeof(info)};
    return cattn_sched_request_info(run->sched, x->id, &info) == CATTN_OK && info.running;
}

START_TEST(a_request_beyond_the_limit_of_its_namespace_is_refused)
{
    struct run *run = make_run(20, (struct cattn_sched_config){0});
    struct expected *x = make_request(run, 1, 0, 9, 20); /* 7 slots and one */
    ck_assert_int_eq(set_quota(run, "ns", 0, 7), CATTN_OK);
    ck_assert_int_eq(submit_as(run, x, 0, 0), CATTN_ETOOBIG);
    ck_assert_int_eq(set_quota(run, "ns", 0, 8), CATTN_OK);
    submit(run, x);
    run_all(run);
    ck_assert_uint_le(usage_of(run, "ns").n_slots, 8);
    free_run(run);
}
END_TEST

/* The pool has room for all three. */
START_TEST(only_its_own_wait_for_a_namespace_at_its_limit)
{
    for (uint32_t policy = CATTN_FCFS; policy <= CATTN_PREFIX; policy++) {
        struct run *run = make_run(40, (struct cattn_sched_config){.policy = policy});
        struct expected *x = make_request(run, 1, 0, 9, 20), *y = make_request(run, 2, 0, 9, 20);
        struct expected *z = make_request(run, 3, 0, 9, 20);
        z->ns = "other";
        ck_assert_int_eq(set_quota(run, "ns", 0, 12), CATTN_OK);
        submit(run, x);
        submit(run, y);
        submit(run, z);
        while (!x->done) {
            ck_assert(run_step(run));
            ck_assert(x->done || (is_running(run, x) && is_running(run, z) && !is_running(run, y)));
        }
        run_all(run);
        ck_assert_uint_le(usage_of(run, "ns").n_slots, 12);
        free_run(run);
    }
}
END_TEST

START_TEST(what_others_have_reserved_is_not_counted_on)
{
    struct run *run = make_run(12, (struct cattn_sched_config){0});
    struct cattn_batch batch;
    struct expected *x = make_request(run, 1, 24, 0, 1), *y = make_request(run, 2, 0, 9, 20);
    x->ns = "other";
    ck_assert_int_eq(set_quota(run, "other", 6, 0), CATTN_OK);
    submit(run, x);
    run_all(run);
    ck_assert_uint_eq(usage_of(run, "other").evictable_slots, 6);
    submit(run, y);
    ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_EFULL);
    struct expected *z = make_request(run, 3, 0, 9, 20);
    z->ns = "other"; /* who has reserved may use it */
    submit(run, z);
    ck_assert_int_eq(cattn_sched_cancel(run->sched, y->id), CATTN_OK);
    y->submitted = false;
    while (!z->done)
        ck_assert(run_step(run));
    y = make_request(run, 2, 0, 9, 20);
    submit(run, y);
    ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_EFULL);
    ck_assert_int_eq(set_quota(run, "other", 4, 0), CATTN_OK);
    while (!y->done)
        ck_assert(run_step(run));
    ck_assert_uint_ge(usage_of(run, "other").n_slots, 4);
    free_run(run);
}
END_TEST

/* Two requests of a namespace outgrow its limit; a younger one of another namespace is none of their business. */
START_TEST(one_of_the_namespace_at_its_limit_is_put_back)
{
    struct run *run = make_run(60, (struct cattn_sched_config){.output_percent = 1});
    struct cattn_batch batch;
    struct expected *x = make_request(run, 1, 0, 9, 40), *y = make_request(run, 2, 0, 9, 40);
    struct expected *z = make_request(run, 3, 0, 9, 40);
    z->ns = "other";
    ck_assert_int_eq(set_quota(run, "ns", 0, 16), CATTN_OK);
    submit(run, x);
    submit(run, y);
    submit(run, z);
    for (uint32_t n = 0; !x->done || !y->done || !z->done; n++) {
        struct cattn_request_info info = {.size = sizeof(info)};
        ck_assert_uint_lt(n, 1000);
        ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_OK);
        if (!z->done) {
            ck_assert_int_eq(cattn_sched_request_info(run->sched, z->id, &info), CATTN_OK);
            ck_assert_uint_eq(info.n_preempted, 0);
        }
        check_batch(run, &batch);
        finish_batch(run, &batch);
        ck_assert_uint_le(usage_of(run, "ns").n_slots, 16);
    }
    ck_assert_uint_eq(run->sched->stats.n_preempted, 1);
    free_run(run);
}
END_TEST

START_TEST(a_limit_that_was_lowered_holds_up_what_runs)
{
    struct run *run = make_run(20, (struct cattn_sched_config){0});
    struct expected *x = make_request(run, 1, 0, 9, 20);
    struct cattn_batch batch;
    ck_assert_int_eq(set_quota(run, "ns", 0, 8), CATTN_OK);
    submit(run, x);
    ck_assert(run_step(run));
    ck_assert_int_eq(set_quota(run, "ns", 0, 1), CATTN_OK);
    int status;
    while (!(status = cattn_sched_next(run->sched, run->small.step, &batch))) {
        check_batch(run, &batch);
        finish_batch(run, &batch);
    }
    ck_assert_int_eq(status, CATTN_EFULL);
    ck_assert(!x->done && is_running(run, x));
    ck_assert_int_eq(set_quota(run, "ns", 0, 8), CATTN_OK);
    run_all(run);
    ck_assert(x->done);
    free_run(run);
}
END_TEST

static uint64_t random_run_with_quotas(uint64_t seed)
{
    static const char *const names[] = {"ns", "other", "third"};
    struct rng random;
    rng_init(&random, seed);
    uint32_t n_slots = 24 + (uint32_t)rng_below(&random, 30), percent = seed % 2 ? 1 + (uint32_t)(seed % 90) : 100;
    uint64_t limits[3] = {0, 14 + rng_below(&random, 6), 14 + rng_below(&random, 20)};
    struct run *run = make_run(n_slots, (struct cattn_sched_config){.policy = (uint32_t)rng_below(&random, 2),
                                                                    .max_batch = 1 + (uint32_t)rng_below(&random, 6),
                                                                    .output_percent = percent});
    struct cattn_batch batch;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(set_quota(run, names[i], rng_below(&random, 6), limits[i]), CATTN_OK);
    for (uint32_t n = 0;; n++) {
        if (run->n < 60 && rng_below(&random, 2)) {
            struct expected *x = make_request(run, 1 + (int32_t)rng_below(&random, 3), rng_below(&random, 24),
                                              1 + rng_below(&random, 6), 1 + rng_below(&random, 16));
            x->ns = names[rng_below(&random, 3)];
            submit(run, x);
        }
        ck_assert_uint_lt(n, 100000);
        ck_assert_int_eq(cattn_sched_next(run->sched, run->small.step, &batch), CATTN_OK);
        if (batch.n_items) {
            check_batch(run, &batch);
            finish_batch(run, &batch);
        } else if (run->n == 60) {
            break;
        }
        for (int i = 0; i < 3; i++)
            ck_assert(!limits[i] || usage_of(run, names[i]).n_slots <= limits[i]);
    }
    for (uint32_t i = 0; i < run->n; i++)
        ck_assert(run->all[i].done);
    uint64_t n_preempted = run->sched->stats.n_preempted;
    ck_assert(percent < 100 || !n_preempted);
    free_run(run);
    return n_preempted;
}

/* All come to their ends, and none that is sure of its slots is ever put back. */
START_TEST(random_requests_with_quotas)
{
    uint64_t n_preempted = 0;
    for (uint64_t seed = 0; seed < 60; seed++)
        n_preempted += random_run_with_quotas(seed);
    ck_assert_uint_gt(n_preempted, 0);
}
END_TEST

START_TEST(allocations_fail_in_turn)
{
    for (size_t fail_at = 1, done = 0; !done; fail_at++) {
        struct run *run = make_run(40, (struct cattn_sched_config){.policy = CATTN_PREFIX, .max_batch = 3});
        struct cattn_batch batch;
        struct expected *x[4];
        for (int i = 0; i < 4; i++)
            x[i] = make_request(run, 1, 9, 1 + i, 4);
        failing_memory_set(fail_at);
        for (int i = 0; i < 4; i++) {
            struct cattn_request_config config = config_of(run, x[i]);
            int status = cattn_sched_submit(run->sched, &config, &x[i]->id);
            ck_assert(status == CATTN_OK || status == CATTN_ENOMEM);
            x[i]->submitted = status == CATTN_OK;
        }
        int status = cattn_sched_next(run->sched, run->small.step, &batch);
        done = !failing_memory_hit();
        failing_memory_set(0);
        ck_assert(status == CATTN_OK || status == CATTN_ENOMEM);
        ck_assert_int_eq(cattn_cache_selfcheck(run->small.cache), CATTN_OK);
        if (status == CATTN_OK)
            finish_batch(run, &batch);
        run_all(run);
        free_run(run);
    }
}
END_TEST

/* Random requests that come and go, on pools of every size. */
static uint64_t random_run(uint64_t seed)
{
    struct rng random;
    rng_init(&random, seed);
    uint32_t n_slots = 12 + (uint32_t)rng_below(&random, 40), max_batch = 1 + (uint32_t)rng_below(&random, 6);
    struct run *run =
        make_run(n_slots, (struct cattn_sched_config){.policy = (uint32_t)rng_below(&random, 2),
                                                      .max_batch = max_batch,
                                                      .max_rows = max_batch + (uint32_t)rng_below(&random, 20),
                                                      .ageing = (uint32_t)rng_below(&random, 4),
                                                      .output_percent = (uint32_t)rng_below(&random, 101)});
    if (seed % 2)
        read_public(run);
    for (int i = 0; i < 200; i++) {
        if ((uint32_t)rng_below(&random, 3) == 0 && run->n < MOST_REQUESTS) {
            struct expected *x =
                make_request(run, 1 + (int32_t)(uint32_t)rng_below(&random, 3), (uint32_t)rng_below(&random, 24),
                             1 + (uint32_t)rng_below(&random, 6), 1 + (uint32_t)rng_below(&random, 16));
            x->ns = (uint32_t)rng_below(&random, 4) ? "ns" : "other";
            int status =
                submit_as(run, x, (uint32_t)rng_below(&random, 8) ? 0 : (int32_t)(uint32_t)rng_below(&random, 3) - 1,
                          (uint32_t)rng_below(&random, 2) ? 0 : (uint32_t)rng_below(&random, 50));
            ck_assert(status == CATTN_OK || status == CATTN_ETOOBIG);
        } else if ((uint32_t)rng_below(&random, 10) == 0 && run->n) {
            struct expected *x = &run->all[(uint32_t)rng_below(&random, run->n)];
            if (x->submitted && !x->done) {
                ck_assert_int_eq(cattn_sched_cancel(run->sched, x->id), CATTN_OK);
                x->done = true;
            }
        } else {
            run_step(run);
        }
    }
    run_all(run);
    uint64_t n_preempted = run->sched->stats.n_preempted;
    ck_assert_uint_le(n_preempted, run->n); /* nobody twice */
    free_run(run);
    return n_preempted;
}

START_TEST(random_requests)
{
    uint64_t n_preempted = 0;
    for (uint64_t seed = 1; seed <= 300; seed++)
        n_preempted += random_run(seed);
    ck_assert_uint_gt(n_preempted, 20);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("scheduler");
    tcase_add_test(tests, one_request_runs_to_its_end);
    tcase_add_test(tests, batches_and_pieces_stay_within_their_bounds);
    tcase_add_test(tests, a_small_pool_makes_progress);
    tcase_add_test(tests, equal_prompts_are_computed_once);
    tcase_add_test(tests, what_becomes_public_is_waited_for);
    tcase_add_test(tests, a_setting_is_heeded_at_once);
    tcase_add_test(tests, first_come_first_served);
    tcase_add_test(tests, those_that_share_run_together);
    tcase_add_test(tests, nobody_is_passed_for_ever);
    tcase_add_test(tests, priorities_come_first_but_starve_nobody);
    tcase_add_test(tests, cancel_in_any_state);
    tcase_add_test(tests, an_aborted_step_is_run_again);
    tcase_add_test(tests, a_stop_ends_a_request);
    tcase_add_test(tests, bad_requests_are_refused);
    tcase_add_test(tests, numbers_of_no_request_are_refused);
    tcase_add_test(tests, bad_configurations_are_refused);
    tcase_add_test(tests, slots_of_others_are_respected);
    tcase_add_test(tests, allocations_fail_in_turn);
    tcase_add_test(tests, a_request_beyond_the_limit_of_its_namespace_is_refused);
    tcase_add_test(tests, only_its_own_wait_for_a_namespace_at_its_limit);
    tcase_add_test(tests, what_others_have_reserved_is_not_counted_on);
    tcase_add_test(tests, one_of_the_namespace_at_its_limit_is_put_back);
    tcase_add_test(tests, a_limit_that_was_lowered_holds_up_what_runs);
    tcase_add_test(tests, random_requests_with_quotas);
    tcase_add_test(tests, random_requests);
    return suite_run(tests);
}
