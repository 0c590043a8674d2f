/* onednn: the two phases composed by hand.  For each KV head one product of all queries with the shared K and one
 * batched product with the private ones go into the same rows of scores; then softmax; then the products with V, the
 * second added to the first.  Threads get KV heads.  What is shared lies in the layout that oneDNN asks for. */
#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

#ifdef HAVE_ONEDNN
#  include "onednn.h"
#endif

#if defined(HAVE_ONEDNN) && ONEDNN_HAS_SOFTMAX

enum { SHARED_SCORES, PRIVATE_SCORES, SOFTMAX, SHARED_SUM, PRIVATE_SUM, N_OPERATIONS };
enum { SRC, WEIGHTS, DST, SCRATCH, N_ARGUMENTS };
enum { SHARED_K, SHARED_V, PRIVATE_K, PRIVATE_V, N_TENSORS };

static const int argument_names[N_ARGUMENTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};

struct operation {
    dnnl_primitive_t primitive; /* NULL: this shape does without */
    dnnl_primitive_desc_t desc;
};

/* A thread's buffers, for one KV head at a time. */
struct worker {
    dnnl_stream_t stream;
    dnnl_memory_t memory[N_OPERATIONS][N_ARGUMENTS];
    void *scratch;
    void *q;       /* [sequence][head of the group][head_dim] */
    float *scores; /* [sequence][head of the group][token] */
    void *weights; /* the same; in place where they are f32 */
    float *out;    /* as q */
};

struct onednn {
    const struct bench_setup *setup;
    uint32_t rows, group, n; /* queries of a KV head; heads of a group; tokens */
    dnnl_data_type_t type;
    size_t size; /* bytes of an element */
    dnnl_engine_t engine;
    struct operation operations[N_OPERATIONS];
    char *kv; /* [layer][kv_head], tensors at offsets */
    size_t offsets[N_TENSORS], head_bytes, kv_bytes;
    struct worker *workers;
    uint32_t layer; /* of this run */
};

/* ---- making the operations -------------------------------------------------------------------------------------- */

static int make_desc(dnnl_memory_desc_t *desc, int n, const dnnl_dims_t dims, dnnl_data_type_t type,
                     const dnnl_dims_t strides)
{
#  if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(desc, n, dims, type, strides) == dnnl_success ? 0 : -1;
#  else
    return dnnl_memory_desc_init_by_strides(desc, n, dims, type, strides) == dnnl_success ? 0 : -1;
#  endif
}

/* A matrix whose layout is left to oneDNN. */
static int make_free_desc(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type)
{
#  if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(desc, 2, dims, type, dnnl_format_tag_any) == dnnl_success ? 0 : -1;
#  else
    return dnnl_memory_desc_init_by_tag(desc, 2, dims, type, dnnl_format_tag_any) == dnnl_success ? 0 : -1;
#  endif
}

/* Scratch memory is ours, so that threads can run one primitive at the same time. */
static dnnl_primitive_attr_t make_attributes(int adds)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;

    if (dnnl_primitive_attr_create(&attributes) != dnnl_success)
        return NULL;
    dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (adds && dnnl_post_ops_create(&after) == dnnl_success) {
#  if DNNL_VERSION_MAJOR >= 3
        dnnl_post_ops_append_sum(after, 1.0f, 0, dnnl_data_type_undef);
#  else
        dnnl_post_ops_append_sum(after, 1.0f);
#  endif
        dnnl_primitive_attr_set_post_ops(attributes, after);
        dnnl_post_ops_destroy(after);
    }
    return attributes;
}

static int make_product(struct onednn *o, int operation, const dnnl_memory_desc_t desc[3], int adds)
{
    struct operation *op = &o->operations[operation];
    dnnl_primitive_attr_t attributes = make_attributes(adds);
    dnnl_status_t status;

#  if DNNL_VERSION_MAJOR >= 3
    status =
        dnnl_matmul_primitive_desc_create(&op->desc, o->engine, desc[SRC], desc[WEIGHTS], NULL, desc[DST], attributes);
#  else
    dnnl_matmul_desc_t what;
    status = dnnl_matmul_desc_init(&what, &desc[SRC], &desc[WEIGHTS], NULL, &desc[DST]);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&op->desc, &what, attributes, o->engine, NULL);
