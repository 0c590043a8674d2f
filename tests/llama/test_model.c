/* The forward pass through the library against a dense attention in double, for shapes that engines get wrong: sizes
 * of heads that are not dim / heads, of V other than of K, few rotary dimensions, narrow weights. */
#include "gguf_builder.h"
#include "tiny_llama.h"

#include "llama/gguf.h"
#include "llama/model.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS   75
#define VOCABULARY 19

struct loaded {
    unsigned char *file;
    struct gguf *gguf;
    struct model model;
};

static int load(struct loaded *loaded, struct gguf_builder *b, struct fault *fault)
{
    size_t size;

    memset(loaded, 0, sizeof *loaded);
    loaded->file = builder_finish(b, &size);
    ck_assert_int_eq(gguf_parse(loaded->file, size, &loaded->gguf, fault), 0);
    return model_load(&loaded->model, loaded->gguf, fault);
}

static void unload(struct loaded *loaded)
{
    model_release(&loaded->model);
    gguf_close(loaded->gguf);
    free(loaded->file);
}

/* All tokens in pieces of `piece`; every row's logits. */
static void run_model(const struct model *model, const char *kernel, const int32_t *tokens, size_t piece, float *logits)
{
    const struct model_shape *s = &model->shape;
    const struct cattn_config config = {.size = sizeof config,
                                        .kernel = kernel,
                                        .n_layers = s->n_layers,
                                        .n_heads = s->n_heads,
                                        .n_kv_heads = s->n_kv_heads,
                                        .head_dim = s->head_dim,
                                        .v_head_dim = s->v_head_dim,
                                        .chunk_tokens = 32,
                                        .max_tokens = 256,
                                        .n_threads = 2};
    struct linear linear;
    struct forward forward;
    struct fault fault = {""};
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    size_t held, wanted[N_TOKENS];
    uint64_t positions[N_TOKENS];

    linear_init(&linear, true, 1);
    forward_init(&forward, model, &linear, NULL);
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, "", 0, tokens, N_TOKENS, &seq, &held), CATTN_OK);
    for (size_t done = 0; done < N_TOKENS; done += piece) {
        const size_t n = N_TOKENS - done < piece ? N_TOKENS - done : piece;
        struct cattn_item item = {.seq = seq, .tokens = tokens + done, .n_tokens = (uint32_t)n};

        ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
        ck_assert_uint_eq(item.n_rows, n);
        ck_assert_uint_eq(item.position, done);
        for (size_t i = 0; i < n; i++) {
            positions[i] = done + i;
            wanted[i] = i;
        }
        ck_assert_int_eq(
            forward_step(&forward, step, n, tokens + done, positions, n, wanted, logits + done * s->vocabulary, &fault),
            0);
        ck_assert_int_eq(cattn_step_end(step), CATTN_OK);
    }
    cattn_step_destroy(step);
    cattn_cache_destroy(cache);
    forward_release(&forward);
}

static const struct tiny_shape shapes[] = {
    {12, 20, 2, 3, 1, VOCABULARY, 0, 0, 0, 0, 0, 0},
    {96, 40, 2, 4, 4, VOCABULARY, 32, 0, 0, 0, 0, 0}, /* q is 128 wide, dim is 96 */
    {24, 16, 1, 4, 2, VOCABULARY, 16, 8, 0, 0, 1, 0}, /* V smaller than K; tied */
    {16, 16, 2, 2, 1, VOCABULARY, 6, 18, 4, 0, 0, 0}, /* V larger than K; a part of each head is turned */
    {20, 24, 1, 3, 3, VOCABULARY, 10, 0, 0, 1, 0, 0}, /* F16; dim / heads is no whole number */
    {32, 24, 2, 4, 2, VOCABULARY, 0, 0, 0, 30, 0, 1}, /* BF16; factors of the frequencies */
    {8, 8, 3, 1, 1, VOCABULARY, 0, 0, 0, 0, 1, 0},    /* one head */
};

START_TEST(test_oracle)
{
    double *expected = malloc(N_TOKENS * VOCABULARY * sizeof *expected);
    float *logits = malloc(N_TOKENS * VOCABULARY * sizeof *logits);
    int32_t tokens[N_TOKENS];
    struct rng rng;

    rng_init(&rng, 0x75);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct gguf_builder b;
        struct loaded loaded;
        struct fault fault = {""};

        for (size_t t = 0; t < N_TOKENS; t++)
            tokens[t] = (int32_t)rng_below(&rng, VOCABULARY);
        builder_init(&b);
        tiny_llama_build(&b, &shapes[i]);
        ck_assert_msg(load(&loaded, &b, &fault) == 0, "%s", fault.text);
        tiny_llama_oracle(&shapes[i], tokens, N_TOKENS, expected);
        struct kernel_choice choice;
        for (unsigned k = 0; kernel_choice(k, &choice); k++) {
            const double tolerance = strcmp(choice.kernel, "amxf32") ? 1e-4 : 1e-3; /* which has numbers of 16 bits */
            for (size_t piece = 1; choice.kv_dtype == CATTN_F32 && piece <= N_TOKENS; piece += 37) {
                run_model(&loaded.model, choice.kernel, tokens, piece, logits);
                for (size_t j = 0; j < N_TOKENS * VOCABULARY; j++)
                    CHECK(fabs(logits[j] - expected[j]) <= tolerance * (1 + fabs(expected[j])),
                          "shape %zu, kernel %s, pieces of %zu: logit %zu of token %zu is %g, not %g", i, choice.kernel,
                          piece, j % VOCABULARY, j / VOCABULARY, logits[j], expected[j]);
            }
        }
        unload(&loaded);
    }
    free(expected);
    free(logits);
}
END_TEST

