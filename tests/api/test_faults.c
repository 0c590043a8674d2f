/* Host memory that runs out: each allocation of each call fails in turn.  The call says so, changes nothing and loses
 * no memory; what ends or gives back needs none.  And requests get their text whatever fails, in a pool of any size. */
#define _DEFAULT_SOURCE 1
#include "lib/failing_memory.h"
#include "support/snapshot.h"
#include "support/suite.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 32, LENGTH = 5 * CHUNK, N_TEXTS = 3, N_SPACES = 2, N_TOYS = 5, SLOTS = 16, MAX_ITEMS = 3 };

/* A toy whose sequence is in the step and was closed has the handle 0 until the step is over. */
struct world {
    struct engine e;
    struct toy toys[N_TOYS];
    bool in_step[N_TOYS], closed[N_TOYS];
    int32_t texts[N_TEXTS][LENGTH];
    bool is_open;
    char path[32];
    bool saved;
    size_t n_events;
    /* the call that is tried */
    size_t fail_at, events_before, live_before, n_failed;
    struct snapshot before;
};

static void count_event(void *world, const struct cattn_event *event)
{
    (void)event;
    ((struct world *)world)->n_events++;
}

/* ---- a call whose allocations fail in turn ---------------------------------------------------------- */

static struct snapshot take(const struct world *w)
{
    return snapshot_take(&w->e, w->toys, N_TOYS, N_SPACES);
}

static void arm(struct world *w)
{
    w->before = take(w);
    w->events_before = w->n_events;
    failing_memory_set(++w->fail_at);
}

/* Whether the call was one with a failure, so that it is to be made again. */
static int failed(struct world *w, int status, const char *call)
{
    bool hit = failing_memory_hit();
    failing_memory_set(0);
    CHECK(hit == (status == CATTN_ENOMEM), "%s: %s, allocation %zu", call, cattn_strerror(status), w->fail_at);
    struct snapshot after = take(w);
    bool same = snapshot_same(w->before, after);
    if (status != CATTN_OK)
        CHECK(same && w->n_events == w->events_before, "%s: something changed, allocation %zu", call, w->fail_at);
    ck_assert_int_eq(cattn_cache_selfcheck(w->e.cache), CATTN_OK);
    w->n_failed += hit;
    return hit;
}

