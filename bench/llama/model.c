#include "model.h"

#include "clock.h"
#include "device.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes -------------------------------------------------------------------------------------------------------
 */

/* dim, hidden, layers, heads, KV heads, head_dim, v_head_dim, vocabulary, context, rotary dims, base, epsilon. */
static const struct {
    const char *name;
    struct model_shape shape;
} shapes[] = {
    {"260k", {64, 172, 5, 8, 4, 8, 8, 512, 2048, 8, 1e4, 1e-5}},
    {"15m", {288, 768, 6, 6, 6, 48, 48, 32000, 1024, 48, 1e4, 1e-5}},
    {"42m", {512, 1376, 8, 8, 8, 64, 64, 32000, 1024, 64, 1e4, 1e-5}},
    {"110m", {768, 2048, 12, 12, 12, 64, 64, 32000, 1024, 64, 1e4, 1e-5}},
    {"1b", {2048, 5632, 22, 32, 4, 64, 64, 32000, 2048, 64, 1e4, 1e-5}},
    {"7b", {4096, 11008, 32, 32, 32, 128, 128, 32000, 4096, 128, 1e4, 1e-5}},
    {"8b", {4096, 14336, 32, 32, 8, 128, 128, 128256, 8192, 128, 5e5, 1e-5}},
};

const char *model_shape_name(unsigned i)
{
    return i < sizeof shapes / sizeof shapes[0] ? shapes[i].name : NULL;
}

const struct model_shape *model_shape_named(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i].shape;
    }
    return NULL;
}

/* ---- memory -------------------------------------------------------------------------------------------------------
 */

/* An array of n elements that lives as long as the model; NULL: out of memory. */
static void *own(struct model *model, size_t n, size_t bytes)
{
    if (model->n_owned == model->room) {
        const size_t room = model->room ? 2 * model->room : 64;
        void **grown = realloc(model->owned, room * sizeof *grown);

        if (!grown)
            return NULL;
        model->owned = grown;
        model->room = room;
    }
    void *array = calloc(n, bytes);
    if (array)
        model->owned[model->n_owned++] = array;
    return array;
}

int model_pack(const struct model *model, struct packed *packed, struct fault *fault)
{
    const struct model_shape *s = &model->shape;
    const size_t q = (size_t)s->n_heads * s->head_dim, k = (size_t)s->n_kv_heads * s->head_dim;
    const size_t v = (size_t)s->n_kv_heads * s->v_head_dim, o = (size_t)s->n_heads * s->v_head_dim;
    int rc = packed_add(packed, model->output, s->dim, s->vocabulary);

    for (uint32_t i = 0; !rc && i < s->n_layers; i++) {
        const struct model_layer *layer = &model->layers[i];

        rc = packed_add(packed, layer->wq, s->dim, q) || packed_add(packed, layer->wk, s->dim, k) ||
             packed_add(packed, layer->wv, s->dim, v) || packed_add(packed, layer->wo, o, s->dim) ||
             packed_add(packed, layer->gate, s->dim, s->hidden) || packed_add(packed, layer->up, s->dim, s->hidden) ||
             packed_add(packed, layer->down, s->hidden, s->dim);
    }
    return rc ? fault_set(fault, "the weights cannot be packed") : 0;
}

void model_release(struct model *model)
{
    for (size_t i = 0; i < model->n_owned; i++)
        free(model->owned[i]);
    free(model->owned);
    memset(model, 0, sizeof *model);
}

static int prepare(struct model *model, const struct model_shape *shape, struct fault *fault)
{
    const uint32_t n_pairs = shape->rotary_dims / 2;

    memset(model, 0, sizeof *model);
    model->shape = *shape;
    model->layers = own(model, shape->n_layers, sizeof *model->layers);
    model->frequencies = own(model, n_pairs + 1, sizeof *model->frequencies);
    if (!model->layers || !model->frequencies)
        return fault_set(fault, "out of memory");
    for (uint32_t i = 0; i < n_pairs; i++)
        model->frequencies[i] = pow(shape->rotary_base, -2.0 * i / shape->rotary_dims);
    return 0;
}

