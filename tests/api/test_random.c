/* Random scripts against a naive model: lists of tokens, and the set of prefixes that were published. */
#include "support/engine.h"
#include "support/suite.h"
#include "support/variant.h"

#include <stdlib.h>
#include <string.h>

#ifndef N_SCRIPTS
#  define N_SCRIPTS 64u
#endif

enum { CHUNK = 32, MAX_TOYS = 12, LONGEST = 6 * CHUNK, N_DOCUMENTS = 3, MAX_SET = 20000 };

/* Hashes of prefixes that end with a chunk. */
struct set {
    uint64_t *hashes;
    size_t n;
};

struct actor {
    struct toy toy;
    enum { ABSENT, IDLE, IN_STEP, CLOSED_IN_STEP } state;
    int32_t wish[2 * LONGEST]; /* tokens it was opened for and has not been fed */
    size_t n_wish;
};

struct world {
    struct engine e;
    struct cattn_variant *variant; /* another one in each step */
    struct actor actors[MAX_TOYS];
    int32_t documents[N_DOCUMENTS][LONGEST];
    struct set published; /* ever */
    struct set sure;      /* and certainly not taken back by a truncate since */
    int step_open, retains;
    unsigned poison; /* percent of prompts with a token that is not finite */
    size_t seen[16];
};

enum event { STEP, FULL, TOO_BIG, ABORT, EVICTION, PARTIAL, MATCHED, PENDING_MATCH };

static int set_has(const struct set *set, uint64_t hash)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->hashes[i] == hash)
            return 1;
    return 0;
}

static void set_add(struct set *set, uint64_t hash)
{
    if (set_has(set, hash))
        return;
    if (!set->hashes)
        set->hashes = malloc(MAX_SET * sizeof *set->hashes);
    ck_assert_uint_lt(set->n, MAX_SET);
    set->hashes[set->n++] = hash;
}

static void set_add_chunks(struct set *set, const struct toy *toy, size_t length)
{
    for (size_t end = CHUNK; end <= length; end += CHUNK)
        set_add(set, toy->hashes[end - 1]);
}

/* Chunks that live sequences hold, which therefore must be found. */
static struct set live_chunks(const struct world *w)
{
    struct set set = {0};
    for (size_t i = 0; i < MAX_TOYS; i++)
        if (w->actors[i].state == IDLE || w->actors[i].state == IN_STEP)
            set_add_chunks(&set, &w->actors[i].toy, w->actors[i].toy.length);
    return set;
}

static void set_remove(struct set *set, uint64_t hash)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->hashes[i] == hash)
            set->hashes[i] = set->hashes[--set->n];
}

static struct set copy_set(const struct set *set)
{
    struct set copy = {.n = set->n, .hashes = malloc(MAX_SET * sizeof *set->hashes)};
    if (set->n)
        memcpy(copy.hashes, set->hashes, set->n * sizeof *set->hashes);
    return copy;
}

/* Chunks that the cache must have: those of live sequences, or all, if none was ever dropped. */
static struct set least_cached(const struct world *w)
{
    int keeps_all = w->retains && engine_stats(&w->e).evictions == 0;
    return keeps_all ? copy_set(&w->sure) : live_chunks(w);
}

/* ---- material --------------------------------------------------------------------------------------- */

static struct actor *pick(struct world *w, int state)
{
    for (size_t i = rng_below(&w->e.rng, MAX_TOYS), n = 0; n < MAX_TOYS; n++, i = (i + 1) % MAX_TOYS)
        if ((int)w->actors[i].state == state)
            return &w->actors[i];
    return NULL;
}

/* A document cut somewhere, often with something of its own behind. */
static size_t prompt(struct world *w, int32_t *tokens)
{
    struct rng *r = &w->e.rng;
    size_t n = rng_chance(r, 40) ? rng_between(r, 1, 4) * CHUNK : rng_between(r, 1, LONGEST - CHUNK);
    memcpy(tokens, w->documents[rng_below(r, N_DOCUMENTS)], n * sizeof *tokens);
    if (rng_chance(r, 60)) {
        size_t more = rng_between(r, 1, CHUNK);
        random_tokens(r, tokens + n, more, 2);
        n += more;
    }
    if (rng_chance(r, w->poison))
        tokens[rng_below(r, n)] = rng_chance(r, 50) ? TOKEN_NAN : TOKEN_INF;
    return n;
}

