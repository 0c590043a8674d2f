/* The CUDA kernels, run on this CPU, against the oracle: batches of sequences with chunks in common, plans cut at
 * random into runs, splits and tiles, all shapes, data types and variants.  What is not to be read is NaN or cannot be
 * read, outputs start as NaN, and so does what lies between their rows.  Compiled into one program for each build of
 * the kernels (plain, under ThreadSanitizer, under AddressSanitizer), which do more or fewer cases. */
#define _POSIX_C_SOURCE 200112L
#include "kernels.h"
#include "runtime.h"
#include "support/bounds.h"
#include "support/dtype.h"
#include "support/guard.h"
#include "support/oracle.h"
#include "support/random.h"
#include "support/suite.h"
#include "support/variant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Of the sanitizers, in a program that has one. */
extern void __asan_init(void) __attribute__((weak));
extern void __tsan_init(void) __attribute__((weak));

static const uint32_t fast_dims[] = {64, 96, 128, 256};
static const uint32_t general_dims[] = {1, 7, 16, 33, 40, 64, 80, 127, 128, 192, 256, 511, 512};
static const uint32_t ratios[][2] = {{1, 1}, {2, 1}, {6, 2}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1}, {11, 1}, {4, 4}};
static const uint32_t batches[] = {1, 2, 3, 5, 16, 65, 80};
static const uint32_t chunks[] = {32, 64, 128, 256};

struct kernel_case {
    uint32_t heads, kv_heads, head_dim, v_head_dim, chunk, io_dtype, kv_dtype;
    int fast;
    uint32_t n_items, most_rows;
    uint32_t common, most_group, most_own; /* chunks: of all items, of a group at most, of one alone at most */
    uint32_t group_items;
    unsigned parts; /* of the variant */
    double gain;
    size_t pad;
    enum guard_side guard;
    int poison, advance;
    uint64_t salt;
};

static void describe(const struct kernel_case *c, char *text, size_t size)
{
    snprintf(
        text, size,
        "%s, heads %u/%u, dim %u/%u, chunk %u, io %s, kv %s, %u items of %u rows, chunks %u + %u for %u + %u, variant "
        "%u, gain %g, pad %zu, guard %d, poison %d, advance %d, salt %llu",
        c->fast ? "fast" : "general", c->heads, c->kv_heads, c->head_dim, c->v_head_dim, c->chunk,
        dtype_name(c->io_dtype), dtype_name(c->kv_dtype), c->n_items, c->most_rows, c->common, c->most_group,
        c->group_items, c->most_own, c->parts, c->gain, c->pad, (int)c->guard, c->poison, c->advance,
        (unsigned long long)c->salt);
}

/* ---- a batch ---------------------------------------------------------------------------------------------------- */

struct item {
    uint32_t *slots, n_chunks;
    uint32_t first_row, n_rows, position;
    uint32_t group; /* runs: 0 of all, 1 of its group, 2 its own, or those that are not empty */
    uint32_t n_common, n_group, n_own;
};

struct batch {
    struct kernel_case c;
    struct rng rng;
    char text[300];
    struct item *items;
    uint32_t n_rows, n_slots, n_chunks;
    uint32_t poisoned_slot, poisoned_token;
    struct cattn_variant *variant;
    struct cattn_cuda_call call;
    unsigned char *state; /* of [slot][token] */
    size_t pool_bytes, n_states;
    uint32_t n_runs, n_parts;
};

enum token_state { STALE, STORED, NEW }; /* NEW: by this step */

/* Memory with exactly this size, aligned as a device's is. */
static void *device_memory(size_t bytes)
{
    void *memory;
    ck_assert_int_eq(posix_memalign(&memory, 256, bytes ? bytes : 1), 0);
    return memset(memory, 0xff, bytes);
}

static uint32_t token_chunk(const struct batch *b, uint32_t t)
{
    return t / b->c.chunk;
}

static void make_item(struct batch *b, struct item *item, const struct item *first, const struct item *group)
{
    struct rng *rng = &b->rng;
    item->n_common = b->c.common;
    item->n_group = item == group ? (uint32_t)rng_below(rng, b->c.most_group + 1) : group->n_group;
    item->n_own = (uint32_t)rng_below(rng, b->c.most_own + 1);
    if (item->n_common + item->n_group + item->n_own == 0)
        item->n_own = 1;
    item->n_chunks = item->n_common + item->n_group + item->n_own;
    item->slots = malloc(item->n_chunks * sizeof *item->slots);
    for (uint32_t i = 0; i < item->n_chunks; i++)
        item->slots[i] = i < item->n_common && item != first                   ? first->slots[i]
                         : i < item->n_common + item->n_group && item != group ? group->slots[i]
                                                                               : b->n_chunks++;
    const uint32_t room = item->n_chunks * b->c.chunk;
    item->first_row = b->n_rows;
    item->n_rows = (uint32_t)rng_between(rng, 1, b->c.most_rows < room ? b->c.most_rows : room);
    /* Mostly the last chunk ends somewhere, sometimes all ends earlier. */
    uint32_t last = room - 1 - (uint32_t)rng_below(rng, rng_chance(rng, 80) ? b->c.chunk : room);
    if (last + 1 < item->n_rows)
        last = item->n_rows - 1;
    item->position = last + 1 - item->n_rows;
    b->n_rows += item->n_rows;
}