/* ---- random weights -----------------------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* n numbers, uniform around 0 with standard deviation `deviation`. */
static const float *random_weights(struct model *model, size_t n, double deviation, uint64_t *seed)
{
    float *weights = own(model, n, sizeof *weights);
    const float scale = (float)(deviation * sqrt(3.0) / (double)(UINT32_C(1) << 31));
    uint64_t state = *seed = mix(*seed + UINT64_C(0x9e3779b97f4a7c15));

    for (size_t i = 0; weights && i < n; i++) {
        state += UINT64_C(0x9e3779b97f4a7c15);
        weights[i] = scale * (float)(int32_t)(mix(state) >> 32);
    }
    return weights;
}

static const float *ones(struct model *model, size_t n)
{
    float *weights = own(model, n, sizeof *weights);

    for (size_t i = 0; weights && i < n; i++)
        weights[i] = 1.0f;
    return weights;
}

static bool random_layer(struct model *model, struct model_layer *layer, uint64_t *seed)
{
    const struct model_shape *s = &model->shape;
    const size_t q = (size_t)s->n_heads * s->head_dim, k = (size_t)s->n_kv_heads * s->head_dim;
    const size_t v = (size_t)s->n_kv_heads * s->v_head_dim, o = (size_t)s->n_heads * s->v_head_dim;
    const double in = 1 / sqrt(s->dim), out = 1 / sqrt(2.0 * s->n_layers);

    return (layer->attention_norm = ones(model, s->dim)) && (layer->ffn_norm = ones(model, s->dim)) &&
           (layer->wq = random_weights(model, q * s->dim, 2 * in, seed)) &&
           (layer->wk = random_weights(model, k * s->dim, 2 * in, seed)) &&
           (layer->wv = random_weights(model, v * s->dim, in, seed)) &&
           (layer->wo = random_weights(model, s->dim * o, out / sqrt((double)o), seed)) &&
           (layer->gate = random_weights(model, (size_t)s->hidden * s->dim, in, seed)) &&
           (layer->up = random_weights(model, (size_t)s->hidden * s->dim, in, seed)) &&
           (layer->down = random_weights(model, (size_t)s->dim * s->hidden, out / sqrt(s->hidden), seed));
}

int model_random(struct model *model, const struct model_shape *shape, uint64_t seed, struct fault *fault)
{
    if (prepare(model, shape, fault))
        return -1;
    bool made =
        (model->embedding = random_weights(model, (size_t)shape->vocabulary * shape->dim, 1, &seed)) &&
        (model->output = random_weights(model, (size_t)shape->vocabulary * shape->dim, 1 / sqrt(shape->dim), &seed)) &&
        (model->output_norm = ones(model, shape->dim));
    for (uint32_t i = 0; made && i < shape->n_layers; i++)
        made = random_layer(model, &model->layers[i], &seed);
    return made ? 0 : fault_set(fault, "out of memory");
}

/* ---- a file's shape -----------------------------------------------------------------------------------------------
 */

/* A count from 1 to most; absent: *number stays what it is, and 0 there means that it must not be absent. */
static int read_count(const struct gguf *gguf, const char *key, uint64_t most, uint32_t *number, struct fault *fault)
{
    const struct gguf_value *value = gguf_find(gguf, key);
    uint64_t found;

    if (!value)
        return *number ? 0 : fault_set(fault, "%s is missing", key);
    if (gguf_uint(value, &found) || found == 0 || found > most)
        return fault_set(fault, "%s is no number from 1 to %" PRIu64, key, most);
    *number = (uint32_t)found;
    return 0;
}

static int read_real(const struct gguf *gguf, const char *key, double *number, struct fault *fault)
{
    const struct gguf_value *value = gguf_find(gguf, key);

    if (value && (gguf_float(value, number) || *number <= 0))
        return fault_set(fault, "%s is no positive number", key);
    return 0;
}