/* What a sequence says next follows from what it has: equal ones stay equal. */
static void generate(const struct toy *toy, int32_t *tokens, size_t n)
{
    uint64_t hash = toy->length ? toy->hashes[toy->length - 1] : toy_root(toy->space);
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(hash >> 7 & 1);
        hash = toy_extend(hash, tokens[i]);
    }
}

/* ---- operations on sequences ------------------------------------------------------------------------ */

static size_t whole_chunks(const struct set *set, uint64_t space, const int32_t *tokens, size_t n)
{
    uint64_t hash = toy_root(space);
    size_t whole = 0;
    for (size_t i = 0; i < n; i++) {
        hash = toy_extend(hash, tokens[i]);
        if ((i + 1) % CHUNK == 0) {
            if (!set_has(set, hash))
                break;
            whole = i + 1;
        }
    }
    return whole;
}

static void do_open(struct world *w, const int32_t *tokens, size_t n, uint64_t space)
{
    struct actor *a = pick(w, ABSENT);
    if (!a)
        return;
    struct set certain = least_cached(w);
    size_t least = whole_chunks(&certain, space, tokens, n ? n - 1 : 0);
    size_t most = whole_chunks(&w->published, space, tokens, n ? n - 1 : 0);
    size_t n_cached = engine_open(&w->e, &a->toy, space, tokens, n);
    CHECK(n_cached >= least && n_cached < most + CHUNK, "%zu cached, between %zu and %zu", n_cached, least, most);
    w->seen[PARTIAL] += n_cached % CHUNK != 0;
    a->state = IDLE;
    a->n_wish = n - n_cached;
    memcpy(a->wish, tokens + n_cached, a->n_wish * sizeof *tokens);
    free(certain.hashes);
}

static void open_some(struct world *w)
{
    int32_t tokens[2 * LONGEST];
    size_t n = rng_chance(&w->e.rng, 90) ? prompt(w, tokens) : 0;
    do_open(w, tokens, n, rng_below(&w->e.rng, 3) / 2);
}

/* Sequences that are opened together, with equal or mutually extending prompts. */
static void open_twins(struct world *w)
{
    int32_t tokens[2 * LONGEST];
    size_t n = prompt(w, tokens);
    for (uint64_t i = rng_between(&w->e.rng, 2, 4); i > 0; i--)
        do_open(w, tokens, rng_chance(&w->e.rng, 60) ? n : rng_between(&w->e.rng, 1, n), 0);
}

static void do_fork(struct world *w)
{
    struct actor *from = pick(w, IDLE), *to = pick(w, ABSENT);
    if (!from || !to)
        return;
    engine_fork(&w->e, &from->toy, &to->toy);
    memcpy(to->wish, from->wish, from->n_wish * sizeof *to->wish);
    to->n_wish = from->n_wish;
    to->state = IDLE;
}

static void do_truncate(struct world *w)
{
    struct actor *a = pick(w, IDLE);
    struct rng *r = &w->e.rng;
    if (!a)
        return;
    size_t length = a->toy.length, n = rng_below(r, length + 1);
    if (rng_chance(r, 50))
        n = rng_chance(r, 50) ? length - (length > 3 ? 3 : length) : length / CHUNK * CHUNK;
    ck_assert_int_eq(cattn_seq_truncate(w->e.cache, a->toy.seq, length + 1), CATTN_EINVAL);
    /* The chunk that is cut may become a tail again. */
    if (n % CHUNK && (n / CHUNK + 1) * CHUNK <= length)
        set_remove(&w->sure, a->toy.hashes[(n / CHUNK + 1) * CHUNK - 1]);
    engine_truncate(&w->e, &a->toy, n);
    if (n < length)
        a->n_wish = 0;
}

static void do_close(struct world *w)
{
    struct actor *a = pick(w, w->step_open && rng_chance(&w->e.rng, 20) ? IN_STEP : IDLE);
    if (!a)
        return;
    cattn_seq seq = a->toy.seq, other;
    if (a->state == IDLE) {
        engine_close(&w->e, &a->toy);
        a->state = ABSENT;
    } else {
        ck_assert_int_eq(cattn_seq_close(w->e.cache, seq), CATTN_OK);
        a->state = CLOSED_IN_STEP;
    }
    ck_assert_int_eq(cattn_seq_close(w->e.cache, seq), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_fork(w->e.cache, seq, &other), CATTN_EINVAL);
}