static unsigned char *state_of(const struct batch *b, const struct item *item, uint32_t t)
{
    return &b->state[(size_t)item->slots[token_chunk(b, t)] * b->c.chunk + t % b->c.chunk];
}

/* Slots are numbered in any order, and some are of nobody. */
static void scatter_slots(struct batch *b)
{
    b->n_slots = b->n_chunks + 3;
    uint32_t *order = malloc(b->n_slots * sizeof *order);
    for (uint32_t i = 0; i < b->n_slots; i++)
        order[i] = i;
    rng_shuffle(&b->rng, order, b->n_slots);
    for (uint32_t i = 0; i < b->c.n_items; i++)
        for (uint32_t j = 0; j < b->items[i].n_chunks; j++)
            b->items[i].slots[j] = order[b->items[i].slots[j]];
    free(order);
}

static void make_items(struct batch *b)
{
    b->items = calloc(b->c.n_items, sizeof *b->items);
    for (uint32_t i = 0; i < b->c.n_items; i++)
        make_item(b, &b->items[i], &b->items[0], &b->items[i - i % b->c.group_items]);
    scatter_slots(b);
    b->state = calloc(b->n_slots, b->c.chunk);
    for (uint32_t i = 0; i < b->c.n_items; i++) {
        const struct item *item = &b->items[i];
        for (uint32_t t = 0; t < item->position + item->n_rows; t++)
            *state_of(b, item, t) = STORED;
    }
}

/* ---- keys and values: a function of where they lie -------------------------------------------------------------- */

static double number(const struct batch *b, uint64_t a, uint64_t x, uint64_t y)
{
    const uint64_t bits = rng_mix(rng_mix(rng_mix(b->c.salt + a) + x) + y);
    return (double)(bits >> 40) * 0x1p-23 - 1;
}

/* Element i of the key (or, behind those, the value) of a token, as it is given. */
static double given(const struct batch *b, uint32_t slot, uint32_t token, uint32_t head, uint32_t i)
{
    if (slot == b->poisoned_slot && token == b->poisoned_token)
        return NAN;
    const double x = number(b, 1 + head, (uint64_t)slot * b->c.chunk + token, i);
    return dtype_round(b->c.io_dtype, x);
}

static double stored(const struct batch *b, uint32_t slot, uint32_t token, uint32_t head, uint32_t i)
{
    return dtype_round(b->c.kv_dtype, given(b, slot, token, head, i));
}

static double query(const struct batch *b, uint32_t row, uint32_t head, uint32_t i)
{
    return dtype_round(b->c.io_dtype, b->c.gain * number(b, 1000 + head, row, i));
}

/* ---- buffers of the caller -------------------------------------------------------------------------------------- */

struct buffer {
    void *data;
    size_t bytes, row, head, n;
};

static struct buffer new_buffer(const struct batch *b, uint32_t n_heads, uint32_t n, uint32_t dtype)
{
    struct buffer buffer = {.head = n + b->c.pad, .n = n};
    buffer.row = n_heads * buffer.head + 2 * b->c.pad;
    buffer.bytes = ((b->n_rows - 1) * buffer.row + (n_heads - 1) * buffer.head + n) * dtype_size(dtype);
    buffer.data = guard_alloc(buffer.bytes, b->c.guard);
    return buffer;
}

struct buffers {
    struct buffer q, k, v, out, lse;
};

/* The token that a row is. */
struct token {
    const struct item *item;
    uint32_t row, slot, token;
};

static struct token token_of(const struct batch *b, uint32_t row)
{
    const struct item *item = b->items;
    while (row >= item->first_row + item->n_rows)
        item++;
    const uint32_t t = item->position + row - item->first_row;
    return (struct token){item, row, item->slots[token_chunk(b, t)], t % b->c.chunk};
}

static void fill_queries(const struct batch *b, struct buffers *x)
{
    for (uint32_t row = 0; row < b->n_rows; row++)
        for (uint32_t h = 0; h < b->c.heads; h++)
            for (uint32_t i = 0; i < b->c.head_dim; i++)
                dtype_store(b->c.io_dtype, x->q.data, row * x->q.row + h * x->q.head + i, query(b, row, h, i));
}

