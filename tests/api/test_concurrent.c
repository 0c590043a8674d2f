/* CATTN_CONCURRENT: one thread steps while others open, fork, close, pin and look.  Meant for ThreadSanitizer, too. */
#define _POSIX_C_SOURCE 200809L
#include "support/engine.h"
#include "support/suite.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32, N_BASES = 4, BASE = 4 * CHUNK, LENGTH = BASE + 40, N_REQUESTS = 12, N_LIVE = 4, N_OTHERS = 3 };

static struct cattn_config concurrent_config(uint32_t n_threads, uint32_t flags)
{
    struct cattn_config config = engine_config(600 * CHUNK);
    config.n_layers = 2;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.n_threads = n_threads;
    config.flags = flags;
    return config;
}

/* ---- the thread that steps: requests one after the other, some at a time ------------------------------- */

/* Requests begin like one of the bases, for a while. */
struct texts {
    int32_t bases[N_BASES][BASE];
    int32_t requests[N_REQUESTS][LENGTH];
};

static void make_texts(struct texts *texts)
{
    struct rng rng;
    rng_init(&rng, 1);
    random_tokens(&rng, texts->bases[0], N_BASES * BASE, 1000);
    random_tokens(&rng, texts->requests[0], N_REQUESTS * LENGTH, 1000);
    for (size_t i = 0; i < N_REQUESTS; i++)
        memcpy(texts->requests[i], texts->bases[i % N_BASES], (BASE - rng_below(&rng, CHUNK)) * sizeof(int32_t));
}

struct script {
    struct engine e;
    struct rng rng;
    struct texts texts;
    struct toy toys[N_LIVE];
    size_t request[N_LIVE]; /* that the toy is; N_REQUESTS: none */
    struct trace *traces[N_REQUESTS];
    size_t n_begun;
    _Atomic cattn_seq shown[N_LIVE]; /* for others to fork */
    _Atomic cattn_seq victim;        /* in the open step, for others to close */
    atomic_int over;
};

static void next_request(struct script *s, size_t i)
{
    if (s->n_begun == N_REQUESTS) {
        s->request[i] = N_REQUESTS;
        return;
    }
    size_t r = s->request[i] = s->n_begun++;
    engine_open(&s->e, &s->toys[i], 0, s->texts.requests[r], BASE);
    s->toys[i].trace = s->traces[r] = trace_new(&s->e, LENGTH);
    s->shown[i] = s->toys[i].seq;
}

/* Its prompt, or some tokens, of which a few are rejected afterwards. */
static void add_item(struct script *s, size_t i, struct engine_item *items, size_t *n)
{
    if (s->request[i] == N_REQUESTS)
        return;
    size_t length = s->toys[i].length, end = length < BASE ? BASE : length + 1 + rng_below(&s->rng, 5);
    end = end < LENGTH ? end : LENGTH;
    items[(*n)++] = (struct engine_item){.toy = &s->toys[i],
                                         .tokens = s->texts.requests[s->request[i]] + length,
                                         .n_tokens = (uint32_t)(end - length),
                                         .min_rows = length < BASE ? 1 : (uint32_t)(end - length)};
}

static void settle(struct script *s, size_t i)
{
    if (s->request[i] == N_REQUESTS)
        return;
    if (s->toys[i].length == LENGTH) {
        engine_close(&s->e, &s->toys[i]);
        next_request(s, i);
    } else if (s->toys[i].length > BASE && rng_chance(&s->rng, 30)) {
        engine_truncate(&s->e, &s->toys[i], s->toys[i].length - 1);
    }
}

/* One of the items is for others to close in the middle of the step. */
static void run_step(struct script *s, size_t number)
{
    struct engine_item items[N_LIVE + 1];
    struct toy victim;
    size_t n = 0;
    engine_open(&s->e, &victim, 0, NULL, 0);
    items[n++] = (struct engine_item){.toy = &victim, .tokens = s->texts.bases[number % N_BASES], .n_tokens = 5};
    for (size_t i = 0; i < N_LIVE; i++)
        add_item(s, i, items, &n);
    int status = engine_begin(&s->e, items, n);
    CHECK(status == CATTN_OK, "begin: %s", cattn_strerror(status));
    s->victim = victim.seq;
    s->e.form = (enum engine_form)(number % N_FORMS);
    engine_layers(&s->e);
    cattn_seq left = atomic_exchange(&s->victim, 0);
    engine_end(&s->e);
    if (left)
        engine_close(&s->e, &victim);
    else
        toy_free(&victim);
    for (size_t i = 0; i < N_LIVE; i++)
        settle(s, i);
}