static void refuse_busy(struct world *w)
{
    struct actor *a = pick(w, IN_STEP);
    cattn_seq other;
    if (!a)
        return;
    ck_assert_int_eq(cattn_seq_fork(w->e.cache, a->toy.seq, &other), CATTN_EBUSY);
    ck_assert_int_eq(cattn_seq_truncate(w->e.cache, a->toy.seq, 0), CATTN_EBUSY);
    struct cattn_item item = {.seq = a->toy.seq, .tokens = a->wish, .n_tokens = 1};
    ck_assert_int_eq(cattn_step_begin(w->e.step, &item, 1), CATTN_ESTATE);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

struct batch {
    struct engine_item items[MAX_TOYS];
    struct actor *actors[MAX_TOYS];
    int32_t tokens[MAX_TOYS][2 * LONGEST];
    size_t n;
};

static void fill_batch(struct world *w, struct batch *b)
{
    static const uint32_t sizes[] = {1, 1, 1, 3, 7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * LONGEST};
    static const uint32_t min_rows[] = {0, 0, 0, 1, 3, 1000};
    struct rng *r = &w->e.rng;
    uint32_t piece = sizes[rng_below(r, sizeof sizes / sizeof *sizes)];
    uint64_t share = rng_between(r, 20, 100);
    uint32_t order[MAX_TOYS];
    b->n = 0;
    for (uint32_t i = 0; i < MAX_TOYS; i++)
        order[i] = i;
    rng_shuffle(r, order, MAX_TOYS);
    for (size_t i = 0; i < MAX_TOYS; i++) {
        struct actor *a = &w->actors[order[i]];
        if (a->state != IDLE || a->toy.length > LONGEST || !rng_chance(r, (unsigned)share))
            continue;
        uint32_t n = a->n_wish < piece ? (uint32_t)a->n_wish : piece;
        if (n)
            memcpy(b->tokens[b->n], a->wish, n * sizeof *a->wish);
        else
            generate(&a->toy, b->tokens[b->n], n = (uint32_t)rng_between(r, 1, 3));
        b->actors[b->n] = a;
        b->items[b->n] = (struct engine_item){
            .toy = &a->toy, .tokens = b->tokens[b->n], .n_tokens = n, .min_rows = min_rows[rng_below(r, 6)]};
        b->n++;
    }
}

/* Tokens of the path of an item that are stored whole when the chunks of `set` are; then its chunks are, too. */
static size_t known_tokens(struct set *set, const struct engine_item *item)
{
    const struct toy *toy = item->toy;
    uint64_t hash = toy->length ? toy->hashes[toy->length - 1] : toy_root(toy->space);
    size_t known = toy->length, open = 1;
    for (size_t i = 0; i < item->n_tokens; i++) {
        hash = toy_extend(hash, item->tokens[i]);
        if ((toy->length + i + 1) % CHUNK)
            continue;
        if (open && set_has(set, hash))
            known = toy->length + i + 1;
        else
            open = 0;
        set_add(set, hash);
    }
    return known;
}

/* The rows of each item, if the chunks of `set` are cached.  The set then has those of the step, too. */
static uint64_t expected_rows(struct set *set, const struct batch *b, uint32_t *rows)
{
    uint64_t computed = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct engine_item *x = &b->items[i];
        size_t missing = x->toy->length + x->n_tokens - known_tokens(set, x);
        uint32_t wanted = x->min_rows > missing ? x->min_rows : (uint32_t)missing;
        rows[i] = wanted == 0 ? 1 : wanted < x->n_tokens ? wanted : x->n_tokens;
        computed += missing;
    }
    return computed;
}

/* Slots of the items' paths and tails once the step ends, each once. */
static uint64_t slots_at_end(const struct batch *b)
{
    struct set set = {0};
    uint64_t tails = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct engine_item *x = &b->items[i];
        set_add_chunks(&set, x->toy, x->toy->length);
        known_tokens(&set, x);
        tails += (x->toy->length + x->n_tokens) % CHUNK != 0;
    }
    free(set.hashes);
    return set.n + tails;
}

