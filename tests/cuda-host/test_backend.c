/* The backend "cuda" as a whole, host part and kernels, on pretended devices: against the oracle through the interface;
 * what it does when a device is missing, full or failing; streams, devices and graphs. */
#include "cuda_runtime_api.h"
#include "runtime.h"
#include "support/dtype.h"
#include "support/engine.h"
#include "support/suite.h"
#include "support/variant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { CHUNK = 32 };

/* ---- results ---------------------------------------------------------------------------------------------------- */

struct shape {
    uint32_t heads, kv_heads, head_dim, v_head_dim, chunk, io_dtype, kv_dtype, n_items, rows;
    const char *kernel;
};

/* Sequences over a prompt in common, fed in pieces and then token by token. */
static void run_shape(const struct shape *x, unsigned parts, uint64_t salt)
{
    struct cattn_config config = engine_config((uint64_t)(x->n_items + 2) * 4 * x->chunk);
    struct toy *toys = calloc(x->n_items, sizeof *toys);
    struct engine_item *items = calloc(x->n_items, sizeof *items);
    int32_t *tokens = malloc((size_t)5 * x->chunk * sizeof *tokens);
    struct cattn_variant *variant = variant_new(x->heads);
    struct engine e;
    config.n_heads = x->heads, config.n_kv_heads = x->kv_heads;
    config.head_dim = x->head_dim, config.v_head_dim = x->v_head_dim, config.chunk_tokens = x->chunk;
    config.io_dtype = x->io_dtype, config.kv_dtype = x->kv_dtype, config.kernel = x->kernel;
    config.n_layers = 2;
    engine_init(&e, &config, salt);
    variant_draw(variant, parts, salt, x->heads, x->chunk, 2 * x->chunk);
    e.variant = parts ? variant : NULL;
    e.guard = salt % 2 ? GUARD_END : GUARD_START;
    e.pad = salt % 3 ? 0 : 3;
    e.form = (enum engine_form)(salt % N_FORMS);
    e.check_rows = 3;
    random_tokens(&e.rng, tokens, 5 * x->chunk, 1000);
    const uint32_t common = x->chunk + (uint32_t)rng_below(&e.rng, x->chunk);
    engine_prefill(&e, &toys[0], 0, tokens, common, x->chunk + 7);
    for (uint32_t i = 1; i < x->n_items; i++)
        engine_open(&e, &toys[i], 0, tokens, common);
    for (uint32_t step = 0; step < 4; step++) {
        for (uint32_t i = 0; i < x->n_items; i++) {
            const uint32_t n = step == 1 ? 1 + i % x->rows : 1;
            items[i] = (struct engine_item){&toys[i], tokens + common + i % x->chunk, n, n};
            if (toys[i].length < common) {
                items[i].tokens = tokens + toys[i].length;
                items[i].n_tokens = common - (uint32_t)toys[i].length;
            }
        }
        engine_step(&e, items, x->n_items);
    }
    engine_check(&e, toys, x->n_items);
    for (uint32_t i = 0; i < x->n_items; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
    variant_free(variant);
    free(toys), free(items), free(tokens);
}

START_TEST(outputs_are_right)
{
    static const struct shape shapes[] = {
        {2, 1, 64, 0, 64, CATTN_F16, CATTN_F16, 3, 5, "mma"},
        {8, 2, 64, 0, 32, CATTN_BF16, CATTN_BF16, 2, 17, "mma"},
        {3, 1, 96, 0, 128, CATTN_BF16, CATTN_BF16, 1, 3, "mma"},
        {4, 4, 128, 0, 64, CATTN_F16, CATTN_F16, 2, 2, "mma"},
        {5, 1, 256, 0, 32, CATTN_BF16, CATTN_BF16, 2, 3, "mma"},
        {1, 1, 64, 0, 32, CATTN_F16, CATTN_F16, 65, 2, "mma"},
        {1, 1, 64, 0, 32, CATTN_BF16, CATTN_BF16, 80, 1, "mma"},
        {2, 1, 64, 0, 64, CATTN_F32, CATTN_F16, 3, 5, "general"},
        {2, 2, 40, 0, 256, CATTN_BF16, CATTN_F32, 1, 9, "general"},
        {7, 1, 80, 24, 32, CATTN_F32, CATTN_F32, 3, 2, "general"},
        {1, 1, 7, 0, 32, CATTN_F16, CATTN_BF16, 4, 40, "general"},
        {1, 1, 512, 1, 32, CATTN_F16, CATTN_F16, 2, 3, "general"},
    };
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (unsigned k = 0; k < 2; k++)
            run_shape(&shapes[i], k ? 1u << i % 5 : 0, 10 * i + k);
    ck_assert_uint_eq(fake_cuda_pending(), 0);
}
END_TEST

/* Equal keys weigh the same however large their products with a query are; the mean of equal values is the value. */
static void attend_to_equal_tokens(uint32_t dtype, double size)
{
    enum { DIM = 64, N = 2 };
    static uint16_t q[N * DIM], k[N * DIM], v[N * DIM], out[N * DIM];
    struct cattn_config config = engine_config(2 * CHUNK);
    const int32_t tokens[N] = {1, 2};
    float lse[N];
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    config.n_heads = 1, config.head_dim = DIM, config.io_dtype = config.kv_dtype = dtype, config.kernel = "mma";
    for (size_t i = 0; i < N * DIM; i++) {
        dtype_store(dtype, q, i, size);
        dtype_store(dtype, k, i, size);
        dtype_store(dtype, v, i, 1);
    }
    const struct cattn_io io = {.size = sizeof io, .q = q, .k = k, .v = v, .out = out, .lse = lse};
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, NULL, 0, &seq, NULL), CATTN_OK);
    struct cattn_item item = {.seq = seq, .tokens = tokens, .n_tokens = N};
    ck_assert_int_eq(cattn_step_begin(step, &item, 1), CATTN_OK);
    ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cattn_sync(cache), CATTN_OK);
    for (size_t i = 0; i < N * DIM; i++)
        CHECK(dtype_load(dtype, out, i) == 1, "%g, not 1, where q and k are %g", dtype_load(dtype, out, i), size);
    for (size_t i = 0; i < N; i++)
        CHECK(isfinite(lse[i]), "lse %g where q and k are %g", lse[i], size);
    cattn_cache_destroy(cache);
}

