/* The records of requests, and the list of those that wait. */
#include "scheduler.h"

#include "memory.h"

#include <string.h>

struct cattn_want *cattn_sched_find(const struct cattn_sched *sched, cattn_request request)
{
    uint32_t i = cattn_handle_place(request);
    struct cattn_want *want = sched && request && i < sched->n_wants ? &sched->wants[i] : NULL;
    return want && want->id == request && !want->cancelled ? want : NULL;
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

/* The bytes of a prompt's extra identities; 0: more than there can be. */
static size_t count_bytes(const struct cattn_ext *ext)
{
    size_t n = 0;
    for (size_t i = 0; i < ext->n_extras; i++) {
        if (ext->extras[i].id_len > SIZE_MAX / 4 - n)
            return 0;
        n += ext->extras[i].id_len;
    }
    return n;
}

/* NULL: no memory. */
static struct cattn_want_extras *copy_extras(const struct cattn_ext *ext)
{
    size_t n_bytes = count_bytes(ext), n = ext->n_extras;
    if (!n_bytes || n > SIZE_MAX / 8 / sizeof(struct cattn_extra))
        return NULL;
    struct cattn_want_extras *copy = cattn_malloc(sizeof(*copy) + 2 * n * sizeof(*copy->ranges) + n_bytes, 1);
    if (!copy)
        return NULL;
    unsigned char *bytes = (unsigned char *)&copy->ranges[2 * n];
    copy->all = (struct cattn_ext){sizeof(copy->all), copy->ranges, n};
    copy->part = (struct cattn_ext){sizeof(copy->part), &copy->ranges[n], 0};
    for (size_t i = 0; i < n; i++) {
        copy->ranges[i] = ext->extras[i];
        copy->ranges[i].id = bytes;
        memcpy(bytes, ext->extras[i].id, ext->extras[i].id_len);
        bytes += ext->extras[i].id_len;
    }
    return copy;
}

const struct cattn_ext *cattn_want_part(const struct cattn_want *want, size_t first, size_t n)
{
    struct cattn_want_extras *x = want->extras;
    if (!x)
        return NULL;
    struct cattn_extra *part = &x->ranges[x->all.n_extras];
    x->part.n_extras = 0;
    for (size_t i = 0; i < x->all.n_extras; i++) {
        const struct cattn_extra *range = &x->ranges[i];
        uint64_t begin = range->first > first ? range->first : first, end = range->first + range->n;
        end = end < first + n ? end : first + n;
        if (begin < end)
            part[x->part.n_extras++] = (struct cattn_extra){begin - first, end - begin, range->id, range->id_len};
    }
    return x->part.n_extras ? &x->part : NULL;
}

static void free_request(struct cattn_want *want)
{
    cattn_free(want->ns.bytes);
    if (want->ids != want->tokens)
        cattn_free(want->ids);
    cattn_free(want->tokens);
    cattn_free(want->extras);
}

static int hold_extras(struct cattn_cache *cache, struct cattn_want *want)
{
    struct cattn_extras *extras = &cache->tree.extras;
    if (cattn_extras_translate(extras, &want->extras->all, want->tokens, want->n_prompt, want->ids))
        return CATTN_ENOMEM;
    cattn_extras_hold(extras, want->ids, want->n_prompt);
    cattn_extras_drop(extras, want->ids, want->n_prompt);
    return CATTN_OK;
}

/* What the caller gave, and room for what will be generated. */
static int copy_request(struct cattn_sched *sched, const struct cattn_request_config *config, struct cattn_want *want)
{
    size_t n = config->n_tokens + (size_t)config->max_new;
    bool has_extras = config->ext && config->ext->n_extras;
    *want = (struct cattn_want){.ns = {cattn_malloc(config->ns_len, 1), config->ns_len}, .n_prompt = config->n_tokens};
    want->tokens = cattn_malloc(n, sizeof(*want->tokens));
    want->ids = has_extras ? cattn_malloc(n, sizeof(*want->ids)) : want->tokens;
    want->extras = has_extras ? copy_extras(config->ext) : NULL;
    if (!want->ns.bytes || !want->tokens || !want->ids || (has_extras && !want->extras))
        return CATTN_ENOMEM;
    if (config->ns_len)
        memcpy(want->ns.bytes, config->ns, config->ns_len);
    memcpy(want->tokens, config->tokens, config->n_tokens * sizeof(*want->tokens));
    return has_extras ? CATTN_LOCKED(sched->cache, hold_extras(sched->cache, want)) : CATTN_OK;
}

int cattn_sched_add(struct cattn_sched *sched, const struct cattn_request_config *config, uint32_t *want)
{
    struct cattn_want copy;
    if (reserve_record(sched))
        return CATTN_ENOMEM;
    if (copy_request(sched, config, &copy)) {
        free_request(&copy);
        return CATTN_ENOMEM;
    }
    uint32_t i = sched->free;
    cattn_request id = sched->wants[i].next_id;
    uint64_t ahead = sched->stats.n_waiting;
    sched->free = sched->wants[i].next;
    sched->wants[i] = (struct cattn_want){.id = id,
                                          .ns = copy.ns,
                                          .tokens = copy.tokens,
                                          .ids = copy.ids,
                                          .extras = copy.extras,
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
    if (x->extras) {
        cattn_lock(sched->cache);
        cattn_extras_unhold(&sched->cache->tree.extras, x->ids, x->n_prompt);
        cattn_unlock(sched->cache, CATTN_OK);
    }
    free_request(x);
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
