/* Continuous batching: what runs in the next step, and what becomes of it. */
#include "scheduler.h"

#include "memory.h"
#include "seed.h"
#include "view.h"

#include <string.h>

#define DEFAULT_BATCH   256
#define DEFAULT_PROMPTS 512 /* rows for prompts */
#define DEFAULT_AGEING  4

/* ---- create and destroy */

static bool read_config(struct cattn_sched *sched, const struct cattn_sched_config *config)
{
    struct cattn_sched_config none = {.size = sizeof(none)};
    config = config ? config : &none;
    if (!cattn_struct_readable(config, sizeof(*config)) || config->policy > CATTN_PREFIX ||
        config->output_percent > 100)
        return false;
    sched->policy = config->policy;
    sched->max_batch = config->max_batch ? config->max_batch : DEFAULT_BATCH;
    sched->max_rows = config->max_rows;
    if (!config->max_rows)
        sched->max_rows =
            sched->max_batch < UINT32_MAX - DEFAULT_PROMPTS ? sched->max_batch + DEFAULT_PROMPTS : UINT32_MAX;
    sched->ageing = config->ageing ? config->ageing : DEFAULT_AGEING;
    sched->output_percent = config->output_percent ? config->output_percent : 100;
    return sched->max_rows >= sched->max_batch;
}

int cattn_sched_create(cattn_cache *cache, const struct cattn_sched_config *config, cattn_sched **sched)
{
    if (!cache || !sched)
        return CATTN_EINVAL;
    struct cattn_sched *made = cattn_calloc(1, sizeof(*made));
    if (!made)
        return CATTN_ENOMEM;
    made->cache = cache;
    made->seed = cattn_seed(made);
    made->free = made->first = made->last = CATTN_NONE;
    if (!read_config(made, config)) {
        cattn_sched_destroy(made);
        return CATTN_EINVAL;
    }
    made->running = cattn_calloc(made->max_batch, sizeof(*made->running));
    made->items = cattn_calloc(made->max_batch, sizeof(*made->items));
    made->turns = cattn_calloc(made->max_batch, sizeof(*made->turns));
    made->item_wants = cattn_calloc(made->max_batch, sizeof(*made->item_wants));
    made->path = cattn_calloc(cache->tree.n_slots, sizeof(*made->path));
    if (!made->running || !made->items || !made->turns || !made->item_wants || !made->path) {
        cattn_sched_destroy(made);
        return CATTN_ENOMEM;
    }
    *sched = made;
    return CATTN_OK;
}

static void close_sequence(struct cattn_sched *sched, struct cattn_want *want)
{
    (void)cattn_seq_close(sched->cache, want->seq);
    want->seq = 0;
    want->n_held = 0;
}

void cattn_sched_destroy(cattn_sched *sched)
{
    if (!sched)
        return;
    for (uint32_t i = 0; i < sched->n_running; i++)
        close_sequence(sched, &sched->wants[sched->running[i]]);
    for (uint32_t i = 0; i < sched->n_wants; i++) {
        if (sched->wants[i].id)
            cattn_sched_forget(sched, i);
    }
    cattn_free(sched->wants);
    cattn_free(sched->running);
    cattn_free(sched->items);
    cattn_free(sched->turns);
    cattn_free(sched->item_wants);
    cattn_free(sched->path);
    cattn_free(sched);
}

/* ---- requests come and go */

static bool is_request(const struct cattn_request_config *config)
{
    if (!config || !cattn_struct_readable(config, sizeof(*config)) || (!config->ns && config->ns_len) ||
        !config->n_tokens || !config->max_new)
        return false;
    return cattn_prompt_is_good(config->tokens, config->n_tokens, config->ext);
}

/* Public chunks that a request would find now. */
static int count_public(const struct cattn_sched *sched, const struct cattn_request_config *config, size_t *n)
{
    struct cattn_tree *tree = &sched->cache->tree;
    struct cattn_view view = cattn_view_named(tree, config->ns, config->ns_len);
    int32_t *ids;
    *n = 0;
    if (view.public == CATTN_NONE)
        return CATTN_OK;
    if (cattn_prompt_enter(&tree->extras, config->tokens, config->n_tokens, config->ext, &ids))
        return CATTN_ENOMEM;
    *n = cattn_tree_match(tree, view.public, ids ? ids : config->tokens, (config->n_tokens - 1) / tree->chunk_tokens,
                          sched->path);
    cattn_prompt_leave(&tree->extras, ids, config->n_tokens);
    return CATTN_OK;
}