START_TEST(scores_may_be_large)
{
    static const double sizes[] = {1, 100, 1000, 1500, 2000, 3000, 4000, 6000, 10000, 60000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        attend_to_equal_tokens(CATTN_F16, sizes[i]);
        attend_to_equal_tokens(CATTN_BF16, sizes[i]);
    }
}
END_TEST

/* A value that is no number, behind rows of the same step and in the chunk next to theirs. */
START_TEST(bad_tokens_spoil_what_may_be)
{
    static const char *const kernels[] = {"mma", "general"};
    for (size_t i = 0; i < COUNT(kernels); i++)
        for (uint32_t chunk = CHUNK; chunk <= 2 * CHUNK; chunk += CHUNK) {
            struct cattn_config config = engine_config(8 * 2 * CHUNK);
            struct engine e;
            struct toy toy;
            int32_t tokens[5 * CHUNK] = {0};
            config.n_heads = 1, config.head_dim = 64, config.chunk_tokens = chunk;
            config.io_dtype = config.kv_dtype = CATTN_F16, config.kernel = kernels[i];
            tokens[4 * CHUNK + 8] = TOKEN_NAN;
            tokens[CHUNK + 8] = TOKEN_INF;
            engine_init(&e, &config, 1);
            engine_prefill(&e, &toy, 0, tokens, CHUNK + 16, 0);
            engine_truncate(&e, &toy, CHUNK);
            tokens[CHUNK + 8] = 0;
            engine_feed(&e, &toy, tokens + CHUNK, 4 * CHUNK);
            engine_close(&e, &toy);
            engine_free(&e);
        }
}
END_TEST

/* ---- a small engine
 * -------------------------------------------------------------------------------------------------- */

static struct cattn_config small_config(void)
{
    struct cattn_config config = engine_config(20 * CHUNK);
    config.backend = "cuda";
    config.n_layers = 2;
    return config;
}

static int create_status(const struct cattn_config *config)
{
    cattn_cache *cache;
    const int status = cattn_cache_create(config, &cache);
    if (status == CATTN_OK)
        cattn_cache_destroy(cache);
    return status;
}

static void some_tokens(int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(7 * i % 100);
}

/* ---- what there is
 * ---------------------------------------------------------------------------------------------------- */

