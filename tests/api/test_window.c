/* What a window leaves out is not read: not counted, and not touched. */
#define _DEFAULT_SOURCE
#include "cache.h"
#include "store.h"
#include "support/engine.h"
#include "support/oracle.h"
#include "support/suite.h"
#include "support/variant.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Blocks of whole pages and more: 64 tokens of 2 x 64 elements. */
enum { CHUNK = 64, HEAD_DIM = 64, N_TOYS = 3, COMMON = 20 * CHUNK, LONGEST = COMMON + 1024 + 300 };

/* Toys 0 and 1 share a prefix and part; toy 2 is alone, and short. */
struct scene {
    struct engine e;
    struct toy toys[N_TOYS];
    int32_t tokens[N_TOYS][LONGEST + 64];
    struct engine_item items[N_TOYS];
    struct cattn_variant *variant;
};

static const size_t lengths[N_TOYS] = {LONGEST, COMMON + 40, 3 * CHUNK + 5};

static void scene_open(struct scene *s, const struct kernel_choice *choice, uint32_t n_threads)
{
    struct cattn_config config = engine_config(4 * LONGEST);
    config.kernel = choice->kernel;
    config.kv_dtype = choice->kv_dtype;
    config.n_threads = n_threads;
    config.chunk_tokens = CHUNK;
    config.head_dim = HEAD_DIM;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    engine_init(&s->e, &config, 1);
    s->variant = variant_new(config.n_heads);
    s->e.variant = s->variant;
    s->e.nth = n_threads;
    s->e.form = FORM_WRITE;
    random_tokens(&s->e.rng, s->tokens[0], N_TOYS * (LONGEST + 64), 1000);
    memcpy(s->tokens[1], s->tokens[0], COMMON * sizeof **s->tokens);
    for (size_t i = 0; i < N_TOYS; i++)
        engine_prefill(&s->e, &s->toys[i], 0, s->tokens[i], lengths[i], 0);
}

static void scene_close(struct scene *s)
{
    for (size_t i = 0; i < N_TOYS; i++)
        engine_close(&s->e, &s->toys[i]);
    engine_free(&s->e);
    variant_free(s->variant);
}

/* A step of a few rows each. */
static void scene_begin(struct scene *s, uint32_t rows)
{
    for (size_t i = 0; i < N_TOYS; i++)
        s->items[i] = (struct engine_item){
            .toy = &s->toys[i], .tokens = s->tokens[i] + s->toys[i].length, .n_tokens = rows + (uint32_t)i};
    ck_assert_int_eq(engine_begin(&s->e, s->items, N_TOYS), CATTN_OK);
}

static const struct cattn_pool *pool_of(const struct scene *s)
{
    return cattn_store_pool(s->e.cache->store);
}

/* One past the last token of the chunk that a row of the item sees; 0: none does. */
static uint64_t seen_end(const struct scene *s, const struct cattn_work_item *item, uint64_t chunk)
{
    uint64_t end = 0;
    for (uint64_t p = item->position; p < item->position + item->n_rows; p++)
        for (uint64_t t = chunk * CHUNK; t < (chunk + 1) * CHUNK; t++)
            if (oracle_sees(s->variant, p, t))
                end = item->position + item->n_rows;
    return end;
}

/* For every chunk of every run: how many of its tokens count, for all items together or added up. */
typedef void visitor(const struct scene *s, uint32_t slot, uint64_t shared, uint64_t unshared, void *data);

static uint64_t tokens_up_to(uint64_t end, uint64_t chunk)
{
    const uint64_t first = chunk * CHUNK, n = end > first ? end - first : 0;
    return n < CHUNK ? n : CHUNK;
}

static void visit_chunks(const struct scene *s, visitor *visit, void *data)
{
    const struct cattn_work *work = &s->e.cache->work;
    for (size_t r = 0; r < work->n_runs; r++)
        for (uint32_t i = 0; i < work->runs[r].n_chunks; i++) {
            const struct cattn_work_run *run = &work->runs[r];
            const uint64_t chunk = run->first_chunk + i;
            uint64_t shared = 0, unshared = 0;
            for (uint32_t j = 0; j < run->n_items; j++) {
                const uint64_t end = seen_end(s, &work->items[work->run_items[run->items + j]], chunk);
                const uint64_t n = tokens_up_to(end, chunk);
                unshared += n;
                shared = n > shared ? n : shared;
            }
            visit(s, work->slots[run->slots + i], shared, unshared, data);
        }
}

struct sum {
    uint64_t shared, unshared, unseen_chunks;
};

static void add_up(const struct scene *s, uint32_t slot, uint64_t shared, uint64_t unshared, void *data)
{
    struct sum *sum = data;
    (void)s, (void)slot;
    sum->shared += shared;
    sum->unshared += unshared;
    sum->unseen_chunks += shared == 0;
}

