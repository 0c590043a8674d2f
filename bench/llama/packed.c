#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "packed.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_ONEDNN
#  include "onednn.h"

/* A primitive is made for a number of rows: more are multiplied in blocks, so that there are not too many of them. */
#  define MOST_ROWS 256

/* Products of one shape. */
struct shape {
    size_t n_in, n_out;
    dnnl_memory_desc_t weights; /* the layout */
    bool has_weights;
    dnnl_primitive_t products[MOST_ROWS + 1]; /* by rows; made as they are first needed */
    dnnl_memory_t src[MOST_ROWS + 1], dst[MOST_ROWS + 1];
};

struct matrix {
    const float *key;
    struct shape *shape;
    dnnl_memory_t memory;
};

struct packed {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_data_type_t type;
    struct shape **shapes;
    size_t n_shapes;
    struct matrix *matrices; /* by key */
    size_t n_matrices, room;
    uint16_t *rounded; /* x in bf16 */
    size_t rounded_room;
};

/* ---- descriptors --------------------------------------------------------------------------------------------------
 */

static int make_desc(dnnl_memory_desc_t *desc, size_t rows, size_t columns, dnnl_data_type_t type,
                     dnnl_format_tag_t tag)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
#  if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(desc, 2, dims, type, tag) == dnnl_success ? 0 : -1;
#  else
    return dnnl_memory_desc_init_by_tag(desc, 2, dims, type, tag) == dnnl_success ? 0 : -1;
#  endif
}

static dnnl_primitive_desc_t describe_product(const struct packed *p, const dnnl_memory_desc_t desc[3])
{
    dnnl_primitive_desc_t made = NULL;
#  if DNNL_VERSION_MAJOR >= 3
    if (dnnl_matmul_primitive_desc_create(&made, p->engine, desc[0], desc[1], NULL, desc[2], NULL) != dnnl_success)
        return NULL;
#  else
    dnnl_matmul_desc_t what;
    if (dnnl_matmul_desc_init(&what, &desc[0], &desc[1], NULL, &desc[2]) != dnnl_success ||
        dnnl_primitive_desc_create(&made, &what, NULL, p->engine, NULL) != dnnl_success)
        return NULL;
#  endif
    return made;
}

/* Keeps the layout that the product wants its weights in. */
static int keep_layout(struct shape *shape, dnnl_primitive_desc_t product)
{
    const any_desc wanted = dnnl_primitive_desc_query_md(product, dnnl_query_weights_md, 0);
#  if DNNL_VERSION_MAJOR >= 3
    if (!wanted || dnnl_memory_desc_clone(&shape->weights, wanted) != dnnl_success)
        return -1;
#  else
    if (!wanted)
        return -1;
    shape->weights = *wanted;
#  endif
    shape->has_weights = true;
    return 0;
}

/* ---- products -----------------------------------------------------------------------------------------------------
 */

/* The first product of a shape chooses the layout of the weights, the others take it. */
static int make_product(struct packed *p, struct shape *shape, size_t rows)
{
    dnnl_memory_desc_t desc[3] = {0};
    dnnl_primitive_desc_t product = NULL;
    const bool has_weights = shape->has_weights;
    int rc = make_desc(&desc[0], rows, shape->n_in, p->type, dnnl_ab) ||
             make_desc(&desc[2], rows, shape->n_out, dnnl_f32, dnnl_ab);
    if (has_weights)
        desc[1] = shape->weights;
    else
        rc |= make_desc(&desc[1], shape->n_in, shape->n_out, p->type, dnnl_format_tag_any);
    if (!rc)
        product = describe_product(p, desc);
    if (!product || (!has_weights && keep_layout(shape, product)) ||
        dnnl_primitive_create(&shape->products[rows], product) != dnnl_success ||
        dnnl_memory_create(&shape->src[rows], DESC(desc[0]), p->engine, NULL) != dnnl_success ||
        dnnl_memory_create(&shape->dst[rows], DESC(desc[2]), p->engine, NULL) != dnnl_success)
        rc = -1;
    dnnl_primitive_desc_destroy(product);
    drop_desc(&desc[0]);
    drop_desc(&desc[2]);
    if (!has_weights)
        drop_desc(&desc[1]);
    return rc ? -1 : 0;
}

