/* Faults that other engines shipped, of threads: more of them than CPUs, a child after a parallel region, two caches at
 * once. */
#define _GNU_SOURCE
#include "support/engine.h"
#include "support/suite.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 32, LIMIT = 300 };

static struct cattn_config config_of(const struct kernel_choice *choice, uint32_t n_threads)
{
    struct cattn_config config = engine_config(16 * CHUNK);
    config.kernel = choice->kernel;
    config.kv_dtype = choice->kv_dtype;
    config.n_threads = n_threads;
    config.n_heads = config.n_kv_heads = 4;
    return config;
}

/* A hang ends with a signal that is named; not Check's handler, which kills the test as well. */
static void limit_time(void)
{
    signal(SIGALRM, SIG_DFL);
    alarm(LIMIT);
}

static void prefill(struct engine *e, struct toy *toy, const struct kernel_choice *choice, uint32_t n_threads,
                    uint32_t flags)
{
    struct cattn_config config = config_of(choice, n_threads);
    config.flags = flags;
    int32_t tokens[CHUNK + 3] = {0};
    engine_init(e, &config, 14);
    engine_prefill(e, toy, 0, tokens, CHUNK + 3, 0);
}

static void decode(struct engine *e, struct toy *toy, int32_t token)
{
    engine_feed(e, toy, &token, 1);
}

/* Kernels alone: what they store makes no difference to threads. */
static int next_kernel(unsigned *k, struct kernel_choice *choice)
{
    const char *before = *k ? choice->kernel : NULL;
    while (kernel_choice((*k)++, choice))
        if (choice->kernel != before)
            return 1;
    return 0;
}

/* ---- A13: more threads than CPUs ---------------------------------------------------------------------- */

static void use_one_cpu(void)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
}

/* The engine's own threads in part of them. */
static void attend_often(const struct kernel_choice *choice, uint32_t n_threads)
{
    enum { ATTENDS = 200 };
    struct engine e;
    struct toy toy;
    prefill(&e, &toy, choice, n_threads, 0);
    e.nth = n_threads;
    e.check_rows = 1;
    for (int32_t i = 0; i < ATTENDS; i++) {
        e.form = i % 20 == 19 ? FORM_THREADS : FORM_ATTEND;
        if (toy.length > 8 * CHUNK)
            engine_truncate(&e, &toy, CHUNK);
        decode(&e, &toy, i);
    }
    engine_close(&e, &toy);
    engine_free(&e);
}

START_TEST(a13_more_threads_than_cpus)
{
    static const uint32_t threads[] = {1, 2, 8, 64};
    struct kernel_choice choice;
    limit_time();
    use_one_cpu();
    for (unsigned k = 0; next_kernel(&k, &choice);)
        for (size_t i = 0; i < 4; i++)
            attend_often(&choice, threads[i]);
}
END_TEST

/* The default is what the affinity mask allows. */
START_TEST(a13_default_threads)
{
    struct kernel_choice choice;
    struct engine e;
    use_one_cpu();
    ck_assert(kernel_choice(0, &choice));
    struct cattn_config config = config_of(&choice, 0);
    engine_init(&e, &config, 13);
    ck_assert_uint_eq(engine_info(&e).n_threads, 1);
    engine_free(&e);
}
END_TEST

/* ---- A14: a child of a process that has computed computes, too ----------------------------------------- */

/* With its parent's cache, and with one of its own. */
static void in_child(const struct kernel_choice *choice, uint32_t n_threads, uint32_t flags, int own_cache)
{
    struct engine e, own;
    struct toy toy, own_toy;
    prefill(&e, &toy, choice, n_threads, flags);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        limit_time();
        if (own_cache) {
            prefill(&own, &own_toy, choice, n_threads, flags);
            decode(&own, &own_toy, 3);
            engine_close(&own, &own_toy);
            engine_free(&own);
        } else {
            decode(&e, &toy, 3);
        }
        _exit(0);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, %u threads, flags %u: child with %s cache: status %d",
          choice->kernel, n_threads, flags, own_cache ? "its own" : "its parent's", status);
    decode(&e, &toy, 3);
    engine_close(&e, &toy);
    engine_free(&e);
}