static int check_architecture(const struct gguf *gguf, struct fault *fault)
{
    const struct gguf_value *name = gguf_find(gguf, "general.architecture");
    const struct gguf_value *scaling = gguf_find(gguf, "llama.rope.scaling.type");
    struct gguf_string text;

    if (!name || gguf_text(name, &text) || text.length != 5 || memcmp(text.text, "llama", 5) != 0)
        return fault_set(fault, "general.architecture is not llama");
    if ((scaling && (gguf_text(scaling, &text) || text.length != 4 || memcmp(text.text, "none", 4) != 0)) ||
        gguf_find(gguf, "llama.rope.scale_linear"))
        return fault_set(fault, "scaled rotary positions are not supported");
    return 0;
}

static int read_shape(const struct gguf *gguf, struct model_shape *s, struct fault *fault)
{
    *s = (struct model_shape){.rotary_base = 1e4, .epsilon = 1e-5};
    if (read_count(gguf, "llama.embedding_length", 1 << 20, &s->dim, fault) ||
        read_count(gguf, "llama.feed_forward_length", 1 << 22, &s->hidden, fault) ||
        read_count(gguf, "llama.block_count", 65535, &s->n_layers, fault) ||
        read_count(gguf, "llama.context_length", INT32_MAX, &s->context, fault) ||
        read_count(gguf, "llama.attention.head_count", 65535, &s->n_heads, fault))
        return -1;
    s->n_kv_heads = s->n_heads;
    s->head_dim = s->dim % s->n_heads ? 0 : s->dim / s->n_heads;
    if (read_count(gguf, "llama.attention.head_count_kv", 65535, &s->n_kv_heads, fault) ||
        read_count(gguf, "llama.attention.key_length", 4096, &s->head_dim, fault))
        return -1;
    s->v_head_dim = s->head_dim;
    s->rotary_dims = s->head_dim;
    if (read_count(gguf, "llama.attention.value_length", 4096, &s->v_head_dim, fault) ||
        read_count(gguf, "llama.rope.dimension_count", 4096, &s->rotary_dims, fault) ||
        read_real(gguf, "llama.rope.freq_base", &s->rotary_base, fault) ||
        read_real(gguf, "llama.attention.layer_norm_rms_epsilon", &s->epsilon, fault))
        return -1;
    if (s->n_heads % s->n_kv_heads)
        return fault_set(fault, "%u heads cannot share %u KV heads", (unsigned)s->n_heads, (unsigned)s->n_kv_heads);
    if (s->rotary_dims % 2 || s->rotary_dims > s->head_dim)
        return fault_set(fault, "%u rotary dimensions of %u", (unsigned)s->rotary_dims, (unsigned)s->head_dim);
    return 0;
}

/* ---- a file's weights ---------------------------------------------------------------------------------------------
 */