static void fill_keys(const struct batch *b, struct buffers *x)
{
    for (uint32_t row = 0; row < b->n_rows; row++) {
        const struct token t = token_of(b, row);
        for (uint32_t h = 0; h < b->c.kv_heads; h++) {
            for (uint32_t i = 0; i < b->c.head_dim; i++)
                dtype_store(b->c.io_dtype, x->k.data, row * x->k.row + h * x->k.head + i,
                            given(b, t.slot, t.token, h, i));
            for (uint32_t i = 0; i < b->c.v_head_dim; i++)
                dtype_store(b->c.io_dtype, x->v.data, row * x->v.row + h * x->v.head + i,
                            given(b, t.slot, t.token, h, b->c.head_dim + i));
        }
    }
}

static void make_buffers(struct batch *b, struct buffers *x)
{
    const struct kernel_case *c = &b->c;
    *x = (struct buffers){.q = new_buffer(b, c->heads, c->head_dim, c->io_dtype),
                          .k = new_buffer(b, c->kv_heads, c->head_dim, c->io_dtype),
                          .v = new_buffer(b, c->kv_heads, c->v_head_dim, c->io_dtype),
                          .out = new_buffer(b, c->heads, c->v_head_dim, c->io_dtype)};
    x->lse = (struct buffer){.bytes = (size_t)b->n_rows * c->heads * sizeof(float)};
    x->lse.data = guard_alloc(x->lse.bytes, c->guard);
    fill_queries(b, x);
    fill_keys(b, x);
    struct cattn_cuda_call *call = &b->call;
    call->q = x->q.data, call->q_row = x->q.row, call->q_head = x->q.head;
    call->k = x->k.data, call->k_row = x->k.row, call->k_head = x->k.head;
    call->v = x->v.data, call->v_row = x->v.row, call->v_head = x->v.head;
    call->out = x->out.data, call->out_row = x->out.row, call->out_head = x->out.head;
    call->lse = b->c.salt % 8 ? x->lse.data : NULL;
}

static void free_buffers(const struct batch *b, struct buffers *x)
{
    struct buffer *all[] = {&x->q, &x->k, &x->v, &x->out, &x->lse};
    for (size_t i = 0; i < COUNT(all); i++)
        guard_free(all[i]->data, all[i]->bytes, b->c.guard);
}

/* ---- the pool --------------------------------------------------------------------------------------------------- */

static void store_token(struct batch *b, uint32_t slot, uint32_t token, uint32_t head)
{
    const struct kernel_case *c = &b->c;
    const size_t block = ((size_t)head * b->n_slots + slot) * b->call.block_elements;
    for (uint32_t i = 0; i < c->head_dim; i++)
        dtype_store(c->kv_dtype, b->call.pool, block + (size_t)token * c->head_dim + i,
                    stored(b, slot, token, head, i));
    for (uint32_t i = 0; i < c->v_head_dim; i++)
        dtype_store(c->kv_dtype, b->call.pool, block + (size_t)c->chunk * c->head_dim + token * c->v_head_dim + i,
                    stored(b, slot, token, head, c->head_dim + i));
}

static void make_pool(struct batch *b)
{
    const struct kernel_case *c = &b->c;
    b->call.block_elements = (uint64_t)c->chunk * (c->head_dim + c->v_head_dim);
    b->call.n_slots = b->n_slots;
    b->pool_bytes = (size_t)c->kv_heads * b->n_slots * b->call.block_elements * dtype_size(c->kv_dtype);
    b->call.pool = device_memory(b->pool_bytes);
    for (uint32_t slot = 0; slot < b->n_slots; slot++)
        for (uint32_t token = 0; token < c->chunk; token++)
            for (uint32_t head = 0; head < c->kv_heads && b->state[slot * c->chunk + token] == STORED; head++)
                store_token(b, slot, token, head);
}

/* ---- the plan --------------------------------------------------------------------------------------------------- */

struct plan {
    struct cattn_cuda_run *runs;
    struct cattn_cuda_piece *pieces;
    struct cattn_cuda_part *parts;
    struct cattn_cuda_item *items;
    struct cattn_cuda_write *writes;
    uint32_t *slots, *run_rows, *row_items, *row_positions;
    uint32_t n_runs, n_slots, n_run_rows, n_pieces, n_writes;
};

