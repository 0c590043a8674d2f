/* The decoder's forward pass on a device against that on the CPU: the small kernels, the linear layers as they are
 * called, and the library between them.  The device is a pretended one, or, with ON_GPU, a real one. */
#include "llama/device.h"
#include "llama/engine.h"
#include "llama/model.h"
#ifndef ON_GPU
#  include "runtime.h"
#endif
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 75, MOST_LOGITS = N_TOKENS * 64 };

/* Heads that are not dim / heads, V smaller than K, a part of each head turned, rows longer than a block; and what the
 * tensor-core kernel takes. */
static const struct model_shape shapes[] = {
    {32, 48, 2, 6, 2, 12, 8, 64, 512, 12, 1e4, 1e-5},
    {20, 600, 1, 3, 3, 10, 10, 19, 512, 4, 1e4, 1e-5},
    {300, 24, 2, 4, 1, 64, 64, 33, 512, 64, 1e4, 1e-5},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void ok(int rc, const struct fault *fault)
{
    ck_assert_msg(rc == 0, "%s", fault->text);
}

/* All tokens in pieces; every row's logits but those of the first two pieces, so that what a step sends to the device
 * may still be on its way when the next one comes. */
static void run_model(const struct model *model, struct device *device, uint32_t kv_dtype, const int32_t *tokens,
                      size_t piece, float *logits)
{
    const struct model_shape *s = &model->shape;
    const struct cattn_config config = {.size = sizeof config,
                                        .backend = device ? "cuda" : "cpu",
                                        .n_layers = s->n_layers,
                                        .n_heads = s->n_heads,
                                        .n_kv_heads = s->n_kv_heads,
                                        .head_dim = s->head_dim,
                                        .v_head_dim = s->v_head_dim,
                                        .chunk_tokens = 32,
                                        .max_tokens = 256,
                                        .io_dtype = device ? device_dtype(device) : CATTN_F32,
                                        .kv_dtype = kv_dtype,
                                        .n_threads = 1};
    struct linear linear;
    struct forward forward;
    struct fault fault = {""};
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    size_t held, wanted[N_TOKENS];
    uint64_t positions[N_TOKENS];

    linear_init(&linear, true, 1);
    forward_init(&forward, model, &linear, device);
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, "", 0, tokens, N_TOKENS, &seq, &held), CATTN_OK);
    for (size_t done = 0; done < N_TOKENS; done += piece) {
        const size_t n = N_TOKENS - done < piece ? N_TOKENS - done : piece;
        struct cattn_item item = {.seq = seq, .tokens = tokens + done, .n_tokens = (uint32_t)n};

        ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
        for (size_t i = 0; i < n; i++) {
            positions[i] = done + i;
            wanted[i] = i;
        }
        ok(forward_step(&forward, step, n, tokens + done, positions, done < 2 * piece ? 0 : n, wanted,
                        logits + done * s->vocabulary, &fault),
           &fault);
        ck_assert_int_eq(cattn_step_end(step), CATTN_OK);
    }
    cattn_step_destroy(step);
    cattn_cache_destroy(cache);
    forward_release(&forward);
}

/* Relative to the largest logit. */
static const double tolerances[] = {[CATTN_F32] = 1e-5, [CATTN_F16] = 4e-3, [CATTN_BF16] = 3e-2};

static void compare(const struct model *model, uint32_t dtype, size_t piece, const float *expected,
                    const int32_t *tokens)
{
    const size_t n = (size_t)N_TOKENS * model->shape.vocabulary, first = 2 * piece * model->shape.vocabulary;
    float *logits = malloc(MOST_LOGITS * sizeof *logits), largest = 0;
    struct fault fault = {""};
    struct device *device;

    ok(device_open(model, dtype, &device, &fault), &fault);
    run_model(model, device, dtype, tokens, piece, logits);
    for (size_t i = first; i < n; i++)
        largest = fmaxf(largest, fabsf(expected[i]));
    for (size_t i = first; i < n; i++)
        CHECK(fabs((double)logits[i] - (double)expected[i]) <= tolerances[dtype] * (double)largest,
              "dim %u, dtype %u, pieces of %zu: logit %zu of token %zu is %g, not %g", (unsigned)model->shape.dim,
              (unsigned)dtype, piece, i % model->shape.vocabulary, i / model->shape.vocabulary, (double)logits[i],
              (double)expected[i]);
    device_close(device);
    free(logits);
}

