#include <math.h>
#include <stdlib.h>

#include "attend.h"
#include "harness.h"

uint32_t bench_dtype_bytes(uint32_t dtype)
{
    return dtype == CATTN_F32 ? 4 : dtype == CATTN_I8 ? 1 : 2;
}

const char *bench_dtype_name(uint32_t dtype)
{
    static const char *const names[] = {
        [CATTN_F32] = "f32", [CATTN_F16] = "f16", [CATTN_BF16] = "bf16", [CATTN_I8] = "i8"};
    return names[dtype];
}

static uint32_t chunks_of(uint32_t tokens, uint32_t chunk)
{
    return tokens / chunk + (tokens % chunk != 0);
}

uint32_t bench_shared_chunks(const struct bench_shape *shape)
{
    return shape->shared / shape->chunk;
}

uint32_t bench_private_chunks(const struct bench_shape *shape)
{
    return chunks_of(shape->private, shape->chunk);
}

uint32_t bench_chunks(const struct bench_shape *shape)
{
    return bench_shared_chunks(shape) + shape->batch * bench_private_chunks(shape);
}

uint32_t bench_sequence_chunk(const struct bench_shape *shape, uint32_t sequence, uint32_t index)
{
    return index < bench_shared_chunks(shape) ? index : index + sequence * bench_private_chunks(shape);
}

uint32_t bench_chunk_tokens(const struct bench_shape *shape, uint32_t chunk)
{
    uint32_t shared = bench_shared_chunks(shape), each = bench_private_chunks(shape);
    if (chunk < shared || (chunk - shared) % each != each - 1)
        return shape->chunk;
    return shape->private - (each - 1) * shape->chunk;
}

static uint64_t token_bytes(const struct bench_shape *shape, uint32_t dtype)
{
    uint32_t scale = dtype == CATTN_I8 ? sizeof(float) : 0;
    return UINT64_C(2) * shape->kv_heads * (shape->head_dim * bench_dtype_bytes(dtype) + scale);
}

uint64_t bench_unique_bytes(const struct bench_shape *shape, uint32_t dtype)
{
    return (shape->shared + (uint64_t)shape->batch * shape->private) * token_bytes(shape, dtype);
}

uint64_t bench_copied_bytes(const struct bench_shape *shape, uint32_t dtype)
{
    return shape->batch * ((uint64_t)shape->shared + shape->private) * token_bytes(shape, dtype);
}

int bench_is_plain(const struct cattn_variant *attention)
{
    return attention->softcap == 0.0f && attention->window == 0 && attention->alibi_slopes == NULL &&
           attention->sinks == NULL;
}

static int sees(const struct cattn_variant *attention, uint32_t position, uint32_t token)
{
    return attention->window == 0 || position - token < attention->window || token < attention->n_sink_tokens;
}

static uint32_t first_position(const struct bench_shape *shape)
{
    return shape->shared + shape->private - shape->rows;
}

/* What the first row sees, and all after it. */
struct bench_shape bench_seen(const struct bench_shape *shape, const struct cattn_variant *attention)
{
    const uint32_t first = first_position(shape), n = first + shape->rows;
    struct bench_shape seen = *shape;

    seen.shared = seen.private = 0;
    for (uint32_t token = 0; token < n; token++)
        if (token > first || sees(attention, first, token))
            ++*(token < shape->shared ? &seen.shared : &seen.private);
    return seen;
}

double bench_pairs(const struct bench_shape *shape, const struct cattn_variant *attention)
{
    const uint32_t first = first_position(shape), window = attention->window, sinks = attention->n_sink_tokens;
    double pairs = 0.0;

    for (uint32_t n = first + 1; n <= first + shape->rows; n++)
        pairs += window == 0 || n <= window ? n : window + (sinks < n - window ? sinks : n - window);
    return pairs;
}

size_t bench_q_floats(const struct bench_shape *shape)
{
    return (size_t)shape->batch * shape->rows * shape->heads * shape->head_dim;
}

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= UINT32_C(0x85ebca6b);
    x ^= x >> 13;
    x *= UINT32_C(0xc2b2ae35);
    return x ^ x >> 16;
}

/* Uniform in [-2, 2), from a hash of the place.  For types of fewer than 32 bits eight bits are kept, so that every
 * type holds them exactly and no variant has an error of rounding K and V; i8 needs its largest number in each row. */
static void uniform(uint32_t seed, uint32_t dtype, uint32_t n, float *row)
{
    uint32_t kept = dtype == CATTN_F32 ? UINT32_C(0xffffff00) : UINT32_C(0xff000000);
    for (uint32_t i = 0; i < n; i++)
        row[i] = (float)(int32_t)(mix(seed + i * UINT32_C(0x9e3779b1)) & kept) * 0x1p-30f;
    if (dtype != CATTN_I8)
        return;
    for (uint32_t i = 0; i < n; i++)
        row[i] = fmaxf(row[i], -127.0f / 64);
    row[seed % n] = 127.0f / 64;
}

void bench_data_row(const struct bench_shape *shape, uint32_t layer, enum bench_what what, uint32_t chunk,
                    uint32_t token, uint32_t head, float *row)
{
    uint32_t seed = mix(2 * layer + (what == BENCH_V) + 1);
    seed = mix(seed ^ chunk * UINT32_C(0x27d4eb2f));
    seed = mix(seed ^ token * UINT32_C(0x165667b1) ^ head * UINT32_C(0x9e3779b1));
    uniform(seed, shape->dtype, shape->head_dim, row);
}

