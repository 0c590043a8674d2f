/* Every error that the header documents; each leaves everything as it was. */
#define _POSIX_C_SOURCE 200809L
#include "support/engine.h"
#include "support/suite.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32 };

static int create(const struct cattn_config *config)
{
    cattn_cache *untouched = (cattn_cache *)(void *)&untouched, *cache = untouched;
    int status = cattn_cache_create(config, &cache);
    if (status == CATTN_OK)
        cattn_cache_destroy(cache);
    else
        ck_assert_ptr_eq(cache, untouched);
    return status;
}

/* ---- creating a cache ------------------------------------------------------------------------------- */

#define EXPECT_CREATE(expected, ...)                                                                                   \
  do {                                                                                                                 \
    struct cattn_config c = engine_config(CHUNK);                                                                      \
    __VA_ARGS__;                                                                                                       \
    int status_ = create(&c);                                                                                          \
    CHECK(status_ == (expected), "%s: %s", #__VA_ARGS__, cattn_strerror(status_));                                     \
  } while (0)

START_TEST(bad_config)
{
    cattn_cache *cache;
    struct cattn_config good = engine_config(CHUNK);
    ck_assert_int_eq(cattn_cache_create(NULL, &cache), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_create(&good, NULL), CATTN_EINVAL);
    EXPECT_CREATE(CATTN_OK, (void)c);
    EXPECT_CREATE(CATTN_EINVAL, c.size = 0);
    EXPECT_CREATE(CATTN_EINVAL, c.size = sizeof c - 8);
    EXPECT_CREATE(CATTN_EINVAL, c.n_layers = 0);
    EXPECT_CREATE(CATTN_EINVAL, c.n_layers = 65536);
    EXPECT_CREATE(CATTN_OK, c.n_layers = 65535);
    EXPECT_CREATE(CATTN_EINVAL, c.n_heads = 0);
    EXPECT_CREATE(CATTN_EINVAL, c.n_heads = 65536);
    EXPECT_CREATE(CATTN_EINVAL, c.head_dim = 0);
    EXPECT_CREATE(CATTN_EINVAL, c.head_dim = 4097);
    EXPECT_CREATE(CATTN_OK, c.head_dim = 4096);
    EXPECT_CREATE(CATTN_EINVAL, c.v_head_dim = 4097);
    EXPECT_CREATE(CATTN_OK, c.v_head_dim = 4096);
    EXPECT_CREATE(CATTN_EINVAL, c.chunk_tokens = 1);
    EXPECT_CREATE(CATTN_EINVAL, c.chunk_tokens = 16);
    EXPECT_CREATE(CATTN_EINVAL, c.chunk_tokens = 96);
    EXPECT_CREATE(CATTN_EINVAL, c.chunk_tokens = 512);
    EXPECT_CREATE(CATTN_EINVAL, c.io_dtype = 99);
    EXPECT_CREATE(CATTN_EINVAL, c.kv_dtype = 99);
    EXPECT_CREATE(CATTN_EINVAL, c.max_tokens = 0);
    EXPECT_CREATE(CATTN_EINVAL, c.flags = 0x80000000u);
    EXPECT_CREATE(CATTN_EINVAL, c.n_threads = 1025);
    EXPECT_CREATE(CATTN_OK, c.n_threads = 1024);
    EXPECT_CREATE(CATTN_ENOTSUP, c.backend = "abacus");
    EXPECT_CREATE(CATTN_ENOTSUP, c.backend = "");
    EXPECT_CREATE(CATTN_ENOTSUP, c.kernel = "abacus");
    /* Sizes that no machine has, and that do not even count. */
    for (int bits = 40; bits <= 64; bits += 8) {
        struct cattn_config c = engine_config(bits < 64 ? UINT64_C(1) << bits : UINT64_MAX);
        c.n_layers = 65535;
        c.head_dim = 4096;
        int status = create(&c);
        CHECK(status == CATTN_EINVAL || status == CATTN_ENOMEM, "2^%d tokens: %s", bits, cattn_strerror(status));
    }
}
END_TEST

/* A10 */
START_TEST(a10_heads_not_divisible)
{
    static const uint32_t bad[][2] = {{33, 2}, {3, 2}, {4, 0}, {2, 4}, {0, 0}, {1, 65536}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_CREATE(CATTN_EINVAL, c.n_heads = bad[i][0], c.n_kv_heads = bad[i][1]);
}
END_TEST

START_TEST(config_defaults)
{
    struct cattn_config c = engine_config(100);
    struct engine e;
    c.chunk_tokens = 0;
    c.n_threads = 0;
    engine_init(&e, &c, 1);
    struct cattn_info info = engine_info(&e);
    ck_assert_uint_eq(info.chunk_tokens, 64);
    ck_assert_uint_eq(info.v_head_dim, c.head_dim);
    ck_assert_uint_eq(info.n_slots, 2);
    ck_assert_uint_ge(info.n_threads, 1);
    ck_assert_uint_ge(info.slot_bytes, 2 * 64 * 16 * sizeof(float));
    ck_assert_str_eq(info.backend, cattn_backend_name(0));
    ck_assert(info.n_layers == 1 && info.n_heads == 2 && info.n_kv_heads == 1 && info.head_dim == 16);
    engine_free(&e);
    /* The smaller of the two sizes wins. */
    c.max_tokens = 100 * 64;
    c.max_bytes = 3 * info.slot_bytes + 1;
    engine_init(&e, &c, 1);
    ck_assert_uint_eq(engine_info(&e).n_slots, 3);
    engine_free(&e);
    c.max_tokens = 0;
    engine_init(&e, &c, 1);
    ck_assert_uint_eq(engine_info(&e).n_slots, 3);
    engine_free(&e);
    c.max_tokens = 1;
    engine_init(&e, &c, 1);
    ck_assert_uint_eq(engine_info(&e).n_slots, 1);
    engine_free(&e);
    c.max_tokens = 0;
    c.max_bytes = info.slot_bytes - 1;
    ck_assert_int_eq(create(&c), CATTN_EINVAL);
}
END_TEST

START_TEST(names)
{
    ck_assert_str_eq(cattn_version(), CATTN_VERSION_STRING);
    ck_assert_str_eq(cattn_backend_name(0), "cpu");
    for (unsigned i = 0; i < 20; i++)
        ck_assert(cattn_backend_name(i) || !cattn_backend_name(i + 1));
    ck_assert_ptr_null(cattn_backend_name(UINT32_MAX));
    ck_assert_int_eq(cattn_backend_usable("cpu"), 1);
    ck_assert_int_eq(cattn_backend_usable("abacus"), 0);
    ck_assert_int_eq(cattn_backend_usable(NULL), 0);
    unsigned n = 0;
    while (cattn_kernel_name(n))
        n++;
    ck_assert_uint_ge(n, 1);
    n -= !strcmp(cattn_kernel_name(n - 1), "amxf32"); /* behind all that need not be named */
    ck_assert_str_eq(cattn_kernel_name(n - 1), "generic");
    ck_assert_ptr_null(cattn_kernel_name(UINT32_MAX));
    for (int status = CATTN_EDEVICE; status <= CATTN_OK; status++) {
        ck_assert_str_ne(cattn_strerror(status), "unknown status");
        for (int other = CATTN_EDEVICE; other < status; other++)
            ck_assert_str_ne(cattn_strerror(status), cattn_strerror(other));
    }
    ck_assert_str_eq(cattn_strerror(1), "unknown status");
    ck_assert_str_eq(cattn_strerror(-12), "unknown status");
}
END_TEST

/* ---- forcing a backend and a kernel ----------------------------------------------------------------- */

static const char *kernel_of(const struct cattn_config *config)
{
    static char name[32];
    struct engine e;
    engine_init(&e, config, 1);
    snprintf(name, sizeof name, "%s", engine_info(&e).kernel);
    engine_free(&e);
    return name;
}

START_TEST(forced_kernel)
{
    struct cattn_config config = engine_config(CHUNK);
    config.kv_dtype = CATTN_BF16; /* which all kernels take but one */
    struct cattn_config named = config;
    unsetenv("CATTN_KERNEL");
    unsetenv("CATTN_BACKEND");
    const char *best = cattn_kernel_name(0);
    ck_assert_str_eq(kernel_of(&config), best);
    for (unsigned i = 0; cattn_kernel_name(i); i++) {
        named.kernel = cattn_kernel_name(i);
        if (!strcmp(named.kernel, "amxf32"))
            continue;
        ck_assert_str_eq(kernel_of(&named), named.kernel);
        setenv("CATTN_KERNEL", named.kernel, 1);
        ck_assert_str_eq(kernel_of(&config), named.kernel);
        /* What the config says counts for more. */
        named.kernel = best;
        ck_assert_str_eq(kernel_of(&named), best);
        unsetenv("CATTN_KERNEL");
    }
    setenv("CATTN_KERNEL", "abacus", 1);
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    named.kernel = "generic";
    ck_assert_int_eq(create(&named), CATTN_OK);
    unsetenv("CATTN_KERNEL");
    setenv("CATTN_BACKEND", "abacus", 1);
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    named.backend = "cpu";
    ck_assert_int_eq(create(&named), CATTN_OK);
    setenv("CATTN_BACKEND", "", 1);
    setenv("CATTN_KERNEL", "", 1);
    ck_assert_str_eq(kernel_of(&config), best);
    setenv("CATTN_BACKEND", "cpu", 1);
    ck_assert_int_eq(create(&config), CATTN_OK);
}
END_TEST

/* A kernel that this build may know but this machine cannot run is refused, never run. */
START_TEST(unusable_kernel)
{
    static const char *const known[] = {"avx512", "avx2", "generic", "amx", "neon"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int usable = 0;
        for (unsigned k = 0; cattn_kernel_name(k); k++)
            usable |= !strcmp(cattn_kernel_name(k), known[i]);
        EXPECT_CREATE(usable ? CATTN_OK : CATTN_ENOTSUP, c.kernel = known[i]; c.kv_dtype = CATTN_BF16);
    }
}
END_TEST

/* What is less exact than other kernels of a type is never taken for the best. */
START_TEST(kernel_by_name_only)
{
    struct cattn_config config = engine_config(CHUNK), named = config;
    int usable = 0;
    for (unsigned i = 0; cattn_kernel_name(i); i++)
        usable |= !strcmp(cattn_kernel_name(i), "amxf32");
    config.kv_dtype = named.kv_dtype = CATTN_F32;
    named.kernel = "amxf32";
    unsetenv("CATTN_KERNEL");
    ck_assert_str_ne(kernel_of(&config), named.kernel);
    if (usable)
        ck_assert_str_eq(kernel_of(&named), named.kernel);
    EXPECT_CREATE(usable ? CATTN_OK : CATTN_ENOTSUP, c.kernel = "amxf32"; c.kv_dtype = CATTN_F32);
    EXPECT_CREATE(CATTN_ENOTSUP, c.kernel = "amxf32"; c.kv_dtype = CATTN_BF16);
    EXPECT_CREATE(CATTN_ENOTSUP, c.kernel = "amxf32"; c.kv_dtype = CATTN_I8);
}
END_TEST

/* A feature that is masked is as good as missing; a mask that names an unknown one leaves nothing to run. */
START_TEST(masked_features)
{
    struct cattn_config config = engine_config(CHUNK), named = config;
    unsetenv("CATTN_KERNEL");
    named.kernel = cattn_kernel_name(0);
    setenv("CATTN_CPU_MASK", "avx2", 1);
    ck_assert_str_eq(cattn_kernel_name(0), "generic");
    ck_assert_ptr_null(cattn_kernel_name(1));
    ck_assert_str_eq(kernel_of(&config), "generic");
    ck_assert_int_eq(create(&named), strcmp(named.kernel, "generic") ? CATTN_ENOTSUP : CATTN_OK);
    setenv("CATTN_CPU_MASK", "avx2,abacus", 1);
    ck_assert_ptr_null(cattn_kernel_name(0));
    ck_assert_int_eq(cattn_backend_usable("cpu"), 0);
    ck_assert_int_eq(create(&config), CATTN_ENOTSUP);
    named.kernel = "generic";
    ck_assert_int_eq(create(&named), CATTN_ENOTSUP);
    named.backend = "cpu";
    ck_assert_int_eq(create(&named), CATTN_ENOTSUP);
    setenv("CATTN_CPU_MASK", "none", 1);
    ck_assert_int_eq(create(&config), CATTN_OK);
}
END_TEST

/* ---- handles and arguments of sequences ------------------------------------------------------------- */

/* A cache with two open sequences of which the second shares the first's prefix, and what it looked like. */
struct fixture {
    struct engine e;
    struct toy a, b;
    int32_t tokens[3 * CHUNK];
    struct cattn_stats before;
};

static void fixture_open(struct fixture *f, uint64_t slots)
{
    struct cattn_config config = engine_config(slots * CHUNK);
    config.n_layers = 2;
    engine_init(&f->e, &config, 7);
    random_tokens(&f->e.rng, f->tokens, 3 * CHUNK, 1000);
    engine_prefill(&f->e, &f->a, 0, f->tokens, CHUNK + 9, 0);
    engine_prefill(&f->e, &f->b, 0, f->tokens, 2 * CHUNK, 0);
    f->before = engine_stats(&f->e);
}

static void fixture_same(struct fixture *f)
{
    struct cattn_stats now = engine_stats(&f->e);
    ck_assert_mem_eq(&now, &f->before, sizeof now);
    engine_check(&f->e, &f->a, 1);
    engine_check(&f->e, &f->b, 1);
}

static void fixture_close(struct fixture *f)
{
    engine_close(&f->e, &f->a);
    engine_close(&f->e, &f->b);
    engine_free(&f->e);
}

static void refused_handle(struct fixture *f, cattn_seq seq)
{
    cattn_cache *cache = f->e.cache;
    struct cattn_why why = {.size = sizeof why, .n_prompt = 42};
    cattn_seq other = 42;
    size_t length = 42;
    int32_t tokens[4] = {42};
    struct cattn_item items[2] = {{.seq = f->a.seq, .tokens = tokens, .n_tokens = 1},
                                  {.seq = seq, .tokens = tokens, .n_tokens = 1}};
    ck_assert_int_eq(cattn_seq_fork(cache, seq, &other), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_truncate(cache, seq, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_close(cache, seq), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_length(cache, seq, &length), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_tokens(cache, seq, tokens, 4, &length), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_why(cache, seq, &why), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_begin(f->e.step, items, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_begin(f->e.step, items + 1, 1), CATTN_EINVAL);
    ck_assert(other == 42 && length == 42 && tokens[0] == 42 && why.n_prompt == 42);
    fixture_same(f);
}

START_TEST(bad_handles)
{
    struct fixture f;
    struct toy c;
    fixture_open(&f, 20);
    engine_open(&f.e, &c, 0, NULL, 0);
    cattn_seq stale = c.seq;
    engine_close(&f.e, &c);
    f.before = engine_stats(&f.e); /* an open is counted */
    refused_handle(&f, stale);
    refused_handle(&f, 0);
    refused_handle(&f, UINT64_MAX);
    for (unsigned bit = 0; bit < 64; bit++) {
        refused_handle(&f, f.a.seq ^ UINT64_C(1) << bit);
        refused_handle(&f, f.b.seq ^ UINT64_C(1) << bit);
    }
    /* The place of a closed sequence is taken by another, often: its handle stays dead. */
    for (size_t i = 0; i < 100000; i++) {
        ck_assert_int_eq(cattn_seq_close(f.e.cache, stale), CATTN_EINVAL);
        engine_open(&f.e, &c, 0, NULL, 0);
        ck_assert(c.seq != stale);
        engine_close(&f.e, &c);
    }
    fixture_close(&f);
}
END_TEST

/* The same calls in the same order on two caches of equal shape; then one of them goes and its memory is used again. */
START_TEST(handles_of_another_cache)
{
    struct fixture f, other;
    fixture_open(&f, 20);
    fixture_open(&other, 20);
    cattn_seq theirs[] = {other.a.seq, other.b.seq};
    for (size_t i = 0; i < 2; i++)
        refused_handle(&f, theirs[i]);
    refused_handle(&other, f.a.seq);
    fixture_close(&other);
    for (size_t i = 0; i < 2; i++)
        refused_handle(&f, theirs[i]);
    fixture_open(&other, 20);
    for (size_t i = 0; i < 2; i++)
        refused_handle(&other, theirs[i]);
    fixture_close(&other);
    fixture_close(&f);
}
END_TEST

/* A step, and a scheduler, know the sequences and steps of their own cache alone. */
START_TEST(steps_of_another_cache)
{
    struct fixture f, other;
    struct cattn_batch batch = {.n_items = 42};
    cattn_sched *sched;
    int32_t token = 1;
    fixture_open(&f, 20);
    fixture_open(&other, 20);
    struct cattn_item item = {.seq = f.a.seq, .tokens = &token, .n_tokens = 1};
    ck_assert_int_eq(cattn_step_begin(other.e.step, &item, 1), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sched_create(f.e.cache, NULL, &sched), CATTN_OK);
    ck_assert_int_eq(cattn_sched_next(sched, other.e.step, &batch), CATTN_EINVAL);
    ck_assert_uint_eq(batch.n_items, 42);
    fixture_same(&f);
    fixture_same(&other);
    cattn_sched_destroy(sched);
    fixture_close(&other);
    fixture_close(&f);
}
END_TEST

START_TEST(bad_arguments_of_sequences)
{
    struct fixture f;
    cattn_seq seq = 42;
    size_t n = 42;
    fixture_open(&f, 20);
    cattn_cache *cache = f.e.cache;
    ck_assert_int_eq(cattn_seq_open(NULL, NULL, 0, f.tokens, 3, &seq, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 1, f.tokens, 3, &seq, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, NULL, 3, &seq, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, f.tokens, 3, NULL, &n), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_fork(cache, f.a.seq, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_fork(NULL, f.a.seq, &seq), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_truncate(cache, f.a.seq, CHUNK + 10), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_truncate(cache, f.a.seq, SIZE_MAX), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_truncate(NULL, f.a.seq, 0), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_close(NULL, f.a.seq), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_length(cache, f.a.seq, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_seq_tokens(cache, f.a.seq, NULL, 3, &n), CATTN_EINVAL);
    ck_assert(seq == 42 && n == 42);
    ck_assert_int_eq(cattn_seq_open(cache, NULL, 0, f.tokens, 3, &seq, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(cache, seq), CATTN_OK);
    f.before = engine_stats(&f.e); /* an open is counted */
    ck_assert_int_eq(cattn_seq_tokens(cache, f.a.seq, NULL, 0, &n), CATTN_OK);
    ck_assert_uint_eq(n, CHUNK + 9);
    ck_assert_int_eq(cattn_seq_truncate(cache, f.a.seq, CHUNK + 9), CATTN_OK);
    fixture_same(&f);
    fixture_close(&f);
}
END_TEST

START_TEST(bad_arguments_of_caches)
{
    struct fixture f;
    fixture_open(&f, 20);
    struct cattn_info info = {.size = 0};
    struct cattn_stats stats = {.size = 0};
    cattn_step *step = NULL;
    ck_assert_int_eq(cattn_cache_info(f.e.cache, &info), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_info(f.e.cache, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_info(NULL, &info), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_stats(f.e.cache, &stats), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_stats(f.e.cache, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_stats(NULL, &stats), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_selfcheck(NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_create(NULL, &step), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_create(f.e.cache, NULL), CATTN_EINVAL);
    ck_assert_ptr_null(step);
    cattn_cache_destroy(NULL);
    cattn_step_destroy(NULL);
    fixture_same(&f);
    fixture_close(&f);
}
END_TEST

/* ---- steps ------------------------------------------------------------------------------------------ */

START_TEST(bad_items)
{
    struct fixture f;
    fixture_open(&f, 20);
    cattn_step *step = f.e.step;
    const struct cattn_item good = {.seq = f.a.seq, .tokens = f.tokens, .n_tokens = 2};
    struct cattn_item items[2] = {good, {.seq = f.b.seq, .tokens = f.tokens, .n_tokens = 0}};
    ck_assert_int_eq(cattn_step_begin(step, items, 2), CATTN_EINVAL);
    fixture_same(&f);
    items[1] = good;
    ck_assert_int_eq(cattn_step_begin(step, items, 2), CATTN_EINVAL);
    fixture_same(&f);
    items[1] = (struct cattn_item){.seq = f.b.seq, .tokens = NULL, .n_tokens = 2};
    ck_assert_int_eq(cattn_step_begin(step, items, 2), CATTN_EINVAL);
    fixture_same(&f);
    ck_assert_int_eq(cattn_step_begin(step, NULL, 2), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_begin(NULL, items, 1), CATTN_EINVAL);
    fixture_same(&f);
    ck_assert_mem_eq(&items[0], &good, sizeof good);
    fixture_close(&f);
}
END_TEST

START_TEST(step_states)
{
    struct fixture f;
    struct cattn_io io = {.size = sizeof io};
    cattn_step *other;
    fixture_open(&f, 20);
    cattn_step *step = f.e.step;
    struct engine_item item = {.toy = &f.a, .tokens = f.tokens, .n_tokens = 3};
    ck_assert_int_eq(cattn_step_create(f.e.cache, &other), CATTN_OK);
    for (size_t round = 0; round < 3; round++) {
        ck_assert_int_eq(cattn_step_write(step, 0, &io), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_attend(step, 0, &io), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_end(step), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_abort(step), CATTN_ESTATE);
        fixture_same(&f);
        ck_assert_int_eq(engine_begin(&f.e, &item, 1), CATTN_OK);
        /* ESTATE comes before anything that is wrong with the items. */
        ck_assert_int_eq(cattn_step_begin(step, NULL, 0), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_begin(other, NULL, 5), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_end(other), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_abort(other), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_attend(other, 0, &io), CATTN_ESTATE);
        engine_load(&f.e, 0, &io);
        struct cattn_io stored = io;
        stored.k = stored.v = NULL;
        ck_assert_int_eq(cattn_step_attend(step, 0, &stored), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_end(step), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_write(step, 0, &io), CATTN_OK);
        ck_assert_int_eq(cattn_step_attend(step, 1, &stored), CATTN_ESTATE);
        ck_assert_int_eq(cattn_step_end(step), CATTN_ESTATE);
        cattn_seq seq;
        ck_assert_int_eq(cattn_seq_fork(f.e.cache, f.a.seq, &seq), CATTN_EBUSY);
        ck_assert_int_eq(cattn_seq_truncate(f.e.cache, f.a.seq, 0), CATTN_EBUSY);
        engine_check(&f.e, &f.a, 1);
        engine_abort(&f.e);
        /* An abort takes back everything but the count of what was computed. */
        f.before = engine_stats(&f.e);
        ck_assert_uint_eq(f.before.sequence_tokens, 3 * CHUNK + 9);
        engine_check(&f.e, &f.a, 1);
    }
    ck_assert_int_eq(engine_begin(&f.e, &item, 1), CATTN_OK);
    engine_layers(&f.e);
    engine_end(&f.e);
    cattn_step_destroy(other);
    fixture_close(&f);
}
END_TEST

#define EXPECT_IO(expected, ...)                                                                                       \
  do {                                                                                                                 \
    struct cattn_io x = io;                                                                                            \
    struct cattn_variant variant = {.size = sizeof variant};                                                           \
    (void)variant;                                                                                                     \
    __VA_ARGS__;                                                                                                       \
    int status_ = cattn_step_attend(f.e.step, layer, &x);                                                              \
    CHECK(status_ == (expected), "%s: %s", #__VA_ARGS__, cattn_strerror(status_));                                     \
  } while (0)

START_TEST(bad_io)
{
    struct fixture f;
    struct cattn_io io;
    uint32_t layer = 0;
    fixture_open(&f, 20);
    struct engine_item item = {.toy = &f.a, .tokens = f.tokens, .n_tokens = 3};
    ck_assert_int_eq(engine_begin(&f.e, &item, 1), CATTN_OK);
    engine_load(&f.e, 0, &io);
    EXPECT_IO(CATTN_EINVAL, x.size = 0);
    EXPECT_IO(CATTN_EINVAL, x.size = sizeof x - 8);
    EXPECT_IO(CATTN_EINVAL, x.q = NULL);
    EXPECT_IO(CATTN_EINVAL, x.out = NULL);
    EXPECT_IO(CATTN_EINVAL, x.k = NULL);
    EXPECT_IO(CATTN_EINVAL, x.v = NULL);
    EXPECT_IO(CATTN_EINVAL, x.variant = &variant, variant.size = 0);
    EXPECT_IO(CATTN_EINVAL, x.variant = &variant, variant.scale = -1);
    EXPECT_IO(CATTN_EINVAL, x.variant = &variant, variant.scale = NAN);
    EXPECT_IO(CATTN_EINVAL, x.variant = &variant, variant.scale = INFINITY);
    EXPECT_IO(CATTN_EINVAL, x.out = f.e.q.data);
    EXPECT_IO(CATTN_EINVAL, layer = 2);
    layer = 0;
    ck_assert_int_eq(cattn_step_attend(f.e.step, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_attend(NULL, 0, &io), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write(f.e.step, 0, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_write(f.e.step, 2, &io), CATTN_EINVAL);
    struct cattn_io stored = io;
    stored.k = stored.v = NULL;
    ck_assert_int_eq(cattn_step_write(f.e.step, 0, &stored), CATTN_EINVAL);
    /* None of these counts as a write, and no output was touched. */
    ck_assert_int_eq(cattn_step_attend(f.e.step, 0, &stored), CATTN_ESTATE);
    for (size_t i = 0; i < f.e.out.bytes; i++)
        ck_assert_int_eq(((unsigned char *)f.e.out.data)[i], 0xff);
    /* Only what is needed is looked at. */
    struct cattn_io only = {.size = sizeof only, .k = io.k, .v = io.v};
    ck_assert_int_eq(cattn_step_write(f.e.step, 0, &only), CATTN_OK);
    EXPECT_IO(CATTN_OK, x.lse = NULL);
    EXPECT_IO(CATTN_OK, x.variant = &variant);
    engine_layers(&f.e);
    engine_end(&f.e);
    fixture_close(&f);
}
END_TEST

/* A17 */
START_TEST(a17_prompt_bigger_than_the_pool)
{
    enum { SLOTS = 8 };
    struct fixture f;
    struct toy c;
    int32_t tokens[(SLOTS + 1) * CHUNK];
    fixture_open(&f, SLOTS);
    random_tokens(&f.e.rng, tokens, (SLOTS + 1) * CHUNK, 1000);
    engine_open(&f.e, &c, 0, NULL, 0);
    f.before = engine_stats(&f.e);
    struct engine_item item = {.toy = &c, .tokens = tokens, .n_tokens = (SLOTS + 1) * CHUNK};
    ck_assert_int_eq(engine_begin(&f.e, &item, 1), CATTN_ETOOBIG);
    fixture_same(&f);
    item.n_tokens = SLOTS * CHUNK + 1;
    ck_assert_int_eq(engine_begin(&f.e, &item, 1), CATTN_ETOOBIG);
    /* It could fit, were it alone. */
    item.n_tokens = SLOTS * CHUNK;
    ck_assert_int_eq(engine_begin(&f.e, &item, 1), CATTN_EFULL);
    fixture_same(&f);
    item.n_tokens = 2 * CHUNK;
    engine_step(&f.e, &item, 1);
    engine_feed(&f.e, &f.a, tokens, 2);
    engine_check(&f.e, &c, 1);
    engine_close(&f.e, &c);
    fixture_close(&f);
}
END_TEST

/* A full pool refuses, changes nothing, and goes on once there is room. */
START_TEST(full_pool)
{
    struct fixture f;
    int32_t token = 7;
    fixture_open(&f, 3);
    ck_assert_uint_eq(f.before.free_slots, 0);
    struct engine_item items[2] = {{.toy = &f.b, .tokens = &token, .n_tokens = 1},
                                   {.toy = &f.a, .tokens = &token, .n_tokens = 1}};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(engine_begin(&f.e, items, 1), CATTN_EFULL);
        fixture_same(&f);
        ck_assert_int_eq(engine_begin(&f.e, items, 2), CATTN_ETOOBIG);
        fixture_same(&f);
    }
    engine_truncate(&f.e, &f.a, CHUNK);
    engine_step(&f.e, items, 1);
    engine_check(&f.e, &f.b, 1);
    fixture_close(&f);
}
END_TEST

/* ---- independent caches ----------------------------------------------------------------------------- */

static void *run_alone(void *argument)
{
    struct engine *e = argument;
    struct toy a, b;
    int32_t tokens[3 * CHUNK];
    random_tokens(&e->rng, tokens, 3 * CHUNK, 1000);
    for (size_t round = 0; round < 10; round++) {
        engine_prefill(e, &a, round % 3, tokens, 2 * CHUNK + round, 11);
        engine_fork(e, &a, &b);
        for (size_t i = 0; i < 5; i++) {
            engine_feed(e, &a, tokens + i, 1);
            engine_feed(e, &b, tokens + 2 * i, 2);
        }
        engine_check(e, &a, 1);
        engine_check(e, &b, 1);
        engine_close(e, &a);
        engine_close(e, &b);
    }
    return NULL;
}

/* A15, light */
START_TEST(a15_caches_in_threads)
{
    enum { N = 3 };
    struct engine engines[N];
    pthread_t threads[N];
    struct cattn_config config = engine_config(12 * CHUNK);
    config.n_threads = 2;
    for (size_t i = 0; i < N; i++) {
        engine_init(&engines[i], &config, i);
        engines[i].form = (enum engine_form)(3 * i);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_alone, &engines[i]), 0);
    }
    for (size_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        engine_free(&engines[i]);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("errors");
    tcase_add_test(tcase, bad_config);
    tcase_add_test(tcase, a10_heads_not_divisible);
    tcase_add_test(tcase, config_defaults);
    tcase_add_test(tcase, names);
    tcase_add_test(tcase, forced_kernel);
    tcase_add_test(tcase, unusable_kernel);
    tcase_add_test(tcase, kernel_by_name_only);
    tcase_add_test(tcase, masked_features);
    tcase_add_test(tcase, bad_handles);
    tcase_add_test(tcase, handles_of_another_cache);
    tcase_add_test(tcase, steps_of_another_cache);
    tcase_add_test(tcase, bad_arguments_of_sequences);
    tcase_add_test(tcase, bad_arguments_of_caches);
    tcase_add_test(tcase, bad_items);
    tcase_add_test(tcase, step_states);
    tcase_add_test(tcase, bad_io);
    tcase_add_test(tcase, a17_prompt_bigger_than_the_pool);
    tcase_add_test(tcase, full_pool);
    tcase_add_test(tcase, a15_caches_in_threads);
    return suite_run(tcase);
}