static float from_bits(uint32_t bits)
{
    float number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint32_t to_bits(float number)
{
    uint32_t bits;

    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static float from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;

    if (exponent == 0) {
        const float number = (float)fraction * 0x1p-24f;

        return sign ? -number : number;
    }
    return from_bits(sign | (exponent == 0x1f ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13);
}

static const float *converted(struct model *model, const struct gguf_tensor *tensor)
{
    const uint16_t *from = tensor->data;
    float *to = own(model, (size_t)tensor->n_elements, sizeof *to);

    for (size_t i = 0; to && i < tensor->n_elements; i++)
        to[i] = tensor->type == GGUF_TENSOR_F16 ? from_f16(from[i]) : from_bits((uint32_t)from[i] << 16);
    return to;
}

struct loader {
    struct model *model;
    const struct gguf *gguf;
    size_t n_used; /* tensors of the file */
    struct fault *fault;
};

/* The weights [n_out][n_in] of a name; n_out 0: a vector [n_in].  optional: *weights may stay NULL. */
static int bind(struct loader *l, const char *name, uint64_t n_in, uint64_t n_out, bool optional, const float **weights)
{
    const struct gguf_tensor *tensor = gguf_tensor(l->gguf, name);

    if (!tensor)
        return optional ? 0 : fault_set(l->fault, "tensor '%s' is missing", name);
    if (tensor->n_dims != (n_out ? 2 : 1) || tensor->dims[0] != n_in || tensor->dims[1] != (n_out ? n_out : 1))
        return fault_set(l->fault, "tensor '%s' is not of the shape that the header says", name);
    *weights = tensor->type == GGUF_TENSOR_F32 ? tensor->data : converted(l->model, tensor);
    l->n_used++;
    return *weights ? 0 : fault_set(l->fault, "out of memory");
}

static int bind_in_layer(struct loader *l, uint32_t layer, const char *name, uint64_t n_in, uint64_t n_out,
                         const float **weights)
{
    char full[64];

    snprintf(full, sizeof full, "blk.%u.%s.weight", (unsigned)layer, name);
    return bind(l, full, n_in, n_out, false, weights);
}

static int bind_layer(struct loader *l, uint32_t i)
{
    const struct model_shape *s = &l->model->shape;
    struct model_layer *layer = &l->model->layers[i];
    const uint64_t q = (uint64_t)s->n_heads * s->head_dim, k = (uint64_t)s->n_kv_heads * s->head_dim;
    const uint64_t v = (uint64_t)s->n_kv_heads * s->v_head_dim, o = (uint64_t)s->n_heads * s->v_head_dim;

    return bind_in_layer(l, i, "attn_norm", s->dim, 0, &layer->attention_norm) ||
                   bind_in_layer(l, i, "attn_q", s->dim, q, &layer->wq) ||
                   bind_in_layer(l, i, "attn_k", s->dim, k, &layer->wk) ||
                   bind_in_layer(l, i, "attn_v", s->dim, v, &layer->wv) ||
                   bind_in_layer(l, i, "attn_output", o, s->dim, &layer->wo) ||
                   bind_in_layer(l, i, "ffn_norm", s->dim, 0, &layer->ffn_norm) ||
                   bind_in_layer(l, i, "ffn_gate", s->dim, s->hidden, &layer->gate) ||
                   bind_in_layer(l, i, "ffn_up", s->dim, s->hidden, &layer->up) ||
                   bind_in_layer(l, i, "ffn_down", s->hidden, s->dim, &layer->down)
               ? -1
               : 0;
}

/* Some models divide each frequency by a factor of its own. */
static int bind_frequencies(struct loader *l)
{
    const uint32_t n_pairs = l->model->shape.rotary_dims / 2;
    const float *factors = NULL;

    if (bind(l, "rope_freqs.weight", n_pairs, 0, true, &factors))
        return -1;
    for (uint32_t i = 0; factors && i < n_pairs; i++) {
        if (!(factors[i] > 0) || !isfinite(factors[i]))
            return fault_set(l->fault, "rope_freqs.weight holds a factor that is not positive");
        l->model->frequencies[i] /= factors[i];
    }
    return 0;
}

/* A tensor that no part of the model has used changes what the model computes: refused, not ignored. */
static int bind_all(struct loader *l)
{
    struct model *model = l->model;
    const struct model_shape *s = &model->shape;

    if (bind(l, "token_embd.weight", s->dim, s->vocabulary, false, &model->embedding) ||
        bind(l, "output_norm.weight", s->dim, 0, false, &model->output_norm) ||
        bind(l, "output.weight", s->dim, s->vocabulary, true, &model->output) || bind_frequencies(l))
        return -1;
    if (!model->output)
        model->output = model->embedding;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (bind_layer(l, i))
            return -1;
    }
    if (l->n_used != gguf_n_tensors(l->gguf))
        return fault_set(l->fault, "the file has %zu tensors, of which a Llama of this shape uses %zu",
                         gguf_n_tensors(l->gguf), l->n_used);
    return 0;
}

int model_load(struct model *model, const struct gguf *gguf, struct fault *fault)
{
    struct loader loader = {model, gguf, 0, fault};
    const struct gguf_tensor *embedding = gguf_tensor(gguf, "token_embd.weight");
    struct model_shape shape;

    memset(model, 0, sizeof *model);
    if (check_architecture(gguf, fault) || read_shape(gguf, &shape, fault))
        return -1;
    if (!embedding || embedding->n_dims != 2 || embedding->dims[1] > INT32_MAX)
        return fault_set(fault, "token_embd.weight is missing, or no matrix");
    shape.vocabulary = (uint32_t)embedding->dims[1];
    if (prepare(model, &shape, fault))
        return -1;
    return bind_all(&loader);
}

/* ---- the forward pass ---------------------------------------------------------------------------------------------
 */

void forward_init(struct forward *forward, const struct model *model, const struct linear *linear,
                  struct device *device)
{
    *forward = (struct forward){.model = model, .linear = linear, .device = device};
}

static void free_buffers(struct forward *f)
{
    float **buffers[] = {&f->x,         &f->normed, &f->q,  &f->k,       &f->v,
                         &f->attention, &f->gate,   &f->up, &f->cosines, &f->sines};

    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        free(*buffers[i]);
        *buffers[i] = NULL;
    }
    f->n_rows = 0;
}