/* The first item of each row that is a token of its own slot stores it. */
static void add_writes(struct batch *b, struct plan *p)
{
    p->writes = malloc(b->n_rows * sizeof *p->writes);
    for (uint32_t row = 0; row < b->n_rows; row++) {
        const struct token t = token_of(b, row);
        unsigned char *state = &b->state[t.slot * b->c.chunk + t.token];
        if (*state == STORED)
            p->writes[p->n_writes++] = (struct cattn_cuda_write){t.slot, t.token, row};
        *state = NEW;
    }
}

/* The run of some chunks of the path of n items from the first. */
static void add_run(struct batch *b, struct plan *p, uint32_t first_item, uint32_t n_items, uint32_t first_chunk,
                    uint32_t n_chunks)
{
    static const uint32_t tiles[] = {16, 32, 64};
    if (n_chunks == 0)
        return;
    struct cattn_cuda_run *run = &p->runs[p->n_runs];
    *run = (struct cattn_cuda_run){.first_token = first_chunk * b->c.chunk,
                                   .n_tokens = n_chunks * b->c.chunk,
                                   .slots = p->n_slots,
                                   .rows = p->n_run_rows,
                                   .tile_rows = tiles[rng_below(&b->rng, 3)]};
    memcpy(p->slots + p->n_slots, b->items[first_item].slots + first_chunk, n_chunks * sizeof *p->slots);
    p->n_slots += n_chunks;
    for (uint32_t i = first_item; i < first_item + n_items; i++) {
        struct cattn_cuda_item *item = &p->items[i];
        p->parts[4 * i + item->n_parts++] = (struct cattn_cuda_part){p->n_runs, run->n_rows};
        for (uint32_t j = 0; j < b->items[i].n_rows; j++)
            p->run_rows[p->n_run_rows++] = b->items[i].first_row + j;
        run->n_rows += b->items[i].n_rows;
    }
    const uint32_t whole = (run->n_tokens + CATTN_CUDA_TILE - 1) / CATTN_CUDA_TILE;
    const uint32_t split = rng_chance(&b->rng, 50) ? whole : (uint32_t)rng_between(&b->rng, 1, whole);
    run->split_tokens = split * CATTN_CUDA_TILE;
    run->n_splits = (whole + split - 1) / split;
    p->n_runs++;
}

static void add_runs(struct batch *b, struct plan *p)
{
    const uint32_t n = b->c.n_items, per_group = b->c.group_items;
    add_run(b, p, 0, n, 0, b->c.common);
    for (uint32_t i = 0; i < n; i += per_group)
        add_run(b, p, i, i + per_group < n ? per_group : n - i, b->c.common, b->items[i].n_group);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = b->c.common + b->items[i].n_group, cut = (uint32_t)rng_below(&b->rng, 4);
        const uint32_t head = cut < b->items[i].n_own ? cut : 0; /* in two runs now and then */
        add_run(b, p, i, 1, first, head);
        add_run(b, p, i, 1, first + head, b->items[i].n_own - head);
    }
}

/* Direct runs are those of which each item has no other, in one split.  They need not be. */
static void find_direct(struct batch *b, struct plan *p)
{
    for (uint32_t r = 0; r < p->n_runs; r++)
        p->runs[r].direct = p->runs[r].n_splits == 1 && rng_chance(&b->rng, 80);
    for (uint32_t i = 0; i < b->c.n_items; i++)
        for (uint32_t j = 0; j < p->items[i].n_parts && p->items[i].n_parts > 1; j++)
            p->runs[p->parts[4 * i + j].run].direct = 0;
    for (uint32_t i = 0; i < b->c.n_items; i++) {
        p->items[i].direct = p->runs[p->parts[4 * i].run].direct;
        b->call.plan.n_folds += p->items[i].direct ? 0 : b->items[i].n_rows;
    }
}

static void add_pieces(struct batch *b, struct plan *p)
{
    const uint32_t group = b->c.heads / b->c.kv_heads;
    for (uint32_t r = 0; r < p->n_runs; r++) {
        struct cattn_cuda_run *run = &p->runs[r];
        const uint32_t packed = run->n_rows * group, n_tiles = (packed + run->tile_rows - 1) / run->tile_rows;
        run->states = b->n_states;
        if (!run->direct)
            b->n_states += (size_t)run->n_splits * b->c.kv_heads * packed;
        p->pieces = realloc(p->pieces, (p->n_pieces + run->n_splits * n_tiles + 1) * sizeof *p->pieces);
        for (uint32_t i = 0; i < run->n_splits * n_tiles; i++)
            p->pieces[p->n_pieces++] = (struct cattn_cuda_piece){r, i / n_tiles, i % n_tiles, run->tile_rows};
        p->pieces[p->n_pieces++] = (struct cattn_cuda_piece){0, 0, 0, 0};
    }
    for (uint32_t i = p->n_pieces; i > 1; i--) { /* in any order */
        const uint32_t j = (uint32_t)rng_below(&b->rng, i);
        const struct cattn_cuda_piece piece = p->pieces[j];
        p->pieces[j] = p->pieces[i - 1];
        p->pieces[i - 1] = piece;
    }
}

