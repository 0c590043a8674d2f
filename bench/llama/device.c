#include "device.h"

#include "backends/cpu/number.h"
#include "device_kernels.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Weights in device memory; matrices are [n_out][n_in]. */
struct device_layer {
    float *attention_norm, *ffn_norm;
    void *qkv;     /* the rows of wq, wk and wv */
    void *gate_up; /* those of gate and up */
    void *wo, *down;
};

/* What a step is about, side by side in one block of memory. */
struct inputs {
    int32_t *tokens;
    uint32_t *logit_rows;
    float *cosines, *sines;
};

struct device {
    const struct model *model;
    uint32_t dtype;
    size_t q, k, v, o; /* elements of a row, all heads; o: what comes out of attention */
    char name[160];
    cublasHandle_t cublas;
    struct device_layer *layers;
    void *embedding, *output;
    float *output_norm;
    void **owned; /* device memory of the weights */
    size_t n_owned;
    cudaEvent_t *events; /* of a step: start, end, then before and after the attention of each layer */
    size_t n_events;
    double attention_seconds, other_seconds;
    /* buffers */
    size_t n_rows, n_logits; /* that they have room for */
    char *staged, *arrived;  /* the inputs, pinned and on the device */
    float *x, *logits;
    void *normed, *qkv, *attention, *gate_up, *activated;
    const char *failure; /* the first one */
};

/* ---- failures -----------------------------------------------------------------------------------------------------
 */

/* Remembers the first; what follows it is left out.  Whether all is well. */
static int is_well(struct device *d, cudaError_t error)
{
    if (error != cudaSuccess && !d->failure)
        d->failure = cudaGetErrorString(error);
    return !d->failure;
}

static int is_cublas_well(struct device *d, cublasStatus_t status)
{
    if (status != CUBLAS_STATUS_SUCCESS && !d->failure)
        d->failure = "cuBLAS failed";
    return !d->failure;
}

static int report(const struct device *d, struct fault *fault)
{
    return d->failure ? fault_set(fault, "CUDA: %s", d->failure) : 0;
}

/* ---- weights ------------------------------------------------------------------------------------------------------
 */

static void *own(struct device *d, size_t bytes)
{
    void *memory = NULL;

    if (!d->failure && is_well(d, cudaMalloc(&memory, bytes)))
        d->owned[d->n_owned++] = memory;
    return memory;
}

/* Rounds n weights to the type and copies them to element `first` of an array on the device, in parts. */
static void upload(struct device *d, void *to, uint32_t dtype, size_t first, const float *weights, size_t n)
{
    enum { PART = 1 << 22 };
    const size_t size = cattn_dtype_size(dtype);
    void *part = malloc((n < PART ? n : PART) * size);

    if (!part)
        d->failure = "out of memory";
    for (size_t i = 0; !d->failure && i < n; i += PART) {
        const size_t m = n - i < PART ? n - i : PART;

        cattn_store_row(part, dtype, 0, weights + i, m);
        (void)is_well(d, cudaMemcpy((char *)to + (first + i) * size, part, m * size, cudaMemcpyHostToDevice));
    }
    free(part);
}

static void *put(struct device *d, uint32_t dtype, const float *weights, size_t n)
{
    void *memory = own(d, n * cattn_dtype_size(dtype));

    upload(d, memory, dtype, 0, weights, n);
    return memory;
}

static void put_layer(struct device *d, uint32_t i)
{
    const struct model_shape *s = &d->model->shape;
    const struct model_layer *from = &d->model->layers[i];
    const size_t dim = s->dim, ffn = (size_t)s->hidden * dim;
    struct device_layer *to = &d->layers[i];

    to->attention_norm = put(d, CATTN_F32, from->attention_norm, dim);
    to->ffn_norm = put(d, CATTN_F32, from->ffn_norm, dim);
    to->wo = put(d, d->dtype, from->wo, d->o * dim);
    to->down = put(d, d->dtype, from->down, ffn);
    to->qkv = own(d, (d->q + d->k + d->v) * dim * cattn_dtype_size(d->dtype));
    upload(d, to->qkv, d->dtype, 0, from->wq, d->q * dim);
    upload(d, to->qkv, d->dtype, d->q * dim, from->wk, d->k * dim);
    upload(d, to->qkv, d->dtype, (d->q + d->k) * dim, from->wv, d->v * dim);
    to->gate_up = own(d, 2 * ffn * cattn_dtype_size(d->dtype));
    upload(d, to->gate_up, d->dtype, 0, from->gate, ffn);
    upload(d, to->gate_up, d->dtype, ffn, from->up, ffn);
}

