#include "engine.h"

#include "clock.h"
#include "device.h"
#include "prefixes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows for prompts in a step, unless the options say otherwise. */
#define PROMPT_ROWS 4096

/* What the engine knows of a request. */
struct flight {
    cattn_request id; /* 0: not submitted yet, or ended */
    size_t held;      /* tokens that its sequence holds */
    bool started;
};

struct engine {
    const struct model *model;
    const struct engine_options *options;
    struct requests *requests;
    struct engine_report *report;
    struct fault *fault;
    struct forward forward;
    cattn_cache *cache;
    cattn_sched *sched;
    cattn_step *step;
    uint32_t chunk_tokens;
    size_t max_batch;
    size_t *order; /* of the requests' arrivals */
    size_t next;   /* of them to be submitted */
    struct flight *flights;
    size_t n_flying;
    double start, skipped; /* time in which nothing was there to do is not waited for */
    /* of the open step */
    struct cattn_batch batch;
    size_t n_logits;
    int32_t *row_tokens;
    uint64_t *row_positions;
    size_t *logit_rows;
    float *logits;
    int32_t *sampled;
    unsigned char *stops;
    size_t rows_room;
    bool prefills;
};

static int check(struct engine *e, int status, const char *what)
{
    return status ? fault_set(e->fault, "%s: %s", what, cattn_strerror(status)) : 0;
}

/* Seconds since the run began. */
static double now(const struct engine *e)
{
    return seconds() - e->start + e->skipped;
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
        .backend = e->options->device ? "cuda" : NULL,
        .kernel = e->options->kernel,
        .n_layers = s->n_layers,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .v_head_dim = s->v_head_dim,
        .chunk_tokens = e->chunk_tokens,
        .io_dtype = e->options->device ? device_dtype(e->options->device) : CATTN_F32,
        .kv_dtype = e->options->kv_dtype,
        .max_tokens = e->options->kv_tokens,
        .n_threads = e->options->n_threads,
    };

    for (size_t i = 0; !e->options->kv_tokens && i < e->requests->n; i++)
        config.max_tokens += slots_needed(e, &e->requests->list[i]) * e->chunk_tokens;
    if (e->options->load_prefix && !e->options->kv_tokens)
        config.max_tokens += prefixes_room(e->options->load_prefix, &config);
    if (check(e, cattn_cache_create(&config, &e->cache), "the cache cannot be made"))
        return -1;
    e->report->info.size = sizeof e->report->info;
    e->report->stats.size = sizeof e->report->stats;
    e->report->sched.size = sizeof e->report->sched;
    return check(e, cattn_cache_info(e->cache, &e->report->info), "info") ||
                   check(e, cattn_step_create(e->cache, &e->step), "step")
               ? -1
               : 0;
}

static int load_prefixes(struct engine *e)
{
    if (!e->options->load_prefix)
        return 0;
    return prefixes_load(e->cache, e->options->load_prefix, e->options->model, &e->report->loaded_tokens, e->fault);
}

static int save_prefixes(const struct engine *e)
{
    if (!e->options->save_prefix)
        return 0;
    return prefixes_save(e->cache, e->options->save_prefix, e->options->model, e->requests, e->fault);
}

