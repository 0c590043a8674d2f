#include "tiny_llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ------------------------------------------------------------------------------------------------------
 */

static uint32_t hash(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* n multiples of 1/64 around `middle`, none further from it than 1/2: exact in f16 and bf16 where middle is 0. */
static float *make_weights(const char *name, size_t n, float middle)
{
    float *weights = malloc(n * sizeof *weights);
    uint32_t seed = 1;

    if (!weights)
        abort();
    for (const char *c = name; *c; c++)
        seed = hash(seed * 31 + (unsigned char)*c);
    for (size_t i = 0; i < n; i++)
        weights[i] = middle + ((float)(hash(seed + (uint32_t)i) % 65) - 32.0f) / 64.0f;
    return weights;
}

static float *layer_weights(uint32_t layer, const char *name, size_t n, float middle)
{
    char full[64];

    snprintf(full, sizeof full, "blk.%u.%s.weight", (unsigned)layer, name);
    return make_weights(full, n, middle);
}

/* ---- the file -----------------------------------------------------------------------------------------------------
 */

static uint32_t head_dim(const struct tiny_shape *s)
{
    return s->head_dim ? s->head_dim : s->dim / s->n_heads;
}

static uint32_t v_head_dim(const struct tiny_shape *s)
{
    return s->v_head_dim ? s->v_head_dim : head_dim(s);
}

static uint32_t rotary_dims(const struct tiny_shape *s)
{
    return s->rotary_dims ? s->rotary_dims : head_dim(s);
}

static void put_tensor(struct gguf_builder *b, const char *name, uint32_t type, size_t n_in, size_t n_out, float middle)
{
    float *weights = make_weights(name, n_in * (n_out ? n_out : 1), middle);

    builder_tensor(b, name, type, n_in, n_out, weights);
    free(weights);
}

static void put_layer_tensor(struct gguf_builder *b, uint32_t layer, const char *name, uint32_t type, size_t n_in,
                             size_t n_out, float middle)
{
    char full[64];

    snprintf(full, sizeof full, "blk.%u.%s.weight", (unsigned)layer, name);
    put_tensor(b, full, type, n_in, n_out, middle);
}

static void put_keys(struct gguf_builder *b, const struct tiny_shape *s)
{
    builder_text(b, "general.architecture", "llama");
    builder_u32(b, "llama.context_length", 4096);
    builder_u32(b, "llama.embedding_length", s->dim);
    builder_u32(b, "llama.feed_forward_length", s->hidden);
    builder_u32(b, "llama.block_count", s->n_layers);
    builder_u32(b, "llama.attention.head_count", s->n_heads);
    builder_u32(b, "llama.attention.head_count_kv", s->n_kv_heads);
    builder_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (s->head_dim)
        builder_u32(b, "llama.attention.key_length", s->head_dim);
    if (s->v_head_dim)
        builder_u32(b, "llama.attention.value_length", s->v_head_dim);
    if (s->rotary_dims)
        builder_u32(b, "llama.rope.dimension_count", s->rotary_dims);
}

void tiny_llama_build(struct gguf_builder *b, const struct tiny_shape *s)
{
    const size_t q = (size_t)s->n_heads * head_dim(s), k = (size_t)s->n_kv_heads * head_dim(s);
    const size_t v = (size_t)s->n_kv_heads * v_head_dim(s), o = (size_t)s->n_heads * v_head_dim(s);

    put_keys(b, s);
    put_tensor(b, "token_embd.weight", s->type, s->dim, s->vocabulary, 0);
    put_tensor(b, "output_norm.weight", 0, s->dim, 0, 1);
    if (!s->tied)
        put_tensor(b, "output.weight", s->type, s->dim, s->vocabulary, 0);
    if (s->factors)
        put_tensor(b, "rope_freqs.weight", 0, rotary_dims(s) / 2, 0, 2);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        put_layer_tensor(b, i, "attn_norm", 0, s->dim, 0, 1);
        put_layer_tensor(b, i, "attn_q", s->type, s->dim, q, 0);
        put_layer_tensor(b, i, "attn_k", s->type, s->dim, k, 0);
        put_layer_tensor(b, i, "attn_v", s->type, s->dim, v, 0);
        put_layer_tensor(b, i, "attn_output", s->type, o, s->dim, 0);
        put_layer_tensor(b, i, "ffn_norm", 0, s->dim, 0, 1);
        put_layer_tensor(b, i, "ffn_gate", s->type, s->dim, s->hidden, 0);
        put_layer_tensor(b, i, "ffn_up", s->type, s->dim, s->hidden, 0);
        put_layer_tensor(b, i, "ffn_down", s->type, s->hidden, s->dim, 0);
    }
}