START_TEST(a14_after_fork)
{
    struct kernel_choice choice;
    for (unsigned k = 0; next_kernel(&k, &choice);)
        for (uint32_t n_threads = 1; n_threads <= 4; n_threads *= 2)
            for (int own_cache = 0; own_cache <= 1; own_cache++) {
                in_child(&choice, n_threads, 0, own_cache);
                in_child(&choice, n_threads, CATTN_CONCURRENT, own_cache);
            }
}
END_TEST

/* ---- A15: two caches at once, with two threads each ---------------------------------------------------- */

enum { APPENDS = 1000 };

struct duo {
    struct engine e;
    struct toy toy;
    struct cattn_io io;
    pthread_barrier_t barrier;
    pthread_t leader, helper;
    uint64_t digest; /* of all outputs */
};

/* Every other time in two phases. */
static void attend_share(struct duo *d, uint32_t ith, int32_t number)
{
    struct cattn_io io = d->io;
    if (number % 2) {
        ck_assert_int_eq(cattn_step_write_part(d->e.step, 0, &io, ith, 2), CATTN_OK);
        pthread_barrier_wait(&d->barrier);
        io.k = io.v = NULL;
    }
    ck_assert_int_eq(cattn_step_attend_part(d->e.step, 0, &io, ith, 2), CATTN_OK);
    pthread_barrier_wait(&d->barrier);
}

static void add_to_digest(struct duo *d)
{
    size_t n = engine_output_bytes(&d->e);
    unsigned char *bytes = malloc(n);
    engine_output(&d->e, 0, bytes);
    for (size_t i = 0; i < n; i++)
        d->digest = rng_mix(d->digest + bytes[i]);
    free(bytes);
}

static void append(struct duo *d, int32_t number, int alone)
{
    if (d->toy.length > 5 * CHUNK)
        engine_truncate(&d->e, &d->toy, CHUNK + (size_t)number % CHUNK);
    struct engine_item item = {.toy = &d->toy, .tokens = &number, .n_tokens = 1};
    ck_assert_int_eq(engine_begin(&d->e, &item, 1), CATTN_OK);
    engine_load(&d->e, 0, &d->io);
    if (alone) {
        ck_assert_int_eq(cattn_step_attend(d->e.step, 0, &d->io), CATTN_OK);
    } else {
        pthread_barrier_wait(&d->barrier);
        attend_share(d, 0, number);
    }
    add_to_digest(d);
    engine_end(&d->e);
}

static void *lead(void *duo)
{
    for (int32_t i = 0; i < APPENDS; i++)
        append(duo, i, 0);
    return NULL;
}

static void *help(void *duo)
{
    struct duo *d = duo;
    for (int32_t i = 0; i < APPENDS; i++) {
        pthread_barrier_wait(&d->barrier);
        attend_share(d, 1, i);
    }
    return NULL;
}

static void duo_open(struct duo *d, uint32_t n_heads)
{
    struct cattn_config config = engine_config(16 * CHUNK);
    config.n_heads = config.n_kv_heads = n_heads;
    config.n_threads = 2;
    memset(d, 0, sizeof *d);
    engine_init(&d->e, &config, 15);
    engine_open(&d->e, &d->toy, 0, NULL, 0);
    ck_assert_int_eq(pthread_barrier_init(&d->barrier, NULL, 2), 0);
}

static uint64_t duo_close(struct duo *d)
{
    engine_check(&d->e, &d->toy, 1);
    engine_close(&d->e, &d->toy);
    engine_free(&d->e);
    pthread_barrier_destroy(&d->barrier);
    return d->digest;
}

START_TEST(a15_two_caches_at_once)
{
    struct duo duos[2], alone;
    for (uint32_t i = 0; i < 2; i++) {
        duo_open(&duos[i], 1 + i);
        ck_assert_int_eq(pthread_create(&duos[i].leader, NULL, lead, &duos[i]), 0);
        ck_assert_int_eq(pthread_create(&duos[i].helper, NULL, help, &duos[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(duos[i].leader, NULL);
        pthread_join(duos[i].helper, NULL);
        duo_open(&alone, 1 + i);
        for (int32_t n = 0; n < APPENDS; n++)
            append(&alone, n, 1);
        ck_assert_uint_eq(duo_close(&alone), duo_close(&duos[i]));
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("threads");
    tcase_add_test(tcase, a13_more_threads_than_cpus);
    tcase_add_test(tcase, a13_default_threads);
    tcase_add_test(tcase, a14_after_fork);
    tcase_add_test(tcase, a15_two_caches_at_once);
    return suite_run(tcase);
}