static int run_product(struct packed *p, const struct matrix *matrix, size_t rows, const void *x, float *y)
{
    struct shape *shape = matrix->shape;
    if (!shape->products[rows] && make_product(p, shape, rows))
        return -1;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, shape->src[rows]}, {DNNL_ARG_WEIGHTS, matrix->memory}, {DNNL_ARG_DST, shape->dst[rows]}};
    void *source;
    memcpy(&source, &x, sizeof source); /* it is read only */
    return dnnl_memory_set_data_handle(shape->src[rows], source) == dnnl_success &&
                   dnnl_memory_set_data_handle(shape->dst[rows], y) == dnnl_success &&
                   dnnl_primitive_execute(shape->products[rows], p->stream, 3, arguments) == dnnl_success &&
                   dnnl_stream_wait(p->stream) == dnnl_success
               ? 0
               : -1;
}

/* ---- weights ------------------------------------------------------------------------------------------------------
 */

static struct shape *find_shape(struct packed *p, size_t n_in, size_t n_out)
{
    for (size_t i = 0; i < p->n_shapes; i++) {
        if (p->shapes[i]->n_in == n_in && p->shapes[i]->n_out == n_out)
            return p->shapes[i];
    }
    struct shape **shapes = realloc(p->shapes, (p->n_shapes + 1) * sizeof *shapes), *made = calloc(1, sizeof *made);
    if (shapes)
        p->shapes = shapes;
    if (!shapes || !made) {
        free(made);
        return NULL;
    }
    made->n_in = n_in;
    made->n_out = n_out;
    p->shapes[p->n_shapes++] = made;
    return made;
}

/* By place in the table, which is never more than half full. */
static size_t place_of(const struct packed *p, const float *key)
{
    size_t i = (size_t)(((uintptr_t)key >> 6) * 2654435761u) & (p->room - 1);

    while (p->matrices[i].key && p->matrices[i].key != key)
        i = (i + 1) & (p->room - 1);
    return i;
}

static int grow(struct packed *p)
{
    struct matrix *old = p->matrices;
    const size_t n = p->room;

    if (2 * (p->n_matrices + 1) <= n)
        return 0;
    p->room = n ? 2 * n : 64;
    p->matrices = calloc(p->room, sizeof *p->matrices);
    if (!p->matrices) {
        p->matrices = old;
        p->room = n;
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (old[i].key)
            p->matrices[place_of(p, old[i].key)] = old[i];
    }
    free(old);
    return 0;
}

/* weights[n_out][n_in] is the transposed of what oneDNN multiplies with. */
static int pack(struct packed *p, struct matrix *matrix, const float *weights)
{
    const struct shape *shape = matrix->shape;
    dnnl_memory_desc_t plain;
    dnnl_memory_t from = NULL;
    dnnl_primitive_desc_t reorder = NULL;
    dnnl_primitive_t primitive = NULL;
    void *source;
    int rc = -1;

    memcpy(&source, &weights, sizeof source);
    if (make_desc(&plain, shape->n_in, shape->n_out, dnnl_f32, dnnl_ba))
        return -1;
    if (dnnl_memory_create(&from, DESC(plain), p->engine, source) == dnnl_success &&
        dnnl_memory_create(&matrix->memory, DESC(shape->weights), p->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
        dnnl_reorder_primitive_desc_create(&reorder, DESC(plain), p->engine, DESC(shape->weights), p->engine, NULL) ==
            dnnl_success &&
        dnnl_primitive_create(&primitive, reorder) == dnnl_success) {
        const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, matrix->memory}};

        rc = dnnl_primitive_execute(primitive, p->stream, 2, arguments) == dnnl_success &&
                     dnnl_stream_wait(p->stream) == dnnl_success
                 ? 0
                 : -1;
    }
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(reorder);
    dnnl_memory_destroy(from);
    drop_desc(&plain);
    return rc;
}