void forward_release(struct forward *forward)
{
    free_buffers(forward);
}

static float *new_buffer(size_t n_rows, size_t width)
{
    return width && n_rows > SIZE_MAX / sizeof(float) / width ? NULL : malloc((n_rows * width + 1) * sizeof(float));
}

static int reserve(struct forward *f, size_t n_rows)
{
    const struct model_shape *s = &f->model->shape;
    const size_t q = (size_t)s->n_heads * s->head_dim, o = (size_t)s->n_heads * s->v_head_dim;

    if (n_rows <= f->n_rows)
        return 0;
    free_buffers(f);
    f->x = new_buffer(n_rows, s->dim);
    f->normed = new_buffer(n_rows, s->dim);
    f->q = new_buffer(n_rows, q);
    f->k = new_buffer(n_rows, (size_t)s->n_kv_heads * s->head_dim);
    f->v = new_buffer(n_rows, (size_t)s->n_kv_heads * s->v_head_dim);
    f->attention = new_buffer(n_rows, o);
    f->gate = new_buffer(n_rows, s->hidden);
    f->up = new_buffer(n_rows, s->hidden);
    f->cosines = new_buffer(n_rows, s->rotary_dims / 2);
    f->sines = new_buffer(n_rows, s->rotary_dims / 2);
    if (!f->x || !f->normed || !f->q || !f->k || !f->v || !f->attention || !f->gate || !f->up || !f->cosines ||
        !f->sines)
        return -1;
    f->n_rows = n_rows;
    return 0;
}

/* What is done between the products is done row by row, by as many threads where there are some rows, or those of the
 * products would wait for one; and within a row as vectors. */
#ifdef _OPENMP
#  define ROWS    _Pragma("omp parallel for schedule(static) num_threads(f->linear->n_threads) if (n_rows > 4)")
#  define VECTORS _Pragma("omp simd")
#else
#  define ROWS
#  define VECTORS
#endif

static void norm_row(float *out, const float *x, const float *weights, size_t dim, double epsilon)
{
    /* four sums, so that none waits for another */
    double lanes[4] = {0};
    size_t i = 0;

    for (; i + 4 <= dim; i += 4) {
        for (size_t k = 0; k < 4; k++)
            lanes[k] += (double)x[i + k] * x[i + k];
    }
    for (; i < dim; i++)
        lanes[0] += (double)x[i] * x[i];
    const double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    const float scale = (float)(1 / sqrt(sum / (double)dim + epsilon));
    VECTORS
    for (i = 0; i < dim; i++)
        out[i] = weights[i] * (x[i] * scale);
}