static int is_done(const struct script *s)
{
    for (size_t i = 0; i < N_LIVE; i++)
        if (s->request[i] < N_REQUESTS)
            return 0;
    return 1;
}

static void run_script(struct script *s)
{
    for (size_t i = 0; i < N_LIVE; i++)
        next_request(s, i);
    for (size_t number = 0; !is_done(s); number++)
        run_step(s, number);
    s->over = 1;
}

static struct script *new_script(const struct cattn_config *config)
{
    struct script *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    engine_init(&s->e, config, 2);
    rng_init(&s->rng, 3);
    make_texts(&s->texts);
    s->e.check_rows = 1;
    return s;
}

static void free_script(struct script *s)
{
    engine_free(&s->e);
    for (size_t i = 0; i < N_REQUESTS; i++)
        trace_free(s->traces[i]);
    free(s);
}

/* ---- the others -------------------------------------------------------------------------------------- */

enum { MAX_HELD = 6, LEAST_CALLS = 300 };

struct other {
    struct script *s;
    cattn_cache *cache;
    pthread_t thread;
    struct rng rng;
    cattn_seq held[MAX_HELD];
    size_t lengths[MAX_HELD], n_held;
    int32_t tokens[LENGTH];
};

static void expect(int status, int allowed, const char *call)
{
    CHECK(status == CATTN_OK || status == allowed, "%s: %s", call, cattn_strerror(status));
}

static void hold(struct other *o, cattn_seq seq)
{
    ck_assert_int_eq(cattn_seq_length(o->cache, seq, &o->lengths[o->n_held]), CATTN_OK);
    o->held[o->n_held++] = seq;
}

static size_t draw_prompt(struct other *o)
{
    size_t n = rng_below(&o->rng, BASE);
    memcpy(o->tokens, o->s->texts.bases[rng_below(&o->rng, N_BASES)], n * sizeof *o->tokens);
    random_tokens(&o->rng, o->tokens + n, 10, 1000);
    return n + 10;
}

static void open_one(struct other *o)
{
    size_t n = draw_prompt(o), n_cached;
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(o->cache, NULL, 0, o->tokens, n, &seq, &n_cached), CATTN_OK);
    hold(o, seq);
}

/* In a private namespace, which reads the one of the stepping thread unless another thread has just taken that away. */
static void open_private(struct other *o)
{
    struct cattn_namespace_config config = {.size = sizeof config, .public_ns = rng_chance(&o->rng, 80) ? "" : NULL};
    const char *name = rng_chance(&o->rng, 50) ? "a" : "b";
    expect(cattn_namespace_set(o->cache, name, 1, &config), CATTN_EBUSY, "namespace_set");
    size_t n = draw_prompt(o), n_cached;
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(o->cache, name, 1, o->tokens, n, &seq, &n_cached), CATTN_OK);
    hold(o, seq);
}

/* Of the stepping thread's, or its own. */
static void fork_one(struct other *o)
{
    cattn_seq seq = atomic_load(&o->s->shown[rng_below(&o->rng, N_LIVE)]), forked;
    if (o->n_held && rng_chance(&o->rng, 30))
        seq = o->held[rng_below(&o->rng, o->n_held)];
    int status = cattn_seq_fork(o->cache, seq, &forked);
    CHECK(status == CATTN_OK || status == CATTN_EBUSY || status == CATTN_EINVAL, "fork: %s", cattn_strerror(status));
    if (status == CATTN_OK)
        hold(o, forked);
}