static void put_model(struct device *d)
{
    const struct model *model = d->model;
    const size_t n = (size_t)model->shape.vocabulary * model->shape.dim;

    d->embedding = put(d, d->dtype, model->embedding, n);
    d->output = model->output == model->embedding ? d->embedding : put(d, d->dtype, model->output, n);
    d->output_norm = put(d, CATTN_F32, model->output_norm, model->shape.dim);
    for (uint32_t i = 0; i < model->shape.n_layers; i++)
        put_layer(d, i);
}

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

static void describe(struct device *d)
{
    static const char *const types[] = {[CATTN_F32] = "f32", [CATTN_F16] = "f16", [CATTN_BF16] = "bf16"};
    struct cudaDeviceProp properties;

    if (is_well(d, cudaGetDeviceProperties(&properties, 0)))
        snprintf(d->name, sizeof d->name, "cuBLAS on %.100s, weights %s", properties.name, types[d->dtype]);
}

int device_open(const struct model *model, uint32_t dtype, struct device **device, struct fault *fault)
{
    const struct model_shape *s = &model->shape;
    struct device *d = *device = calloc(1, sizeof *d);

    if (!cattn_backend_usable("cuda"))
        return fault_set(fault, "--backend cuda: there is no GPU that it can use");
    if (!d)
        return fault_set(fault, "out of memory");
    d->model = model;
    d->dtype = dtype;
    d->q = (size_t)s->n_heads * s->head_dim;
    d->k = (size_t)s->n_kv_heads * s->head_dim;
    d->v = (size_t)s->n_kv_heads * s->v_head_dim;
    d->o = (size_t)s->n_heads * s->v_head_dim;
    d->layers = calloc(s->n_layers, sizeof *d->layers);
    d->owned = calloc(3 + 6 * (size_t)s->n_layers, sizeof *d->owned);
    d->events = calloc(2 + 2 * (size_t)s->n_layers, sizeof *d->events);
    if (!d->layers || !d->owned || !d->events)
        return fault_set(fault, "out of memory");
    describe(d);
    (void)is_cublas_well(d, d->failure ? CUBLAS_STATUS_SUCCESS : cublasCreate(&d->cublas));
    while (!d->failure && d->n_events < 2 + 2 * (size_t)s->n_layers &&
           is_well(d, cudaEventCreate(&d->events[d->n_events])))
        d->n_events++;
    put_model(d);
    return report(d, fault);
}

static void free_buffers(struct device *d)
{
    (void)cudaFreeHost(d->staged);
    (void)cudaFree(d->arrived);
    (void)cudaFree(d->x);
    (void)cudaFree(d->logits);
    (void)cudaFree(d->normed);
    (void)cudaFree(d->qkv);
    (void)cudaFree(d->attention);
    (void)cudaFree(d->gate_up);
    (void)cudaFree(d->activated);
    d->staged = d->arrived = NULL;
    d->x = d->logits = NULL;
    d->normed = d->qkv = d->attention = d->gate_up = d->activated = NULL;
    d->n_rows = d->n_logits = 0;
}

void device_close(struct device *d)
{
    if (!d)
        return;
    free_buffers(d);
    while (d->n_owned)
        (void)cudaFree(d->owned[--d->n_owned]);
    while (d->n_events)
        (void)cudaEventDestroy(d->events[--d->n_events]);
    if (d->cublas)
        (void)cublasDestroy(d->cublas);
    free(d->layers);
    free(d->owned);
    free(d->events);
    free(d);
}

const char *device_name(const struct device *device)
{
    return device->name;
}

uint32_t device_dtype(const struct device *device)
{
    return device->dtype;
}

double device_other_seconds(const struct device *device)
{
    return device->other_seconds;
}

double device_attention_seconds(const struct device *device)
{
    return device->attention_seconds;
}

/* ---- the rows of a step -------------------------------------------------------------------------------------------
 */

static size_t input_bytes(const struct device *d, size_t n_rows, size_t n_logits)
{
    return n_rows * (sizeof(int32_t) + d->model->shape.rotary_dims * sizeof(float)) + n_logits * sizeof(uint32_t);
}

static struct inputs lay_out(const struct device *d, char *memory, size_t n_rows, size_t n_logits)
{
    struct inputs in;

    in.tokens = (int32_t *)(void *)memory;
    in.logit_rows = (uint32_t *)(void *)(in.tokens + n_rows);
    in.cosines = (float *)(void *)(in.logit_rows + n_logits);
    in.sines = in.cosines + n_rows * (d->model->shape.rotary_dims / 2);
    return in;
}

static void *new_buffer(struct device *d, size_t n_rows, size_t width, size_t size)
{
    void *memory = NULL;

    if (!d->failure)
        (void)is_well(d, cudaMalloc(&memory, (n_rows * width + 1) * size));
    return memory;
}

