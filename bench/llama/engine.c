#define _POSIX_C_SOURCE 200809L

#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Rows of a step, about: bounds the buffers when many prompts arrive at once.  Running requests go first. */
#define STEP_ROWS 4096

/* A request that runs. */
struct active {
    size_t request;
    cattn_seq seq;
    size_t held;    /* tokens that its sequence holds */
    uint64_t slots; /* that it may come to need */
};

struct engine {
    const struct model *model;
    const struct engine_options *options;
    struct requests *requests;
    struct engine_report *report;
    struct fault *fault;
    struct forward forward;
    cattn_cache *cache;
    cattn_step *step;
    uint32_t chunk_tokens;
    size_t next; /* request to open */
    struct active *active;
    size_t n_active, max_active;
    uint64_t planned_slots;
    /* of the open step */
    struct cattn_item *items;
    size_t *item_active; /* which active request each item is */
    size_t n_items, n_rows, n_logits;
    int32_t *row_tokens;
    uint64_t *row_positions;
    size_t *logit_rows, *logit_active;
    float *logits;
    size_t rows_room;
    bool prefills;
};

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int check(struct engine *e, int status, const char *what)
{
    return status ? fault_set(e->fault, "%s: %s", what, cattn_strerror(status)) : 0;
}

/* Tokens that a request ends with: the last one that fits is predicted from a full context. */
static size_t most_ids(const struct engine *e, const struct request *request)
{
    const size_t room = e->model->shape.context - request->n_prompt + 1;

    return request->n_prompt + (request->max_tokens < room ? request->max_tokens : room);
}

/* The chunks of a request and one more, which a copy or a match may hold until a step ends. */
static uint64_t slots_needed(const struct engine *e, const struct request *request)
{
    return (most_ids(e, request) + e->chunk_tokens - 1) / e->chunk_tokens + 1;
}

/* ---- setting up ---------------------------------------------------------------------------------------------------
 */

static int create_cache(struct engine *e)
{
    const struct model_shape *s = &e->model->shape;
    struct cattn_config config = {
        .size = sizeof config,
        .kernel = e->options->kernel,
        .n_layers = s->n_layers,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .v_head_dim = s->v_head_dim,
        .chunk_tokens = e->chunk_tokens,
        .io_dtype = CATTN_F32,
        .kv_dtype = e->options->kv_dtype,
        .max_tokens = e->options->kv_tokens,
        .n_threads = e->options->n_threads,
    };

    for (size_t i = 0; !e->options->kv_tokens && i < e->requests->n; i++)
        config.max_tokens += slots_needed(e, &e->requests->list[i]) * e->chunk_tokens;
    if (check(e, cattn_cache_create(&config, &e->cache), "the cache cannot be made"))
        return -1;
    e->report->info.size = sizeof e->report->info;
    e->report->stats.size = sizeof e->report->stats;
    return check(e, cattn_cache_info(e->cache, &e->report->info), "info") ||
                   check(e, cattn_step_create(e->cache, &e->step), "step")
               ? -1
               : 0;
}

static int reserve_ids(struct engine *e)
{
    for (size_t i = 0; i < e->requests->n; i++) {
        struct request *request = &e->requests->list[i];
        int32_t *grown = realloc(request->ids, most_ids(e, request) * sizeof *grown);

        if (!grown)
            return fault_set(e->fault, "out of memory");
        request->ids = grown;
    }
    return 0;
}

static int set_up(struct engine *e)
{
    const size_t n = e->max_active, vocabulary = e->model->shape.vocabulary;

    e->active = calloc(n, sizeof *e->active);
    e->items = calloc(n, sizeof *e->items);
    e->item_active = calloc(n, sizeof *e->item_active);
    e->logit_rows = calloc(n, sizeof *e->logit_rows);
    e->logit_active = calloc(n, sizeof *e->logit_active);
    e->logits = calloc(n * vocabulary, sizeof *e->logits);
    if (!e->active || !e->items || !e->item_active || !e->logit_rows || !e->logit_active || !e->logits)
        return fault_set(e->fault, "out of memory");
    return reserve_ids(e) || create_cache(e) ? -1 : 0;
}