static void expect_rows(struct world *w, const struct batch *b, struct set *certain, struct set *ever)
{
    uint32_t most[MAX_TOYS], least[MAX_TOYS];
    uint64_t least_computed = expected_rows(ever, b, least), most_computed = expected_rows(certain, b, most);
    for (size_t i = 0; i < b->n; i++) {
        uint32_t n_rows = w->e.items[i].n_rows;
        CHECK(n_rows >= least[i] && n_rows <= most[i], "item %zu: %u rows, expected %u to %u", i, n_rows, least[i],
              most[i]);
        w->seen[MATCHED] += n_rows < b->items[i].n_tokens;
    }
    CHECK(w->e.n_computed >= least_computed && w->e.n_computed <= most_computed, "%d computed, expected %d to %d",
          (int)w->e.n_computed, (int)least_computed, (int)most_computed);
}

static void begin(struct world *w, struct batch *b)
{
    struct set certain = least_cached(w), ever = copy_set(&w->published);
    struct cattn_stats before = engine_stats(&w->e), after;
    int status = engine_begin(&w->e, b->items, b->n);
    int too_big = slots_at_end(b) > before.n_slots;
    CHECK((status == CATTN_ETOOBIG) == too_big, "%s", cattn_strerror(status));
    if (status != CATTN_OK) {
        CHECK(status == CATTN_ETOOBIG || status == CATTN_EFULL, "%s", cattn_strerror(status));
        after = engine_stats(&w->e);
        ck_assert_mem_eq(&before, &after, sizeof before);
        w->seen[status == CATTN_EFULL ? FULL : TOO_BIG]++;
    } else {
        expect_rows(w, b, &certain, &ever);
        w->step_open = 1;
        for (size_t i = 0; i < b->n; i++)
            b->actors[i]->state = IN_STEP;
    }
    free(certain.hashes);
    free(ever.hashes);
}

static void advance(struct world *w, struct actor *a, size_t n)
{
    set_add_chunks(&w->published, &a->toy, a->toy.length);
    set_add_chunks(&w->sure, &a->toy, a->toy.length);
    size_t fed = n < a->n_wish ? n : a->n_wish;
    a->n_wish -= fed;
    memmove(a->wish, a->wish + fed, a->n_wish * sizeof *a->wish);
}

static void finish(struct world *w, const struct batch *b)
{
    int aborted = rng_chance(&w->e.rng, 20);
    w->seen[aborted ? ABORT : STEP]++;
    if (aborted)
        engine_abort(&w->e);
    else
        engine_end(&w->e);
    w->step_open = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct actor *a = b->actors[i];
        if (!aborted)
            advance(w, a, b->items[i].n_tokens);
        if (a->state == CLOSED_IN_STEP)
            toy_free(&a->toy);
        a->state = a->state == CLOSED_IN_STEP ? ABSENT : IDLE;
    }
}

/* ---- scripts ---------------------------------------------------------------------------------------- */

static void compare(struct world *w)
{
    uint64_t n = 0, tokens = 0;
    for (size_t i = 0; i < MAX_TOYS; i++)
        if (w->actors[i].state == IDLE || w->actors[i].state == IN_STEP) {
            engine_check(&w->e, &w->actors[i].toy, 1);
            tokens += w->actors[i].toy.length;
            n++;
        }
    engine_check(&w->e, NULL, 0);
    struct cattn_stats stats = engine_stats(&w->e);
    CHECK(stats.n_sequences == n, "%llu sequences, not %llu", (unsigned long long)stats.n_sequences,
          (unsigned long long)n);
    CHECK(stats.sequence_tokens == tokens, "%llu tokens, not %llu", (unsigned long long)stats.sequence_tokens,
          (unsigned long long)tokens);
    if (w->step_open)
        return;
    struct set live = live_chunks(w);
    CHECK(stats.used_slots >= live.n && stats.used_slots <= live.n + n, "%d slots used for %zu chunks, %d sequences",
          (int)stats.used_slots, live.n, (int)n);
    free(live.hashes);
}

