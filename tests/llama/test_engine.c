/* The batch loop over a random model: with exact kernels and linear layers in a fixed order the logits after every
 * token have the same bits, however requests are batched, cut, shared and threaded. */
#include "llama/engine.h"
#include "support/random.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

#define N_REQUESTS 9
#define N_OUTPUTS  12

static struct model model;
static struct requests requests;
static const struct model_shape small = {32, 48, 2, 6, 2, 12, 8, 64, 512, 12, 1e4, 1e-5}, *shape = &small;

/* A hash of the logits after each token of each request. */
static uint64_t hashes[N_REQUESTS][N_OUTPUTS];

static void note_logits(void *context, size_t request, size_t n_output, const float *logits)
{
    uint64_t hash = 0;

    (void)context;
    for (uint32_t i = 0; i < shape->vocabulary; i++) {
        uint32_t bits;

        memcpy(&bits, &logits[i], sizeof bits);
        hash = rng_mix(hash ^ bits);
    }
    hashes[request][n_output] = hash;
}

static void add_request(const int32_t *ids, size_t n, size_t max_tokens)
{
    const struct request_rules rules = {NULL, shape->vocabulary, shape->context, 0};
    struct fault fault = {""};

    ck_assert_msg(requests_add_ids(&requests, &rules, ids, n, max_tokens, &fault) == 0, "%s", fault.text);
}

/* Prompts that share 0, 70, 96 and all tokens, that are inside each other, and that end around chunk ends. */
static void set_up(void)
{
    static const size_t common[N_REQUESTS] = {0, 70, 96, 130, 130, 64, 65, 1, 31};
    static const size_t length[N_REQUESTS] = {97, 100, 129, 130, 130, 64, 65, 1, 33};
    int32_t trunk[130], ids[130];
    struct fault fault;
    struct rng rng;

    rng_init(&rng, 0x76);
    ck_assert_int_eq(model_random(&model, shape, 7, &fault), 0);
    for (size_t i = 0; i < 130; i++)
        trunk[i] = (int32_t)rng_below(&rng, shape->vocabulary);
    for (size_t r = 0; r < N_REQUESTS; r++) {
        for (size_t i = 0; i < length[r]; i++)
            ids[i] = i < common[r] ? trunk[i] : (int32_t)rng_below(&rng, shape->vocabulary);
        add_request(ids, length[r], N_OUTPUTS);
    }
}

static void tear_down(void)
{
    requests_release(&requests);
    model_release(&model);
}

static int try_run(const struct engine_options *options, bool exact, struct engine_report *report, struct fault *fault)
{
    struct linear linear;

    memset(hashes, 0, sizeof hashes);
    requests_rewind(&requests);
    linear_init(&linear, exact, options->n_threads);
    return engine_run(&model, &linear, options, &requests, report, fault);
}

static void run(const struct engine_options *options, bool exact, struct engine_report *report)
{
    struct fault fault = {""};

    ck_assert_msg(try_run(options, exact, report, &fault) == 0, "%s", fault.text);
}

static void compare_bits(const char *kernel, uint32_t chunk_tokens, uint32_t kv_dtype)
{
    struct engine_options options = {.kernel = kernel,
                                     .chunk_tokens = chunk_tokens,
                                     .kv_dtype = kv_dtype,
                                     .n_threads = 1,
                                     .max_batch = 1,
                                     .no_sharing = true,
                                     .stop = {-1, -1},
                                     .observer = note_logits};
    static const size_t rows[] = {0, 1, 7, 31, 32, 33, 64, 65}, batches[] = {0, 1, 2, 8};
    uint64_t first[N_REQUESTS][N_OUTPUTS];
    struct engine_report report;

    run(&options, true, &report);
    memcpy(first, hashes, sizeof first);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        options.prefill_rows = rows[i];
        options.max_batch = batches[i % 4];
        options.n_threads = 1 + (uint32_t)i % 3;
        for (int no_sharing = 0; no_sharing < 2; no_sharing++) {
            options.no_sharing = no_sharing;
            run(&options, true, &report);
            for (size_t j = 0; j < N_REQUESTS * N_OUTPUTS; j++)
                CHECK(hashes[j / N_OUTPUTS][j % N_OUTPUTS] == first[j / N_OUTPUTS][j % N_OUTPUTS],
                      "kernel %s, chunk %u, dtype %u, pieces of %zu, batch %zu, %ssharing: request %zu, output %zu",
                      kernel, (unsigned)chunk_tokens, (unsigned)kv_dtype, rows[i], options.max_batch,
                      no_sharing ? "no " : "", j / N_OUTPUTS, j % N_OUTPUTS);
        }
    }
}