static const struct tiny_shape plain = {8, 8, 1, 2, 1, VOCABULARY, 4, 0, 0, 0, 0, 0};

static void refused(struct gguf_builder *b, const char *why)
{
    struct loaded loaded;
    struct fault fault = {""};

    ck_assert_msg(load(&loaded, b, &fault) == -1, "%s", why);
    ck_assert_msg(strstr(fault.text, why) != NULL, "'%s' does not say '%s'", fault.text, why);
    unload(&loaded);
}

/* Files of another shape than their header says, or with something that would change the result. */
START_TEST(test_refused)
{
    static const float values[4096] = {0};
    struct gguf_builder b;
    struct tiny_shape shape;

    builder_init(&b);
    refused(&b, "architecture");

    builder_init(&b);
    tiny_llama_build(&b, &plain);
    builder_tensor(&b, "blk.0.attn_q.bias", 0, 8, 0, values);
    refused(&b, "tensors");

    builder_init(&b);
    tiny_llama_build(&b, &plain);
    builder_text(&b, "llama.rope.scaling.type", "yarn");
    refused(&b, "scaled rotary");

    builder_init(&b);
    tiny_llama_build(&b, &plain);
    builder_f32(&b, "llama.rope.freq_base", -1);
    refused(&b, "llama.rope.freq_base");

    builder_init(&b);
    shape = plain;
    shape.n_heads = 3;
    shape.n_kv_heads = 2;
    tiny_llama_build(&b, &shape);
    refused(&b, "3 heads cannot share 2");

    builder_init(&b);
    shape = plain;
    shape.rotary_dims = 6; /* of heads of 4 */
    tiny_llama_build(&b, &shape);
    refused(&b, "rotary dimensions");

    builder_init(&b);
    tiny_llama_build(&b, &plain);
    builder_u32(&b, "llama.attention.value_length", 8); /* the tensors were made for 4 */
    refused(&b, "not of the shape");
}
END_TEST

START_TEST(test_missing_or_wrong)
{
    static const char *const keys[] = {"llama.context_length", "llama.embedding_length", "llama.block_count",
                                       "llama.feed_forward_length", "llama.attention.head_count"};
    static const uint32_t numbers[] = {0, 1u << 30, UINT32_MAX};
    const size_t n_keys = sizeof keys / sizeof keys[0];

    for (size_t i = 0; i < n_keys; i++) {
        for (size_t j = 0; j < 4; j++) {
            struct gguf_builder b;

            if (j < 3 && i == 0 && numbers[j] == 1u << 30)
                continue; /* a context as long as that is no fault */
            builder_init(&b);
            builder_text(&b, "general.architecture", "llama");
            for (size_t k = 0; k < n_keys; k++) {
                if (k != i)
                    builder_u32(&b, keys[k], 2);
                else if (j < 3)
                    builder_u32(&b, keys[k], numbers[j]);
            }
            refused(&b, keys[i]);
        }
    }
}
END_TEST

START_TEST(test_random_models)
{
    struct model a, b;
    struct fault fault;

    for (unsigned i = 0; model_shape_name(i); i++) {
        const struct model_shape *shape = model_shape_named(model_shape_name(i));

        ck_assert_uint_eq(shape->dim, shape->n_heads * shape->head_dim);
        ck_assert_uint_eq(shape->n_heads % shape->n_kv_heads, 0);
    }
    ck_assert_ptr_null(model_shape_named("none"));
    ck_assert_int_eq(model_random(&a, model_shape_named("260k"), 1, &fault), 0);
    ck_assert_int_eq(model_random(&b, model_shape_named("260k"), 1, &fault), 0);
    ck_assert_mem_eq(a.layers[4].down, b.layers[4].down, 64 * 172 * sizeof(float));
    ck_assert_mem_ne(a.layers[3].down, b.layers[4].down, 64 * 172 * sizeof(float));
    model_release(&b);
    ck_assert_int_eq(model_random(&b, model_shape_named("260k"), 2, &fault), 0);
    ck_assert_mem_ne(a.layers[4].down, b.layers[4].down, 64 * 172 * sizeof(float));
    model_release(&a);
    model_release(&b);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("model");

    tcase_add_test(tcase, test_oracle);
    tcase_add_test(tcase, test_refused);
    tcase_add_test(tcase, test_missing_or_wrong);
    tcase_add_test(tcase, test_random_models);
    return suite_run(tcase);
}