void tiny_vocabulary_build(struct gguf_builder *b)
{
    static const char *const words[TINY_WORDS] = {"\xe2\x96\x81",
                                                  "a",
                                                  "b",
                                                  "c",
                                                  "ab",
                                                  "bc",
                                                  "abc",
                                                  ("\xe2\x96\x81"
                                                   "a"),
                                                  "\xc3\xa9",
                                                  "cc",
                                                  "aa",
                                                  "<s",
                                                  "s>"};
    static const float word_scores[TINY_WORDS] = {-1e3f, -1e3f, -1e3f, -1e3f, -2, -1, -3, -4, -1e3f, -5, -6, -7, -8};
    const char *texts[3 + 256 + TINY_WORDS] = {"<unk>", "<s>", "</s>"};
    float scores[3 + 256 + TINY_WORDS] = {0};
    int32_t types[3 + 256 + TINY_WORDS] = {2, 3, 3};
    static char names[256][8];

    for (size_t byte = 0; byte < 256; byte++) {
        snprintf(names[byte], sizeof names[byte], "<0x%02X>", (unsigned)byte);
        texts[3 + byte] = names[byte];
        types[3 + byte] = 6;
    }
    for (size_t i = 0; i < TINY_WORDS; i++) {
        texts[3 + 256 + i] = words[i];
        scores[3 + 256 + i] = word_scores[i];
        types[3 + 256 + i] = 1;
    }
    builder_text(b, "tokenizer.ggml.model", "llama");
    builder_texts(b, "tokenizer.ggml.tokens", texts, 3 + 256 + TINY_WORDS);
    builder_f32s(b, "tokenizer.ggml.scores", scores, 3 + 256 + TINY_WORDS);
    builder_i32s(b, "tokenizer.ggml.token_type", types, 3 + 256 + TINY_WORDS);
    builder_u32(b, "tokenizer.ggml.bos_token_id", 1);
    builder_u32(b, "tokenizer.ggml.eos_token_id", 2);
}

/* ---- the oracle ---------------------------------------------------------------------------------------------------
 */

static double *zeros(size_t n)
{
    double *x = calloc(n + 1, sizeof *x);

    if (!x)
        abort();
    return x;
}

/* y[rows][n_out] = x[rows][n_in] times the named layer's matrix; the weights are made anew each time. */
static void multiply(double *y, const double *x, float *weights, size_t rows, size_t n_in, size_t n_out)
{
    for (size_t row = 0; row < rows; row++) {
        for (size_t out = 0; out < n_out; out++) {
            y[row * n_out + out] = 0;
            for (size_t i = 0; i < n_in; i++)
                y[row * n_out + out] += x[row * n_in + i] * weights[out * n_in + i];
        }
    }
    free(weights);
}

static void normalise(double *y, const double *x, float *weights, size_t rows, size_t n)
{
    for (size_t row = 0; row < rows; row++) {
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            sum += x[row * n + i] * x[row * n + i];
        for (size_t i = 0; i < n; i++)
            y[row * n + i] = weights[i] * x[row * n + i] / sqrt(sum / (double)n + (double)1e-5f);
    }
    free(weights);
}

static void turn(double *x, size_t rows, size_t n_heads, size_t dim, size_t turned, int factors)
{
    float *divisors = make_weights("rope_freqs.weight", turned / 2 + 1, 2);

    for (size_t row = 0; row < rows; row++) {
        for (size_t head = 0; head < n_heads; head++) {
            double *pair = x + (row * n_heads + head) * dim;

            for (size_t i = 0; i < turned / 2; i++, pair += 2) {
                double angle = (double)row * pow(1e4, -2.0 * (double)i / (double)turned);
                angle /= factors ? (double)divisors[i] : 1;
                const double a = pair[0], b = pair[1];

                pair[0] = a * cos(angle) - b * sin(angle);
                pair[1] = a * sin(angle) + b * cos(angle);
            }
        }
    }
    free(divisors);
}