static void *on_device(void *host, size_t n, size_t size)
{
    void *memory = device_memory(n * size);
    memcpy(memory, host, n * size);
    free(host);
    return memory;
}

static void make_plan(struct batch *b)
{
    const uint32_t n = b->c.n_items, most_runs = 1 + 4 * n;
    struct plan p = {.runs = malloc(most_runs * sizeof *p.runs),
                     .parts = calloc(4 * n, sizeof *p.parts),
                     .items = calloc(n, sizeof *p.items),
                     .slots = malloc((size_t)2 * b->n_chunks * sizeof *p.slots),
                     .run_rows = malloc((size_t)4 * b->n_rows * sizeof *p.run_rows),
                     .row_items = malloc(b->n_rows * sizeof *p.row_items),
                     .row_positions = malloc(b->n_rows * sizeof *p.row_positions)};
    for (uint32_t i = 0; i < n; i++) {
        p.items[i] = (struct cattn_cuda_item){.first_row = b->items[i].first_row, .parts = 4 * i};
        for (uint32_t j = 0; j < b->items[i].n_rows; j++) {
            p.row_items[b->items[i].first_row + j] = i;
            p.row_positions[b->items[i].first_row + j] = b->items[i].position + j;
        }
    }
    add_runs(b, &p);
    find_direct(b, &p);
    add_pieces(b, &p);
    b->call.plan =
        (struct cattn_cuda_plan){.runs = on_device(p.runs, p.n_runs, sizeof *p.runs),
                                 .pieces = on_device(p.pieces, p.n_pieces, sizeof *p.pieces),
                                 .parts = on_device(p.parts, 4 * n, sizeof *p.parts),
                                 .items = on_device(p.items, n, sizeof *p.items),
                                 .slots = on_device(p.slots, p.n_slots, sizeof *p.slots),
                                 .run_rows = on_device(p.run_rows, p.n_run_rows, sizeof *p.run_rows),
                                 .row_items = on_device(p.row_items, b->n_rows, sizeof *p.row_items),
                                 .row_positions = on_device(p.row_positions, b->n_rows, sizeof *p.row_positions),
                                 .n_pieces = p.n_pieces,
                                 .n_rows = b->n_rows,
                                 .n_folds = b->call.plan.n_folds};
    add_writes(b, &p);
    b->call.plan.writes = on_device(p.writes, p.n_writes, sizeof *p.writes);
    b->call.plan.n_writes = p.n_writes;
    b->call.ml = device_memory(b->n_states * 2 * sizeof(float));
    b->call.o = device_memory(b->n_states * b->c.v_head_dim * sizeof(float));
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static const float *copy_of(const float *array, uint32_t n)
{
    return array ? memcpy(device_memory(n * sizeof *array), array, n * sizeof *array) : NULL;
}

static void set_variant(struct batch *b)
{
    const struct kernel_case *c = &b->c;
    uint32_t length = 0;
    for (uint32_t i = 0; i < c->n_items; i++)
        length = b->items[i].position > length ? b->items[i].position : length;
    b->variant = variant_new(c->heads);
    variant_draw(b->variant, c->parts, c->salt, c->heads, c->chunk, length + 1);
    struct cattn_cuda_call *call = &b->call;
    call->scale = b->variant->scale > 0 ? b->variant->scale : (float)(1 / sqrt(c->head_dim));
    call->softcap = b->variant->softcap;
    call->window = b->variant->window;
    call->n_sink_tokens = b->variant->n_sink_tokens;
    call->alibi_slopes = copy_of(b->variant->alibi_slopes, c->heads);
    call->sinks = copy_of(b->variant->sinks, c->heads);
}

static void poison(struct batch *b)
{
    b->poisoned_slot = UINT32_MAX;
    if (!b->c.poison)
        return;
    const struct item *item = &b->items[rng_below(&b->rng, b->c.n_items)];
    const uint32_t t = (uint32_t)rng_below(&b->rng, item->position + item->n_rows);
    b->poisoned_slot = item->slots[token_chunk(b, t)];
    b->poisoned_token = t % b->c.chunk;
}

static void open_batch(struct batch *b, const struct kernel_case *c)
{
    *b = (struct batch){.c = *c};
    describe(c, b->text, sizeof b->text);
    if (getenv("CATTN_TEST_VERBOSE"))
        fprintf(stderr, "%s\n", b->text);
    rng_init(&b->rng, c->salt);
    b->call = (struct cattn_cuda_call){.chunk_tokens = c->chunk,
                                       .n_heads = c->heads,
                                       .n_kv_heads = c->kv_heads,
                                       .head_dim = c->head_dim,
                                       .v_head_dim = c->v_head_dim,
                                       .io_dtype = c->io_dtype,
                                       .kv_dtype = c->kv_dtype};
    make_items(b);
    poison(b);
    set_variant(b);
    make_plan(b);
    make_pool(b);
}

static void close_batch(struct batch *b)
{
    const struct cattn_cuda_plan *p = &b->call.plan;
    const void *all[] = {
        p->runs,   p->pieces,        p->parts,     p->items,   p->slots,  p->run_rows,          p->row_items,
        p->writes, p->row_positions, b->call.pool, b->call.ml, b->call.o, b->call.alibi_slopes, b->call.sinks};
    for (size_t i = 0; i < COUNT(all); i++)
        free((void *)(uintptr_t)all[i]);
    for (uint32_t i = 0; i < b->c.n_items; i++)
        free(b->items[i].slots);
    free(b->items);
    free(b->state);
    variant_free(b->variant);
}

/* ---- what must come out ----------------------------------------------------------------------------------------- */

/* Keys and values on the path of an item, as one head has them. */
struct path {
    double *k, *v;
    double longest; /* key */
};

static struct path path_of(const struct batch *b, const struct item *item, uint32_t head, uint32_t n)
{
    const uint32_t d = b->c.head_dim, dv = b->c.v_head_dim;
    struct path path = {malloc((size_t)n * d * sizeof(double)), malloc((size_t)n * dv * sizeof(double)), 0};
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t slot = item->slots[token_chunk(b, t)];
        double sum = 0;
        for (uint32_t i = 0; i < d; i++) {
            path.k[(size_t)t * d + i] = stored(b, slot, t % b->c.chunk, head, i);
            sum += path.k[(size_t)t * d + i] * path.k[(size_t)t * d + i];
        }
        for (uint32_t i = 0; i < dv; i++)
            path.v[(size_t)t * dv + i] = stored(b, slot, t % b->c.chunk, head, d + i);
        path.longest = fmax(path.longest, sqrt(sum));
    }
    return path;
}