static void reserve(struct device *d, size_t n_rows, size_t n_logits)
{
    const struct model_shape *s = &d->model->shape;
    const size_t size = cattn_dtype_size(d->dtype);
    void *staged = NULL;

    if (n_rows <= d->n_rows && n_logits <= d->n_logits)
        return;
    n_rows = n_rows > d->n_rows ? n_rows : d->n_rows;
    n_logits = n_logits > d->n_logits ? n_logits : d->n_logits;
    free_buffers(d);
    const size_t bytes = input_bytes(d, n_rows, n_logits);
    if (is_well(d, cudaMallocHost(&staged, bytes)))
        d->staged = staged;
    d->arrived = new_buffer(d, 1, bytes, 1);
    d->x = new_buffer(d, n_rows, s->dim, sizeof(float));
    d->logits = new_buffer(d, n_logits, s->vocabulary, sizeof(float));
    d->normed = new_buffer(d, n_rows, s->dim, size);
    d->qkv = new_buffer(d, n_rows, d->q + d->k + d->v, size);
    d->attention = new_buffer(d, n_rows, d->o, size);
    d->gate_up = new_buffer(d, n_rows, 2 * (size_t)s->hidden, size);
    d->activated = new_buffer(d, n_rows, s->hidden, size);
    d->n_rows = n_rows;
    d->n_logits = n_logits;
}

/* ---- layers -------------------------------------------------------------------------------------------------------
 */

static void norm(struct device *d, const float *weights, const uint32_t *rows, size_t n_rows)
{
    const struct model_shape *s = &d->model->shape;
    const struct device_norm job = {.out = d->normed,
                                    .x = d->x,
                                    .weights = weights,
                                    .rows = rows,
                                    .n_rows = (uint32_t)n_rows,
                                    .dim = s->dim,
                                    .dtype = d->dtype,
                                    .epsilon = (float)s->epsilon};

    if (!d->failure)
        (void)is_well(d, (cudaError_t)device_norm(&job, NULL));
}

/* y[rows][n_out] = x[rows][n_in] * weights[n_out][n_in], added to what y has where beta is 1.  To cuBLAS, which has
 * columns first, all of them are transposed. */