static void operate(struct world *w)
{
    uint64_t kind = rng_below(&w->e.rng, 100);
    if (kind < 35)
        open_some(w);
    else if (kind < 45)
        open_twins(w);
    else if (kind < 60)
        do_fork(w);
    else if (kind < 75)
        do_truncate(w);
    else
        do_close(w);
    compare(w);
}

static void step(struct world *w)
{
    struct engine *e = &w->e;
    struct batch *b = malloc(sizeof *b);
    fill_batch(w, b);
    e->form = (enum engine_form)rng_below(&e->rng, N_FORMS);
    e->nth = (uint32_t)rng_between(&e->rng, 1, 5);
    e->guard = (enum guard_side)rng_below(&e->rng, 3);
    e->pad = rng_chance(&e->rng, 30) ? 3 : 0;
    /* Of few seeds: a backend may only take so many slopes and sinks. */
    variant_draw(w->variant, variant_parts(&e->rng), rng_below(&e->rng, 8), e->config.n_heads, CHUNK, LONGEST);
    e->variant = rng_chance(&e->rng, 80) ? w->variant : NULL;
    begin(w, b);
    compare(w);
    if (w->step_open) {
        for (uint32_t layer = 0; layer < e->config.n_layers; layer++) {
            engine_layer(e, layer);
            if (rng_chance(&e->rng, 25))
                operate(w);
        }
        refuse_busy(w);
        finish(w, b);
        compare(w);
    }
    free(b);
}

static void clear(struct world *w)
{
    for (size_t i = 0; i < MAX_TOYS; i++)
        if (w->actors[i].state == IDLE) {
            engine_close(&w->e, &w->actors[i].toy);
            w->actors[i].state = ABSENT;
        }
    compare(w);
    struct cattn_stats stats = engine_stats(&w->e);
    ck_assert_uint_eq(stats.used_slots, 0);
    ck_assert_uint_eq(stats.sequence_tokens, 0);
    ck_assert(w->retains || stats.evictable_slots == 0);
    w->seen[EVICTION] += stats.evictions;
}

static struct cattn_config world_config(struct world *w, uint64_t number)
{
    static const uint32_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}};
    static const uint64_t pools[] = {2, 3, 5, 8, 12, 20, 40, 400};
    struct kernel_choice choice;
    unsigned n_choices = 0;
    struct rng *r = &w->e.rng;
    rng_init(r, number);
    while (kernel_choice(n_choices, &choice))
        n_choices++;
    ck_assert(kernel_choice((unsigned)(number % n_choices), &choice));
    struct cattn_config config = engine_config(CHUNK * pools[number / n_choices % 8]);
    const uint32_t *shape = heads[rng_below(r, 4)];
    config.kernel = choice.kernel;
    config.kv_dtype = choice.kv_dtype;
    config.n_layers = 2;
    config.n_heads = shape[0];
    config.n_kv_heads = shape[1];
    config.head_dim = (uint32_t)rng_between(r, 1, 20);
    config.v_head_dim = rng_chance(r, 50) ? (uint32_t)rng_between(r, 1, 20) : 0;
    config.n_threads = (uint32_t)rng_between(r, 1, 2);
    config.flags = rng_chance(r, 20) ? CATTN_NO_RETAIN : 0;
    return config;
}

static void script(uint64_t number, size_t n_calls, size_t *seen)
{
    struct world *w = calloc(1, sizeof *w);
    struct cattn_config config = world_config(w, number);
    engine_init(&w->e, &config, number + 1);
    w->e.check_rows = 3;
    w->variant = variant_new(config.n_heads);
    w->retains = !(config.flags & CATTN_NO_RETAIN);
    w->poison = number % 3 == 0 ? 20 : 0;
    for (size_t i = 0; i < N_DOCUMENTS; i++)
        random_tokens(&w->e.rng, w->documents[i], LONGEST, 2);
    memcpy(w->documents[1], w->documents[0], (CHUNK + CHUNK / 2) * sizeof **w->documents);
    for (size_t i = 0; i < n_calls; i++) {
        if (rng_chance(&w->e.rng, 45))
            operate(w);
        else
            step(w);
    }
    clear(w);
    for (size_t i = 0; i < 16; i++)
        seen[i] += w->seen[i];
    free(w->published.hashes);
    free(w->sure.hashes);
    engine_free(&w->e);
    variant_free(w->variant);
    free(w);
}