#  endif
    dnnl_primitive_attr_destroy(attributes);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&op->primitive, op->desc);
    return status == dnnl_success ? 0 : -1;
}

static int make_softmax_from(struct onednn *o, const dnnl_memory_desc_t desc[2])
{
    struct operation *op = &o->operations[SOFTMAX];
    dnnl_primitive_attr_t attributes = make_attributes(0);
    dnnl_status_t status;

#  if DNNL_VERSION_MAJOR >= 3
    status = dnnl_softmax_forward_primitive_desc_create(&op->desc, o->engine, dnnl_forward_inference,
                                                        dnnl_softmax_accurate, desc[0], desc[1], 1, attributes);
#  else
    dnnl_softmax_v2_desc_t what;
    status =
        dnnl_softmax_v2_forward_desc_init(&what, dnnl_forward_inference, dnnl_softmax_accurate, &desc[0], &desc[1], 1);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(&op->desc, &what, attributes, o->engine, NULL);
#  endif
    dnnl_primitive_attr_destroy(attributes);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&op->primitive, op->desc);
    return status == dnnl_success ? 0 : -1;
}

static int make_softmax(struct onednn *o)
{
    const dnnl_dims_t dims = {o->rows, o->n}, strides = {o->n, 1};
    dnnl_memory_desc_t desc[2] = {0};
    int status = -1;

    if (make_desc(&desc[0], 2, dims, dnnl_f32, strides) == 0 && make_desc(&desc[1], 2, dims, o->type, strides) == 0)
        status = make_softmax_from(o, desc);
    drop_desc(&desc[0]);
    drop_desc(&desc[1]);
    return status;
}

/* Queries [rows][d] by K [d][shared], or weights [rows][shared] by V [shared][d]. */
static int make_shared(struct onednn *o, int operation)
{
    const struct bench_shape *s = &o->setup->shape;
    const int scores = operation == SHARED_SCORES;
    const dnnl_dim_t d = s->head_dim, m = s->shared, n = o->n;
    const dnnl_dims_t src = {o->rows, scores ? d : m}, weights = {scores ? d : m, scores ? m : d};
    const dnnl_dims_t dst = {o->rows, scores ? m : d};
    const dnnl_dims_t src_strides = {scores ? d : n, 1}, dst_strides = {scores ? n : d, 1};
    dnnl_memory_desc_t desc[3] = {0};
    int status = -1;

    if (make_desc(&desc[SRC], 2, src, o->type, src_strides) == 0 &&
        make_free_desc(&desc[WEIGHTS], weights, o->type) == 0 &&
        make_desc(&desc[DST], 2, dst, dnnl_f32, dst_strides) == 0)
        status = make_product(o, operation, desc, 0);
    for (int i = 0; i < 3; i++)
        drop_desc(&desc[i]);
    return status;
}

/* For each sequence queries [group][d] by K [d][private], or weights [group][private] by V [private][d]. */
static int make_private(struct onednn *o, int operation)
{
    const struct bench_shape *s = &o->setup->shape;
    const int scores = operation == PRIVATE_SCORES;
    const dnnl_dim_t b = s->batch, g = o->group, d = s->head_dim, m = s->private, n = o->n;
    const dnnl_dims_t src = {b, g, scores ? d : m}, weights = {b, scores ? d : m, scores ? m : d};
    const dnnl_dims_t dst = {b, g, scores ? m : d};
    const dnnl_dims_t by_d = {g * d, d, 1}, by_n = {g * n, n, 1};
    const dnnl_dims_t k_strides = {m * d, 1, d}, v_strides = {m * d, d, 1};
    dnnl_memory_desc_t desc[3] = {0};
    int status = -1;

    if (make_desc(&desc[SRC], 3, src, o->type, scores ? by_d : by_n) == 0 &&
        make_desc(&desc[WEIGHTS], 3, weights, o->type, scores ? k_strides : v_strides) == 0 &&
        make_desc(&desc[DST], 3, dst, dnnl_f32, scores ? by_n : by_d) == 0)
        status = make_product(o, operation, desc, !scores && s->shared > 0);
    for (int i = 0; i < 3; i++)
        drop_desc(&desc[i]);
    return status;
}