static void norm(const struct forward *f, const float *weights, size_t n_rows)
{
    const struct model_shape *s = &f->model->shape;

    ROWS for (int64_t row = 0; row < (int64_t)n_rows; row++)
        norm_row(f->normed + (size_t)row * s->dim, f->x + (size_t)row * s->dim, weights, s->dim, s->epsilon);
}

void model_angles(const struct model *model, size_t n_rows, const uint64_t *positions, float *cosines, float *sines)
{
    const size_t n_pairs = model->shape.rotary_dims / 2;

    for (size_t row = 0; row < n_rows; row++) {
        for (size_t i = 0; i < n_pairs; i++) {
            const double angle = (double)positions[row] * model->frequencies[i];

            cosines[row * n_pairs + i] = (float)cos(angle);
            sines[row * n_pairs + i] = (float)sin(angle);
        }
    }
}

/* Turns the pairs (2i, 2i + 1). */
static void rotate_head(float *x, const float *c, const float *s, size_t n_pairs)
{
    VECTORS
    for (size_t i = 0; i < n_pairs; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];

        x[2 * i] = a * c[i] - b * s[i];
        x[2 * i + 1] = a * s[i] + b * c[i];
    }
}

static void rotate(const struct forward *f, float *x, size_t n_rows, size_t n_heads)
{
    const size_t n_pairs = f->model->shape.rotary_dims / 2, head_dim = f->model->shape.head_dim;

    ROWS for (int64_t row = 0; row < (int64_t)n_rows; row++)
    {
        for (size_t head = 0; head < n_heads; head++)
            rotate_head(x + ((size_t)row * n_heads + head) * head_dim, f->cosines + (size_t)row * n_pairs,
                        f->sines + (size_t)row * n_pairs, n_pairs);
    }
}

