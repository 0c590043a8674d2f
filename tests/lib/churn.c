#include "churn.h"

#include <string.h>

#define MAX_SEQUENCES 6
#define LONGEST       24

const char *const churn_names[CHURN_NAMES] = {"", "a", "bc"};

struct place {
    cattn_seq seq; /* 0: none */
    bool in_step;
};

struct churn {
    struct small *small;
    struct rng *rng;
    struct place places[MAX_SEQUENCES];
    bool step_open;
};

/* Of two kinds, mostly of one: prompts often begin alike. */
static size_t draw_tokens(struct rng *rng, int32_t *tokens)
{
    size_t n = rng_below(rng, LONGEST);
    for (size_t i = 0; i < n; i++)
        tokens[i] = rng_chance(rng, 10);
    return n;
}

static const char *draw_name(struct rng *rng)
{
    return churn_names[rng_below(rng, CHURN_NAMES)];
}

static struct place *pick(struct churn *c, bool open)
{
    struct place *place = &c->places[rng_below(c->rng, MAX_SEQUENCES)];
    return open == (place->seq != 0) ? place : NULL;
}

static void open_one(struct churn *c)
{
    int32_t tokens[LONGEST];
    size_t n = draw_tokens(c->rng, tokens);
    const char *name = draw_name(c->rng);
    struct place *place = pick(c, false);
    if (place)
        ck_assert_int_eq(cattn_seq_open(c->small->cache, name, strlen(name), tokens, n, &place->seq, NULL), CATTN_OK);
}

static void close_one(struct churn *c)
{
    struct place *place = pick(c, true);
    if (!place)
        return;
    ck_assert_int_eq(cattn_seq_close(c->small->cache, place->seq), CATTN_OK);
    *place = (struct place){0};
}

static void fork_one(struct churn *c)
{
    struct place *from = pick(c, true), *to = pick(c, false);
    if (from && to)
        ck_assert_int_eq(cattn_seq_fork(c->small->cache, from->seq, &to->seq), from->in_step ? CATTN_EBUSY : CATTN_OK);
}

static void truncate_one(struct churn *c)
{
    struct place *place = pick(c, true);
    size_t length;
    if (!place)
        return;
    ck_assert_int_eq(cattn_seq_length(c->small->cache, place->seq, &length), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(c->small->cache, place->seq, rng_below(c->rng, length + 1)),
                     place->in_step ? CATTN_EBUSY : CATTN_OK);
}

static void pin_one(struct churn *c)
{
    int32_t tokens[LONGEST];
    size_t n = draw_tokens(c->rng, tokens);
    const char *name = draw_name(c->rng);
    int status = rng_chance(c->rng, 30) ? cattn_prefix_pin(c->small->cache, name, strlen(name), tokens, n, NULL)
                                        : cattn_prefix_unpin(c->small->cache, name, strlen(name), tokens, n, NULL);
    ck_assert(status == CATTN_OK || status == CATTN_ENOTFOUND);
}

static void invalidate_one(struct churn *c)
{
    const char *name = draw_name(c->rng);
    if (rng_chance(c->rng, 20))
        ck_assert_int_eq(cattn_namespace_invalidate(c->small->cache, name, strlen(name)), CATTN_OK);
}

static void evict_some(struct churn *c)
{
    ck_assert_int_eq(cattn_cache_evict(c->small->cache, rng_below(c->rng, 3), NULL), CATTN_OK);
}

static void begin(struct churn *c)
{
    static int32_t tokens[MAX_SEQUENCES][LONGEST];
    struct cattn_item items[MAX_SEQUENCES];
    struct place *places[MAX_SEQUENCES];
    size_t n_items = 0;
    for (size_t i = 0; i < MAX_SEQUENCES; i++) {
        struct place *place = &c->places[i];
        size_t n = draw_tokens(c->rng, tokens[i]);
        if (!place->seq || !n || rng_chance(c->rng, 40))
            continue;
        places[n_items] = place;
        items[n_items++] = small_item(place->seq, tokens[i], (uint32_t)n);
    }
    int status = cattn_step_begin(c->small->step, items, n_items);
    ck_assert(status == CATTN_OK || status == CATTN_EFULL || status == CATTN_ETOOBIG);
    for (size_t i = 0; i < n_items && status == CATTN_OK; i++)
        places[i]->in_step = true;
    c->step_open = status == CATTN_OK;
}

static void finish(struct churn *c)
{
    if (rng_chance(c->rng, 25))
        ck_assert_int_eq(cattn_step_abort(c->small->step), CATTN_OK);
    else
        small_finish(c->small);
    c->step_open = false;
    for (size_t i = 0; i < MAX_SEQUENCES; i++)
        c->places[i].in_step = false;
}

static void step(struct churn *c)
{
    if (c->step_open)
        finish(c);
    else
        begin(c);
}

void churn(struct small *small, struct rng *rng, size_t n_calls, void (*check)(void))
{
    static void (*const calls[])(struct churn *) = {open_one, open_one,       close_one, fork_one,
                                                    step,     step,           step,      truncate_one,
                                                    pin_one,  invalidate_one, step,      evict_some};
    struct churn c = {.small = small, .rng = rng};
    for (size_t i = 0; i < n_calls; i++) {
        calls[rng_below(rng, sizeof calls / sizeof *calls)](&c);
        ck_assert_int_eq(cattn_cache_selfcheck(small->cache), CATTN_OK);
        check();
    }
    if (c.step_open)
        finish(&c);
    check();
}