static void use_one(struct other *o, size_t i)
{
    struct cattn_why why = {.size = sizeof why};
    size_t length;
    ck_assert_int_eq(cattn_seq_tokens(o->cache, o->held[i], o->tokens, LENGTH, &length), CATTN_OK);
    ck_assert_uint_eq(length, o->lengths[i]);
    ck_assert_int_eq(cattn_seq_why(o->cache, o->held[i], &why), CATTN_OK);
    o->lengths[i] = rng_below(&o->rng, length + 1);
    ck_assert_int_eq(cattn_seq_truncate(o->cache, o->held[i], o->lengths[i]), CATTN_OK);
}

static void close_one(struct other *o, size_t i)
{
    ck_assert_int_eq(cattn_seq_close(o->cache, o->held[i]), CATTN_OK);
    o->held[i] = o->held[--o->n_held];
    o->lengths[i] = o->lengths[o->n_held];
}

static void close_victim(struct other *o)
{
    cattn_seq seq = atomic_exchange(&o->s->victim, 0);
    if (seq)
        ck_assert_int_eq(cattn_seq_close(o->cache, seq), CATTN_OK);
}

static void look(struct other *o)
{
    struct cattn_stats stats = {.size = sizeof stats};
    struct cattn_info info = {.size = sizeof info};
    struct cattn_usage usage = {.size = sizeof usage};
    ck_assert_int_eq(cattn_cache_stats(o->cache, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.used_slots + stats.free_slots + stats.evictable_slots, stats.n_slots);
    ck_assert_int_eq(cattn_cache_info(o->cache, &info), CATTN_OK);
    expect(cattn_namespace_stats(o->cache, NULL, 0, &usage), CATTN_ENOTFOUND, "namespace_stats");
}

static int write_nothing(void *context, const char *text, size_t n)
{
    *(size_t *)context += n;
    return text == NULL;
}

static void walk(struct other *o)
{
    size_t n = 0;
    ck_assert_int_eq(cattn_cache_selfcheck(o->cache), CATTN_OK);
    ck_assert_int_eq(cattn_cache_dump_dot(o->cache, write_nothing, &n), CATTN_OK);
    ck_assert_uint_gt(n, 0);
}

/* One that is not open while another may be. */
static void make_step(struct other *o)
{
    cattn_step *step;
    ck_assert_int_eq(cattn_step_create(o->cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_abort(step), CATTN_ESTATE);
    cattn_step_destroy(step);
}

/* What changes the order of eviction. */
static void reorder(struct other *o)
{
    struct cattn_retention retention = {.size = sizeof retention, .priority = 1, .ttl = rng_below(&o->rng, 3)};
    struct cattn_namespace_config config = {.size = sizeof config, .reserve_slots = rng_below(&o->rng, 2)};
    size_t n = draw_prompt(o);
    expect(cattn_prefix_retain(o->cache, NULL, 0, o->tokens, n, NULL, &retention), CATTN_ENOTFOUND, "retain");
    expect(cattn_cache_advance(o->cache, rng_below(&o->rng, 1000)), CATTN_EINVAL, "advance");
    ck_assert_int_eq(cattn_namespace_set(o->cache, NULL, 0, &config), CATTN_OK);
}

static void call_at_random(struct other *o)
{
    uint64_t what = rng_below(&o->rng, 100);
    if (what < 20 && o->n_held < MAX_HELD)
        open_one(o);
    else if (what < 25 && o->n_held < MAX_HELD)
        open_private(o);
    else if (what < 45 && o->n_held < MAX_HELD)
        fork_one(o);
    else if (what < 60 && o->n_held)
        use_one(o, rng_below(&o->rng, o->n_held));
    else if (what < 75 && o->n_held)
        close_one(o, rng_below(&o->rng, o->n_held));
    else if (what < 80)
        expect(cattn_prefix_pin(o->cache, NULL, 0, o->tokens, draw_prompt(o), NULL), CATTN_ENOTFOUND, "pin");
    else if (what < 85)
        expect(cattn_prefix_unpin(o->cache, NULL, 0, o->tokens, draw_prompt(o), NULL), CATTN_ENOTFOUND, "unpin");
    else if (what < 88)
        close_victim(o);
    else if (what < 93)
        look(o);
    else if (what < 95)
        make_step(o);
    else if (what < 96)
        walk(o);
    else if (what < 97)
        ck_assert_int_eq(cattn_namespace_invalidate(o->cache, NULL, 0), CATTN_OK);
    else if (what < 98)
        reorder(o);
    else
        ck_assert_int_eq(cattn_cache_evict(o->cache, rng_below(&o->rng, 4), NULL), CATTN_OK);
}

static void *run_other(void *argument)
{
    struct other *o = argument;
    for (size_t n = 0; n < LEAST_CALLS || !o->s->over; n++) {
        call_at_random(o);
        sched_yield();
    }
    while (o->n_held)
        close_one(o, 0);
    return NULL;
}

/* ---- together ---------------------------------------------------------------------------------------- */

static void check_empty(struct script *s)
{
    ck_assert_int_eq(cattn_namespace_invalidate(s->e.cache, NULL, 0), CATTN_OK);
    engine_check(&s->e, NULL, 0);
    struct cattn_stats stats = engine_stats(&s->e);
    ck_assert_uint_eq(stats.n_sequences, 0);
    ck_assert_uint_eq(stats.sequence_tokens, 0);
    ck_assert_uint_eq(stats.n_pins, 0);
    ck_assert_uint_eq(stats.cached_tokens, 0);
    ck_assert_uint_eq(stats.free_slots, stats.n_slots);
}

static void run_among_others(struct script *s)
{
    static struct other others[N_OTHERS];
    for (size_t i = 0; i < N_OTHERS; i++) {
        others[i] = (struct other){.s = s, .cache = s->e.cache};
        rng_init(&others[i].rng, 10 + i);
        ck_assert_int_eq(pthread_create(&others[i].thread, NULL, run_other, &others[i]), 0);
    }
    run_script(s);
    for (size_t i = 0; i < N_OTHERS; i++)
        pthread_join(others[i].thread, NULL);
}

static void compare(uint32_t n_threads, uint32_t flags)
{
    struct cattn_config config = concurrent_config(n_threads, flags);
    struct script *alone = new_script(&config);
    run_script(alone);
    config.flags |= CATTN_CONCURRENT;
    struct script *among = new_script(&config);
    run_among_others(among);
    for (size_t r = 0; r < N_REQUESTS; r++)
        CHECK(trace_differences(alone->traces[r], among->traces[r]) == 0, "request %zu, %u threads, flags %u", r,
              n_threads, flags);
    check_empty(alone);
    check_empty(among);
    free_script(alone);
    free_script(among);
}

START_TEST(others_change_no_bit)
{
    compare(1, 0);
    compare(3, CATTN_ZERO_FREED);
    compare(2, CATTN_ZERO_FREED | CATTN_NO_RETAIN);
}
END_TEST

/* ---- layers do not wait ------------------------------------------------------------------------------- */

struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int entered, open;
    cattn_cache *cache;
};

static void set(struct gate *g, int *what)
{
    pthread_mutex_lock(&g->mutex);
    *what = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

static void wait_for(struct gate *g, const int *what)
{
    pthread_mutex_lock(&g->mutex);
    while (!*what)
        pthread_cond_wait(&g->changed, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
}

static int stay(void *context, const char *text, size_t n)
{
    struct gate *g = context;
    (void)text;
    (void)n;
    set(g, &g->entered);
    wait_for(g, &g->open);
    return 0;
}

static void *draw_slowly(void *argument)
{
    struct gate *g = argument;
    ck_assert_int_eq(cattn_cache_dump_dot(g->cache, stay, g), CATTN_OK);
    return NULL;
}

/* Another thread is inside a call all the while. */
START_TEST(layers_do_not_wait)
{
    struct cattn_config config = concurrent_config(2, CATTN_CONCURRENT);
    struct engine e;
    struct toy toy;
    struct gate gate = {.open = 0};
    pthread_t thread;
    int32_t tokens[CHUNK + 3];
    engine_init(&e, &config, 4);
    random_tokens(&e.rng, tokens, CHUNK + 3, 1000);
    engine_open(&e, &toy, 0, NULL, 0);
    gate.cache = e.cache;
    pthread_mutex_init(&gate.mutex, NULL);
    pthread_cond_init(&gate.changed, NULL);
    struct engine_item item = {.toy = &toy, .tokens = tokens, .n_tokens = CHUNK + 3};
    ck_assert_int_eq(engine_begin(&e, &item, 1), CATTN_OK);
    ck_assert_int_eq(pthread_create(&thread, NULL, draw_slowly, &gate), 0);
    wait_for(&gate, &gate.entered);
    for (int form = 0; form < N_FORMS; form++) {
        e.form = (enum engine_form)form;
        engine_layers(&e);
    }
    set(&gate, &gate.open);
    pthread_join(thread, NULL);
    engine_end(&e);
    engine_close(&e, &toy);
    engine_free(&e);
    pthread_cond_destroy(&gate.changed);
    pthread_mutex_destroy(&gate.mutex);
}
END_TEST

/* ---- several threads that step ------------------------------------------------------------------------ */

enum { DIM = 16, N_STEPPING = 3, N_STEPS = 2 * CHUNK };

struct stepping {
    cattn_cache *cache;
    atomic_int *n_inside;
    pthread_t thread;
    int32_t number;
};

/* Until it is open, its layers say so, whoever has one open. */
static void begin_when_free(const struct stepping *x, cattn_step *step, struct cattn_item *item,
                            const struct cattn_io *io)
{
    int status;
    for (;; sched_yield()) {
        for (int i = 0; i < 20; i++)
            ck_assert_int_eq(cattn_step_attend(step, 0, io), CATTN_ESTATE);
        status = cattn_step_begin(step, item, 1);
        if (status != CATTN_ESTATE)
            break;
    }
    CHECK(status == CATTN_OK, "begin: %s", cattn_strerror(status));
    ck_assert_int_eq(atomic_fetch_add(x->n_inside, 1), 0);
}

/* All values of a sequence are its number, and so is each output. */
static void *step_often(void *argument)
{
    struct stepping *x = argument;
    float qkv[4 * DIM] = {0}, out[2 * DIM];
    struct cattn_io io = {.size = sizeof io, .q = qkv, .k = qkv, .v = qkv + 2 * DIM, .out = out};
    cattn_step *step;
    cattn_seq seq;
    for (int i = 2 * DIM; i < 4 * DIM; i++)
        qkv[i] = (float)x->number;
    ck_assert_int_eq(cattn_step_create(x->cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(x->cache, NULL, 0, NULL, 0, &seq, NULL), CATTN_OK);
    for (int n = 0; n < N_STEPS; n++) {
        struct cattn_item item = {.seq = seq, .tokens = &x->number, .n_tokens = 1};
        begin_when_free(x, step, &item, &io);
        ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_OK);
        ck_assert_int_eq(atomic_fetch_sub(x->n_inside, 1), 1);
        ck_assert_int_eq(n % 5 == 4 ? cattn_step_abort(step) : cattn_step_end(step), CATTN_OK);
        for (int i = 0; i < 2 * DIM; i++)
            CHECK(fabsf(out[i] - (float)x->number) < 1e-5f, "%g, not %d", out[i], x->number);
    }
    cattn_step_destroy(step);
    ck_assert_int_eq(cattn_seq_close(x->cache, seq), CATTN_OK);
    return NULL;
}

START_TEST(one_step_at_a_time)
{
    struct cattn_config config = engine_config(16 * CHUNK);
    struct stepping threads[N_STEPPING];
    atomic_int n_inside = 0;
    struct engine e;
    config.flags = CATTN_CONCURRENT;
    engine_init(&e, &config, 5);
    for (int32_t i = 0; i < N_STEPPING; i++) {
        threads[i] = (struct stepping){.cache = e.cache, .n_inside = &n_inside, .number = i + 1};
        ck_assert_int_eq(pthread_create(&threads[i].thread, NULL, step_often, &threads[i]), 0);
    }
    for (size_t i = 0; i < N_STEPPING; i++)
        pthread_join(threads[i].thread, NULL);
    engine_check(&e, NULL, 0);
    ck_assert_uint_eq(engine_stats(&e).used_slots, 0);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("concurrent");
    tcase_add_test(tcase, others_change_no_bit);
    tcase_add_test(tcase, layers_do_not_wait);
    tcase_add_test(tcase, one_step_at_a_time);
    return suite_run(tcase);
}