static int make_operations(struct onednn *o)
{
    const struct bench_shape *s = &o->setup->shape;

    if (make_softmax(o) != 0)
        return -1;
    if (s->shared > 0 && (make_shared(o, SHARED_SCORES) != 0 || make_shared(o, SHARED_SUM) != 0))
        return -1;
    if (s->private > 0 && (make_private(o, PRIVATE_SCORES) != 0 || make_private(o, PRIVATE_SUM) != 0))
        return -1;
    return 0;
}

struct making {
    struct onednn *o;
    int status;
};

static void make_alone(void *context, uint32_t ith, uint32_t nth)
{
    struct making *making = context;
    (void)ith, (void)nth;
    making->status = make_operations(making->o);
}

static const char *implementation(const struct operation *op)
{
    const char *name = "";
    if (op->desc != NULL)
        dnnl_primitive_desc_query(op->desc, dnnl_query_impl_info_str, 0, &name);
    return name;
}

/* Reference implementations are for tests: they make no fair baseline. */
static int is_only_reference(const struct onednn *o)
{
    for (int i = 0; i < N_OPERATIONS; i++)
        if (strncmp(implementation(&o->operations[i]), "ref", 3) == 0)
            return 1;
    return 0;
}

/* ---- K and V ---------------------------------------------------------------------------------------------------- */

static any_desc desc_of(const struct onednn *o, int operation, int argument)
{
    static const dnnl_query_t queries[N_ARGUMENTS] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md,
                                                      dnnl_query_scratchpad_md};
    return dnnl_primitive_desc_query_md(o->operations[operation].desc, queries[argument], 0);
}

static char *tensor(const struct onednn *o, uint32_t layer, uint32_t head, int which)
{
    return o->kv + ((size_t)layer * o->setup->shape.kv_heads + head) * o->head_bytes + o->offsets[which];
}

static size_t to_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void place_tensors(struct onednn *o)
{
    const struct bench_shape *s = &o->setup->shape;
    const size_t own = to_lines((size_t)s->batch * s->private * s->head_dim * o->size);
    size_t shared[2] = {0, 0};

    if (s->shared > 0) {
        shared[0] = to_lines(dnnl_memory_desc_get_size(desc_of(o, SHARED_SCORES, WEIGHTS)));
        shared[1] = to_lines(dnnl_memory_desc_get_size(desc_of(o, SHARED_SUM, WEIGHTS)));
    }
    o->offsets[SHARED_V] = shared[0];
    o->offsets[PRIVATE_K] = o->offsets[SHARED_V] + shared[1];
    o->offsets[PRIVATE_V] = o->offsets[PRIVATE_K] + own;
    o->head_bytes = o->offsets[PRIVATE_V] + own;
}

/* The data are exact in every type: bf16 is the upper half. */
static void put_row(const struct onednn *o, const float *row, char *to)
{
    if (o->type == dnnl_f32) {
        memcpy(to, row, o->setup->shape.head_dim * sizeof *row);
        return;
    }
    for (uint32_t i = 0; i < o->setup->shape.head_dim; i++) {
        uint32_t bits;
        uint16_t upper;
        memcpy(&bits, &row[i], sizeof bits);
        upper = (uint16_t)(bits >> 16);
        memcpy(to + 2 * i, &upper, sizeof upper);
    }
}

static void fill_private(void *state, uint32_t layer, uint32_t chunk)
{
    const struct onednn *o = state;
    const struct bench_shape *s = &o->setup->shape;
    uint32_t first = bench_shared_chunks(s), sequence, token;
    float row[1024]; /* the largest head_dim there is */

    if (chunk < first)
        return;
    sequence = (chunk - first) / bench_private_chunks(s);
    token = (chunk - first) % bench_private_chunks(s) * s->chunk;
    for (uint32_t head = 0; head < s->kv_heads; head++)
        for (uint32_t t = 0; t < bench_chunk_tokens(s, chunk); t++) {
            size_t offset = ((size_t)sequence * s->private + token + t) * s->head_dim * o->size;
            bench_data_row(s, layer, BENCH_K, chunk, t, head, row);
            put_row(o, row, tensor(o, layer, head, PRIVATE_K) + offset);
            bench_data_row(s, layer, BENCH_V, chunk, t, head, row);
            put_row(o, row, tensor(o, layer, head, PRIVATE_V) + offset);
        }
}