static void tear_down(struct engine *e)
{
    cattn_step_destroy(e->step);
    cattn_cache_destroy(e->cache);
    forward_release(&e->forward);
    free(e->active);
    free(e->items);
    free(e->item_active);
    free(e->row_tokens);
    free(e->row_positions);
    free(e->logit_rows);
    free(e->logit_active);
    free(e->logits);
}

/* ---- requests come and go -----------------------------------------------------------------------------------------
 */

static int open_request(struct engine *e, size_t i)
{
    const struct request *request = &e->requests->list[i];
    struct active *active = &e->active[e->n_active];
    const uint64_t name = i;

    *active = (struct active){.request = i, .slots = slots_needed(e, request)};
    if (check(e,
              cattn_seq_open(e->cache, &name, e->options->no_sharing ? sizeof name : 0, request->ids, request->n_prompt,
                             &active->seq, &active->held),
              "a request cannot be opened"))
        return -1;
    e->n_active++;
    e->planned_slots += active->slots;
    e->report->prompt_tokens += request->n_prompt;
    e->report->prompt_hits += active->held;
    return 0;
}

/* Only as many as the pool holds even if they come to share nothing: then no step can find it full.  A request too
 * big for the pool runs alone, and fails. */
static int admit(struct engine *e)
{
    while (e->next < e->requests->n && e->n_active < e->max_active) {
        const uint64_t slots = slots_needed(e, &e->requests->list[e->next]);

        if (e->n_active && e->planned_slots + slots > e->report->info.n_slots)
            return 0;
        if (open_request(e, e->next++))
            return -1;
    }
    return 0;
}

static bool is_stop(const struct engine *e, int32_t id)
{
    return id >= 0 && (id == e->options->stop[0] || id == e->options->stop[1]);
}