/* A number that is not one may reach rows of its own sequence that see tokens near it. */
static int may_be_poisoned(const struct batch *b, const struct item *item, uint32_t position)
{
    for (uint32_t i = 0; i < item->n_chunks; i++)
        if (item->slots[i] == b->poisoned_slot)
            return position + 2 * CATTN_CUDA_TILE > i * b->c.chunk + b->poisoned_token;
    return 0;
}

static void check_row(const struct batch *b, const struct buffers *x, const struct path *path, uint32_t row,
                      uint32_t position, uint32_t head)
{
    const uint32_t d = b->c.head_dim, dv = b->c.v_head_dim;
    double *q = calloc(d, sizeof *q), *out = malloc(dv * sizeof *out), sum = 0;
    for (uint32_t i = 0; i < d; i++) {
        q[i] = query(b, row, head, i);
        sum += q[i] * q[i];
    }
    const double lse = oracle_row(q, path->k, path->v, position + 1, d, dv, b->variant, head, out);
    const struct row_size size = {sqrt(sum), path->longest, 1, position};
    const struct bound bound =
        bound_of_row(b->c.fast ? "mma" : "general", b->c.io_dtype, b->c.kv_dtype, d, b->variant, head, &size);
    for (uint32_t i = 0; i < dv; i++) {
        const double got = dtype_load(b->c.io_dtype, x->out.data, row * x->out.row + head * x->out.head + i);
        CHECK(fabs(got - out[i]) <= bound.out + 2 * dtype_epsilon(b->c.io_dtype) * fabs(out[i]),
              "row %u at %u, head %u, element %u: %g, not %g (bound %g): %s; %s", row, position, head, i, got, out[i],
              bound.out, b->text, variant_text(b->variant));
    }
    if (b->call.lse) {
        const double got = b->call.lse[(size_t)row * b->c.heads + head];
        CHECK(fabs(got - lse) <= bound.score + 1e-6 * fabs(lse), "row %u, head %u: lse %g, not %g: %s; %s", row, head,
              got, lse, b->text, variant_text(b->variant));
    }
    free(q);
    free(out);
}