/* Copies the plain f32 matrix to where and how the operation wants it. */
static dnnl_status_t reorder(const struct onednn *o, dnnl_memory_t plain, any_desc plain_desc, int operation,
                             char *where)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_memory_t to = NULL;
    any_desc to_desc = desc_of(o, operation, WEIGHTS);
    dnnl_status_t status = dnnl_memory_create(&to, to_desc, o->engine, where);

    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&desc, plain_desc, o->engine, to_desc, o->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&primitive, desc);
    if (status == dnnl_success) {
        dnnl_exec_arg_t arguments[2] = {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, to}};
        status = dnnl_primitive_execute(primitive, o->workers[0].stream, 2, arguments);
    }
    if (status == dnnl_success)
        status = dnnl_stream_wait(o->workers[0].stream);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(to);
    return status;
}

/* K goes in transposed: [d][token], read from [token][d]. */
static dnnl_status_t fill_shared(const struct onednn *o, uint32_t layer, uint32_t head, enum bench_what what,
                                 float *rows)
{
    const struct bench_shape *s = &o->setup->shape;
    const dnnl_dim_t d = s->head_dim, m = s->shared;
    const dnnl_dims_t dims = {what == BENCH_K ? d : m, what == BENCH_K ? m : d};
    const dnnl_dims_t strides = {what == BENCH_K ? 1 : d, what == BENCH_K ? d : 1};
    dnnl_memory_desc_t desc = {0};
    dnnl_memory_t plain = NULL;
    dnnl_status_t status = dnnl_out_of_memory;

    for (uint32_t t = 0; t < s->shared; t++)
        bench_data_row(s, layer, what, t / s->chunk, t % s->chunk, head, rows + (size_t)t * s->head_dim);
    if (make_desc(&desc, 2, dims, dnnl_f32, strides) != 0)
        return status;
    status = dnnl_memory_create(&plain, DESC(desc), o->engine, rows);
    if (status == dnnl_success)
        status = reorder(o, plain, DESC(desc), what == BENCH_K ? SHARED_SCORES : SHARED_SUM,
                         tensor(o, layer, head, what == BENCH_K ? SHARED_K : SHARED_V));
    dnnl_memory_destroy(plain);
    drop_desc(&desc);
    return status;
}