static int create_scheduler(struct engine *e)
{
    const size_t rows = e->options->prefill_rows ? e->options->prefill_rows : PROMPT_ROWS;
    struct cattn_sched_config config = {
        .size = sizeof config,
        .policy = e->options->policy,
        .max_batch = (uint32_t)e->max_batch,
        .max_rows = (uint32_t)(e->max_batch - 1 + (rows < UINT32_MAX / 2 ? rows : UINT32_MAX / 2)),
        .ageing = e->options->ageing,
        .output_percent = e->options->output_percent,
    };

    return check(e, cattn_sched_create(e->cache, &config, &e->sched), "the scheduler cannot be made");
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

/* The order of arrival; requests of one time stay in theirs.  Most lists are sorted already. */
static void sort_arrivals(struct engine *e)
{
    for (size_t i = 0; i < e->requests->n; i++) {
        size_t k = i;

        for (; k && e->requests->list[e->order[k - 1]].arrival > e->requests->list[i].arrival; k--)
            e->order[k] = e->order[k - 1];
        e->order[k] = i;
    }
}

static int set_up(struct engine *e)
{
    const size_t n = e->max_batch, vocabulary = e->model->shape.vocabulary;

    e->flights = calloc(e->requests->n, sizeof *e->flights);
    e->order = calloc(e->requests->n, sizeof *e->order);
    e->logit_rows = calloc(n, sizeof *e->logit_rows);
    e->logits = calloc(n * vocabulary, sizeof *e->logits);
    e->sampled = calloc(n, sizeof *e->sampled);
    e->stops = calloc(n, sizeof *e->stops);
    if (!e->flights || !e->order || !e->logit_rows || !e->logits || !e->sampled || !e->stops)
        return fault_set(e->fault, "out of memory");
    sort_arrivals(e);
    return reserve_ids(e) || create_cache(e) || load_prefixes(e) || create_scheduler(e) ? -1 : 0;
}

static void tear_down(struct engine *e)
{
    cattn_sched_destroy(e->sched);
    cattn_step_destroy(e->step);
    cattn_cache_destroy(e->cache);
    forward_release(&e->forward);
    free(e->flights);
    free(e->order);
    free(e->row_tokens);
    free(e->row_positions);
    free(e->logit_rows);
    free(e->logits);
    free(e->sampled);
    free(e->stops);
}

/* ---- requests come and go -----------------------------------------------------------------------------------------
 */

static int submit(struct engine *e, size_t i)
{
    struct request *request = &e->requests->list[i];
    const uint64_t own = i;
    const struct cattn_request_config config = {
        .size = sizeof config,
        .ns = e->options->no_sharing ? (const void *)&own : (const void *)&request->tenant,
        .ns_len = e->options->no_sharing ? sizeof own : sizeof request->tenant,
        .tokens = request->ids,
        .n_tokens = request->n_prompt,
        .max_new = most_ids(e, request) - request->n_prompt,
        .tag = i,
    };

    if (check(e, cattn_sched_submit(e->sched, &config, &e->flights[i].id), "a request is refused"))
        return -1;
    e->n_flying++;
    e->report->prompt_tokens += request->n_prompt;
    return 0;
}

/* Those that have arrived; if nothing is there to do, time goes on to the next. */
static int submit_arrivals(struct engine *e)
{
    while (e->next < e->requests->n) {
        const size_t i = e->order[e->next];
        const double early = e->requests->list[i].arrival - now(e);

        if (early > 0 && e->n_flying)
            return 0;
        if (early > 0)
            e->skipped += early;
        e->next++;
        if (submit(e, i))
            return -1;
    }
    return 0;
}

static bool is_stop(const struct engine *e, int32_t id)
{
    return id >= 0 && (id == e->options->stop[0] || id == e->options->stop[1]);
}

/* The lowest id among the largest.  Most blocks have none that is larger: a question for vectors. */
static int32_t best_id(const float *logits, size_t n)
{
    enum { BLOCK = 64 };
    size_t best = 0;
    float largest = logits[0];

    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t end = n - i < BLOCK ? n : i + BLOCK;
        int any = 0;

        for (size_t k = i; k < end; k++)
            any |= logits[k] > largest;
        for (size_t k = i; any && k < end; k++) {
            if (logits[k] > largest) {
                largest = logits[k];
                best = k;
            }
        }
    }
    return (int32_t)best;
}

static void end_request(struct engine *e, size_t i, double when)
{
    e->requests->list[i].finished = when;
    e->flights[i].id = 0;
    e->n_flying--;
}

/* The next token of a request, from its row of logits. */
static void take_token(struct engine *e, size_t item, const float *logits, double when)
{
    const struct cattn_turn *turn = &e->batch.turns[item];
    const size_t i = (size_t)turn->tag, n_output = e->requests->list[i].n_ids - e->requests->list[i].n_prompt;
    struct request *request = &e->requests->list[i];
    const int32_t id = best_id(logits, e->model->shape.vocabulary);

    if (e->options->observer)
        e->options->observer(e->options->context, i, n_output, logits);
    if (!n_output)
        request->first_token = when;
    e->sampled[item] = id;
    e->stops[item] = is_stop(e, id);
    if (!e->stops[item]) {
        request->ids[request->n_ids++] = id;
        e->report->output_tokens++;
        e->report->decode_tokens += !e->prefills;
    }
    if (e->stops[item] || turn->is_last)
        end_request(e, i, when);
}

static int take_tokens(struct engine *e)
{
    const double when = now(e);
    const float *logits = e->logits;

    for (size_t i = 0; i < e->batch.n_items; i++) {
        const struct cattn_item *item = &e->batch.items[i];

        e->flights[e->batch.turns[i].tag].held = (size_t)item->position + item->n_rows;
        e->stops[i] = 0;
        if (e->batch.turns[i].needs_token) {
            take_token(e, i, logits, when);
            logits += e->model->shape.vocabulary;
        }
    }
    const double before = seconds();
    const int status = cattn_sched_commit(e->sched, e->sampled, e->stops);
    e->report->tree_seconds += seconds() - before;
    return check(e, status, "tokens are refused");
}

/* ---- a step -------------------------------------------------------------------------------------------------------
 */

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

/* Tokens of the prompt that were found: held when it was admitted, or matched by a step. */
static void count_hits(struct engine *e, const struct cattn_item *item, size_t i)
{
    const struct request *request = &e->requests->list[i];
    const size_t first_row = (size_t)item->position, held = first_row + item->n_rows - item->n_tokens;

    if (held < request->n_prompt && request->n_ids == request->n_prompt) {
        e->prefills = true;
        e->report->prompt_hits += first_row - held;
        if (!e->flights[i].started)
            e->report->prompt_hits += held;
    } else if (item->n_tokens > 1) {
        e->prefills = true; /* it was put back, and is computed again */
    }
    e->flights[i].started = true;
}