/* Whether a request would fit alone, in an empty pool, and within the limit of its namespace, for which public chunks
 * do not count. */
static int check_fit(const struct cattn_sched *sched, const struct cattn_request_config *config)
{
    const struct cattn_tree *tree = &sched->cache->tree;
    struct cattn_want want = {.n_tokens = config->n_tokens, .n_prompt = config->n_tokens, .max_new = config->max_new};
    uint64_t most = (uint64_t)tree->n_slots * tree->chunk_tokens;
    if (config->n_tokens > most || config->max_new > most || cattn_want_slots(sched, &want) > tree->n_slots)
        return CATTN_ETOOBIG;
    uint32_t root = cattn_roots_find(&tree->roots, config->ns, config->ns_len);
    uint64_t limit = root == CATTN_NONE ? 0 : cattn_roots_at(&tree->roots, root)->limit;
    if (!limit || cattn_want_slots(sched, &want) <= limit)
        return CATTN_OK;
    size_t n_public;
    if (count_public(sched, config, &n_public))
        return CATTN_ENOMEM;
    return cattn_want_slots(sched, &want) - n_public <= limit ? CATTN_OK : CATTN_ETOOBIG;
}

int cattn_sched_submit(cattn_sched *sched, const struct cattn_request_config *config, cattn_request *request)
{
    uint32_t want;
    if (!sched || !request || !is_request(config))
        return CATTN_EINVAL;
    cattn_lock(sched->cache);
    int status = cattn_unlock(sched->cache, check_fit(sched, config));
    if (status)
        return status;
    if (cattn_sched_add(sched, config, &want))
        return CATTN_ENOMEM;
    sched->stats.n_submitted++;
    *request = sched->wants[want].id;
    return CATTN_OK;
}

static uint32_t index_of(const struct cattn_sched *sched, const struct cattn_want *want)
{
    return (uint32_t)(want - sched->wants);
}

static void leave_running(struct cattn_sched *sched, struct cattn_want *want)
{
    uint32_t i = 0;
    while (sched->running[i] != index_of(sched, want))
        i++;
    sched->n_running--;
    memmove(&sched->running[i], &sched->running[i + 1], (sched->n_running - i) * sizeof(*sched->running));
    close_sequence(sched, want);
}

static void end_request(struct cattn_sched *sched, struct cattn_want *want)
{
    if (want->seq)
        leave_running(sched, want);
    else
        cattn_sched_unlink(sched, index_of(sched, want));
    cattn_sched_forget(sched, index_of(sched, want));
}

static bool is_in_batch(const struct cattn_sched *sched, const struct cattn_want *want)
{
    for (size_t i = 0; sched->out && i < sched->n_items; i++) {
        if (sched->item_wants[i] == index_of(sched, want))
            return true;
    }
    return false;
}

int cattn_sched_cancel(cattn_sched *sched, cattn_request request)
{
    struct cattn_want *want = cattn_sched_find(sched, request);
    if (!want)
        return CATTN_EINVAL;
    want->cancelled = is_in_batch(sched, want);
    if (want->cancelled)
        leave_running(sched, want);
    else
        end_request(sched, want);
    sched->stats.n_cancelled++;
    return CATTN_OK;
}

/* ---- who runs */

static size_t rest_of(const struct cattn_want *want)
{
    return want->n_tokens - want->n_held;
}

/* Rows that are left for prompts when all that run have theirs. */
static uint32_t spare_rows(const struct cattn_sched *sched)
{
    size_t room = sched->max_rows;
    for (uint32_t i = 0; i < sched->n_running && room; i++) {
        size_t rest = rest_of(&sched->wants[sched->running[i]]);
        room -= rest < room ? rest : room;
    }
    return (uint32_t)room;
}

static int admit(struct cattn_sched *sched, uint32_t i)
{
    struct cattn_want *want = &sched->wants[i];
    size_t n_cached;
    int status = cattn_seq_open_ext(sched->cache, want->ns.bytes, want->ns.length, want->tokens, want->n_tokens,
                                    want->extras ? &want->extras->all : NULL, &want->seq, &n_cached);
    if (status)
        return status;
    want->n_held = n_cached;
    if (!want->n_preempted)
        want->n_cached = n_cached;
    cattn_sched_unlink(sched, i);
    cattn_sched_note_passed(sched, want);
    sched->running[sched->n_running++] = i;
    sched->stats.n_admitted++;
    if (sched->stats.peak_running < sched->n_running)
        sched->stats.peak_running = sched->n_running;
    return CATTN_OK;
}

