/* Pools of every size, from one slot up to more than enough, run full at every step: a call that does not fit says so
 * and changes nothing, and what is computed has the bits that it has in a large pool. */
#define _DEFAULT_SOURCE 1
#include "support/snapshot.h"
#include "support/suite.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 32, LENGTH = 5 * CHUNK + 9, N_TEXTS = 4, N_TOYS = 4, N_PINS = 8, MAX_ITEMS = 3, MOST_SLOTS = 14 };

static int32_t texts[N_TEXTS][LENGTH];
static struct trace *expected[N_TEXTS]; /* every token of them in a large pool, each alone */
static char path[] = "cattn-exhaustion-XXXXXX";

/* A toy says its text, as far as it is open. */
struct world {
    struct engine e;
    struct toy toys[N_TOYS];
    size_t text_of[N_TOYS];
    struct trace *traces[N_TEXTS];
    struct {
        size_t text, n;
    } pins[N_PINS];
    size_t n_pins;
    uint64_t n_slots;
};

static size_t seen[-CATTN_EFORMAT + 1]; /* how often a begin or a load came to each status */

static size_t chunks_of(size_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

/* ---- what is expected ------------------------------------------------------------------------------- */

static struct cattn_config config_of(const char *kernel, uint64_t n_slots)
{
    struct cattn_config config = engine_config(n_slots * CHUNK);
    config.kernel = kernel;
    config.n_layers = 2;
    return config;
}

/* The first text is saved, too. */
static void compute_expected(const char *kernel)
{
    for (size_t i = 0; i < N_TEXTS; i++) {
        struct engine e;
        struct toy toy;
        struct cattn_config config = config_of(kernel, 64);
        engine_init(&e, &config, 1);
        engine_open(&e, &toy, 0, NULL, 0);
        toy.trace = expected[i] = trace_new(&e, LENGTH);
        struct engine_item item = {.toy = &toy, .tokens = texts[i], .n_tokens = LENGTH, .min_rows = LENGTH};
        engine_step(&e, &item, 1);
        if (i == 0) {
            ck_assert_int_eq(cattn_prefix_pin(e.cache, NULL, 0, texts[0], LENGTH, NULL), CATTN_OK);
            int status = cattn_prefix_save(e.cache, path, NULL, 0);
            ck_assert(status == CATTN_OK || status == CATTN_ENOTSUP);
        }
        engine_close(&e, &toy);
        engine_free(&e);
    }
}

static void free_expected(void)
{
    for (size_t i = 0; i < N_TEXTS; i++)
        trace_free(expected[i]);
}

/* ---- calls that need no slot: they never fail ------------------------------------------------------- */

static struct toy *pick(struct world *w, bool open)
{
    size_t start = rng_below(&w->e.rng, N_TOYS);
    for (size_t k = 0; k < N_TOYS; k++) {
        struct toy *toy = &w->toys[(start + k) % N_TOYS];
        if ((toy->seq != 0) == open)
            return toy;
    }
    return NULL;
}

static void name(struct world *w, struct toy *toy, size_t text)
{
    w->text_of[toy - w->toys] = text;
    toy->trace = w->traces[text];
}

static void do_open(struct world *w)
{
    struct toy *toy = pick(w, false);
    size_t text = rng_below(&w->e.rng, N_TEXTS);
    if (!toy)
        return;
    engine_open(&w->e, toy, 0, texts[text], rng_below(&w->e.rng, LENGTH + 1));
    name(w, toy, text);
}

static void do_fork(struct world *w)
{
    struct toy *from = pick(w, true), *to = pick(w, false);
    if (!from || !to)
        return;
    engine_fork(&w->e, from, to);
    name(w, to, w->text_of[from - w->toys]);
}

static void do_truncate(struct world *w)
{
    struct toy *toy = pick(w, true);
    if (toy)
        engine_truncate(&w->e, toy, rng_below(&w->e.rng, toy->length + 1));
}

static void do_close(struct world *w)
{
    struct toy *toy = pick(w, true);
    if (toy)
        engine_close(&w->e, toy);
}

static void note_pin(struct world *w, size_t text, size_t n)
{
    w->pins[w->n_pins].text = text;
    w->pins[w->n_pins++].n = n;
}

static void do_pin(struct world *w)
{
    size_t text = rng_below(&w->e.rng, N_TEXTS), n = rng_below(&w->e.rng, LENGTH + 1);
    if (w->n_pins == N_PINS)
        return;
    int status = cattn_prefix_pin(w->e.cache, NULL, 0, texts[text], n, NULL);
    ck_assert(status == CATTN_OK || status == CATTN_ENOTFOUND);
    if (status == CATTN_OK)
        note_pin(w, text, n);
}

static void do_unpin(struct world *w)
{
    if (!w->n_pins)
        return;
    w->n_pins--;
    ck_assert_int_eq(cattn_prefix_unpin(w->e.cache, NULL, 0, texts[w->pins[w->n_pins].text], w->pins[w->n_pins].n, NULL),
                     CATTN_OK);
}

static void do_evict(struct world *w)
{
    ck_assert_int_eq(cattn_cache_evict(w->e.cache, rng_below(&w->e.rng, 3), NULL), CATTN_OK);
}

/* ---- calls that may not fit ------------------------------------------------------------------------- */

static struct snapshot take(const struct world *w)
{
    return snapshot_take(&w->e, w->toys, N_TOYS, 1);
}

static void do_load(struct world *w)
{
    uint64_t n_tokens;
    if (w->n_pins == N_PINS)
        return;
    struct snapshot before = take(w);
    int status = cattn_prefix_load(w->e.cache, path, NULL, 0, &n_tokens);
    bool same = snapshot_same(before, take(w));
    ck_assert(status == CATTN_OK || same);
    if (status == CATTN_ENOTSUP)
        return;
    seen[-status]++;
    ck_assert((status == CATTN_ETOOBIG) == (LENGTH / CHUNK > w->n_slots));
    ck_assert(status == CATTN_OK || status == CATTN_ETOOBIG || status == CATTN_EFULL);
    if (status == CATTN_OK)
        note_pin(w, 0, LENGTH);
}

static size_t pick_items(struct world *w, struct engine_item *items)
{
    size_t n = 0, wanted = rng_between(&w->e.rng, 1, MAX_ITEMS);
    for (size_t i = 0; i < N_TOYS && n < wanted; i++) {
        struct toy *toy = &w->toys[i];
        if (!toy->seq || toy->length == LENGTH)
            continue;
        uint64_t rest = LENGTH - toy->length, most = rng_chance(&w->e.rng, 50) && rest > CHUNK ? CHUNK : rest;
        items[n++] = (struct engine_item){.toy = toy,
                                          .tokens = texts[w->text_of[i]] + toy->length,
                                          .n_tokens = (uint32_t)rng_between(&w->e.rng, 1, most),
                                          .min_rows = (uint32_t)rng_below(&w->e.rng, 4)};
    }
    return n;
}

/* Whether the whole chunk i of an item is one of an item before it, too. */
static bool is_shared(const struct world *w, const struct engine_item *items, size_t item, size_t i)
{
    size_t end = (i + 1) * CHUNK;
    for (size_t k = 0; k < item; k++) {
        const int32_t *a = texts[w->text_of[items[k].toy - w->toys]], *b = texts[w->text_of[items[item].toy - w->toys]];
        if (items[k].toy->length + items[k].n_tokens >= end && !memcmp(a, b, end * sizeof *a))
            return true;
    }
    return false;
}

/* Slots that the items will have when the step is over: whole chunks once, incomplete ones each. */
static size_t slots_after(const struct world *w, const struct engine_item *items, size_t n)
{
    size_t n_slots = 0;
    for (size_t item = 0; item < n; item++) {
        size_t length = items[item].toy->length + items[item].n_tokens;
        n_slots += length % CHUNK > 0;
        for (size_t i = 0; i < length / CHUNK; i++)
            n_slots += !is_shared(w, items, item, i);
    }
    return n_slots;
}

static int try_step(struct world *w, const struct engine_item *items, size_t n)
{
    struct snapshot before = take(w);
    size_t n_after = slots_after(w, items, n);
    int status = engine_begin(&w->e, items, n);
    bool same = snapshot_same(before, take(w));
    seen[-status]++;
    CHECK((n_after > w->n_slots) == (status == CATTN_ETOOBIG), "%zu of %d slots: %s", n_after, (int)w->n_slots,
          cattn_strerror(status));
    if (status != CATTN_OK) {
        ck_assert(status == CATTN_EFULL || status == CATTN_ETOOBIG);
        ck_assert(same);
        return status;
    }
    engine_layers(&w->e);
    if (rng_chance(&w->e.rng, 15))
        engine_abort(&w->e);
    else
        engine_end(&w->e);
    for (size_t i = 0; i < n; i++) {
        size_t text = w->text_of[items[i].toy - w->toys];
        CHECK(!trace_differences(w->traces[text], expected[text]), "other bits in %d slots", (int)w->n_slots);
    }
    return status;
}

static void do_step(struct world *w)
{
    struct engine_item items[MAX_ITEMS];
    (void)try_step(w, items, pick_items(w, items));
}

/* ---- scripts ---------------------------------------------------------------------------------------- */

/* What the header promises: without others a sequence fits in one slot more than it has chunks. */
static void run_alone(struct world *w)
{
    struct toy *toy = pick(w, true);
    while (w->n_pins)
        do_unpin(w);
    for (size_t i = 0; i < N_TOYS; i++) {
        if (w->toys[i].seq && &w->toys[i] != toy)
            engine_close(&w->e, &w->toys[i]);
    }
    if (!toy || toy->length == LENGTH)
        return;
    struct engine_item item = {.toy = toy,
                               .tokens = texts[w->text_of[toy - w->toys]] + toy->length,
                               .n_tokens = (uint32_t)(rng_between(&w->e.rng, 1, LENGTH - toy->length))};
    size_t n_chunks = chunks_of(toy->length + item.n_tokens);
    int status = try_step(w, &item, 1);
    CHECK(n_chunks + 1 > w->n_slots || status == CATTN_OK, "%zu chunks in %d slots: %s", n_chunks, (int)w->n_slots,
          cattn_strerror(status));
}

static void check(struct world *w)
{
    for (size_t i = 0; i < N_TOYS; i++) {
        if (w->toys[i].seq)
            engine_check(&w->e, &w->toys[i], 1);
    }
    ck_assert_int_eq(cattn_cache_selfcheck(w->e.cache), CATTN_OK);
}

static void run_script(const char *kernel, uint64_t n_slots, uint64_t seed)
{
    static void (*const all[])(struct world *) = {do_open,  do_open, do_fork,  do_truncate, do_close,
                                                  do_close, do_pin,  do_unpin, do_evict,    do_load};
    struct world w = {.n_slots = n_slots};
    struct cattn_config config = config_of(kernel, n_slots);
    engine_init(&w.e, &config, 100 * seed + n_slots);
    w.e.unchecked = 1; /* what it is compared with was */
    for (size_t i = 0; i < N_TEXTS; i++)
        w.traces[i] = trace_new(&w.e, LENGTH);
    for (int i = 0; i < 60; i++) {
        all[rng_below(&w.e.rng, sizeof all / sizeof *all)](&w);
        do_step(&w);
        check(&w);
    }
    run_alone(&w);
    check(&w);
    for (size_t i = 0; i < N_TOYS; i++) {
        if (w.toys[i].seq)
            engine_close(&w.e, &w.toys[i]);
    }
    ck_assert_uint_eq(engine_stats(&w.e).used_slots, 0);
    for (size_t i = 0; i < N_TEXTS; i++)
        trace_free(w.traces[i]);
    engine_free(&w.e);
}

/* Two that begin alike up to the end of a chunk, one that leaves them inside of one, one of its own. */
static void make_texts(void)
{
    struct rng rng;
    rng_init(&rng, 1);
    for (size_t i = 0; i < N_TEXTS; i++)
        random_tokens(&rng, texts[i], LENGTH, 1000);
    memcpy(texts[1], texts[0], 2 * CHUNK * sizeof **texts);
    memcpy(texts[2], texts[0], (3 * CHUNK + 11) * sizeof **texts);
}

START_TEST(pools_of_every_size_run_full)
{
    const char *kernel;
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    make_texts();
    for (unsigned k = 0; (kernel = exact_kernel(k, CATTN_F32, CATTN_F32)); k++) {
        compute_expected(kernel);
        for (uint64_t n_slots = 1; n_slots <= MOST_SLOTS; n_slots++) {
            for (uint64_t seed = 1; seed <= (test_full() ? 200 : 4); seed++)
                run_script(kernel, n_slots, seed);
        }
        free_expected();
    }
    unlink(path);
    CHECK(seen[-CATTN_OK] > 1000 && seen[-CATTN_EFULL] > 500 && seen[-CATTN_ETOOBIG] > 500,
          "%zu steps, %zu did not fit, %zu could never", seen[-CATTN_OK], seen[-CATTN_EFULL], seen[-CATTN_ETOOBIG]);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("exhaustion");
    tcase_add_test(tcase, pools_of_every_size_run_full);
    return suite_run(tcase);
}