START_TEST(devices_are_found)
{
    struct cattn_config config = small_config();
    ck_assert_int_eq(cattn_backend_usable("cuda"), 1);
    ck_assert_str_eq(cattn_backend_kernel("cuda", 0), "mma");
    ck_assert_str_eq(cattn_backend_kernel("cuda", 1), "general");
    ck_assert_ptr_null(cattn_backend_kernel("cuda", 2));
    ck_assert_int_eq(create_status(&config), CATTN_OK);
    config.device = 1;
    ck_assert_int_eq(create_status(&config), CATTN_OK);
    config.device = 2;
    ck_assert_int_eq(create_status(&config), CATTN_ENOTSUP);
    config.device = 0;
    config.kernel = "mma"; /* not for f32 */
    ck_assert_int_eq(create_status(&config), CATTN_ENOTSUP);
    config.kernel = NULL;
    config.head_dim = 513;
    ck_assert_int_eq(create_status(&config), CATTN_ENOTSUP);
    config.head_dim = 16;
    config.kv_dtype = CATTN_I8;
    ck_assert_int_eq(create_status(&config), CATTN_ENOTSUP);
    ck_assert_uint_eq(fake_cuda_used(0) + fake_cuda_used(1), 0);
    ck_assert_uint_eq(fake_cuda_reset(), 0);
}
END_TEST

START_TEST(no_device_is_no_harm)
{
    static const struct {
        int n, major;
        cudaError_t error;
    } machines[] = {{0, 9, 0}, {2, 9, cudaErrorInsufficientDriver}, {2, 9, cudaErrorInitializationError}, {1, 7, 0}};
    struct cattn_config config = small_config();
    for (size_t i = 0; i < COUNT(machines); i++) {
        fake_cuda_reset();
        fake_cuda_devices(machines[i].n, machines[i].error);
        fake_cuda_capability(machines[i].major, 5, 20);
        ck_assert_int_eq(cattn_backend_usable("cuda"), 0);
        ck_assert_ptr_null(cattn_backend_kernel("cuda", 0));
        config.backend = "cuda";
        ck_assert_int_eq(create_status(&config), CATTN_ENOTSUP);
        config.backend = "cpu";
        ck_assert_int_eq(create_status(&config), CATTN_OK);
    }
}
END_TEST

/* Each device that the kernels are compiled for, by what it has. */
START_TEST(all_targets)
{
    static const int targets[][3] = {{8, 0, 108}, {8, 6, 84}, {8, 9, 128}, {9, 0, 132}, {12, 0, 170}};
    const struct shape shape = {2, 1, 128, 0, 64, CATTN_F16, CATTN_F16, 2, 3, "mma"};
    for (size_t i = 0; i < COUNT(targets); i++) {
        fake_cuda_reset();
        fake_cuda_capability(targets[i][0], targets[i][1], targets[i][2]);
        run_shape(&shape, 0, i);
    }
}
END_TEST

/* ---- memory
 * ----------------------------------------------------------------------------------------------------------- */

START_TEST(memory_of_the_device_runs_out)
{
    struct cattn_config config = small_config();
    cattn_cache *cache;
    struct cattn_info info = {.size = sizeof info};
    const size_t pool = 20 * CHUNK * 2 * 16 * 2 * sizeof(float);
    fake_cuda_memory(pool - 1);
    ck_assert_int_eq(create_status(&config), CATTN_ENOMEM);
    ck_assert_uint_eq(fake_cuda_used(0), 0);
    fake_cuda_memory(100 * pool);
    config.max_tokens = 0; /* as much as there is, almost */
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    ck_assert_int_eq(cattn_cache_info(cache, &info), CATTN_OK);
    const uint64_t bytes = info.n_slots * info.slot_bytes;
    ck_assert(bytes > 70 * pool && bytes <= 80 * pool);
    cattn_cache_destroy(cache);
    ck_assert_uint_eq(fake_cuda_used(0), 0);
    ck_assert_uint_eq(fake_cuda_reset(), 0);
}
END_TEST

/* A step that is too large for what is left of the device: nothing has changed, and a smaller one is done. */
START_TEST(step_without_memory_is_refused)
{
    struct cattn_config config = small_config();
    struct engine e;
    struct toy toy;
    int32_t tokens[10 * CHUNK];
    some_tokens(tokens, COUNT(tokens));
    engine_init(&e, &config, 1);
    engine_prefill(&e, &toy, 0, tokens, 10, 0);
    fake_cuda_memory(fake_cuda_used(0));
    struct engine_item large = {&toy, tokens + 10, COUNT(tokens) - 10, 0};
    ck_assert_int_eq(engine_begin(&e, &large, 1), CATTN_ENOMEM);
    engine_check(&e, &toy, 1);
    engine_feed(&e, &toy, tokens + 10, 1);
    fake_cuda_memory((size_t)1 << 30);
    engine_feed(&e, &toy, tokens + 11, COUNT(tokens) - 11);
    engine_check(&e, &toy, 1);
    engine_close(&e, &toy);
    engine_free(&e);
    ck_assert_uint_eq(fake_cuda_reset(), 0);
}
END_TEST