void bench_data_q(const struct bench_shape *shape, float *q)
{
    uniform(UINT32_C(0x51ed270b), shape->dtype, (uint32_t)bench_q_floats(shape), q);
}

void bench_data_heads(const struct bench_shape *shape, float *slopes, float *sinks)
{
    uniform(UINT32_C(0x3c6ef372), CATTN_F32, shape->heads, sinks);
    for (uint32_t head = 0; head < shape->heads; head++) {
        slopes[head] = exp2f(-8.0f * (float)(head + 1) / (float)shape->heads);
        sinks[head] += 5.0f;
    }
}

/* Room for one (sequence, head) at a time. */
struct oracle {
    double *weights, *expected;
    float *row;
};

/* Of the token that is `distance` back. */
static double score(const struct cattn_variant *attention, uint32_t head, uint32_t distance, const float *q,
                    const float *k, uint32_t n)
{
    double x = 0.0, cap = (double)attention->softcap;
    for (uint32_t i = 0; i < n; i++)
        x += (double)q[i] * (double)k[i];
    x /= sqrt((double)n);
    if (cap > 0.0)
        x = cap * tanh(x / cap);
    return attention->alibi_slopes != NULL ? x - (double)attention->alibi_slopes[head] * distance : x;
}

/* Dense attention of one query, of the row numbered over all sequences: no chunk is shared, nothing is folded, what is
 * not seen has the score -inf. */
static void attend_exactly(const struct bench_setup *setup, const struct cattn_variant *attention, uint32_t layer,
                           uint32_t row, uint32_t head, struct oracle *oracle)
{
    const struct bench_shape *s = &setup->shape;
    const float *q = setup->q + ((size_t)row * s->heads + head) * s->head_dim;
    uint32_t sequence = row / s->rows, n = first_position(s) + row % s->rows + 1;
    uint32_t kv_head = head / (s->heads / s->kv_heads);
    double sink = attention->sinks != NULL ? (double)attention->sinks[head] : -INFINITY, most = sink, sum;

    for (uint32_t t = 0; t < n; t++) {
        uint32_t chunk = bench_sequence_chunk(s, sequence, t / s->chunk);
        bench_data_row(s, layer, BENCH_K, chunk, t % s->chunk, kv_head, oracle->row);
        oracle->weights[t] =
            sees(attention, n - 1, t) ? score(attention, head, n - 1 - t, q, oracle->row, s->head_dim) : -INFINITY;
        most = fmax(most, oracle->weights[t]);
    }
    sum = exp(sink - most);
    for (uint32_t i = 0; i < s->head_dim; i++)
        oracle->expected[i] = 0.0;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t chunk = bench_sequence_chunk(s, sequence, t / s->chunk);
        double weight = exp(oracle->weights[t] - most);
        bench_data_row(s, layer, BENCH_V, chunk, t % s->chunk, kv_head, oracle->row);
        sum += weight;
        for (uint32_t i = 0; i < s->head_dim; i++)
            oracle->expected[i] += weight * (double)oracle->row[i];
    }
    for (uint32_t i = 0; i < s->head_dim; i++)
        oracle->expected[i] /= sum;
}

/* The i-th of m places spread over 0 .. n-1, the first and the last among them. */
static uint32_t spread(uint32_t i, uint32_t m, uint32_t n)
{
    return m < 2 ? 0 : (uint32_t)((uint64_t)i * (n - 1) / (m - 1));
}

double bench_relative_error(const struct bench_setup *setup, const struct cattn_variant *attention, uint32_t layer)
{
    const struct bench_shape *s = &setup->shape;
    uint32_t all_rows = s->batch * s->rows, rows = all_rows < 3 ? all_rows : 3, heads = s->heads < 4 ? s->heads : 4;
    struct oracle oracle = {
        malloc((s->shared + s->private) * sizeof(double)),
        malloc(s->head_dim * sizeof(double)),
        malloc(s->head_dim * sizeof(float)),
    };
    double wrong = 0.0, all = 0.0;

    if (oracle.weights == NULL || oracle.expected == NULL || oracle.row == NULL)
        wrong = NAN;
    for (uint32_t i = 0; i < rows * heads && !isnan(wrong); i++) {
        uint32_t row = spread(i / heads, rows, all_rows), head = spread(i % heads, heads, s->heads);
        const float *out = setup->out + ((size_t)row * s->heads + head) * s->head_dim;
        attend_exactly(setup, attention, layer, row, head, &oracle);
        for (uint32_t j = 0; j < s->head_dim; j++) {
            double difference = (double)out[j] - oracle.expected[j];
            wrong += difference * difference;
            all += oracle.expected[j] * oracle.expected[j];
        }
    }
    free(oracle.weights);
    free(oracle.expected);
    free(oracle.row);
    return sqrt(wrong / all);
}

struct fill {
    uint32_t n_layers, n_chunks;
    bench_fill_chunk *chunk;
    void *state;
};

static void fill_share(void *context, uint32_t ith, uint32_t nth)
{
    const struct fill *fill = context;
    size_t begin, end;

    bench_share((size_t)fill->n_layers * fill->n_chunks, ith, nth, &begin, &end);
    for (size_t i = begin; i < end; i++)
        fill->chunk(fill->state, (uint32_t)(i / fill->n_chunks), (uint32_t)(i % fill->n_chunks));
}

void bench_fill(const struct bench_shape *shape, uint32_t n_layers, bench_fill_chunk *chunk, void *state)
{
    struct fill fill = {n_layers, bench_chunks(shape), chunk, state};
    bench_parallel(shape->threads, fill_share, &fill);
}