static int admit_all(struct cattn_sched *sched)
{
    while (sched->n_running < sched->max_batch && spare_rows(sched)) {
        cattn_lock(sched->cache); /* the choice looks into the tree */
        uint32_t i = cattn_sched_choose(sched);
        cattn_unlock(sched->cache, CATTN_OK);
        int status = i == CATTN_NONE ? CATTN_OK : admit(sched, i);
        if (status || i == CATTN_NONE)
            return status;
    }
    return CATTN_OK;
}

static uint32_t root_of(const struct cattn_sched *sched, const struct cattn_want *want)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(sched->cache, want->seq);
    return sequence ? sequence->root : CATTN_NONE;
}

static bool is_less(const struct cattn_want *a, const struct cattn_want *b)
{
    return a->priority != b->priority ? a->priority < b->priority : cattn_want_before(b, a);
}

/* The least important of those that run, and of these the last to arrive, waits again.  Not the only one.  Where the
 * limit of a namespace was in the way it is one of that (root; else CATTN_NONE). */
static bool put_one_back(struct cattn_sched *sched, uint32_t root)
{
    if (sched->n_running < 2)
        return false;
    struct cattn_want *last = NULL;
    cattn_lock(sched->cache); /* sequences are looked at */
    for (uint32_t i = 0; i < sched->n_running; i++) {
        struct cattn_want *want = &sched->wants[sched->running[i]];
        if ((root == CATTN_NONE || root_of(sched, want) == root) && (!last || is_less(want, last)))
            last = want;
    }
    cattn_unlock(sched->cache, CATTN_OK);
    if (!last)
        return false;
    leave_running(sched, last);
    last->n_preempted++;
    last->revision = UINT64_MAX;
    cattn_sched_link(sched, index_of(sched, last));
    sched->stats.n_preempted++;
    return true;
}

/* ---- a step */

static void add_item(struct cattn_sched *sched, const struct cattn_want *want, size_t n)
{
    bool needs_token = n == rest_of(want);
    sched->items[sched->n_items] = (struct cattn_item){.seq = want->seq,
                                                       .tokens = want->tokens + want->n_held,
                                                       .n_tokens = (uint32_t)n,
                                                       .ext = cattn_want_part(want, want->n_held, n)};
    sched->turns[sched->n_items] =
        (struct cattn_turn){.request = want->id,
                            .tag = want->tag,
                            .needs_token = needs_token,
                            .is_last = needs_token && want->n_tokens - want->n_prompt + 1 == want->max_new};
    sched->item_wants[sched->n_items++] = index_of(sched, want);
}

/* Requests that generate have one token each; prompts share the rest of the rows, the first admitted first. */
static void plan_items(struct cattn_sched *sched)
{
    size_t room = sched->max_rows;
    sched->n_items = 0;
    for (uint32_t i = 0; i < sched->n_running; i++)
        room -= rest_of(&sched->wants[sched->running[i]]) == 1;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct cattn_want *want = &sched->wants[sched->running[i]];
        size_t rest = rest_of(want), n = rest < room ? rest : room;
        if (rest == 1)
            n = 1;
        else
            room -= n;
        if (n)
            add_item(sched, want, n);
    }
}

static int begin_step(struct cattn_sched *sched, cattn_step *step)
{
    int status;
    do {
        plan_items(sched);
        status = cattn_step_begin(step, sched->items, sched->n_items);
    } while ((status == CATTN_EFULL || status == CATTN_ETOOBIG) && put_one_back(sched, step->refused));
    return status == CATTN_ETOOBIG ? CATTN_EFULL : status; /* a limit can be raised again */
}