/* What the step has left to compute: each row's token and position, and the rows that a token follows. */
static int gather_rows(struct engine *e)
{
    e->n_logits = 0;
    e->prefills = false;
    if (reserve_rows(e, e->batch.n_rows))
        return -1;
    for (size_t i = 0; i < e->batch.n_items; i++) {
        const struct cattn_item *item = &e->batch.items[i];

        for (uint32_t j = 0; j < item->n_rows; j++) {
            e->row_tokens[item->first_row + j] = item->tokens[item->n_tokens - item->n_rows + j];
            e->row_positions[item->first_row + j] = item->position + j;
        }
        count_hits(e, item, (size_t)e->batch.turns[i].tag);
        if (e->batch.turns[i].needs_token)
            e->logit_rows[e->n_logits++] = (size_t)item->first_row + item->n_rows - 1;
    }
    return 0;
}

/* Chunks that the running requests would hold, each its own. */
static uint64_t count_unshared(const struct engine *e)
{
    struct cattn_request_info info = {.size = sizeof info};
    uint64_t n = 0;

    for (size_t k = 0; k < e->next; k++) {
        const struct flight *flight = &e->flights[e->order[k]];

        if (flight->id && cattn_sched_request_info(e->sched, flight->id, &info) == CATTN_OK && info.running)
            n += (flight->held + e->chunk_tokens - 1) / e->chunk_tokens;
    }
    return n;
}

static int note_peaks(struct engine *e)
{
    struct engine_report *report = e->report;
    const uint64_t unshared = count_unshared(e) * report->info.slot_bytes;

    if (check(e, cattn_cache_stats(e->cache, &report->stats), "stats"))
        return -1;
    if (report->stats.used_bytes > report->peak_bytes)
        report->peak_bytes = report->stats.used_bytes;
    if (unshared > report->peak_unshared_bytes)
        report->peak_unshared_bytes = unshared;
    return 0;
}

static int begin_step(struct engine *e)
{
    const double start = seconds();
    const int status = cattn_sched_next(e->sched, e->step, &e->batch);

    e->report->tree_seconds += seconds() - start;
    return check(e, status, "a step cannot begin");
}

static int end_step(struct engine *e)
{
    const double start = seconds();
    const int status = cattn_step_end(e->step);

    e->report->tree_seconds += seconds() - start;
    return check(e, status, "a step cannot end");
}

static int tell_progress(struct engine *e)
{
    struct cattn_sched_counts counts = {.size = sizeof counts};
    struct engine_progress progress = {.n_requests = e->requests->n,
                                       .prompt_tokens = e->report->prompt_tokens,
                                       .output_tokens = e->report->output_tokens,
                                       .seconds = now(e)};

    if (!e->options->progress)
        return 0;
    if (check(e, cattn_sched_stats(e->sched, &counts), "stats"))
        return -1;
    progress.n_ended = (size_t)counts.n_finished;
    progress.n_running = (size_t)counts.n_running;
    progress.n_waiting = (size_t)counts.n_waiting;
    e->options->progress(e->options->context, &progress);
    return 0;
}

static int run_step(struct engine *e)
{
    const double start = seconds(), attention = e->forward.attention_seconds;

    if (begin_step(e) || gather_rows(e) ||
        forward_step(&e->forward, e->step, e->batch.n_rows, e->row_tokens, e->row_positions, e->n_logits, e->logit_rows,
                     e->logits, e->fault) ||
        end_step(e))
        return -1;
    for (size_t i = 0; i < e->batch.n_items; i++)
        e->flights[e->batch.turns[i].tag].held = (size_t)e->batch.items[i].position + e->batch.items[i].n_rows;
    if (note_peaks(e) || take_tokens(e))
        return -1;
    *(e->prefills ? &e->report->prefill_seconds : &e->report->decode_seconds) += seconds() - start;
    if (!e->prefills)
        e->report->decode_attention_seconds += e->forward.attention_seconds - attention;
    e->report->n_steps++;
    return tell_progress(e);
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
                       .max_batch = options->max_batch && options->max_batch < n ? options->max_batch : n,
                       .start = seconds()};

    memset(report, 0, sizeof *report);
    if (!n)
        return fault_set(fault, "no requests");
    forward_init(&e.forward, model, linear, options->device);
    int rc = set_up(&e);
    e.start = seconds();
    while (!rc && (e.n_flying || e.next < n))
        rc = submit_arrivals(&e) || run_step(&e) ? -1 : 0;
    if (!rc)
        rc = check(&e, cattn_sched_stats(e.sched, &report->sched), "stats");
    report->seconds = now(&e);
    rc = rc ? rc : save_prefixes(&e);
    report->attention_seconds = e.forward.attention_seconds;
    report->linear_seconds = e.forward.linear_seconds;
    tear_down(&e);
    return rc;
}
