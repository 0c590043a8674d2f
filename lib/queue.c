/* The records of requests, and the list of those that wait. */
#include "scheduler.h"

#include "memory.h"

#include <string.h>

struct cattn_want *cattn_sched_find(const struct cattn_sched *sched, cattn_request request)
{
    uint32_t i = cattn_handle_place(request);
    return sched && request && i < sched->n_wants && sched->wants[i].id == request ? &sched->wants[i] : NULL;
}

bool cattn_want_before(const struct cattn_want *a, const struct cattn_want *b)
{
    return a->arrival != b->arrival ? a->arrival < b->arrival : a->order < b->order;
}

/* ---- records */

static int reserve_record(struct cattn_sched *sched)
{
    if (sched->free != CATTN_NONE)
        return CATTN_OK;
    if (sched->n_wants == CATTN_PLACES)
        return CATTN_ENOMEM;
    struct cattn_want *wants =
        cattn_grow(sched->wants, &sched->wants_capacity, (size_t)sched->n_wants + 1, sizeof(*wants));
    if (!wants)
        return CATTN_ENOMEM;
    sched->wants = wants;
    uint32_t i = sched->free = sched->n_wants++;
    wants[i] = (struct cattn_want){.next_id = cattn_handle_first(sched->seed, i), .next = CATTN_NONE};
    return CATTN_OK;
}

int cattn_sched_add(struct cattn_sched *sched, const struct cattn_request_config *config, uint32_t *want)
{
    void *name = cattn_malloc(config->ns_len, 1);
    int32_t *tokens = cattn_malloc(config->n_tokens + (size_t)config->max_new, sizeof(*tokens));
    if (!name || !tokens || reserve_record(sched)) {
        cattn_free(name);
        cattn_free(tokens);
        return CATTN_ENOMEM;
    }
    if (config->ns_len)
        memcpy(name, config->ns, config->ns_len);
    memcpy(tokens, config->tokens, config->n_tokens * sizeof(*tokens));
    uint32_t i = sched->free;
    cattn_request id = sched->wants[i].next_id;
    uint64_t ahead = sched->stats.n_waiting;
    sched->free = sched->wants[i].next;
    sched->wants[i] = (struct cattn_want){.id = id,
                                          .ns = {name, config->ns_len},
                                          .tokens = tokens,
                                          .n_tokens = config->n_tokens,
                                          .n_prompt = config->n_tokens,
                                          .max_new = config->max_new,
                                          .priority = config->priority,
                                          .arrival = config->arrival,
                                          .order = ++sched->last_order,
                                          .tag = config->tag,
                                          .most_passed = (sched->ageing - 1) * (ahead ? ahead : 1),
                                          .revision = UINT64_MAX};
    cattn_sched_link(sched, i);
    *want = i;
    return CATTN_OK;
}

/* A record whose ids are used up is never taken again. */
void cattn_sched_forget(struct cattn_sched *sched, uint32_t want)
{
    struct cattn_want *x = &sched->wants[want];
    cattn_request next = cattn_handle_next(sched->seed, x->id);
    cattn_free(x->ns.bytes);
    cattn_free(x->tokens);
    *x = (struct cattn_want){.next_id = next, .next = sched->free};
    if (next)
        sched->free = want;
}

/* ---- those that wait, the first to arrive in front */

/* Most come last: the place is looked for from the end. */
void cattn_sched_link(struct cattn_sched *sched, uint32_t want)
{
    struct cattn_want *wants = sched->wants, *x = &wants[want];
    uint32_t before = sched->last;
    while (before != CATTN_NONE && cattn_want_before(x, &wants[before]))
        before = wants[before].prev;
    x->prev = before;
    x->next = before == CATTN_NONE ? sched->first : wants[before].next;
    *(x->prev == CATTN_NONE ? &sched->first : &wants[x->prev].next) = want;
    *(x->next == CATTN_NONE ? &sched->last : &wants[x->next].prev) = want;
    sched->stats.n_waiting++;
}

void cattn_sched_unlink(struct cattn_sched *sched, uint32_t want)
{
    struct cattn_want *wants = sched->wants, *x = &wants[want];
    *(x->prev == CATTN_NONE ? &sched->first : &wants[x->prev].next) = x->next;
    *(x->next == CATTN_NONE ? &sched->last : &wants[x->next].prev) = x->prev;
    sched->stats.n_waiting--;
}