/* ---- errors
 * ----------------------------------------------------------------------------------------------------------- */

/* A life of a cache by the interface alone, each call of which may fail.  Returns the first status that is not
 * CATTN_OK, from where only what must work is called. */
static int live(const struct cattn_config *config, cudaStream_t *stream)
{
    enum { N = CHUNK + 2 };
    static float q[N * 2 * 16], k[N * 16], v[N * 16], out[N * 2 * 16];
    int32_t tokens[N];
    cattn_cache *cache;
    cattn_step *step;
    cattn_seq seq;
    struct cattn_config own = *config;
    struct cattn_io io = {.size = sizeof io, .q = q, .k = k, .v = v, .out = out};
    some_tokens(tokens, N);
    own.stream = *stream;
    int status = cattn_cache_create(&own, &cache);
    if (status)
        return status;
    ck_assert_int_eq(cattn_step_create(cache, &step), CATTN_OK);
    status = cattn_seq_open(cache, NULL, 0, tokens, N, &seq, NULL);
    for (uint32_t i = 0; i < 3 && !status; i++) {
        struct cattn_item item = {.seq = seq, .tokens = tokens, .n_tokens = i ? 1 : N};
        status = cattn_step_begin(step, &item, 1);
        for (uint32_t layer = 0; layer < own.n_layers && !status; layer++)
            status = cattn_step_attend(step, layer, &io);
        status = status ? status : cattn_step_end(step);
    }
    status = status ? status : cattn_sync(cache);
    if (status == CATTN_EDEVICE)
        ck_assert_int_eq(cattn_sync(cache), CATTN_EDEVICE);
    cattn_cache_destroy(cache);
    return status;
}

/* Calls of CUDA that a life makes. */
static uint64_t count_calls(const struct cattn_config *config, cudaStream_t *stream)
{
    const uint64_t before = fake_cuda_calls(NULL);
    ck_assert_int_eq(live(config, stream), CATTN_OK);
    return fake_cuda_calls(NULL) - before;
}

/* Each call of CUDA fails once: the error is reported, or was none that matters; nothing leaks. */
static void fail_each_call(cudaError_t error)
{
    struct cattn_config config = small_config();
    config.n_layers = 1;
    cudaStream_t stream;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    const uint64_t n = count_calls(&config, &stream);
    unsigned n_reported = 0;
    for (unsigned i = 1; i <= n; i++) {
        fake_cuda_fail(NULL, i, error);
        const int status = live(&config, &stream);
        CHECK(status == CATTN_OK || status == CATTN_ENOMEM || status == CATTN_EDEVICE || status == CATTN_ENOTSUP,
              "call %u: %s", i, cattn_strerror(status));
        n_reported += status != CATTN_OK;
        fake_cuda_fail(NULL, 0, cudaSuccess);
    }
    CHECK(n_reported > n / 2, "%u of %u failures reported", n_reported, (unsigned)n);
    ck_assert_int_eq(live(&config, &stream), CATTN_OK);
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
}

START_TEST(calls_that_fail_are_reported)
{
    fail_each_call(cudaErrorMemoryAllocation);
    fail_each_call(cudaErrorUnknown);
}
END_TEST

START_TEST(device_that_fails_for_good_is_reported)
{
    fail_each_call(cudaErrorIllegalAddress);
}
END_TEST

