/* Tenants that read the operator's prompt: it is stored once and read once a step for all of them, and each gets what
 * it would have got alone. */
#include "support/engine.h"
#include "support/suite.h"

#include <string.h>

enum { CHUNK = 32, PUBLIC = 3 * CHUNK, PROMPT = PUBLIC + CHUNK + 7, LENGTH = PROMPT + CHUNK + 9, N_TENANTS = 3 };

struct server {
    struct engine e;
    struct toy toys[N_TENANTS];
    int32_t texts[N_TENANTS][LENGTH];
};

/* The operator's namespace is the one with an empty name. */
static int read_operator(struct engine *e, uint64_t tenant)
{
    struct cattn_namespace_config config = {.size = sizeof config, .public_ns = ""};
    return cattn_namespace_set(e->cache, &tenant, sizeof tenant, &config);
}

static void server_init(struct server *s, const struct kernel_choice *choice, uint32_t flags)
{
    struct cattn_config config = engine_config(60 * CHUNK);
    config.kernel = choice->kernel;
    config.kv_dtype = choice->kv_dtype;
    config.flags = flags;
    memset(s, 0, sizeof *s);
    engine_init(&s->e, &config, 1);
    s->e.one_model = 1;
    s->e.check_rows = 2;
    random_tokens(&s->e.rng, s->texts[0], N_TENANTS * LENGTH, 1000);
    for (uint64_t i = 0; i < N_TENANTS; i++) {
        memcpy(s->texts[i], s->texts[0], (PUBLIC + 5) * sizeof **s->texts);
        ck_assert_int_eq(read_operator(&s->e, i + 1), CATTN_OK);
    }
    memcpy(s->texts[1], s->texts[0], sizeof s->texts[0]); /* two tenants say the same, and share none of it */
}

/* Pinned as long as nobody uses it. */
static void prefill_public(struct server *s)
{
    struct toy toy;
    engine_prefill(&s->e, &toy, 0, s->texts[0], PUBLIC, 0);
    ck_assert_int_eq(cattn_prefix_pin(s->e.cache, "", 0, s->texts[0], PUBLIC, NULL), CATTN_OK);
    engine_close(&s->e, &toy);
}

static void prefill(struct server *s)
{
    struct engine_item items[N_TENANTS];
    for (size_t i = 0; i < N_TENANTS; i++) {
        struct toy *toy = &s->toys[i];
        ck_assert_uint_eq(engine_open(&s->e, toy, i + 1, s->texts[i], PROMPT), PUBLIC);
        toy->trace = trace_new(&s->e, LENGTH);
        items[i] = (struct engine_item){.toy = toy, .tokens = s->texts[i] + PUBLIC, .n_tokens = PROMPT - PUBLIC};
    }
    engine_step(&s->e, items, N_TENANTS);
}

/* Public tokens are read once, the others once for each. */
static void decode(struct server *s)
{
    struct engine_item items[N_TENANTS];
    struct cattn_stats before = engine_stats(&s->e);
    size_t length = s->toys[0].length + 1;
    for (size_t i = 0; i < N_TENANTS; i++)
        items[i] = (struct engine_item){.toy = &s->toys[i], .tokens = s->texts[i] + length - 1, .n_tokens = 1};
    engine_step(&s->e, items, N_TENANTS);
    struct cattn_stats after = engine_stats(&s->e);
    uint64_t read = after.read_bytes - before.read_bytes;
    uint64_t unshared = after.read_bytes_unshared - before.read_bytes_unshared;
    ck_assert_uint_gt(read, 0);
    ck_assert_uint_eq(read * (N_TENANTS * length), unshared * (PUBLIC + N_TENANTS * (length - PUBLIC)));
}

static void compare_with_alone(const struct server *s, const struct kernel_choice *choice, size_t i)
{
    struct engine e;
    struct toy toy;
    engine_init(&e, &s->e.config, 1);
    e.unchecked = 1;
    engine_open(&e, &toy, 0, NULL, 0);
    toy.trace = trace_new(&e, LENGTH);
    while (toy.length < LENGTH)
        engine_feed(&e, &toy, s->texts[i] + toy.length, 1);
    ck_assert_uint_eq(trace_known(s->toys[i].trace), LENGTH - PUBLIC);
    if (choice->exact)
        CHECK(trace_differences(toy.trace, s->toys[i].trace) == 0, "%s, kv %u: tenant %zu", choice->kernel,
              choice->kv_dtype, i);
    trace_free(toy.trace);
    engine_close(&e, &toy);
    engine_free(&e);
}

START_TEST(what_is_public_is_read_once_for_all)
{
    static struct server s;
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        server_init(&s, &choice, k % 2 ? CATTN_NO_RETAIN : 0);
        prefill_public(&s);
        prefill(&s);
        while (s.toys[0].length < LENGTH)
            decode(&s);
        uint64_t own = (LENGTH - PUBLIC + CHUNK - 1) / CHUNK;
        ck_assert_uint_eq(engine_stats(&s.e).used_slots, PUBLIC / CHUNK + N_TENANTS * own);
        engine_check(&s.e, s.toys, N_TENANTS);
        for (size_t i = 0; i < N_TENANTS; i++) {
            compare_with_alone(&s, &choice, i);
            trace_free(s.toys[i].trace);
            engine_close(&s.e, &s.toys[i]);
        }
        ck_assert_uint_eq(engine_stats(&s.e).used_slots, PUBLIC / CHUNK); /* the operator's pin */
        engine_free(&s.e);
    }
}
END_TEST

/* A borrow of a public chunk is copied; nobody else's numbers change. */
START_TEST(tenants_leave_the_public_text_anywhere)
{
    static struct server s;
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++) {
        server_init(&s, &choice, 0);
        prefill_public(&s);
        prefill(&s);
        struct toy other;
        for (size_t n = PUBLIC - CHUNK - 3; n < PUBLIC; n += 9) {
            engine_truncate(&s.e, &s.toys[2], n);
            engine_feed(&s.e, &s.toys[2], s.texts[2] + n, PROMPT - n); /* found again, and computed again */
            engine_truncate(&s.e, &s.toys[2], n);
            engine_feed(&s.e, &s.toys[2], s.texts[2] + PUBLIC, 2 * CHUNK);
            engine_check(&s.e, s.toys, N_TENANTS);
        }
        ck_assert_uint_eq(engine_open(&s.e, &other, 1, s.texts[0], PROMPT), PROMPT - 7);
        engine_close(&s.e, &other);
        engine_truncate(&s.e, &s.toys[2], PUBLIC / 2);
        engine_feed(&s.e, &s.toys[2], s.texts[2] + PUBLIC / 2, LENGTH - PUBLIC / 2);
        while (s.toys[0].length < LENGTH) {
            engine_feed(&s.e, &s.toys[0], s.texts[0] + s.toys[0].length, 1);
            engine_feed(&s.e, &s.toys[1], s.texts[1] + s.toys[1].length, 1);
        }
        engine_check(&s.e, s.toys, N_TENANTS);
        for (size_t i = 0; i < 2; i++)
            compare_with_alone(&s, &choice, i);
        for (size_t i = 0; i < N_TENANTS; i++) {
            trace_free(s.toys[i].trace);
            engine_close(&s.e, &s.toys[i]);
        }
        engine_free(&s.e);
    }
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("public");
    tcase_add_test(tests, what_is_public_is_read_once_for_all);
    tcase_add_test(tests, tenants_leave_the_public_text_anywhere);
    return suite_run(tests);
}
