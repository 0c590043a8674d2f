#include "pass.h"

#include "cache.h"
#include "variant.h"

/* What a call does; part of the key of a pass. */
enum kind { STORES = 1, ATTENDS = 2 };

/* ---- shares */

static void clear_shares(struct cattn_pass *pass)
{
    for (int i = 0; i < CATTN_MAX_SHARES / 64; i++)
        atomic_store_explicit(&pass->returned[i], 0, memory_order_relaxed);
    atomic_store(&pass->n_returned, 0);
    atomic_store(&pass->key, 0);
}

void cattn_pass_reset(struct cattn_pass *pass)
{
    if (pass->key)
        clear_shares(pass);
    atomic_store(&pass->written, 0);
}

static uint32_t number_pass(struct cattn_step *step)
{
    return atomic_fetch_add(&step->n_passes, 1) + 1;
}

/* The first share of a pass says what the others must agree with, and numbers the pass. */
static int enter_pass(struct cattn_step *step, struct cattn_pass *pass, uint32_t kind, uint32_t nth, uint32_t *number)
{
    const uint32_t form = kind << 16 | nth;
    uint64_t key = atomic_load(&pass->key), made = 0;
    if (!key) {
        made = (uint64_t)number_pass(step) << 32 | form;
        if (atomic_compare_exchange_strong(&pass->key, &key, made))
            key = made;
    }
    *number = (uint32_t)(key >> 32);
    return (uint32_t)key == form ? CATTN_OK : CATTN_EINVAL;
}

static bool has_returned(struct cattn_pass *pass, uint32_t ith)
{
    return atomic_load(&pass->returned[ith / 64]) >> ith % 64 & 1;
}

/* True for the one share that is the last of its pass. */
static bool leave_pass(struct cattn_pass *pass, uint32_t ith, uint32_t nth)
{
    uint64_t bit = UINT64_C(1) << ith % 64;
    if (atomic_fetch_or(&pass->returned[ith / 64], bit) & bit)
        return false;
    return atomic_fetch_add(&pass->n_returned, 1) + 1 == nth;
}

static void count_reads(struct cattn_step *step, uint32_t window, uint32_t n_sink_tokens)
{
    struct cattn_cache *cache = step->cache;
    uint64_t block_bytes = cache->block_bytes * cache->shape.n_kv_heads;
    uint64_t shared = step->read_tokens, unshared = step->read_tokens_unshared;
    if (window)
        cattn_work_count_tokens(&cache->work, window, n_sink_tokens, &shared, &unshared);
    cache->read_bytes += shared * block_bytes / cache->shape.chunk_tokens;
    cache->read_bytes_unshared += unshared * block_bytes / cache->shape.chunk_tokens;
}

static void finish_pass(struct cattn_step *step, struct cattn_pass *pass, const struct cattn_call *call, uint32_t kind)
{
    pass->attended = kind & ATTENDS;
    if (kind & ATTENDS) {
        pass->window = call->variant.window;
        pass->n_sink_tokens = call->variant.n_sink_tokens;
        count_reads(step, pass->window, pass->n_sink_tokens);
    }
    if (kind & STORES)
        atomic_store(&pass->written, 1);
    clear_shares(pass);
}

/* ---- the caller's buffers */

static size_t or_packed(size_t stride, size_t packed)
{
    return stride ? stride : packed;
}

static void set_kv(struct cattn_call *call, const struct cattn_shape *shape, const struct cattn_io *io)
{
    call->k = io->k;
    call->v = io->v;
    call->k_head = or_packed(io->k_head, shape->head_dim);
    call->k_row = or_packed(io->k_row, (size_t)shape->n_kv_heads * shape->head_dim);
    call->v_head = or_packed(io->v_head, shape->v_head_dim);
    call->v_row = or_packed(io->v_row, (size_t)shape->n_kv_heads * shape->v_head_dim);
}

static bool set_q_and_out(struct cattn_call *call, const struct cattn_shape *shape, const struct cattn_io *io)
{
    call->q = io->q;
    call->out = io->out;
    call->lse = io->lse;
    call->q_head = or_packed(io->q_head, shape->head_dim);
    call->q_row = or_packed(io->q_row, (size_t)shape->n_heads * shape->head_dim);
    call->out_head = or_packed(io->out_head, shape->v_head_dim);
    call->out_row = or_packed(io->out_row, (size_t)shape->n_heads * shape->v_head_dim);
    return !io->out || (io->out != io->q && io->out != io->k && io->out != io->v);
}