START_TEST(test_bits)
{
    const char *kernel;

    for (unsigned i = 0; (kernel = exact_kernel(i, CATTN_F32, CATTN_F32)); i++) {
        compare_bits(kernel, 32, CATTN_F32);
        compare_bits(kernel, 64, CATTN_F32);
    }
    for (unsigned i = 0; (kernel = exact_kernel(i, CATTN_F32, CATTN_BF16)); i++)
        compare_bits(kernel, 64, CATTN_BF16);
}
END_TEST

START_TEST(test_counts)
{
    const struct engine_options options = {.chunk_tokens = 32, .n_threads = 1, .stop = {-1, -1}};
    struct engine_report shared, alone;
    struct engine_options unshared = options;
    uint64_t prompts = 0;

    for (size_t i = 0; i < requests.n; i++)
        prompts += requests.list[i].n_prompt;
    unshared.no_sharing = true;
    run(&unshared, false, &alone);
    run(&options, false, &shared);
    ck_assert_uint_eq(shared.prompt_tokens, prompts);
    ck_assert_uint_eq(shared.output_tokens, N_REQUESTS * N_OUTPUTS);
    ck_assert_uint_eq(alone.prompt_hits, 0);
    /* Whole chunks of the prompts before them at least; of a prompt found whole the last token is computed again. */
    ck_assert_uint_ge(shared.prompt_hits, 64 + 96 + 128 + 63 + 64);
    ck_assert_uint_lt(shared.peak_bytes, alone.peak_bytes);
    ck_assert_uint_eq(alone.peak_bytes, alone.peak_unshared_bytes);
    ck_assert_uint_lt(shared.stats.read_bytes, alone.stats.read_bytes);
    /* Requests wait for the prompt of another that they go on from, which may wait itself. */
    ck_assert_uint_le(shared.n_steps, N_OUTPUTS + 4);
    for (size_t i = 0; i < requests.n; i++)
        ck_assert_uint_eq(requests.list[i].n_ids, requests.list[i].n_prompt + N_OUTPUTS);
}
END_TEST

/* Equal prompts that arrive together, cut into pieces that are no part of a chunk, are computed and kept once. */
START_TEST(test_equal_prompts)
{
    const struct engine_options options = {.chunk_tokens = 32, .n_threads = 1, .prefill_rows = 7, .stop = {-1, -1}};
    struct engine_report report;
    int32_t ids[96];
    struct rng rng;

    requests_release(&requests);
    rng_init(&rng, 0x77);
    for (size_t i = 0; i < 96; i++)
        ids[i] = (int32_t)rng_below(&rng, shape->vocabulary);
    for (size_t i = 0; i < 8; i++)
        add_request(ids, 96, 40);
    run(&options, true, &report);
    for (size_t i = 1; i < 8; i++)
        ck_assert_mem_eq(requests.list[i].ids, requests.list[0].ids, (96 + 40) * sizeof(int32_t));
    /* At the end: 4 whole chunks for all, and a tail for each but the first, for whose prompt the others waited. */
    ck_assert_uint_eq(report.stats.used_slots, 4 + 7);
}
END_TEST

START_TEST(test_stops)
{
    struct engine_options options = {.chunk_tokens = 32, .n_threads = 1, .stop = {-1, -1}};
    struct engine_report report;

    run(&options, true, &report);
    /* The token that each request may not pass: the fourth of the first request. */
    const int32_t stop = requests.list[0].ids[requests.list[0].n_prompt + 3];
    int32_t *outputs = malloc(N_REQUESTS * N_OUTPUTS * sizeof *outputs);
    for (size_t i = 0; i < N_REQUESTS; i++)
        memcpy(outputs + i * N_OUTPUTS, requests.list[i].ids + requests.list[i].n_prompt, N_OUTPUTS * sizeof *outputs);
    options.stop[1] = stop;
    run(&options, true, &report);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        const size_t n = requests.list[i].n_ids - requests.list[i].n_prompt;

        ck_assert_mem_eq(requests.list[i].ids + requests.list[i].n_prompt, outputs + i * N_OUTPUTS,
                         n * sizeof *outputs);
        ck_assert(n == N_OUTPUTS || outputs[i * N_OUTPUTS + n] == stop);
    }
    ck_assert_uint_le(requests.list[0].n_ids, requests.list[0].n_prompt + 3);
    free(outputs);
}
END_TEST