/* A cache whose device has failed does not touch that of another. */
START_TEST(errors_are_of_one_cache)
{
    struct cattn_config config = small_config();
    struct engine a, b;
    struct toy toy, other;
    int32_t tokens[CHUNK];
    some_tokens(tokens, CHUNK);
    engine_init(&a, &config, 1);
    config.device = 1;
    engine_init(&b, &config, 2);
    engine_prefill(&a, &toy, 0, tokens, 9, 0);
    engine_prefill(&b, &other, 0, tokens, 9, 0);
    fake_cuda_fail("cudaLaunchKernel", 1, cudaErrorLaunchFailure);
    struct cattn_item item = {.seq = toy.seq, .tokens = tokens, .n_tokens = 1};
    struct cattn_io io = {.size = sizeof io};
    float x[32] = {0}, out[32];
    io.q = io.k = io.v = x;
    io.out = out;
    int status = cattn_step_begin(a.step, &item, 1);
    if (status == CATTN_OK)
        status = cattn_step_attend(a.step, 0, &io);
    ck_assert_int_eq(status, CATTN_EDEVICE);
    ck_assert_int_eq(cattn_sync(a.cache), CATTN_EDEVICE);
    engine_feed(&b, &other, tokens + 9, 5);
    engine_check(&b, &other, 1);
    engine_close(&b, &other);
    engine_free(&b);
    engine_free(&a);
    toy_free(&toy);
}
END_TEST

/* ---- devices, streams, graphs
 * ----------------------------------------------------------------------------------------- */

/* Two caches on streams and devices of their own; the thread's device is left as it was. */
START_TEST(caches_have_their_streams)
{
    struct cattn_config config = small_config();
    struct engine engines[3];
    struct toy toys[3];
    cudaStream_t streams[3];
    int32_t tokens[4 * CHUNK];
    some_tokens(tokens, COUNT(tokens));
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(cudaSetDevice((int)i % 2), cudaSuccess);
        ck_assert_int_eq(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
        ck_assert_int_eq(cudaSetDevice(0), cudaSuccess);
        config.device = i % 2;
        config.stream = streams[i];
        engine_init(&engines[i], &config, i);
        engine_open(&engines[i], &toys[i], 0, NULL, 0);
    }
    for (size_t n = 0; n + 9 < COUNT(tokens); n += 9)
        for (uint32_t i = 0; i < 3; i++) {
            int device;
            engine_feed(&engines[i], &toys[i], tokens + n, 9);
            ck_assert_int_eq(cudaGetDevice(&device), cudaSuccess);
            ck_assert_int_eq(device, 0);
        }
    for (uint32_t i = 0; i < 3; i++) {
        engine_close(&engines[i], &toys[i]);
        engine_free(&engines[i]);
    }
}
END_TEST

/* Buffers that stay where they are, as a graph needs them. */
struct still {
    struct engine *e;
    struct cattn_io io[2];
    struct buffer q[2], k[2], v[2], out[2], lse[2];
};

static void load_still(struct still *s)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        struct cattn_io io;
        engine_load(s->e, layer, &io);
        struct buffer *from[] = {&s->e->q, &s->e->k, &s->e->v};
        struct buffer *to[] = {&s->q[layer], &s->k[layer], &s->v[layer]};
        for (size_t i = 0; i < 3; i++) {
            if (!to[i]->data)
                to[i]->data = malloc(from[i]->bytes);
            memcpy(to[i]->data, from[i]->data, to[i]->bytes = from[i]->bytes);
        }
        if (!s->out[layer].data) {
            s->out[layer].data = malloc(s->e->out.bytes);
            s->lse[layer].data = malloc(s->e->lse.bytes);
        }
        memset(s->out[layer].data, 0xff, s->out[layer].bytes = s->e->out.bytes);
        io.q = s->q[layer].data, io.k = s->k[layer].data, io.v = s->v[layer].data;
        io.out = s->out[layer].data, io.lse = s->lse[layer].data;
        s->io[layer] = io;
    }
}

static void run_still(struct still *s, cattn_step *step)
{
    for (uint32_t layer = 0; layer < 2; layer++)
        ck_assert_int_eq(cattn_step_attend(step, layer, &s->io[layer]), CATTN_OK);
}

static void free_still(struct still *s)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        free(s->q[layer].data), free(s->k[layer].data), free(s->v[layer].data);
        free(s->out[layer].data), free(s->lse[layer].data);
    }
}

/* Decodes n tokens for two sequences with a prompt in common, with a graph wherever there can be one (or never).
 * Returns how often, and all outputs. */