int cattn_sched_next(cattn_sched *sched, cattn_step *step, struct cattn_batch *batch)
{
    if (!sched || !step || !batch || step->cache != sched->cache)
        return CATTN_EINVAL;
    if (sched->out || sched->cache->open_step)
        return CATTN_ESTATE;
    int status = cattn_store_status(sched->cache->backend, sched->cache->store);
    if (!status)
        status = admit_all(sched);
    if (!status && !sched->n_running && sched->stats.n_waiting)
        status = CATTN_EFULL; /* the first does not fit into what others have left */
    if (!status && sched->n_running)
        status = begin_step(sched, step);
    if (status)
        return status;
    *batch = (struct cattn_batch){0};
    if (!sched->n_running)
        return CATTN_OK;
    const struct cattn_item *last = &sched->items[sched->n_items - 1];
    *batch = (struct cattn_batch){sched->n_items, sched->items, sched->turns, last->first_row + last->n_rows};
    sched->out = true;
    return CATTN_OK;
}

/* ---- after it */

/* NULL: it was cancelled in the meantime. */
static struct cattn_want *want_of(const struct cattn_sched *sched, size_t item)
{
    struct cattn_want *want = &sched->wants[sched->item_wants[item]];
    return want->cancelled ? NULL : want;
}

static void end_batch(struct cattn_sched *sched)
{
    for (size_t i = 0; i < sched->n_items; i++) {
        if (sched->wants[sched->item_wants[i]].cancelled)
            cattn_sched_forget(sched, sched->item_wants[i]);
    }
    sched->out = false;
}

/* Whether the step was closed, in the way that the call is for. */
static bool was_closed(const struct cattn_sched *sched, bool ended)
{
    for (size_t i = 0; i < sched->n_items; i++) {
        const struct cattn_want *want = want_of(sched, i);
        size_t length;
        if (want && (cattn_seq_length(sched->cache, want->seq, &length) ||
                     length != want->n_held + (ended ? sched->items[i].n_tokens : 0)))
            return false;
    }
    return sched->out && !sched->cache->open_step;
}

static bool are_tokens(const struct cattn_sched *sched, const int32_t *tokens, const unsigned char *stops)
{
    for (size_t i = 0; i < sched->n_items; i++) {
        if (sched->turns[i].needs_token && want_of(sched, i) && !(stops && stops[i]) && (!tokens || tokens[i] < 0))
            return false;
    }
    return true;
}

static void commit_item(struct cattn_sched *sched, size_t i, const int32_t *tokens, bool stop)
{
    struct cattn_want *want = want_of(sched, i);
    if (!want)
        return;
    want->n_held += sched->items[i].n_tokens;
    if (stop || sched->turns[i].is_last) {
        end_request(sched, want);
        sched->stats.n_finished++;
    } else if (sched->turns[i].needs_token) {
        want->ids[want->n_tokens] = tokens[i];
        want->tokens[want->n_tokens++] = tokens[i];
    }
}

int cattn_sched_commit(cattn_sched *sched, const int32_t *tokens, const unsigned char *stops)
{
    if (!sched)
        return CATTN_EINVAL;
    if (!was_closed(sched, true))
        return CATTN_ESTATE;
    if (!are_tokens(sched, tokens, stops))
        return CATTN_EINVAL;
    for (size_t i = 0; i < sched->n_items; i++)
        commit_item(sched, i, tokens, stops && stops[i]);
    end_batch(sched);
    return CATTN_OK;
}

int cattn_sched_revert(cattn_sched *sched)
{
    if (!sched)
        return CATTN_EINVAL;
    if (!was_closed(sched, false))
        return CATTN_ESTATE;
    end_batch(sched);
    return CATTN_OK;
}

/* ---- what can be observed */

int cattn_sched_request_info(const cattn_sched *sched, cattn_request request, struct cattn_request_info *info)
{
    const struct cattn_want *want = cattn_sched_find(sched, request);
    if (!want || !info || !cattn_struct_writable(info, sizeof(*info)))
        return CATTN_EINVAL;
    info->running = want->seq != 0;
    info->n_preempted = want->n_preempted;
    info->n_passed = want->n_passed;
    info->n_tokens = want->n_tokens;
    info->n_generated = want->n_tokens - want->n_prompt;
    info->n_cached = want->n_cached;
    return CATTN_OK;
}

int cattn_sched_stats(const cattn_sched *sched, struct cattn_sched_counts *stats)
{
    if (!sched || !stats || !cattn_struct_writable(stats, sizeof(*stats)))
        return CATTN_EINVAL;
    size_t size = stats->size;
    *stats = sched->stats;
    stats->size = size;
    stats->n_running = sched->n_running;
    return CATTN_OK;
}