START_TEST(random_scripts)
{
    size_t seen[16] = {0};
    for (uint64_t number = 0; number < (test_full() ? 1000u : N_SCRIPTS); number++)
        script(number, 100, seen);
    /* A script that never gets there tests nothing. */
    for (int event = STEP; event <= MATCHED; event++)
        CHECK(seen[event] > 0, "event %d was never seen", event);
}
END_TEST

START_TEST(equal_greedy_requests)
{
    enum { N = 8, PIECE = 7, LENGTH = 5 * CHUNK + 9 };
    struct cattn_config config = engine_config(1000 * CHUNK);
    struct engine e;
    struct toy toys[N];
    int32_t prompt_tokens[LENGTH];
    engine_init(&e, &config, 1);
    random_tokens(&e.rng, prompt_tokens, LENGTH, 1000);
    for (size_t i = 0; i < N; i++)
        ck_assert_uint_eq(engine_open(&e, &toys[i], 0, prompt_tokens, LENGTH), 0);
    for (size_t at = 0; at < LENGTH + 3 * CHUNK;) {
        struct engine_item items[N];
        int32_t next[PIECE];
        uint32_t n = at >= LENGTH ? 1 : LENGTH - at < PIECE ? (uint32_t)(LENGTH - at) : PIECE;
        if (at < LENGTH)
            memcpy(next, prompt_tokens + at, n * sizeof *next);
        else
            generate(&toys[0], next, n);
        for (size_t i = 0; i < N; i++)
            items[i] = (struct engine_item){.toy = &toys[i], .tokens = next, .n_tokens = n};
        engine_step(&e, items, N);
        at += n;
        engine_check(&e, toys, N);
        /* The distinct whole chunks, and the tail that each writes for itself. */
        uint64_t slots = at / CHUNK + (at % CHUNK ? N : 0);
        CHECK(engine_stats(&e).used_slots == slots, "%zu tokens: %d slots, not %d", at,
              (int)engine_stats(&e).used_slots, (int)slots);
    }
    for (size_t i = 0; i < N; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
}
END_TEST

/* Two unreferenced chunks are matched in step_begin and given back by abort, in an order that lets one be evicted. */
START_TEST(abort_then_evict)
{
    enum { LENGTH = 2 * CHUNK };
    struct cattn_config config = engine_config(4 * CHUNK);
    struct engine e;
    struct toy a, b;
    int32_t tokens[LENGTH + 1], other[2 * CHUNK];
    engine_init(&e, &config, 2);
    random_tokens(&e.rng, tokens, LENGTH + 1, 1000);
    random_tokens(&e.rng, other, 2 * CHUNK, 1000);
    engine_prefill(&e, &a, 0, tokens, LENGTH, 0);
    engine_close(&e, &a);
    ck_assert_uint_eq(engine_stats(&e).evictable_slots, 2);
    /* Opened with nothing, so that the match is step_begin's. */
    engine_open(&e, &a, 0, NULL, 0);
    ck_assert_int_eq(engine_begin(&e, &(struct engine_item){.toy = &a, .tokens = tokens, .n_tokens = LENGTH + 1}, 1),
                     0);
    ck_assert_uint_eq(e.n_rows, 1);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 3);
    engine_abort(&e);
    ck_assert_uint_eq(engine_stats(&e).evictable_slots, 2);
    engine_check(&e, &a, 1);
    /* Three of the four slots: one chunk must go, and it is the leaf. */
    engine_prefill(&e, &b, 0, other, 2 * CHUNK, 0);
    engine_feed(&e, &b, tokens, 1);
    engine_check(&e, &b, 1);
    ck_assert_uint_eq(engine_stats(&e).evictions, 1);
    engine_close(&e, &a);
    ck_assert_uint_eq(engine_open(&e, &a, 0, tokens, LENGTH + 1), CHUNK);
    engine_close(&e, &a);
    engine_close(&e, &b);
    engine_check(&e, NULL, 0);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("random");
    tcase_add_test(tcase, random_scripts);
    tcase_add_test(tcase, equal_greedy_requests);
    tcase_add_test(tcase, abort_then_evict);
    return suite_run(tcase);
}