/* delta: how far rows have moved on. */
static void check_rows(const struct batch *b, const struct buffers *x, uint32_t delta)
{
    const uint32_t group = b->c.heads / b->c.kv_heads;
    for (uint32_t i = 0; i < b->c.n_items; i++) {
        const struct item *item = &b->items[i];
        for (uint32_t h = 0; h < b->c.kv_heads; h++) {
            struct path path = path_of(b, item, h, item->position + delta + item->n_rows);
            for (uint32_t j = 0; j < item->n_rows; j++)
                for (uint32_t g = 0; g < group && !may_be_poisoned(b, item, item->position + delta + j); g++)
                    check_row(b, x, &path, item->first_row + j, item->position + delta + j, h * group + g);
            free(path.k);
            free(path.v);
        }
    }
}

/* What lies between the rows and heads of the output is as it was. */
static void check_padding(const struct batch *b, const struct buffers *x)
{
    const size_t size = dtype_size(b->c.io_dtype), n = x->out.bytes / size;
    const unsigned char *bytes = x->out.data;
    for (size_t i = 0; i < n && b->c.pad; i++) {
        const size_t in_row = i % x->out.row, head = in_row / x->out.head;
        if (head < b->c.heads && in_row % x->out.head < x->out.n)
            continue;
        for (size_t k = 0; k < size; k++)
            CHECK(bytes[i * size + k] == 0xff, "wrote between rows: %s", b->text);
    }
}

static void must(const struct batch *b, int error)
{
    CHECK(error == 0, "%s: %s; %s", cudaGetErrorString((cudaError_t)error), fake_cuda_message(), b->text);
}

static void run(struct batch *b, struct buffers *x, uint32_t delta)
{
    must(b, cattn_cuda_store(&b->call, NULL));
    must(b, cattn_cuda_attend(&b->call, b->c.fast, NULL));
    must(b, (int)cudaDeviceSynchronize());
    check_rows(b, x, delta);
    check_padding(b, x);
}

/* All rows can move on by one token within their slots. */
static int can_advance(const struct batch *b)
{
    for (uint32_t row = 0; row < b->n_rows; row++) {
        const struct token t = token_of(b, row);
        if (t.token + 1 == b->c.chunk)
            return 0;
    }
    return 1;
}

static void advance(struct batch *b, struct buffers *x)
{
    must(b, cattn_cuda_advance(&b->call.plan, 1, NULL));
    for (uint32_t i = 0; i < b->c.n_items; i++)
        b->items[i].position++; /* the rows are the next tokens: other keys and values */
    fill_keys(b, x);
    for (uint32_t i = 0; i < b->c.n_items; i++)
        b->items[i].position--;
    run(b, x, 1);
}