/* The lowest id among the largest. */
static int32_t best_id(const float *logits, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

/* Takes the next token of an active request; true when it was the last one. */
static bool take_token(struct engine *e, const struct active *active, const float *logits)
{
    struct request *request = &e->requests->list[active->request];
    const int32_t id = best_id(logits, e->model->shape.vocabulary);

    if (e->options->observer)
        e->options->observer(e->options->context, active->request, request->n_ids - request->n_prompt, logits);
    if (is_stop(e, id))
        return true;
    request->ids[request->n_ids++] = id;
    e->report->output_tokens++;
    e->report->decode_tokens += !e->prefills;
    return request->n_ids == most_ids(e, request);
}

static int finish_requests(struct engine *e)
{
    size_t kept = 0;

    for (size_t i = 0, next = 0; i < e->n_active; i++) {
        struct active *active = &e->active[i];
        bool done = false;

        if (next < e->n_logits && e->logit_active[next] == i)
            done = take_token(e, active, e->logits + next++ * e->model->shape.vocabulary);
        if (!done) {
            e->active[kept++] = *active;
            continue;
        }
        e->planned_slots -= active->slots;
        if (check(e, cattn_seq_close(e->cache, active->seq), "close"))
            return -1;
    }
    e->n_active = kept;
    return 0;
}

/* ---- a step -------------------------------------------------------------------------------------------------------
 */

/* Tokens of a request in this step: the one it has just generated, or a piece of its prompt. */
static size_t piece(const struct engine *e, const struct active *active, size_t room)
{
    const struct request *request = &e->requests->list[active->request];
    const size_t rest = request->n_ids - active->held;
    size_t most = active->held >= request->n_prompt ? rest : room;

    if (e->options->prefill_rows && e->options->prefill_rows < most)
        most = e->options->prefill_rows;
    return rest < most ? rest : most;
}

static void plan_items(struct engine *e)
{
    size_t room = STEP_ROWS;

    e->n_items = 0;
    e->prefills = false;
    for (size_t i = 0; i < e->n_active; i++)
        room -= e->active[i].held >= e->requests->list[e->active[i].request].n_prompt && room > 0;
    for (size_t i = 0; i < e->n_active; i++) {
        const struct active *active = &e->active[i];
        const struct request *request = &e->requests->list[active->request];
        const size_t n = piece(e, active, room);

        if (active->held < request->n_prompt) {
            room -= n;
            e->prefills |= n > 0;
        }
        if (!n)
            continue;
        e->item_active[e->n_items] = i;
        e->items[e->n_items++] =
            (struct cattn_item){.seq = active->seq, .tokens = request->ids + active->held, .n_tokens = (uint32_t)n};
    }
}

static int reserve_rows(struct engine *e, size_t n_rows)
{
    if (n_rows <= e->rows_room)
        return 0;
    free(e->row_tokens);
    free(e->row_positions);
    e->row_tokens = malloc(n_rows * sizeof *e->row_tokens);
    e->row_positions = malloc(n_rows * sizeof *e->row_positions);
    e->rows_room = e->row_tokens && e->row_positions ? n_rows : 0;
    return e->rows_room ? 0 : fault_set(e->fault, "out of memory");
}

/* What step_begin has left to compute: each row's token and position, and the rows that a token follows. */
static int gather_rows(struct engine *e)
{
    const struct cattn_item *last = &e->items[e->n_items - 1];

    e->n_rows = (size_t)last->first_row + last->n_rows;
    e->n_logits = 0;
    if (reserve_rows(e, e->n_rows))
        return -1;
    for (size_t i = 0; i < e->n_items; i++) {
        const struct cattn_item *item = &e->items[i];
        const struct active *active = &e->active[e->item_active[i]];
        const struct request *request = &e->requests->list[active->request];

        for (uint32_t j = 0; j < item->n_rows; j++) {
            e->row_tokens[item->first_row + j] = item->tokens[item->n_tokens - item->n_rows + j];
            e->row_positions[item->first_row + j] = item->position + j;
        }
        if (active->held < request->n_prompt)
            e->report->prompt_hits += item->n_tokens - item->n_rows;
        if (active->held + item->n_tokens == request->n_ids) {
            e->logit_rows[e->n_logits] = (size_t)item->first_row + item->n_rows - 1;
            e->logit_active[e->n_logits++] = e->item_active[i];
        }
    }
    return 0;
}

static int note_peaks(struct engine *e)
{
    struct engine_report *report = e->report;

    if (check(e, cattn_cache_stats(e->cache, &report->stats), "stats"))
        return -1;
    uint64_t unshared = 0;
    for (size_t i = 0; i < e->n_active; i++)
        unshared += (e->active[i].held + e->chunk_tokens - 1) / e->chunk_tokens * report->info.slot_bytes;
    if (report->stats.used_bytes > report->peak_bytes)
        report->peak_bytes = report->stats.used_bytes;
    if (unshared > report->peak_unshared_bytes)
        report->peak_unshared_bytes = unshared;
    return 0;
}

static int run_step(struct engine *e)
{
    const double start = seconds();

    plan_items(e);
    if (check(e, cattn_step_begin(e->step, e->items, e->n_items), "a step cannot begin") || gather_rows(e) ||
        forward_step(&e->forward, e->step, e->n_rows, e->row_tokens, e->row_positions, e->n_logits, e->logit_rows,
                     e->logits, e->fault) ||
        check(e, cattn_step_end(e->step), "a step cannot end"))
        return -1;
    for (size_t i = 0; i < e->n_items; i++)
        e->active[e->item_active[i]].held += e->items[i].n_tokens;
    if (note_peaks(e) || finish_requests(e))
        return -1;
    *(e->prefills ? &e->report->prefill_seconds : &e->report->decode_seconds) += seconds() - start;
    e->report->n_steps++;
    return 0;
}

int engine_run(const struct model *model, const struct linear *linear, const struct engine_options *options,
               struct requests *requests, struct engine_report *report, struct fault *fault)
{
    const size_t n = requests->n;
    struct engine e = {.model = model,
                       .options = options,
                       .requests = requests,
                       .report = report,
                       .fault = fault,
                       .chunk_tokens = options->chunk_tokens ? options->chunk_tokens : 64,
                       .max_active = options->max_batch && options->max_batch < n ? options->max_batch : n};

    memset(report, 0, sizeof *report);
    if (!n)
        return fault_set(fault, "no requests");
    forward_init(&e.forward, model, linear);
    int rc = set_up(&e);
    while (!rc && (e.n_active || e.next < n))
        rc = admit(&e) || run_step(&e) ? -1 : 0;
    tear_down(&e);
    return rc;
}