/* CATTN_OK with the call filled in, if it is one that can be made now.  A step without rows needs no buffers. */
static int check_call(struct cattn_step *step, uint32_t layer, const struct cattn_io *io, bool attends,
                      struct cattn_call *call)
{
    if (!step || !io)
        return CATTN_EINVAL;
    const struct cattn_cache *cache = step->cache;
    if (cache->open_step != step)
        return CATTN_ESTATE;
    const bool rows = cache->work.n_rows > 0;
    if (layer >= cache->shape.n_layers || !cattn_struct_readable(io, sizeof(*io)))
        return CATTN_EINVAL;
    if (attends && !io->k && !io->v && !atomic_load(&step->passes[layer].written))
        return CATTN_ESTATE;
    *call = (struct cattn_call){.layer = layer};
    set_kv(call, &cache->shape, io);
    if (rows && !io->k != !io->v)
        return CATTN_EINVAL;
    if (!attends)
        return rows && !io->k ? CATTN_EINVAL : CATTN_OK;
    if (!set_q_and_out(call, &cache->shape, io) ||
        !cattn_variant_read(&call->variant, io->variant, cache->shape.n_heads))
        return CATTN_EINVAL;
    return rows && (!io->q || !io->out) ? CATTN_EINVAL : CATTN_OK;
}

/* ---- calls; nth = 0: the whole layer, on the backend's threads */

static uint32_t kind_of(const struct cattn_call *call, bool attends)
{
    return attends ? ATTENDS | (call->k ? STORES : 0) : STORES;
}

static int run_backend(struct cattn_step *step, const struct cattn_call *call, bool attends, uint32_t ith, uint32_t nth)
{
    struct cattn_cache *cache = step->cache;
    if (!cache->work.n_rows)
        return CATTN_OK;
    return (attends ? cache->backend->attend : cache->backend->write)(cache->store, &cache->work, call, ith, nth);
}

static int run_whole(struct cattn_step *step, uint32_t layer, const struct cattn_io *io, bool attends)
{
    struct cattn_call call;
    int status = check_call(step, layer, io, attends, &call);
    if (status)
        return status;
    call.pass = number_pass(step);
    status = run_backend(step, &call, attends, 0, 0);
    if (!status)
        finish_pass(step, &step->passes[layer], &call, kind_of(&call, attends));
    return status;
}

static int run_share(struct cattn_step *step, uint32_t layer, const struct cattn_io *io, bool attends, uint32_t ith,
                     uint32_t nth)
{
    struct cattn_call call;
    int status = check_call(step, layer, io, attends, &call);
    if (status)
        return status;
    if (!nth || nth > CATTN_MAX_SHARES || ith >= nth)
        return CATTN_EINVAL;
    struct cattn_pass *pass = &step->passes[layer];
    uint32_t kind = kind_of(&call, attends);
    status = enter_pass(step, pass, kind, nth, &call.pass);
    if (status || has_returned(pass, ith))
        return status; /* a share that comes twice counts once */
    status = run_backend(step, &call, attends, ith, nth);
    if (!status && leave_pass(pass, ith, nth))
        finish_pass(step, pass, &call, kind);
    return status;
}

int cattn_step_write(cattn_step *step, uint32_t layer, const struct cattn_io *io)
{
    return run_whole(step, layer, io, false);
}

int cattn_step_attend(cattn_step *step, uint32_t layer, const struct cattn_io *io)
{
    return run_whole(step, layer, io, true);
}

int cattn_step_write_part(cattn_step *step, uint32_t layer, const struct cattn_io *io, uint32_t ith, uint32_t nth)
{
    return run_share(step, layer, io, false, ith, nth);
}

int cattn_step_attend_part(cattn_step *step, uint32_t layer, const struct cattn_io *io, uint32_t ith, uint32_t nth)
{
    return run_share(step, layer, io, true, ith, nth);
}

/* ---- graphs of the caller: the device goes through the calls of layers of an earlier step */

/* CATTN_OK: the step is open, and its backend has a device, which works. */
static int check_graph(const struct cattn_step *step)
{
    if (!step)
        return CATTN_EINVAL;
    const struct cattn_cache *cache = step->cache;
    if (!cache->backend->device)
        return CATTN_ENOTSUP;
    if (cache->open_step != step)
        return CATTN_ESTATE;
    return cattn_store_status(cache->backend, cache->store);
}

int cattn_step_plan(const cattn_step *step, uint64_t *number)
{
    int status = number ? check_graph(step) : CATTN_EINVAL;
    if (!status)
        *number = step->plan;
    return status;
}

int cattn_step_replayed(cattn_step *step)
{
    int status = check_graph(step);
    if (status)
        return status;
    if (step->plan != step->ended_plan)
        return CATTN_ESTATE;
    for (uint32_t layer = 0; layer < step->cache->shape.n_layers; layer++) {
        struct cattn_pass *pass = &step->passes[layer];
        if (pass->attended)
            count_reads(step, pass->window, pass->n_sink_tokens);
        cattn_pass_reset(pass);
        atomic_store(&pass->written, 1);
    }
    step->replayed = true;
    return CATTN_OK;
}