static void check_case(const struct kernel_case *c)
{
    struct batch b;
    struct buffers x;
    open_batch(&b, c);
    make_buffers(&b, &x);
    must(&b, cattn_cuda_prepare());
    run(&b, &x, 0);
    if (c->advance && can_advance(&b))
        advance(&b, &x);
    free_buffers(&b, &x);
    close_batch(&b);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

/* About the multiplications of a case: what a build can afford. */
static uint64_t cost(const struct kernel_case *c)
{
    const uint64_t own = c->most_group + c->most_own, rows = (uint64_t)c->n_items * (c->most_rows + 1) / 2;
    return rows * c->heads * (c->common + own + 1) * c->chunk * (c->head_dim + c->v_head_dim + 64);
}

static uint64_t affordable(void)
{
    return __tsan_init ? 10000000 : __asan_init ? 15000000 : 40000000;
}

static size_t n_cases(size_t n)
{
    const size_t full = test_full() ? 20 : 1;
    return full * (__tsan_init ? n / 4 : __asan_init ? n / 3 : n);
}

static void draw(struct kernel_case *c, struct rng *rng)
{
    static const double gains[] = {0.5, 3, 3, 12};
    const uint32_t *ratio = ratios[rng_below(rng, COUNT(ratios))];
    c->heads = ratio[0];
    c->kv_heads = ratio[1];
    c->chunk = chunks[rng_below(rng, COUNT(chunks))];
    c->n_items = batches[rng_below(rng, COUNT(batches))];
    c->most_rows = rng_chance(rng, 50) ? 1 : (uint32_t)rng_between(rng, 1, 70);
    c->common = (uint32_t)rng_below(rng, 5);
    c->group_items = (uint32_t)rng_between(rng, 1, 4);
    c->most_group = (uint32_t)rng_below(rng, 3);
    c->most_own = (uint32_t)rng_between(rng, 0, 3);
    c->parts = variant_parts(rng);
    c->gain = gains[rng_below(rng, COUNT(gains))];
    c->pad = rng_chance(rng, 40) ? rng_between(rng, 1, 9) : 0;
    c->guard = __asan_init ? GUARD_NONE : rng_chance(rng, 50) ? GUARD_END : GUARD_START;
    c->poison = rng_chance(rng, 20);
    c->advance = rng_chance(rng, 30);
    c->salt = rng_next(rng) >> 8;
}

static void draw_affordable(struct kernel_case *c, struct rng *rng)
{
    do
        draw(c, rng);
    while (cost(c) > affordable());
}

START_TEST(fast_kernels)
{
    for (size_t i = 0; i < n_cases(160); i++) {
        struct rng rng;
        struct kernel_case c = {.fast = 1};
        rng_init(&rng, i);
        c.io_dtype = c.kv_dtype = i % 2 ? CATTN_F16 : CATTN_BF16;
        c.head_dim = c.v_head_dim = fast_dims[i / 2 % COUNT(fast_dims)];
        ck_assert(cattn_cuda_is_fast(c.io_dtype, c.kv_dtype, c.head_dim, c.v_head_dim));
        draw_affordable(&c, &rng);
        check_case(&c);
    }
}
END_TEST

START_TEST(general_kernel)
{
    static const uint32_t dtypes[] = {CATTN_F32, CATTN_F16, CATTN_BF16};
    for (size_t i = 0; i < n_cases(130); i++) {
        struct rng rng;
        struct kernel_case c = {.io_dtype = dtypes[i % 3], .kv_dtype = dtypes[i / 3 % 3]};
        rng_init(&rng, 1000 + i);
        c.head_dim = general_dims[i % COUNT(general_dims)];
        c.v_head_dim = rng_chance(&rng, 70) ? c.head_dim : general_dims[rng_below(&rng, COUNT(general_dims))];
        draw_affordable(&c, &rng);
        check_case(&c);
    }
}
END_TEST

/* Batches that fill no tile, or one and a little more, over a prefix that all share, in one row each. */
START_TEST(odd_batches)
{
    static const uint32_t sizes[] = {1, 2, 65, 80};
    for (size_t i = 0; i < COUNT(sizes) * 2; i++) {
        struct kernel_case c = {.fast = 1,
                                .heads = i % 2 ? 2 : 1,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .v_head_dim = 64,
                                .chunk = 64,
                                .io_dtype = i % 2 ? CATTN_F16 : CATTN_BF16,
                                .n_items = sizes[i / 2],
                                .most_rows = 1,
                                .common = 2,
                                .group_items = 1,
                                .most_own = 1,
                                .gain = 3,
                                .guard = __asan_init ? GUARD_NONE : GUARD_END,
                                .salt = i + 1};
        c.kv_dtype = c.io_dtype;
        check_case(&c);
    }
}
END_TEST

/* No pieces, no rows: nothing is launched. */
START_TEST(empty_plan)
{
    const struct cattn_cuda_call call = {
        .n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .v_head_dim = 64, .chunk_tokens = 64, .kv_dtype = CATTN_F16};
    ck_assert_int_eq(cattn_cuda_store(&call, NULL), 0);
    ck_assert_int_eq(cattn_cuda_attend(&call, 1, NULL), 0);
    ck_assert_int_eq(cattn_cuda_attend(&call, 0, NULL), 0);
    ck_assert_int_eq(cattn_cuda_advance(&call.plan, 1, NULL), 0);
    ck_assert_uint_eq(fake_cuda_pending(), 0);
}
END_TEST

START_TEST(choice_and_occupancy)
{
    int n;
    ck_assert_int_eq(cattn_cuda_prepare(), 0);
    for (size_t i = 0; i < COUNT(fast_dims); i++)
        for (uint32_t dtype = CATTN_F16; dtype <= CATTN_BF16; dtype++) {
            const uint32_t d = fast_dims[i];
            ck_assert(cattn_cuda_is_fast(dtype, dtype, d, d));
            ck_assert(!cattn_cuda_is_fast(CATTN_F32, dtype, d, d) && !cattn_cuda_is_fast(dtype, CATTN_F32, d, d));
            ck_assert(!cattn_cuda_is_fast(dtype, dtype, d, d + 1) && !cattn_cuda_is_fast(dtype, dtype, d + 1, d + 1));
            ck_assert_int_eq(cattn_cuda_occupancy(dtype, d, &n), 0);
            ck_assert_int_ge(n, 1);
        }
    /* What blocks of a 4090 can have is enough. */
    fake_cuda_capability(8, 9, 128);
    ck_assert_int_eq(cattn_cuda_prepare(), 0);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("the CUDA kernels on the CPU");
    tcase_add_test(tcase, fast_kernels);
    tcase_add_test(tcase, general_kernel);
    tcase_add_test(tcase, odd_batches);
    tcase_add_test(tcase, empty_plan);
    tcase_add_test(tcase, choice_and_occupancy);
    return suite_run(tcase);
}