/* One row of one head over the tokens up to its own. */
static void attend_row(double *out, const double *q, const double *k, const double *v, size_t n_seen, size_t k_row,
                       size_t v_row, size_t dim, size_t v_dim)
{
    double *weights = zeros(n_seen), largest = -INFINITY, sum = 0;

    for (size_t t = 0; t < n_seen; t++) {
        for (size_t i = 0; i < dim; i++)
            weights[t] += q[i] * k[t * k_row + i] / sqrt((double)dim);
        largest = fmax(largest, weights[t]);
    }
    for (size_t t = 0; t < n_seen; t++)
        sum += weights[t] = exp(weights[t] - largest);
    for (size_t i = 0; i < v_dim; i++) {
        out[i] = 0;
        for (size_t t = 0; t < n_seen; t++)
            out[i] += weights[t] / sum * v[t * v_row + i];
    }
    free(weights);
}

static void add_to(double *x, const double *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void oracle_attention(const struct tiny_shape *s, uint32_t layer, double *x, double *normed, size_t n)
{
    const size_t dim = head_dim(s), v_dim = v_head_dim(s), group = s->n_heads / s->n_kv_heads;
    const size_t qs = s->n_heads * dim, ks = s->n_kv_heads * dim, vs = s->n_kv_heads * v_dim, os = s->n_heads * v_dim;
    double *q = zeros(n * qs), *k = zeros(n * ks), *v = zeros(n * vs), *o = zeros(n * os);

    normalise(normed, x, layer_weights(layer, "attn_norm", s->dim, 1), n, s->dim);
    multiply(q, normed, layer_weights(layer, "attn_q", qs * s->dim, 0), n, s->dim, qs);
    multiply(k, normed, layer_weights(layer, "attn_k", ks * s->dim, 0), n, s->dim, ks);
    multiply(v, normed, layer_weights(layer, "attn_v", vs * s->dim, 0), n, s->dim, vs);
    turn(q, n, s->n_heads, dim, rotary_dims(s), s->factors);
    turn(k, n, s->n_kv_heads, dim, rotary_dims(s), s->factors);
    for (size_t row = 0; row < n; row++) {
        for (size_t h = 0; h < s->n_heads; h++)
            attend_row(o + row * os + h * v_dim, q + row * qs + h * dim, k + h / group * dim, v + h / group * v_dim,
                       row + 1, ks, vs, dim, v_dim);
    }
    multiply(normed, o, layer_weights(layer, "attn_output", os * s->dim, 0), n, os, s->dim);
    add_to(x, normed, n * s->dim);
    free(q);
    free(k);
    free(v);
    free(o);
}

static void oracle_feed_forward(const struct tiny_shape *s, uint32_t layer, double *x, double *normed, size_t n)
{
    const size_t size = (size_t)s->hidden * s->dim;
    double *gate = zeros(n * s->hidden), *up = zeros(n * s->hidden);

    normalise(normed, x, layer_weights(layer, "ffn_norm", s->dim, 1), n, s->dim);
    multiply(gate, normed, layer_weights(layer, "ffn_gate", size, 0), n, s->dim, s->hidden);
    multiply(up, normed, layer_weights(layer, "ffn_up", size, 0), n, s->dim, s->hidden);
    for (size_t i = 0; i < n * s->hidden; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    multiply(normed, gate, layer_weights(layer, "ffn_down", size, 0), n, s->hidden, s->dim);
    add_to(x, normed, n * s->dim);
    free(gate);
    free(up);
}

void tiny_llama_oracle(const struct tiny_shape *s, const int32_t *tokens, size_t n, double *logits)
{
    const size_t size = (size_t)s->vocabulary * s->dim;
    float *embedding = make_weights("token_embd.weight", size, 0);
    double *x = zeros(n * s->dim), *normed = zeros(n * s->dim);

    for (size_t i = 0; i < n * s->dim; i++)
        x[i] = embedding[(size_t)tokens[i / s->dim] * s->dim + i % s->dim];
    free(embedding);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        oracle_attention(s, layer, x, normed, n);
        oracle_feed_forward(s, layer, x, normed, n);
    }
    normalise(normed, x, make_weights("output_norm.weight", s->dim, 1), n, s->dim);
    multiply(logits, normed, make_weights(s->tied ? "token_embd.weight" : "output.weight", size, 0), n, s->dim,
             s->vocabulary);
    free(x);
    free(normed);
}
