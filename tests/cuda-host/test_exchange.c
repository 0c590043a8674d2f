/* What a CUDA cache exchanges with host memory: files of prefixes, which caches on the CPU read and write too, and the
 * slopes and sinks of variants. */
#define _DEFAULT_SOURCE 1
#include "runtime.h"
#include "support/engine.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct cattn_config config_on(const char *backend, uint32_t dtype)
{
    struct cattn_config config = engine_config(640);
    config.backend = backend;
    config.kernel = strcmp(backend, "cpu") ? NULL : "generic";
    config.n_layers = 2;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.head_dim = 64;
    config.io_dtype = config.kv_dtype = dtype;
    return config;
}

static const uint32_t dtypes[] = {CATTN_F32, CATTN_F16, CATTN_BF16};
static const char *const backends[][2] = {{"cuda", "cpu"}, {"cpu", "cuda"}, {"cuda", "cuda"}};

START_TEST(prefixes_go_through_files)
{
    const char *from = backends[_i / 3][0], *to = backends[_i / 3][1];
    struct cattn_config config = config_on(from, dtypes[_i % 3]);
    char path[] = "cattn-exchange-XXXXXX";
    int file = mkstemp(path), status;
    int32_t tokens[150];
    struct engine writer, reader;
    struct toy first, second;
    uint64_t n_tokens = 0;
    ck_assert_int_ge(file, 0);
    close(file);
    engine_init(&writer, &config, (uint64_t)_i);
    random_tokens(&writer.rng, tokens, 150, 1000);
    engine_prefill(&writer, &first, 0, tokens, 130, 70);
    ck_assert_int_eq(cattn_prefix_pin(writer.cache, NULL, 0, tokens, 130, NULL), CATTN_OK);
    status = cattn_prefix_save(writer.cache, path, "toy", 3);
    engine_free(&writer);
    config.backend = to;
    config.kernel = strcmp(to, "cpu") ? NULL : "generic";
    config.chunk_tokens = 64;
    engine_init(&reader, &config, 77);
    if (status != CATTN_ENOTSUP) { /* in this build */
        ck_assert_int_eq(status, CATTN_OK);
        ck_assert_int_eq(cattn_prefix_load(reader.cache, path, "toy", 3, &n_tokens), CATTN_OK);
        ck_assert_uint_eq(n_tokens, 128);
        ck_assert_uint_eq(engine_open(&reader, &second, 0, tokens, 150), 128);
        engine_feed(&reader, &second, tokens + 128, 22); /* compared with the oracle */
        toy_free(&second);
    }
    engine_free(&reader);
    toy_free(&first);
    remove(path);
}
END_TEST

/* ---- slopes and sinks */

static struct engine one_step(struct toy *toy)
{
    struct cattn_config config = config_on("cuda", CATTN_F16);
    struct engine e;
    int32_t tokens[40];
    engine_init(&e, &config, 5);
    random_tokens(&e.rng, tokens, 40, 1000);
    engine_prefill(&e, toy, 0, tokens, 40, 0);
    return e;
}

static void begin(struct engine *e, struct toy *toy, int32_t token)
{
    const struct engine_item item = {toy, &token, 1, 0};
    ck_assert_int_eq(engine_begin(e, &item, 1), CATTN_OK);
}

START_TEST(arrays_are_copied_once_each)
{
    struct toy toy;
    struct engine e = one_step(&toy);
    float slopes[4] = {0.5f, 0.25f, 0.125f, 0.0625f}, sinks[4] = {1, 2, 3, -1};
    const struct cattn_variant variant = {.size = sizeof variant, .alibi_slopes = slopes, .sinks = sinks};
    e.variant = &variant;
    begin(&e, &toy, 1);
    uint64_t copies = fake_cuda_calls("cudaMemcpyAsync");
    engine_layers(&e);
    ck_assert_uint_eq(fake_cuda_calls("cudaMemcpyAsync"), copies + 2);
    engine_end(&e);
    begin(&e, &toy, 2);
    copies = fake_cuda_calls("cudaMemcpyAsync");
    engine_layers(&e);
    ck_assert_uint_eq(fake_cuda_calls("cudaMemcpyAsync"), copies);
    engine_end(&e);
    sinks[2] = -7; /* the same place, and other contents */
    begin(&e, &toy, 3);
    copies = fake_cuda_calls("cudaMemcpyAsync");
    engine_layers(&e);
    ck_assert_uint_eq(fake_cuda_calls("cudaMemcpyAsync"), copies + 1);
    engine_end(&e);
    engine_free(&e);
    toy_free(&toy);
}
END_TEST

START_TEST(there_is_an_end_to_different_arrays)
{
    struct toy toy;
    struct engine e = one_step(&toy);
    float sinks[4] = {0};
    const struct cattn_variant variant = {.size = sizeof variant, .sinks = sinks};
    e.variant = &variant;
    begin(&e, &toy, 1);
    for (int i = 0; i < 16 + 2 * 2; i++) {
        sinks[0] = (float)i;
        engine_layer(&e, 0);
    }
    struct cattn_io io;
    engine_load(&e, 0, &io);
    sinks[0] = -1;
    ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_ENOMEM);
    sinks[0] = 3; /* those that are there go on */
    engine_layers(&e);
    engine_end(&e);
    ck_assert_int_eq(cattn_sync(e.cache), CATTN_OK);
    engine_free(&e);
    toy_free(&toy);
}
END_TEST

/* A capture that gives an array for the first time copies it each time it is launched, and may never be. */
START_TEST(captured_arrays_are_copied_again)
{
    struct toy toy;
    struct cattn_config config = config_on("cuda", CATTN_F16);
    struct engine e;
    int32_t tokens[40];
    float sinks[4] = {1, 2, 3, 4};
    const struct cattn_variant variant = {.size = sizeof variant, .sinks = sinks};
    cudaStream_t stream;
    cudaGraph_t graph;
    ck_assert_int_eq(cudaStreamCreate(&stream), cudaSuccess);
    config.stream = stream;
    engine_init(&e, &config, 5);
    random_tokens(&e.rng, tokens, 40, 1000);
    engine_prefill(&e, &toy, 0, tokens, 40, 0);
    begin(&e, &toy, 1);
    struct cattn_io io;
    e.variant = &variant;
    engine_load(&e, 0, &io);
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    ck_assert_int_eq(cattn_step_attend(e.step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess); /* never launched */
    engine_layers(&e);                                      /* right all the same */
    engine_end(&e);
    engine_free(&e);
    toy_free(&toy);
    cudaStreamDestroy(stream);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("cuda exchange");
    tcase_add_loop_test(tests, prefixes_go_through_files, 0, 9);
    tcase_add_test(tests, arrays_are_copied_once_each);
    tcase_add_test(tests, there_is_an_end_to_different_arrays);
    tcase_add_test(tests, captured_arrays_are_copied_again);
    return suite_run(tests);
}