/* Every whole page of a block that nobody sees. */
static void protect(const struct scene *s, uint32_t slot, uint64_t shared, uint64_t unshared, void *data)
{
    const struct cattn_pool *pool = pool_of(s);
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)unshared;
    for (uint32_t head = 0; !shared && head < pool->layout.n_kv_heads; head++) {
        const uintptr_t block = (uintptr_t)cattn_pool_blocks(pool, 0, head) + slot * pool->layout.block_bytes;
        const uintptr_t begin = (block + page - 1) / page * page;
        const uintptr_t end = (block + pool->layout.block_bytes) / page * page;
        ck_assert_uint_lt(begin, end);
        ck_assert_int_eq(mprotect((void *)begin, end - begin, *(int *)data), 0);
    }
}

static void protect_unseen(const struct scene *s, int access)
{
    visit_chunks(s, protect, &access);
}

static const uint32_t windows[][2] = {{1, 0},           {CHUNK - 1, 0},  {CHUNK, 4}, {CHUNK + 1, CHUNK},
                                      {300, CHUNK + 1}, {1024, 70},      {1100, 1},  {LONGEST, 70},
                                      {UINT32_MAX, 9},  {7, UINT32_MAX}, {0, 5}};
enum { N_WINDOWS = sizeof windows / sizeof *windows };

/* Tokens that some row of some item sees, in whole chunks but for what comes after the last row; a shared one counts
 * once, or once for each item that sees it. */
START_TEST(bytes_read_are_those_seen)
{
    struct kernel_choice choice;
    struct scene *s = malloc(sizeof *s);
    ck_assert(kernel_choice(0, &choice));
    scene_open(s, &choice, 1);
    for (size_t w = 0; w < N_WINDOWS; w++) {
        struct sum sum = {0};
        const uint64_t token_bytes = pool_of(s)->layout.block_bytes * pool_of(s)->layout.n_kv_heads / CHUNK;
        s->variant->window = windows[w][0];
        s->variant->n_sink_tokens = windows[w][1];
        scene_begin(s, 1 + 3 * (w % 2));
        visit_chunks(s, add_up, &sum);
        struct cattn_stats before = engine_stats(&s->e);
        s->e.form = w % 3 ? FORM_ATTEND : FORM_WRITE_PARTS;
        engine_layers(&s->e);
        struct cattn_stats after = engine_stats(&s->e);
        CHECK(after.read_bytes - before.read_bytes == sum.shared * token_bytes, "%s: %llu tokens, not %llu",
              variant_text(s->variant), (unsigned long long)((after.read_bytes - before.read_bytes) / token_bytes),
              (unsigned long long)sum.shared);
        CHECK(after.read_bytes_unshared - before.read_bytes_unshared == sum.unshared * token_bytes,
              "%s: %llu tokens unshared, not %llu", variant_text(s->variant),
              (unsigned long long)((after.read_bytes_unshared - before.read_bytes_unshared) / token_bytes),
              (unsigned long long)sum.unshared);
        engine_abort(&s->e);
    }
    scene_close(s);
    free(s);
}
END_TEST

/* The engine compares with the oracle; a read of what was taken away is a fault. */
static void attend_protected(struct scene *s)
{
    size_t unseen = 0;
    for (size_t w = 0; w < N_WINDOWS; w++) {
        static const enum engine_form forms[] = {FORM_ATTEND, FORM_WRITE_ATTEND_PARTS, FORM_PARTS};
        struct sum sum = {0};
        s->variant->window = windows[w][0];
        s->variant->n_sink_tokens = windows[w][1];
        s->e.form = forms[w % 3];
        scene_begin(s, 1 + 3 * (w % 2));
        visit_chunks(s, add_up, &sum);
        unseen += sum.unseen_chunks;
        protect_unseen(s, PROT_NONE);
        engine_layers(&s->e);
        protect_unseen(s, PROT_READ | PROT_WRITE);
        engine_abort(&s->e);
    }
    CHECK(unseen > 100, "%zu chunks were not seen", unseen);
}

START_TEST(unseen_chunks_are_not_touched)
{
    struct kernel_choice choice;
    for (unsigned k = 0; kernel_choice(k, &choice); k++)
        for (uint32_t threads = 1; threads <= 4; threads += 3) {
            struct scene *s = malloc(sizeof *s);
            scene_open(s, &choice, threads);
            attend_protected(s);
            scene_close(s);
            free(s);
        }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("window");
    tcase_add_test(tcase, bytes_read_are_those_seen);
    tcase_add_test(tcase, unseen_chunks_are_not_touched);
    return suite_run(tcase);
}