START_TEST(test_logits)
{
    static float expected[MOST_LOGITS];
    int32_t tokens[N_TOKENS];
    struct fault fault = {""};
    struct model model;
    struct rng rng;

    rng_init(&rng, 0x77);
    ok(model_random(&model, &shapes[_i], 3, &fault), &fault);
    for (size_t t = 0; t < N_TOKENS; t++)
        tokens[t] = (int32_t)rng_below(&rng, model.shape.vocabulary);
    run_model(&model, NULL, CATTN_F32, tokens, 1, expected);
    for (uint32_t dtype = CATTN_F32; dtype <= CATTN_BF16; dtype++)
        compare(&model, dtype, dtype == CATTN_F32 ? 7 : 31, expected, tokens);
    model_release(&model);
#ifndef ON_GPU
    ck_assert_uint_eq(fake_cuda_used(0), 0);
#endif
}
END_TEST

enum { N_REQUESTS = 4, PROMPT = 70, N_NEW = 4 };

static void add_requests(struct requests *requests, const struct model *model)
{
    const struct request_rules rules = {NULL, model->shape.vocabulary, model->shape.context, 0};
    int32_t ids[PROMPT];
    struct fault fault = {""};

    for (int32_t r = 0; r < N_REQUESTS; r++) {
        for (int32_t i = 0; i < PROMPT; i++)
            ids[i] = (i < 64 ? i * 7 : i * 5 + r) % (int32_t)model->shape.vocabulary;
        ok(requests_add_ids(requests, &rules, ids, (size_t)(PROMPT - r), N_NEW, &fault), &fault);
    }
}

/* The runner is the same: the tokens too, with a shared prompt, whatever computes. */
START_TEST(test_engine)
{
    struct engine_options options = {
        .chunk_tokens = 32, .kv_dtype = CATTN_F32, .n_threads = 1, .prefill_rows = 50, .stop = {-1, -1}};
    struct requests requests[2] = {{0}};
    struct engine_report report;
    struct linear linear;
    struct model model;
    struct fault fault = {""};

    linear_init(&linear, true, 1);
    ok(model_random(&model, &shapes[0], 5, &fault), &fault);
    for (int i = 0; i < 2; i++) {
        add_requests(&requests[i], &model);
        if (i == 1)
            ok(device_open(&model, CATTN_F32, &options.device, &fault), &fault);
        ok(engine_run(&model, &linear, &options, &requests[i], &report, &fault), &fault);
    }
    ck_assert_str_eq(report.info.backend, "cuda");
    ck_assert_uint_gt(report.prompt_hits, 0);
    for (size_t r = 0; r < N_REQUESTS; r++) {
        const struct request *cpu = &requests[0].list[r], *gpu = &requests[1].list[r];
        ck_assert_uint_eq(gpu->n_ids, cpu->n_ids);
        ck_assert_mem_eq(gpu->ids, cpu->ids, cpu->n_ids * sizeof *cpu->ids);
    }
    device_close(options.device);
    requests_release(&requests[0]);
    requests_release(&requests[1]);
    model_release(&model);
}
END_TEST

#ifndef ON_GPU
/* What CUDA refuses is an error with its words, and leaves nothing behind. */
START_TEST(test_failures)
{
    struct fault fault = {""};
    struct device *device;
    struct model model;
    unsigned n = 0;

    ok(model_random(&model, &shapes[0], 5, &fault), &fault);
    for (int rc = -1; rc; n++) {
        fake_cuda_reset();
        fake_cuda_fail("cudaMalloc", n + 1, cudaErrorMemoryAllocation);
        rc = device_open(&model, CATTN_BF16, &device, &fault);
        device_close(device);
        ck_assert_msg(rc == 0 || strstr(fault.text, cudaGetErrorString(cudaErrorMemoryAllocation)) != NULL, "%s",
                      fault.text);
        ck_assert_uint_eq(fake_cuda_used(0), 0);
    }
    ck_assert_uint_gt(n, 10);
    fake_cuda_reset();
    fake_cuda_devices(0, cudaErrorNoDevice);
    ck_assert_int_ne(device_open(&model, CATTN_BF16, &device, &fault), 0);
    device_close(device);
    fake_cuda_reset();
    model_release(&model);
}
END_TEST
#endif

int main(void)
{
    TCase *tcase = suite_case("llama on a device");

    tcase_add_loop_test(tcase, test_logits, 0, N_SHAPES);
    tcase_add_test(tcase, test_engine);
#ifndef ON_GPU
    tcase_add_test(tcase, test_failures);
#endif
    return suite_run(tcase);
}