static void multiply(struct device *d, size_t rows, size_t n_in, size_t n_out, const void *x, const void *weights,
                     void *y, uint32_t y_dtype, float beta)
{
    static const cudaDataType_t types[] = {
        [CATTN_F32] = CUDA_R_32F, [CATTN_F16] = CUDA_R_16F, [CATTN_BF16] = CUDA_R_16BF};
    static const float one = 1;

    if (!d->failure)
        (void)is_cublas_well(d,
                             cublasGemmEx(d->cublas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n_out, (int)rows, (int)n_in, &one,
                                          weights, types[d->dtype], (int)n_in, x, types[d->dtype], (int)n_in, &beta, y,
                                          types[y_dtype], (int)n_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

static void rotate(struct device *d, const struct inputs *in, size_t n_rows)
{
    const struct model_shape *s = &d->model->shape;
    const struct device_rotate job = {.heads = d->qkv,
                                      .cosines = in->cosines,
                                      .sines = in->sines,
                                      .n_rows = (uint32_t)n_rows,
                                      .width = (uint32_t)(d->q + d->k + d->v),
                                      .n_heads = s->n_heads + s->n_kv_heads,
                                      .head_dim = s->head_dim,
                                      .n_pairs = s->rotary_dims / 2,
                                      .dtype = d->dtype};

    if (!d->failure)
        (void)is_well(d, (cudaError_t)device_rotate(&job, NULL));
}

static void activate(struct device *d, size_t n_rows)
{
    const struct device_activate job = {.out = d->activated,
                                        .gate_up = d->gate_up,
                                        .n_rows = (uint32_t)n_rows,
                                        .hidden = d->model->shape.hidden,
                                        .dtype = d->dtype};

    if (!d->failure)
        (void)is_well(d, (cudaError_t)device_activate(&job, NULL));
}

static void note_time(struct device *d, size_t event)
{
    if (!d->failure)
        (void)is_well(d, cudaEventRecord(d->events[event], NULL));
}

/* q, k and v are columns of one array. */
static void attend(struct device *d, cattn_step *step, uint32_t layer)
{
    const char *qkv = d->qkv;
    const size_t width = d->q + d->k + d->v, size = cattn_dtype_size(d->dtype);
    const struct cattn_io io = {.size = sizeof io,
                                .q = qkv,
                                .k = qkv + d->q * size,
                                .v = qkv + (d->q + d->k) * size,
                                .out = d->attention,
                                .q_row = width,
                                .k_row = width,
                                .v_row = width};

    note_time(d, 2 + 2 * (size_t)layer);
    const int status = d->failure ? CATTN_OK : cattn_step_attend(step, layer, &io);
    if (status)
        d->failure = cattn_strerror(status);
    note_time(d, 3 + 2 * (size_t)layer);
}

static void run_layer(struct device *d, cattn_step *step, uint32_t i, const struct inputs *in, size_t n_rows)
{
    const struct model_shape *s = &d->model->shape;
    const struct device_layer *layer = &d->layers[i];

    norm(d, layer->attention_norm, NULL, n_rows);
    multiply(d, n_rows, s->dim, d->q + d->k + d->v, d->normed, layer->qkv, d->qkv, d->dtype, 0);
    rotate(d, in, n_rows);
    attend(d, step, i);
    multiply(d, n_rows, d->o, s->dim, d->attention, layer->wo, d->x, CATTN_F32, 1);
    norm(d, layer->ffn_norm, NULL, n_rows);
    multiply(d, n_rows, s->dim, 2 * (size_t)s->hidden, d->normed, layer->gate_up, d->gate_up, d->dtype, 0);
    activate(d, n_rows);
    multiply(d, n_rows, s->hidden, s->dim, d->activated, layer->down, d->x, CATTN_F32, 1);
}

/* ---- a step -------------------------------------------------------------------------------------------------------
 */

/* Returns where the inputs are on the device. */
static struct inputs send_inputs(struct device *d, size_t n_rows, const int32_t *tokens, const uint64_t *positions,
                                 size_t n_logits, const size_t *logit_rows)
{
    const struct inputs staged = lay_out(d, d->staged, n_rows, n_logits);

    if (!d->failure) {
        memcpy(staged.tokens, tokens, n_rows * sizeof *tokens);
        for (size_t i = 0; i < n_logits; i++)
            staged.logit_rows[i] = (uint32_t)logit_rows[i];
        model_angles(d->model, n_rows, positions, staged.cosines, staged.sines);
        (void)is_well(
            d, cudaMemcpyAsync(d->arrived, d->staged, input_bytes(d, n_rows, n_logits), cudaMemcpyHostToDevice, NULL));
    }
    return lay_out(d, d->arrived, n_rows, n_logits);
}

static void embed(struct device *d, const struct inputs *in, size_t n_rows)
{
    const struct device_embed job = {.x = d->x,
                                     .embedding = d->embedding,
                                     .tokens = in->tokens,
                                     .n_rows = (uint32_t)n_rows,
                                     .dim = d->model->shape.dim,
                                     .dtype = d->dtype};

    if (!d->failure)
        (void)is_well(d, (cudaError_t)device_embed(&job, NULL));
}

/* The stream is waited for, logits or not: what was staged is then free. */
static void fetch_logits(struct device *d, const struct inputs *in, size_t n_logits, float *logits)
{
    const struct model_shape *s = &d->model->shape;

    if (n_logits) {
        norm(d, d->output_norm, in->logit_rows, n_logits);
        multiply(d, n_logits, s->dim, s->vocabulary, d->normed, d->output, d->logits, CATTN_F32, 0);
    }
    note_time(d, 1);
    if (!d->failure && n_logits)
        (void)is_well(d, cudaMemcpyAsync(logits, d->logits, n_logits * s->vocabulary * sizeof *logits,
                                         cudaMemcpyDeviceToHost, NULL));
    if (!d->failure)
        (void)is_well(d, cudaStreamSynchronize(NULL));
}

static double seconds_between(struct device *d, size_t first, size_t second)
{
    float milliseconds = 0;

    if (!d->failure)
        (void)is_well(d, cudaEventElapsedTime(&milliseconds, d->events[first], d->events[second]));
    return 1e-3 * (double)milliseconds;
}

static void count_time(struct device *d)
{
    double attention = 0;

    for (uint32_t i = 0; i < d->model->shape.n_layers; i++)
        attention += seconds_between(d, 2 + 2 * (size_t)i, 3 + 2 * (size_t)i);
    d->attention_seconds += attention;
    d->other_seconds += seconds_between(d, 0, 1) - attention;
}

int device_step(struct device *d, cattn_step *step, size_t n_rows, const int32_t *tokens, const uint64_t *positions,
                size_t n_logits, const size_t *logit_rows, float *logits, struct fault *fault)
{
    reserve(d, n_rows, n_logits);
    note_time(d, 0);
    const struct inputs in = send_inputs(d, n_rows, tokens, positions, n_logits, logit_rows);
    embed(d, &in, n_rows);
    for (uint32_t i = 0; i < d->model->shape.n_layers; i++)
        run_layer(d, step, i, &in, n_rows);
    fetch_logits(d, &in, n_logits, logits);
    count_time(d);
    return report(d, fault);
}