int packed_add(struct packed *p, const float *weights, size_t n_in, size_t n_out)
{
    struct matrix matrix = {.key = weights};

    if (grow(p) || !(matrix.shape = find_shape(p, n_in, n_out)) ||
        (!matrix.shape->has_weights && make_product(p, matrix.shape, 32)))
        return -1;
    if (p->matrices[place_of(p, weights)].key)
        return 0; /* tied to others: packed already */
    if (pack(p, &matrix, weights)) {
        dnnl_memory_destroy(matrix.memory);
        return -1;
    }
    p->matrices[place_of(p, weights)] = matrix;
    p->n_matrices++;
    return 0;
}

/* ---- create and destroy -------------------------------------------------------------------------------------------
 */

struct packed *packed_create(bool bf16)
{
    struct packed *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->type = bf16 ? dnnl_bf16 : dnnl_f32;
    if (dnnl_engine_create(&p->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags) != dnnl_success) {
        packed_destroy(p);
        return NULL;
    }
    return p;
}

static void free_shape(struct shape *shape)
{
    for (size_t rows = 0; rows <= MOST_ROWS; rows++) {
        dnnl_primitive_destroy(shape->products[rows]);
        dnnl_memory_destroy(shape->src[rows]);
        dnnl_memory_destroy(shape->dst[rows]);
    }
    if (shape->has_weights)
        drop_desc(&shape->weights);
    free(shape);
}

void packed_destroy(struct packed *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->room; i++)
        dnnl_memory_destroy(p->matrices[i].memory);
    for (size_t i = 0; i < p->n_shapes; i++)
        free_shape(p->shapes[i]);
    free(p->shapes);
    free(p->matrices);
    free(p->rounded);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
    free(p);
}

/* ---- use ----------------------------------------------------------------------------------------------------------
 */

/* To the nearest, ties to even. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* x, or a copy of it in bf16; NULL: no memory. */
static const void *take_rows(struct packed *p, const float *x, size_t n)
{
    if (p->type == dnnl_f32)
        return x;
    if (n > p->rounded_room) {
        free(p->rounded);
        p->rounded = malloc(n * sizeof *p->rounded);
        p->rounded_room = p->rounded ? n : 0;
    }
    for (size_t i = 0; p->rounded && i < n; i++)
        p->rounded[i] = to_bf16(x[i]);
    return p->rounded;
}

int packed_apply(struct packed *p, size_t rows, const float *x, const float *weights, float *y)
{
    const struct matrix *matrix = p->room ? &p->matrices[place_of(p, weights)] : NULL;

    if (!matrix || !matrix->key)
        return -1;
    const size_t n_in = matrix->shape->n_in, n_out = matrix->shape->n_out;
    for (size_t row = 0; row < rows; row += MOST_ROWS) {
        const size_t n = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
        const void *source = take_rows(p, x + row * n_in, n * n_in);

        if (!source || run_product(p, matrix, n, source, y + row * n_out))
            return -1;
    }
    return 0;
}

bool packed_likes_bf16(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

#else

struct packed *packed_create(bool bf16)
{
    (void)bf16;
    return NULL;
}

void packed_destroy(struct packed *packed)
{
    (void)packed;
}

int packed_add(struct packed *packed, const float *weights, size_t n_in, size_t n_out)
{
    (void)packed, (void)weights, (void)n_in, (void)n_out;
    return -1;
}

int packed_apply(struct packed *packed, size_t rows, const float *x, const float *weights, float *y)
{
    (void)packed, (void)rows, (void)x, (void)weights, (void)y;
    return -1;
}

bool packed_likes_bf16(void)
{
    return false;
}

#endif