static void add_row(float *x, const float *y, size_t n)
{
    VECTORS
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

/* x := x + what the last product gave */
static void add(const struct forward *f, size_t n_rows)
{
    const size_t dim = f->model->shape.dim;

    ROWS for (int64_t row = 0; row < (int64_t)n_rows; row++)
        add_row(f->x + (size_t)row * dim, f->normed + (size_t)row * dim, dim);
}

/* e^x to 2 units in the last place, without branches or calls, so that loops over it become vectors: e^x = 2^n * e^r
 * with n = round(x / ln 2), |r| <= ln 2 / 2, and e^r by its series.  Beyond +-87 it is that of +-87, and so it is for
 * NaN: what is to be NaN must be so for another reason. */
static inline float exponential(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to a whole number */
    const int32_t size = (int32_t)(to_bits(x) & 0x7fffffff), most = 0x42ae0000; /* 87; these compare as integers */
    const float y = from_bits((uint32_t)(size < most ? size : most) | (to_bits(x) & 0x80000000));
    const float t = y * 1.44269504f + shift, n = t - shift;
    const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040;

    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    return ((p * r * r + r) + 1.0f) * from_bits((to_bits(t) - to_bits(shift) + 127) << 23);
}

/* gate := silu(gate) * up */
static void activate_row(float *gate, const float *up, size_t n)
{
    VECTORS
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

static void activate(const struct forward *f, size_t n_rows)
{
    const size_t width = f->model->shape.hidden;

    ROWS for (int64_t row = 0; row < (int64_t)n_rows; row++)
        activate_row(f->gate + (size_t)row * width, f->up + (size_t)row * width, width);
}

static void multiply(struct forward *f, size_t rows, size_t n_in, size_t n_out, const float *x, const float *weights,
                     float *y)
{
    const double start = seconds();

    linear_apply(f->linear, rows, n_in, n_out, x, weights, y);
    f->linear_seconds += seconds() - start;
}

static int attend(struct forward *f, cattn_step *step, uint32_t i, size_t n_rows, struct fault *fault)
{
    const struct model_shape *s = &f->model->shape;
    const struct model_layer *layer = &f->model->layers[i];
    const size_t q = (size_t)s->n_heads * s->head_dim, k = (size_t)s->n_kv_heads * s->head_dim;
    const size_t v = (size_t)s->n_kv_heads * s->v_head_dim, o = (size_t)s->n_heads * s->v_head_dim;
    const struct cattn_io io = {.size = sizeof io, .q = f->q, .k = f->k, .v = f->v, .out = f->attention};

    norm(f, layer->attention_norm, n_rows);
    multiply(f, n_rows, s->dim, q, f->normed, layer->wq, f->q);
    multiply(f, n_rows, s->dim, k, f->normed, layer->wk, f->k);
    multiply(f, n_rows, s->dim, v, f->normed, layer->wv, f->v);
    rotate(f, f->q, n_rows, s->n_heads);
    rotate(f, f->k, n_rows, s->n_kv_heads);
    const double start = seconds();
    const int status = cattn_step_attend(step, i, &io);
    f->attention_seconds += seconds() - start;
    if (status)
        return fault_set(fault, "attention: %s", cattn_strerror(status));
    multiply(f, n_rows, o, s->dim, f->attention, layer->wo, f->normed);
    add(f, n_rows);
    return 0;
}

static void feed_forward(struct forward *f, const struct model_layer *layer, size_t n_rows)
{
    const struct model_shape *s = &f->model->shape;

    norm(f, layer->ffn_norm, n_rows);
    multiply(f, n_rows, s->dim, s->hidden, f->normed, layer->gate, f->gate);
    multiply(f, n_rows, s->dim, s->hidden, f->normed, layer->up, f->up);
    activate(f, n_rows);
    multiply(f, n_rows, s->hidden, s->dim, f->gate, layer->down, f->normed);
    add(f, n_rows);
}

/* The rows wanted are moved together first: most rows of a prefill need no logits. */
static void find_logits(struct forward *f, size_t n_logits, const size_t *logit_rows, float *logits)
{
    const struct model_shape *s = &f->model->shape;

    for (size_t i = 0; i < n_logits; i++)
        norm_row(f->normed + i * s->dim, f->x + logit_rows[i] * s->dim, f->model->output_norm, s->dim, s->epsilon);
    multiply(f, n_logits, s->dim, s->vocabulary, f->normed, f->model->output, logits);
}

static int step_on_device(struct forward *f, cattn_step *step, size_t n_rows, const int32_t *tokens,
                          const uint64_t *positions, size_t n_logits, const size_t *logit_rows, float *logits,
                          struct fault *fault)
{
    const double attention = device_attention_seconds(f->device), other = device_other_seconds(f->device);
    const int rc = device_step(f->device, step, n_rows, tokens, positions, n_logits, logit_rows, logits, fault);

    f->attention_seconds += device_attention_seconds(f->device) - attention;
    f->linear_seconds += device_other_seconds(f->device) - other;
    return rc;
}

int forward_step(struct forward *f, cattn_step *step, size_t n_rows, const int32_t *tokens, const uint64_t *positions,
                 size_t n_logits, const size_t *logit_rows, float *logits, struct fault *fault)
{
    const struct model_shape *s = &f->model->shape;

    if (f->device)
        return step_on_device(f, step, n_rows, tokens, positions, n_logits, logit_rows, logits, fault);
    if (reserve(f, n_rows))
        return fault_set(fault, "out of memory");
    for (size_t row = 0; row < n_rows; row++)
        memcpy(f->x + row * s->dim, f->model->embedding + (size_t)tokens[row] * s->dim, s->dim * sizeof *f->x);
    model_angles(f->model, n_rows, positions, f->cosines, f->sines);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (attend(f, step, i, n_rows, fault))
            return -1;
        feed_forward(f, &f->model->layers[i], n_rows);
    }
    find_logits(f, n_logits, logit_rows, logits);
    return 0;
}