START_TEST(test_context_end)
{
    const struct engine_options options = {.chunk_tokens = 32, .n_threads = 1, .stop = {-1, -1}};
    struct engine_report report;
    int32_t ids[512] = {0};

    requests_release(&requests);
    add_request(ids, 500, 1000);
    add_request(ids, 512, 1000);
    run(&options, false, &report);
    ck_assert_uint_eq(requests.list[0].n_ids, 513);
    ck_assert_uint_eq(requests.list[1].n_ids, 513);
}
END_TEST

START_TEST(test_small_pools)
{
    struct engine_options options = {.chunk_tokens = 32, .n_threads = 1, .stop = {-1, -1}, .observer = note_logits};
    uint64_t first[N_REQUESTS][N_OUTPUTS];
    struct engine_report report;
    struct fault fault = {""};

    run(&options, true, &report);
    memcpy(first, hashes, sizeof first);
    for (uint64_t slots = 6; slots < 20; slots += 3) {
        options.kv_tokens = slots * 32;
        options.prefill_rows = slots % 2 ? 33 : 0;
        for (uint32_t percent = 1; percent <= 100; percent += 33) {
            options.output_percent = percent;
            options.policy = percent % 2 ? CATTN_FCFS : CATTN_PREFIX;
            run(&options, true, &report);
            ck_assert_mem_eq(hashes, first, sizeof first);
            ck_assert_uint_le(report.stats.peak_used_slots, slots);
        }
    }
    options.kv_tokens = 3 * 32;
    ck_assert_int_eq(try_run(&options, true, &report, &fault), -1);
    ck_assert_ptr_nonnull(strstr(fault.text, "never fit"));
}
END_TEST

/* A pool for one and a half: requests are put back in the middle of their text, and come to the same text. */
START_TEST(test_put_back)
{
    enum { N = 4, PROMPT = 40, NEW = 200 };
    struct engine_options options = {.chunk_tokens = 32, .n_threads = 1, .stop = {-1, -1}};
    static int32_t first[N][PROMPT + NEW];
    struct engine_report report;

    requests_release(&requests);
    for (int32_t i = 0; i < N; i++) {
        int32_t ids[PROMPT] = {i, i + 1, i / 2};

        add_request(ids, PROMPT, NEW);
    }
    run(&options, true, &report);
    for (size_t i = 0; i < N; i++)
        memcpy(first[i], requests.list[i].ids, sizeof first[i]);
    options.kv_tokens = 12 * 32;
    options.output_percent = 1;
    for (options.policy = CATTN_FCFS; options.policy <= CATTN_PREFIX; options.policy++) {
        run(&options, true, &report);
        ck_assert_uint_gt(report.sched.n_preempted, 0);
        ck_assert_uint_le(report.sched.n_preempted, N);
        for (size_t i = 0; i < N; i++)
            ck_assert_mem_eq(requests.list[i].ids, first[i], sizeof first[i]);
    }
}
END_TEST

START_TEST(test_errors)
{
    struct engine_options options = {.kernel = "none", .n_threads = 1, .stop = {-1, -1}};
    struct engine_report report;
    struct fault fault = {""};

    ck_assert_int_eq(try_run(&options, true, &report, &fault), -1);
    options.kernel = NULL;
    options.chunk_tokens = 48;
    ck_assert_int_eq(try_run(&options, true, &report, &fault), -1);
    options.chunk_tokens = 64;
    requests_release(&requests);
    ck_assert_int_eq(try_run(&options, true, &report, &fault), -1);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("engine");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, test_bits);
    tcase_add_test(tcase, test_counts);
    tcase_add_test(tcase, test_equal_prompts);
    tcase_add_test(tcase, test_stops);
    tcase_add_test(tcase, test_context_end);
    tcase_add_test(tcase, test_small_pools);
    tcase_add_test(tcase, test_put_back);
    tcase_add_test(tcase, test_errors);
    return suite_run(tcase);
}