static unsigned decode(int with_graphs, unsigned n, float *outputs)
{
    struct cattn_config config = small_config();
    struct engine e;
    struct toy toys[2];
    struct still s = {.e = &e};
    int32_t tokens[3 * CHUNK];
    cudaStream_t stream;
    cudaGraphExec_t exec = NULL;
    uint64_t captured = 0;
    unsigned n_replayed = 0;
    some_tokens(tokens, COUNT(tokens));
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    config.stream = stream;
    engine_init(&e, &config, 5);
    for (size_t i = 0; i < 2; i++)
        engine_prefill(&e, &toys[i], 0, tokens, CHUNK + 3 + i, 0);
    for (unsigned step = 0; step < n; step++) {
        const struct engine_item items[2] = {{&toys[0], tokens + 40 + step, 1, 0},
                                             {&toys[1], tokens + 45 + step, 1, 0}};
        uint64_t plan;
        ck_assert_int_eq(engine_begin(&e, items, 2), CATTN_OK);
        load_still(&s);
        ck_assert_int_eq(cattn_step_plan(e.step, &plan), CATTN_OK);
        if (with_graphs && exec && plan == captured) {
            ck_assert_int_eq(cudaGraphLaunch(exec, stream), cudaSuccess);
            ck_assert_int_eq(cattn_step_replayed(e.step), CATTN_OK);
            n_replayed++;
        } else if (with_graphs) {
            cudaGraph_t graph;
            if (exec)
                ck_assert_int_eq(cudaGraphExecDestroy(exec), cudaSuccess);
            ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
            run_still(&s, e.step);
            ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
            ck_assert_int_eq(cudaGraphLaunch(exec, stream), cudaSuccess);
            captured = plan;
        } else {
            run_still(&s, e.step);
        }
        ck_assert_int_eq(cattn_sync(e.cache), CATTN_OK);
        for (uint32_t layer = 0; layer < 2; layer++)
            memcpy(outputs + (step * 2 + layer) * 64, s.out[layer].data, 64 * sizeof(float));
        engine_end(&e);
    }
    if (exec)
        ck_assert_int_eq(cudaGraphExecDestroy(exec), cudaSuccess);
    for (size_t i = 0; i < 2; i++)
        engine_close(&e, &toys[i]);
    engine_free(&e);
    free_still(&s);
    ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
    return n_replayed;
}

START_TEST(graphs_replay_steps)
{
    enum { STEPS = 20 };
    static float plain[STEPS * 2 * 64], replayed[STEPS * 2 * 64];
    ck_assert_uint_eq(decode(0, STEPS, plain), 0);
    const unsigned n = decode(1, STEPS, replayed);
    CHECK(n > STEPS / 2, "%u of %d steps replayed", n, STEPS);
    for (size_t i = 0; i < COUNT(plain); i++)
        CHECK(plain[i] == replayed[i], "output %zu: %g, and %g by a graph", i, plain[i], replayed[i]);
}
END_TEST

/* While tokens are added one by one, what goes to the device is a new plan once per chunk. */
START_TEST(plans_change_with_the_structure)
{
    struct cattn_config config = small_config();
    struct engine e;
    struct toy toy;
    int32_t tokens[6 * CHUNK];
    some_tokens(tokens, COUNT(tokens));
    engine_init(&e, &config, 1);
    engine_prefill(&e, &toy, 0, tokens, CHUNK + 1, 0);
    const uint64_t before = fake_cuda_calls("cudaMemcpyAsync");
    for (size_t i = CHUNK + 1; i < 5 * CHUNK + 1; i++)
        engine_feed(&e, &toy, tokens + i, 1);
    const uint64_t n = fake_cuda_calls("cudaMemcpyAsync") - before;
    CHECK(n >= 4 && n <= 5 * 9, "%u copies for 5 plans of 9 arrays", (unsigned)n);
    engine_close(&e, &toy);
    engine_free(&e);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("the CUDA backend on the CPU");
    tcase_add_test(tcase, outputs_are_right);
    tcase_add_test(tcase, scores_may_be_large);
    tcase_add_test(tcase, bad_tokens_spoil_what_may_be);
    tcase_add_test(tcase, devices_are_found);
    tcase_add_test(tcase, no_device_is_no_harm);
    tcase_add_test(tcase, all_targets);
    tcase_add_test(tcase, memory_of_the_device_runs_out);
    tcase_add_test(tcase, step_without_memory_is_refused);
    tcase_add_test(tcase, calls_that_fail_are_reported);
    tcase_add_test(tcase, device_that_fails_for_good_is_reported);
    tcase_add_test(tcase, errors_are_of_one_cache);
    tcase_add_test(tcase, caches_have_their_streams);
    tcase_add_test(tcase, graphs_replay_steps);
    tcase_add_test(tcase, plans_change_with_the_structure);
    return suite_run(tcase);
}