/* The status of the call once no allocation fails. */
#define IN_TURN(w, status, call)                                                                                       \
  do {                                                                                                                 \
    (w)->fail_at = 0;                                                                                                  \
    do {                                                                                                               \
      arm(w);                                                                                                          \
      (status) = (call);                                                                                               \
    } while (failed(w, status, #call));                                                                                \
  } while (0)

/* A call that needs no memory. */
#define WITHOUT_MEMORY(call)                                                                                           \
  do {                                                                                                                 \
    failing_memory_set(1);                                                                                             \
    call;                                                                                                              \
    CHECK(!failing_memory_hit(), "%s takes memory", #call);                                                            \
    failing_memory_set(0);                                                                                             \
  } while (0)

/* ---- random calls ----------------------------------------------------------------------------------- */

static struct rng *rng_of(struct world *w)
{
    return &w->e.rng;
}

/* One that is open and not in the step, or (open false) one that is not there; NULL: none found. */
static struct toy *pick(struct world *w, bool open)
{
    size_t start = rng_below(rng_of(w), N_TOYS);
    for (size_t k = 0; k < N_TOYS; k++) {
        size_t i = (start + k) % N_TOYS;
        if (!w->in_step[i] && (w->toys[i].seq != 0) == open)
            return &w->toys[i];
    }
    return NULL;
}

static void do_open(struct world *w)
{
    struct toy *toy = pick(w, false);
    const int32_t *text = w->texts[rng_below(rng_of(w), N_TEXTS)];
    size_t n = rng_below(rng_of(w), LENGTH - CHUNK);
    uint64_t space = rng_below(rng_of(w), N_SPACES);
    int status;
    if (!toy)
        return;
    IN_TURN(w, status, engine_try_open(&w->e, toy, space, text, n));
    ck_assert_int_eq(status, CATTN_OK);
}

static void do_fork(struct world *w)
{
    struct toy *from = pick(w, true), *to = pick(w, false);
    int status;
    if (!from || !to)
        return;
    IN_TURN(w, status, engine_try_fork(&w->e, from, to));
    ck_assert_int_eq(status, CATTN_OK);
}

static void do_truncate(struct world *w)
{
    struct toy *toy = pick(w, true);
    if (!toy)
        return;
    size_t n = rng_below(rng_of(w), toy->length + 1);
    WITHOUT_MEMORY(engine_truncate(&w->e, toy, n));
}

static void do_close(struct world *w)
{
    size_t i = rng_below(rng_of(w), N_TOYS);
    struct toy *toy = &w->toys[i];
    if (!toy->seq)
        return;
    WITHOUT_MEMORY(ck_assert_int_eq(cattn_seq_close(w->e.cache, toy->seq), CATTN_OK));
    if (w->in_step[i]) {
        w->closed[i] = true;
        toy->seq = 0; /* the engine still needs the rest */
    } else {
        toy_free(toy);
    }
}

static void do_pin(struct world *w)
{
    const int32_t *text = w->texts[rng_below(rng_of(w), N_TEXTS)];
    uint64_t space = rng_below(rng_of(w), N_SPACES);
    size_t n = rng_below(rng_of(w), LENGTH), bytes = space ? sizeof space : 0;
    int status;
    if (rng_chance(rng_of(w), 40))
        IN_TURN(w, status, cattn_prefix_unpin(w->e.cache, &space, bytes, text, n, NULL));
    else
        IN_TURN(w, status, cattn_prefix_pin(w->e.cache, &space, bytes, text, n, NULL));
    ck_assert(status == CATTN_OK || status == CATTN_ENOTFOUND);
}

static void do_forget(struct world *w)
{
    uint64_t space = rng_below(rng_of(w), N_SPACES);
    if (rng_chance(rng_of(w), 30))
        WITHOUT_MEMORY((void)cattn_namespace_invalidate(w->e.cache, &space, space ? sizeof space : 0));
    else
        WITHOUT_MEMORY((void)cattn_cache_evict(w->e.cache, rng_below(rng_of(w), 4), NULL));
}

static void do_save(struct world *w)
{
    int status;
    IN_TURN(w, status, cattn_prefix_save(w->e.cache, w->path, "model", 5));
    ck_assert(status == CATTN_OK || status == CATTN_ENOTSUP);
    w->saved = status == CATTN_OK;
}

static void do_load(struct world *w)
{
    uint64_t n_tokens;
    int status;
    if (!w->saved)
        return;
    IN_TURN(w, status, cattn_prefix_load(w->e.cache, w->path, "model", 5, &n_tokens));
    if (w->is_open)
        ck_assert_int_eq(status, CATTN_ESTATE);
    else
        ck_assert(status == CATTN_OK || status == CATTN_EFULL);
}

static void do_look(struct world *w)
{
    cattn_step *step;
    cattn_sched *sched;
    int status;
    IN_TURN(w, status, cattn_cache_selfcheck(w->e.cache));
    ck_assert_int_eq(status, CATTN_OK);
    IN_TURN(w, status, cattn_step_create(w->e.cache, &step));
    ck_assert_int_eq(status, CATTN_OK);
    IN_TURN(w, status, cattn_sched_create(w->e.cache, NULL, &sched));
    ck_assert_int_eq(status, CATTN_OK);
    cattn_sched_destroy(sched);
    cattn_step_destroy(step);
}

static void do_something(struct world *w)
{
    static void (*const all[])(struct world *) = {do_open,  do_open, do_open,   do_fork, do_truncate, do_close,
                                                  do_close, do_pin,  do_forget, do_save, do_load,     do_look};
    all[rng_below(rng_of(w), sizeof all / sizeof *all)](w);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static size_t pick_items(struct world *w, struct engine_item *items)
{
    size_t n = 0, wanted = rng_between(rng_of(w), 1, MAX_ITEMS);
    for (size_t i = 0; i < N_TOYS && n < wanted; i++) {
        struct toy *toy = &w->toys[i];
        if (!toy->seq || toy->length >= LENGTH)
            continue;
        uint64_t most = rng_chance(rng_of(w), 50) ? 3 : LENGTH - toy->length;
        items[n++] = (struct engine_item){.toy = toy,
                                          .tokens = w->texts[rng_below(rng_of(w), N_TEXTS)] + toy->length,
                                          .n_tokens = (uint32_t)rng_between(rng_of(w), 1, most),
                                          .min_rows = (uint32_t)rng_below(rng_of(w), 5)};
        if (items[n - 1].n_tokens > LENGTH - toy->length)
            items[n - 1].n_tokens = 1;
    }
    return n;
}

static void leave_step(struct world *w)
{
    for (size_t i = 0; i < N_TOYS; i++) {
        if (w->closed[i])
            toy_free(&w->toys[i]);
        w->in_step[i] = w->closed[i] = false;
    }
    w->is_open = false;
}

static void do_step(struct world *w)
{
    struct engine_item items[MAX_ITEMS];
    size_t n = pick_items(w, items);
    int status;
    IN_TURN(w, status, engine_begin(&w->e, items, n));
    if (status != CATTN_OK) {
        ck_assert(status == CATTN_EFULL || status == CATTN_ETOOBIG);
        return;
    }
    w->is_open = true;
    for (size_t i = 0; i < n; i++)
        w->in_step[items[i].toy - w->toys] = true;
    for (uint64_t k = rng_below(rng_of(w), 4); k; k--)
        do_something(w);
    if (rng_chance(rng_of(w), 20)) {
        WITHOUT_MEMORY(engine_abort(&w->e));
    } else {
        WITHOUT_MEMORY(engine_layers(&w->e));
        WITHOUT_MEMORY(engine_end(&w->e));
    }
    leave_step(w);
    for (size_t i = 0; i < N_TOYS; i++) {
        if (w->toys[i].seq)
            engine_check(&w->e, &w->toys[i], 1);
    }
}

/* ---- scripts ---------------------------------------------------------------------------------------- */

/* Texts that have more and less in common. */
static void make_texts(struct rng *rng, int32_t (*texts)[LENGTH], size_t n)
{
    random_tokens(rng, texts[0], LENGTH, 1000);
    for (size_t i = 1; i < n; i++) {
        size_t common = rng_below(rng, LENGTH);
        memcpy(texts[i], texts[i - 1], LENGTH * sizeof **texts);
        random_tokens(rng, texts[i] + common, LENGTH - common, 1000);
    }
}

static void world_init(struct world *w, uint64_t seed)
{
    static const uint32_t flags[] = {0, CATTN_NO_RETAIN, CATTN_ZERO_FREED};
    struct cattn_config config = engine_config(SLOTS * CHUNK);
    struct kernel_choice choice;
    unsigned n_choices = 0;
    while (kernel_choice(n_choices, &choice))
        n_choices++;
    ck_assert(kernel_choice((unsigned)seed % n_choices, &choice));
    memset(w, 0, sizeof *w);
    config.kernel = choice.kernel;
    config.kv_dtype = choice.kv_dtype;
    config.n_layers = 2;
    config.flags = flags[seed % 3];
    if (seed % 2) {
        config.on_event = count_event;
        config.event_context = w;
    }
    engine_init(&w->e, &config, seed);
    make_texts(rng_of(w), w->texts, N_TEXTS);
    snprintf(w->path, sizeof w->path, "cattn-faults-XXXXXX");
    int file = mkstemp(w->path);
    ck_assert_int_ge(file, 0);
    close(file);
}

static void world_free(struct world *w)
{
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s.tmp*", w->path);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
    unlink(w->path);
    for (size_t i = 0; i < N_TOYS; i++) {
        if (w->toys[i].seq)
            engine_close(&w->e, &w->toys[i]);
    }
    engine_free(&w->e);
    ck_assert_uint_eq(failing_memory_live(), 0);
}

START_TEST(each_allocation_fails_in_turn)
{
    static struct world w;
    size_t n_failed = 0;
    for (uint64_t seed = 1; seed <= (test_full() ? 400 : 60); seed++) {
        world_init(&w, seed);
        for (int i = 0; i < 40; i++) {
            do_something(&w);
            do_step(&w);
        }
        n_failed += w.n_failed;
        world_free(&w);
    }
    CHECK(n_failed > 1000, "%zu allocations failed", n_failed);
}
END_TEST

/* Namespaces that the cache does not know, of which some are there already when the memory for another fails. */
START_TEST(a_load_that_fails_halfway)
{
    static struct world w;
    uint64_t n_tokens;
    int status;
    world_init(&w, 3);
    for (uint64_t space = 0; space < N_SPACES; space++) {
        engine_prefill(&w.e, &w.toys[space], space, w.texts[0], LENGTH, 0);
        status = cattn_prefix_pin(w.e.cache, &space, space ? sizeof space : 0, w.texts[0], LENGTH, NULL);
        ck_assert_int_eq(status, CATTN_OK);
    }
    do_save(&w);
    for (uint64_t space = 0; space < N_SPACES; space++) {
        engine_close(&w.e, &w.toys[space]);
        ck_assert_int_eq(cattn_namespace_invalidate(w.e.cache, &space, space ? sizeof space : 0), CATTN_OK);
    }
    if (w.saved) {
        IN_TURN(&w, status, cattn_prefix_load(w.e.cache, w.path, "model", 5, &n_tokens));
        ck_assert_int_eq(status, CATTN_OK);
        ck_assert_uint_eq(n_tokens, N_SPACES * LENGTH);
    }
    world_free(&w);
}
END_TEST

/* ---- what is made and destroyed --------------------------------------------------------------------- */

static cattn_cache *create_in_turn(const struct cattn_config *config, size_t *n_failed)
{
    cattn_cache *untouched = (cattn_cache *)(void *)&untouched, *cache;
    for (size_t n = 1;; n++) {
        cache = untouched;
        failing_memory_set(n);
        int status = cattn_cache_create(config, &cache);
        bool hit = failing_memory_hit();
        failing_memory_set(0);
        ck_assert_int_eq(status, hit ? CATTN_ENOMEM : CATTN_OK);
        if (!hit)
            return cache;
        ck_assert_ptr_eq(cache, untouched);
        ck_assert_uint_eq(failing_memory_live(), 0);
        ++*n_failed;
    }
}

/* Its pool, which is mapped, is one of the allocations. */
START_TEST(a_cache_that_cannot_be_made)
{
    static struct world w;
    static const uint32_t flags[] = {0, CATTN_NO_RETAIN | CATTN_ZERO_FREED, CATTN_CONCURRENT};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct cattn_config config = engine_config(SLOTS * CHUNK);
        size_t plain = 0, with_events = 0;
        config.flags = flags[i];
        cattn_cache_destroy(create_in_turn(&config, &plain));
        config.on_event = count_event;
        config.event_context = &w;
        cattn_cache_destroy(create_in_turn(&config, &with_events));
        ck_assert_uint_ge(plain, 10);
        ck_assert_uint_gt(with_events, plain);
        ck_assert_uint_eq(failing_memory_live(), 0);
    }
}
END_TEST

/* ---- requests --------------------------------------------------------------------------------------- */

enum { N_REQUESTS = 10, MAX_NEW = 48, MAX_ROWS = 24, HEADS = 2, DIM = 16, LAYERS = 2, CANCELLED = 1 };

struct serving {
    cattn_cache *cache;
    cattn_step *step;
    cattn_sched *sched;
    int32_t texts[N_TEXTS][LENGTH];
    cattn_request ids[N_REQUESTS]; /* 0: it was refused, or has ended */
    int32_t said[N_REQUESTS][MAX_NEW];
    size_t n_said[N_REQUESTS];
    bool refused[N_REQUESTS];
    bool fail;
    size_t n_failed;
};

static size_t prompt_length(size_t i)
{
    return 20 + 37 * i % 100;
}

static uint64_t most_new(size_t i)
{
    return MAX_NEW - i % 4;
}

struct sight {
    struct cattn_stats stats;
    struct cattn_sched_counts counts;
    struct cattn_request_info infos[N_REQUESTS];
};

static struct sight look_at(const struct serving *s)
{
    struct sight sight;
    memset(&sight, 0, sizeof sight);
    sight.stats.size = sizeof sight.stats;
    sight.counts.size = sizeof sight.counts;
    ck_assert_int_eq(cattn_cache_stats(s->cache, &sight.stats), CATTN_OK);
    ck_assert_int_eq(cattn_sched_stats(s->sched, &sight.counts), CATTN_OK);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        sight.infos[i].size = sizeof sight.infos[i];
        if (s->ids[i])
            ck_assert_int_eq(cattn_sched_request_info(s->sched, s->ids[i], &sight.infos[i]), CATTN_OK);
    }
    return sight;
}

static void submit(struct serving *s, size_t i)
{
    uint64_t space = i % 4 == 3;
    struct cattn_request_config config = {.size = sizeof config,
                                          .ns = &space,
                                          .ns_len = space ? sizeof space : 0,
                                          .tokens = s->texts[i % N_TEXTS],
                                          .n_tokens = prompt_length(i),
                                          .max_new = most_new(i),
                                          .priority = i % 5 == 4,
                                          .tag = i};
    for (size_t n = s->fail;; n++) {
        struct sight before = look_at(s);
        failing_memory_set(n);
        int status = cattn_sched_submit(s->sched, &config, &s->ids[i]);
        bool hit = failing_memory_hit();
        failing_memory_set(0);
        ck_assert(hit == (status == CATTN_ENOMEM));
        if (!hit) {
            ck_assert(status == CATTN_OK || status == CATTN_ETOOBIG);
            s->refused[i] = status == CATTN_ETOOBIG;
            return;
        }
        struct sight after = look_at(s);
        ck_assert_mem_eq(&before, &after, sizeof before);
        s->n_failed++;
    }
}

/* One that fails may have admitted requests, and put others back, but no request has lost or won a token. */
static void next_batch(struct serving *s, struct cattn_batch *batch)
{
    for (size_t n = s->fail;; n++) {
        struct sight before = look_at(s);
        failing_memory_set(n);
        int status = cattn_sched_next(s->sched, s->step, batch);
        bool hit = failing_memory_hit();
        failing_memory_set(0);
        CHECK(status == (hit ? CATTN_ENOMEM : CATTN_OK), "next: %s", cattn_strerror(status));
        ck_assert_int_eq(cattn_cache_selfcheck(s->cache), CATTN_OK);
        if (!hit)
            return;
        struct sight after = look_at(s);
        for (size_t i = 0; i < N_REQUESTS; i++)
            ck_assert(before.infos[i].n_tokens == after.infos[i].n_tokens &&
                      before.infos[i].n_generated == after.infos[i].n_generated);
        ck_assert_int_eq(cattn_step_abort(s->step), CATTN_ESTATE);
        ck_assert_int_eq(cattn_sched_commit(s->sched, NULL, NULL), CATTN_ESTATE);
        s->n_failed++;
    }
}

/* The model: all of a row follows from its token and its position. */
static void fill_row(float *row, size_t heads, uint64_t tensor, uint32_t layer, uint64_t position, int32_t token)
{
    uint64_t state = rng_mix((uint64_t)token << 32 | position << 8 | layer << 4 | tensor);
    for (size_t i = 0; i < heads * DIM; i++) {
        state = rng_mix(state + 1);
        row[i] = (float)(state >> 40) / (float)(1 << 23) - 1;
    }
}

static float queries[MAX_ROWS][HEADS * DIM], keys[MAX_ROWS][DIM], values[MAX_ROWS][DIM], outputs[MAX_ROWS][HEADS * DIM];

static void run_layer(struct serving *s, const struct cattn_batch *batch, uint32_t layer)
{
    struct cattn_io io = {.size = sizeof io, .q = queries, .k = keys, .v = values, .out = outputs};
    for (size_t i = 0; i < batch->n_items; i++) {
        const struct cattn_item *item = &batch->items[i];
        for (uint32_t j = 0; j < item->n_rows; j++) {
            int32_t token = item->tokens[item->n_tokens - item->n_rows + j];
            uint32_t row = item->first_row + j;
            fill_row(queries[row], HEADS, 1, layer, item->position + j, token);
            fill_row(keys[row], 1, 2, layer, item->position + j, token);
            fill_row(values[row], 1, 3, layer, item->position + j, token);
        }
    }
    WITHOUT_MEMORY(ck_assert_int_eq(cattn_step_attend(s->step, layer, &io), CATTN_OK));
}

/* The token that follows from all bits of an output. */
static int32_t sample(const struct cattn_item *item)
{
    uint64_t hash = 0;
    const float *row = outputs[item->first_row + item->n_rows - 1];
    for (size_t i = 0; i < HEADS * DIM; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        hash = rng_mix(hash ^ bits);
    }
    return (int32_t)(hash % 1000);
}

static void run_batch(struct serving *s, const struct cattn_batch *batch)
{
    int32_t tokens[MAX_ROWS] = {0};
    ck_assert(batch->n_rows <= MAX_ROWS && batch->n_items <= MAX_ROWS);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        run_layer(s, batch, layer);
    for (size_t i = 0; i < batch->n_items; i++) {
        const struct cattn_turn *turn = &batch->turns[i];
        if (!turn->needs_token)
            continue;
        ck_assert_uint_lt(s->n_said[turn->tag], most_new(turn->tag));
        tokens[i] = s->said[turn->tag][s->n_said[turn->tag]++] = sample(&batch->items[i]);
        if (turn->is_last)
            s->ids[turn->tag] = 0;
    }
    WITHOUT_MEMORY(ck_assert_int_eq(cattn_step_end(s->step), CATTN_OK));
    WITHOUT_MEMORY(ck_assert_int_eq(cattn_sched_commit(s->sched, tokens, NULL), CATTN_OK));
}

static void cancel(struct serving *s, size_t i)
{
    if (!s->ids[i])
        return;
    WITHOUT_MEMORY(ck_assert_int_eq(cattn_sched_cancel(s->sched, s->ids[i]), CATTN_OK));
    s->ids[i] = 0;
}

/* Requests come while others run. */
static void serve(struct serving *s)
{
    struct cattn_batch batch = {0};
    for (size_t round = 0, n = 0; n < N_REQUESTS || batch.n_items; round++) {
        for (; n < N_REQUESTS && n <= round; n++)
            submit(s, n);
        if (round == 4)
            cancel(s, CANCELLED);
        next_batch(s, &batch);
        if (batch.n_items)
            run_batch(s, &batch);
    }
}

static struct serving *serve_in(uint64_t n_slots, bool fail, uint32_t policy)
{
    struct serving *s = calloc(1, sizeof *s);
    struct cattn_config config = engine_config(n_slots * CHUNK);
    struct cattn_sched_config sched = {.size = sizeof sched,
                                       .policy = policy,
                                       .max_batch = 6,
                                       .max_rows = n_slots % 2 ? MAX_ROWS : 7,
                                       .output_percent = 25};
    struct rng rng;
    rng_init(&rng, 99);
    make_texts(&rng, s->texts, N_TEXTS);
    config.n_layers = LAYERS;
    ck_assert_int_eq(cattn_cache_create(&config, &s->cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(s->cache, &s->step), CATTN_OK);
    ck_assert_int_eq(cattn_sched_create(s->cache, &sched, &s->sched), CATTN_OK);
    s->fail = fail;
    serve(s);
    struct sight sight = look_at(s);
    ck_assert(sight.counts.n_waiting == 0 && sight.counts.n_running == 0 && sight.stats.used_slots == 0);
    cattn_sched_destroy(s->sched);
    cattn_cache_destroy(s->cache);
    ck_assert_uint_eq(failing_memory_live(), 0);
    return s;
}

/* One that can never fit, its last token not stored and one slot more, is refused. */
static void compare(const struct serving *s, const struct serving *reference, uint64_t n_slots)
{
    for (size_t i = 0; i < N_REQUESTS; i++) {
        uint64_t stored = prompt_length(i) + most_new(i) - 1;
        ck_assert_int_eq(s->refused[i], (stored + CHUNK - 1) / CHUNK + 1 > n_slots);
        if (i != CANCELLED && !s->refused[i])
            ck_assert_uint_eq(s->n_said[i], reference->n_said[i]);
        size_t n = s->n_said[i] < reference->n_said[i] ? s->n_said[i] : reference->n_said[i];
        ck_assert_mem_eq(s->said[i], reference->said[i], n * sizeof **s->said);
    }
}

START_TEST(requests_get_the_same_text_in_any_pool_whatever_fails)
{
    struct serving *reference = serve_in(64, false, CATTN_FCFS);
    size_t n_failed = 0;
    ck_assert_uint_eq(reference->n_said[0], most_new(0));
    for (uint64_t n_slots = 1; n_slots <= 16; n_slots++) {
        for (int way = 0; way < 4; way++) {
            struct serving *s = serve_in(n_slots, way & 1, way & 2 ? CATTN_PREFIX : CATTN_FCFS);
            compare(s, reference, n_slots);
            n_failed += s->n_failed;
            free(s);
        }
    }
    free(reference);
    CHECK(n_failed > 500, "%zu allocations failed", n_failed);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("faults");
    tcase_add_test(tcase, each_allocation_fails_in_turn);
    tcase_add_test(tcase, a_load_that_fails_halfway);
    tcase_add_test(tcase, a_cache_that_cannot_be_made);
    tcase_add_test(tcase, requests_get_the_same_text_in_any_pool_whatever_fails);
    return suite_run(tcase);
}