static int fill_all_shared(const struct onednn *o, uint32_t n_layers)
{
    const struct bench_shape *s = &o->setup->shape;
    float *rows = malloc((size_t)s->shared * s->head_dim * sizeof *rows);
    dnnl_status_t status = rows != NULL ? dnnl_success : dnnl_out_of_memory;

    for (uint32_t i = 0; i < n_layers * s->kv_heads && status == dnnl_success; i++) {
        status = fill_shared(o, i / s->kv_heads, i % s->kv_heads, BENCH_K, rows);
        if (status == dnnl_success)
            status = fill_shared(o, i / s->kv_heads, i % s->kv_heads, BENCH_V, rows);
    }
    free(rows);
    return status == dnnl_success ? 0 : -1;
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

static int execute(const struct onednn *o, struct worker *w, int operation, void *src, void *weights, void *dst)
{
    void *const places[N_ARGUMENTS] = {src, weights, dst, w->scratch};
    dnnl_exec_arg_t arguments[N_ARGUMENTS];
    int n = 0;

    for (int i = 0; i < N_ARGUMENTS; i++)
        if (w->memory[operation][i] != NULL) { /* a softmax has no weights */
            if (dnnl_memory_set_data_handle(w->memory[operation][i], places[i]) != dnnl_success)
                return -1;
            arguments[n++] = (dnnl_exec_arg_t){argument_names[i], w->memory[operation][i]};
        }
    return dnnl_primitive_execute(o->operations[operation].primitive, w->stream, n, arguments) == dnnl_success ? 0 : -1;
}

/* Queries of one KV head, with the scale in them. */
static void pack_queries(const struct onednn *o, struct worker *w, uint32_t head)
{
    const struct bench_shape *s = &o->setup->shape;
    const float scale = 1.0f / sqrtf((float)s->head_dim);
    const size_t n = (size_t)o->group * s->head_dim;

    for (uint32_t i = 0; i < s->batch; i++) {
        const float *from = o->setup->q + ((size_t)i * s->heads + head * o->group) * s->head_dim;
        for (size_t j = 0; j < n; j++) {
            float value = from[j] * scale;
            if (o->type == dnnl_f32) {
                ((float *)w->q)[i * n + j] = value;
            } else {
                uint32_t bits;
                memcpy(&bits, &value, sizeof bits);
                ((uint16_t *)w->q)[i * n + j] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            }
        }
    }
}

static void unpack_output(const struct onednn *o, const struct worker *w, uint32_t head)
{
    const struct bench_shape *s = &o->setup->shape;
    const size_t n = (size_t)o->group * s->head_dim;

    for (uint32_t i = 0; i < s->batch; i++)
        memcpy(o->setup->out + ((size_t)i * s->heads + head * o->group) * s->head_dim, w->out + i * n,
               n * sizeof *w->out);
}

static int attend_head(const struct onednn *o, struct worker *w, uint32_t head)
{
    const struct bench_shape *s = &o->setup->shape;
    char *weights = w->weights;
    int status = 0;

    pack_queries(o, w, head);
    if (s->shared > 0)
        status |= execute(o, w, SHARED_SCORES, w->q, tensor(o, o->layer, head, SHARED_K), w->scores);
    if (s->private > 0)
        status |= execute(o, w, PRIVATE_SCORES, w->q, tensor(o, o->layer, head, PRIVATE_K), w->scores + s->shared);
    status |= execute(o, w, SOFTMAX, w->scores, NULL, weights);
    if (s->shared > 0)
        status |= execute(o, w, SHARED_SUM, weights, tensor(o, o->layer, head, SHARED_V), w->out);
    if (s->private > 0)
        status |=
            execute(o, w, PRIVATE_SUM, weights + s->shared * o->size, tensor(o, o->layer, head, PRIVATE_V), w->out);
    unpack_output(o, w, head);
    return status;
}

struct step {
    const struct onednn *o;
    int failed;
};

static void attend_share(void *context, uint32_t ith, uint32_t nth)
{
    struct step *step = context;
    size_t begin, end;

    bench_share(step->o->setup->shape.kv_heads, ith, nth, &begin, &end);
    for (size_t head = begin; head < end; head++)
        if (attend_head(step->o, &step->o->workers[ith], (uint32_t)head) != 0)
            step->failed = 1;
}

static double run(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    struct onednn *o = instance->state;
    struct step step = {o, 0};
    double start = bench_now();

    o->layer = layer;
    bench_parallel(setup->shape.threads, attend_share, &step);
    return step.failed ? -1.0 : bench_now() - start;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static void close_worker(struct worker *w)
{
    for (int i = 0; i < N_OPERATIONS; i++)
        for (int j = 0; j < N_ARGUMENTS; j++)
            dnnl_memory_destroy(w->memory[i][j]);
    dnnl_stream_destroy(w->stream);
    if (w->weights != w->scores)
        free(w->weights);
    free(w->scratch);
    free(w->q);
    free(w->scores);
    free(w->out);
}

static int open_memories(const struct onednn *o, struct worker *w, size_t *scratch_bytes)
{
    for (int i = 0; i < N_OPERATIONS; i++)
        for (int j = 0; j < N_ARGUMENTS && o->operations[i].primitive != NULL; j++) {
            any_desc desc = i == SOFTMAX && j == WEIGHTS ? NULL : desc_of(o, i, j);
            if (desc == NULL)
                continue;
            if (dnnl_memory_create(&w->memory[i][j], desc, o->engine, NULL) != dnnl_success)
                return -1;
            if (j == SCRATCH && dnnl_memory_desc_get_size(desc) > *scratch_bytes)
                *scratch_bytes = dnnl_memory_desc_get_size(desc);
        }
    return 0;
}

static void *lines(size_t n, size_t size)
{
    return aligned_alloc(64, to_lines(n * size + 1));
}

static int open_worker(const struct onednn *o, struct worker *w)
{
    const size_t rows = o->rows, d = o->setup->shape.head_dim;
    size_t scratch_bytes = 0;

    if (dnnl_stream_create(&w->stream, o->engine, dnnl_stream_default_flags) != dnnl_success ||
        open_memories(o, w, &scratch_bytes) != 0)
        return -1;
    w->scratch = lines(scratch_bytes, 1);
    w->q = lines(rows * d, o->size);
    w->scores = lines(rows * o->n, sizeof *w->scores);
    w->weights = o->type == dnnl_f32 ? w->scores : lines(rows * o->n, o->size);
    w->out = lines(rows * d, sizeof *w->out);
    return w->scratch != NULL && w->q != NULL && w->scores != NULL && w->weights != NULL && w->out != NULL ? 0 : -1;
}

static void close_onednn(struct bench_setup *setup, struct bench_instance *instance)
{
    struct onednn *o = instance->state;

    for (uint32_t i = 0; o->workers != NULL && i < setup->shape.threads; i++)
        close_worker(&o->workers[i]);
    for (int i = 0; i < N_OPERATIONS; i++) {
        dnnl_primitive_destroy(o->operations[i].primitive);
        dnnl_primitive_desc_destroy(o->operations[i].desc);
    }
    if (o->engine != NULL)
        dnnl_engine_destroy(o->engine);
    bench_free(o->kv, o->kv_bytes);
    free(o->workers);
    free(o);
}

/* Emulated bf16 is slower than f32. */
static int has_bf16(void)
{
    const unsigned wanted = dnnl_cpu_isa_avx512_core_bf16;
    return ((unsigned)dnnl_get_effective_cpu_isa() & wanted) == wanted;
}

static uint32_t dtype_of(const struct bench_shape *shape)
{
    return shape->dtype == CATTN_BF16 && has_bf16() ? CATTN_BF16 : CATTN_F32;
}

static uint64_t bytes(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, dtype_of(shape));
}

static const char *open_all(struct onednn *o, uint32_t n_layers)
{
    const struct bench_shape *s = &o->setup->shape;
    struct making making = {o, -1};

    if (dnnl_engine_create(&o->engine, dnnl_cpu, 0) != dnnl_success)
        return "oneDNN has no CPU engine";
    bench_parallel(1, make_alone, &making); /* for one thread, as they will be run */
    if (making.status != 0)
        return "oneDNN has no such operations here";
    if (is_only_reference(o))
        return "oneDNN has but its reference implementation of an operation here";
    place_tensors(o);
    o->kv_bytes = (size_t)n_layers * s->kv_heads * o->head_bytes;
    o->kv = bench_alloc(o->kv_bytes);
    o->workers = calloc(s->threads, sizeof *o->workers);
    if (o->kv == NULL || o->workers == NULL)
        return "no memory";
    for (uint32_t i = 0; i < s->threads; i++)
        if (open_worker(o, &o->workers[i]) != 0)
            return "no memory";
    if (s->shared > 0 && fill_all_shared(o, n_layers) != 0)
        return "oneDNN cannot pack K and V";
    bench_fill(s, n_layers, fill_private, o);
    return NULL;
}

static const char *open_onednn(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    const struct bench_shape *s = &setup->shape;
    struct onednn *o = calloc(1, sizeof *o);
    const char *reason;

    if (o == NULL)
        return "no memory";
    instance->state = o;
    instance->dtype = dtype_of(s);
    instance->tolerance = instance->dtype == CATTN_F32 ? 1e-5 : 2e-2;
    o->setup = setup;
    o->group = s->heads / s->kv_heads;
    o->rows = s->batch * o->group;
    o->n = s->shared + s->private;
    o->type = instance->dtype == CATTN_F32 ? dnnl_f32 : dnnl_bf16;
    o->size = bench_dtype_bytes(instance->dtype);
    reason = open_all(o, n_layers);
    if (reason != NULL) {
        close_onednn(setup, instance);
        return reason;
    }
    snprintf(instance->kernel, sizeof instance->kernel, "%s",
             implementation(&o->operations[s->shared > 0 ? SHARED_SCORES : PRIVATE_SCORES]));
    if (s->shared > 0 && s->private > 0)
        snprintf(instance->detail, sizeof instance->detail, "private part: %s",
                 implementation(&o->operations[PRIVATE_SUM]));
    return NULL;
}

const struct bench_variant bench_onednn = {"onednn", BENCH_PLAIN, bytes, open_onednn, close_onednn, NULL, run};
#else
static uint64_t bytes(const struct bench_shape *shape)
{
    return bench_unique_bytes(shape, CATTN_F32);
}

static const char *open_onednn(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    (void)setup, (void)n_layers, (void)instance;
#  ifdef HAVE_ONEDNN
    return "built with a oneDNN older than 2.6";
#  else
    return "built without oneDNN";
#  endif
}

const struct bench_variant bench_onednn = {"onednn", BENCH_PLAIN, bytes, open_onednn, NULL, NULL, NULL};
#endif
