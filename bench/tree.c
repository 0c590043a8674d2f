/* Times what the library does with tokens, without K and V: at growing numbers of cached tokens, with many namespaces
 * and live sequences, beside a plain hash of the same tokens. */
#ifndef _GNU_SOURCE
#  define _GNU_SOURCE
#endif
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bare.h"
#include "cache.h"
#include "harness.h"
#include "hash.h"

#define PROMPT    4096                            /* tokens of a prompt of middle length ... */
#define SYSTEM    1024                            /* ... of which as many are those of all prompts of its namespace */
#define LONGEST   200000                          /* tokens of a long one */
#define KV_BYTES  (UINT64_C(2) * 8 * 8 * 128 * 2) /* of a token: bf16, 8 layers, 8 heads of 128 */
#define MAX_SIZES 5
#define MAX_ROWS  (MAX_SIZES * 32)
#define MAX_BATCH 256

static const char help[] = "Usage: tree [OPTION]...\n"
                           "Times the prefix tree without K and V, at growing numbers of cached tokens.\n"
                           "  --tokens N      cached at the end (10000000)\n"
                           "  --namespaces N  (one for each 100 tokens)\n"
                           "  --sequences N   live ones (one for each 1000 tokens)\n"
                           "  --chunk N       tokens of a chunk (64)\n"
                           "  --repeats N     samples of each time (200)\n"
                           "  --quick         200000 tokens, 20 samples\n"
                           "  --csv FILE      results as CSV; -: standard output, and no table\n"
                           "  --help          this text\n"
                           "\n"
                           "Exit status: 0, 1 when a call failed, 2 for bad options.\n";

struct options {
    uint64_t tokens, namespaces, sequences, chunk, repeats;
    const char *csv;
};

struct row {
    const char *what, *unit;
    uint64_t tokens; /* cached when it was measured */
    size_t n;
    double median, minimum, p99, maximum;
};

struct bench {
    struct options options;
    uint64_t random;
    cattn_cache *cache;
    cattn_step *step;
    int32_t *text;                      /* of the prompt at hand */
    uint64_t n_small, n_middle, n_long; /* prompts made so far */
    uint64_t n_fresh;                   /* streams of prompts that are not to be found */
    cattn_seq *live;                    /* each on a prompt of middle length: i on number i % n_middle */
    uint64_t *live_prompt, n_live;
    struct row rows[MAX_ROWS];
    size_t n_rows;
};

static void must(int status, const char *what)
{
    if (status == CATTN_OK)
        return;
    fprintf(stderr, "tree: %s: %s\n", what, cattn_strerror(status));
    exit(1);
}

static uint64_t next_random(struct bench *bench, uint64_t below)
{
    bench->random = bench->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (bench->random >> 33) % below;
}

/* ---- prompts: streams of tokens, made again whenever they are needed */

enum kind { SMALL, MIDDLE, LONG, FRESH };

static void write_text(int32_t *text, size_t begin, size_t end, enum kind kind, uint64_t number)
{
    for (size_t i = begin; i < end; i++) {
        uint64_t x = cattn_hash_mix(cattn_hash_mix(number * 4 + (uint64_t)kind + 1, i), 1);
        text[i] = (int32_t)(cattn_hash_mix(x, 2) % 128000);
    }
}

struct prompt {
    char name[32];
    size_t length; /* tokens in bench->text */
};

static size_t long_length(const struct bench *bench)
{
    uint64_t length = bench->options.tokens / 50;
    return length < LONGEST ? (size_t)length : LONGEST;
}

/* One token more than whole chunks, so that all of these can be found. */
static struct prompt make_prompt(struct bench *bench, enum kind kind, uint64_t number)
{
    struct prompt prompt = {.length = PROMPT + 1};
    if (kind == SMALL) {
        snprintf(prompt.name, sizeof prompt.name, "tenant %llu",
                 (unsigned long long)(number % bench->options.namespaces));
        prompt.length = bench->options.chunk + 1;
    } else if (kind == LONG) {
        snprintf(prompt.name, sizeof prompt.name, "long");
        prompt.length = long_length(bench);
    } else {
        snprintf(prompt.name, sizeof prompt.name, kind == FRESH ? "fresh" : "group %d", (int)(number % 16));
    }
    write_text(bench->text, 0, prompt.length, kind, number);
    if (kind == MIDDLE)
        write_text(bench->text, 0, SYSTEM, FRESH, number % 16);
    return prompt;
}

/* ---- calls */

static cattn_seq open_prompt(struct bench *bench, const struct prompt *prompt, size_t *n_cached)
{
    cattn_seq seq;
    must(cattn_seq_open(bench->cache, prompt->name, strlen(prompt->name), bench->text, prompt->length, &seq, n_cached),
         "open");
    return seq;
}

static void finish_step(struct bench *bench)
{
    static const char buffer[8];
    char out[8];
    struct cattn_io io = {.size = sizeof io, .q = buffer, .k = buffer, .v = buffer, .out = out};
    must(cattn_step_attend(bench->step, 0, &io), "attend");
    must(cattn_step_end(bench->step), "end");
}

static void append(struct bench *bench, cattn_seq seq, const int32_t *tokens, size_t n)
{
    struct cattn_item item = {.seq = seq, .tokens = tokens, .n_tokens = (uint32_t)n};
    must(cattn_step_begin(bench->step, &item, 1), "begin");
    finish_step(bench);
}

static cattn_seq serve(struct bench *bench, const struct prompt *prompt)
{
    size_t n_cached;
    cattn_seq seq = open_prompt(bench, prompt, &n_cached);
    append(bench, seq, bench->text + n_cached, prompt->length - n_cached);
    return seq;
}

static void close_seq(struct bench *bench, cattn_seq seq)
{
    must(cattn_seq_close(bench->cache, seq), "close");
}

/* ---- results */

static uint64_t cached(const struct bench *bench)
{
    return bench->cache->tree.stored_tokens;
}

static void add(struct bench_samples *samples, double value)
{
    must(bench_samples_add(samples, value) ? CATTN_ENOMEM : CATTN_OK, "samples");
}

/* The samples become a row, if there are any. */
static void report(struct bench *bench, struct bench_samples *samples, const char *what, const char *unit,
                   uint64_t tokens)
{
    if (samples->n && bench->n_rows < MAX_ROWS) {
        double median = bench_samples_median(samples); /* sorts them */
        bench->rows[bench->n_rows++] = (struct row){.what = what,
                                                    .unit = unit,
                                                    .tokens = tokens,
                                                    .n = samples->n,
                                                    .median = median,
                                                    .minimum = samples->values[0],
                                                    .p99 = samples->values[(samples->n - 1) * 99 / 100],
                                                    .maximum = samples->values[samples->n - 1]};
    }
    bench_samples_release(samples);
}

/* ---- filling */

static double behind(uint64_t made, double goal)
{
    return goal < 1 ? 2 : (double)made / goal;
}

/* One namespace after the other gets a chunk, some prompts are long, the rest is of middle length. */
static void grow(struct bench *bench, uint64_t tokens)
{
    struct bench_samples samples = {0};
    double part = (double)tokens / (double)bench->options.tokens;
    double n_small = part * (double)bench->options.namespaces, n_long = floor(part * 4);
    double n_middle = 1 + part * 0.25 * (double)bench->options.tokens / (PROMPT - SYSTEM);
    while (cached(bench) < tokens || !bench->n_middle) {
        double small = behind(bench->n_small, n_small), longs = behind(bench->n_long, n_long);
        double middle = behind(bench->n_middle, n_middle);
        enum kind kind = longs < 1 && longs <= small ? LONG : small < 1 && small <= middle ? SMALL : MIDDLE;
        uint64_t *n = kind == LONG ? &bench->n_long : kind == SMALL ? &bench->n_small : &bench->n_middle;
        struct prompt prompt = make_prompt(bench, kind, (*n)++);
        double start = bench_thread_now();
        close_seq(bench, serve(bench, &prompt));
        if (kind == SMALL)
            add(&samples, 1e6 * (bench_thread_now() - start));
    }
    report(bench, &samples, "tenant: first request", "us", tokens);
}

static void add_live(struct bench *bench, uint64_t n)
{
    for (; bench->n_live < n; bench->n_live++) {
        uint64_t number = bench->n_live % bench->n_middle;
        struct prompt prompt = make_prompt(bench, MIDDLE, number);
        bench->text[prompt.length - 1] = (int32_t)(bench->n_live % 128000);
        bench->live[bench->n_live] = serve(bench, &prompt);
        bench->live_prompt[bench->n_live] = number;
    }
}

/* ---- matching */

static uint64_t plain_hash(const int32_t *tokens, size_t n)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++)
        hash = cattn_hash_mix(hash, (uint32_t)tokens[i]);
    return hash;
}

static volatile uint64_t sink;

static uint64_t new_number(struct bench *bench)
{
    return 100 + bench->n_fresh++; /* behind those of the groups */
}

static struct prompt random_live_prompt(struct bench *bench)
{
    return make_prompt(bench, MIDDLE, bench->live_prompt[next_random(bench, bench->n_live)]);
}

/* Nanoseconds of a match; *all: it found every chunk. */
static double time_match(struct bench *bench, const struct prompt *prompt, uint32_t *path, bool *all)
{
    const struct cattn_tree *tree = &bench->cache->tree;
    size_t n = (prompt->length - 1) / tree->chunk_tokens;
    double start = bench_now();
    uint32_t root = cattn_roots_find(&tree->roots, prompt->name, strlen(prompt->name));
    size_t n_found = root == CATTN_NONE ? 0 : cattn_tree_match(tree, root, bench->text, n, path);
    double seconds = bench_now() - start;
    *all = n_found == n;
    return 1e9 * seconds;
}

static double time_hash(const struct bench *bench, size_t n)
{
    double start = bench_now();
    sink += plain_hash(bench->text, n);
    return 1e9 * (bench_now() - start);
}

/* Hits and the hash of the same tokens in turn. */
static void measure_hits(struct bench *bench, uint64_t tokens, uint32_t *path)
{
    struct bench_samples matches = {0}, hashes = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        bool all;
        struct prompt prompt = random_live_prompt(bench);
        add(&hashes, time_hash(bench, PROMPT) / PROMPT);
        add(&matches, time_match(bench, &prompt, path, &all) / PROMPT);
        must(all ? CATTN_OK : CATTN_ENOTFOUND, "match");
    }
    report(bench, &matches, "match", "ns/token", tokens);
    report(bench, &hashes, "plain hash", "ns/token", tokens);
}

static void measure_long_hits(struct bench *bench, uint64_t tokens, uint32_t *path)
{
    struct bench_samples samples = {0};
    for (uint64_t i = 0; bench->n_long && i < bench->options.repeats / 10; i++) {
        bool all;
        struct prompt prompt = make_prompt(bench, LONG, bench->n_long - 1);
        double time = time_match(bench, &prompt, path, &all) / (double)prompt.length;
        if (all)
            add(&samples, time);
    }
    report(bench, &samples, "match: long prompt", "ns/token", tokens);
}

static void measure_misses(struct bench *bench, uint64_t tokens, uint32_t *path)
{
    struct bench_samples samples = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        bool all;
        struct prompt prompt = make_prompt(bench, FRESH, new_number(bench));
        snprintf(prompt.name, sizeof prompt.name, "group %d", (int)(i % 16));
        add(&samples, time_match(bench, &prompt, path, &all) / 1000);
        must(all ? CATTN_EINVAL : CATTN_OK, "a match of what is not there");
    }
    report(bench, &samples, "match: nothing found", "us", tokens);
}

static void measure_match(struct bench *bench, uint64_t tokens)
{
    uint32_t *path = malloc((LONGEST + 1) * sizeof *path);
    must(path ? CATTN_OK : CATTN_ENOMEM, "memory");
    measure_hits(bench, tokens, path);
    measure_long_hits(bench, tokens, path);
    measure_misses(bench, tokens, path);
    free(path);
}

/* ---- requests */

/* Microseconds of open, step and close. */
static double time_request(struct bench *bench, const struct prompt *prompt)
{
    double start = bench_now();
    close_seq(bench, serve(bench, prompt));
    return 1e6 * (bench_now() - start);
}

static void measure_cached_prompts(struct bench *bench, uint64_t tokens)
{
    struct bench_samples samples = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        struct prompt prompt = random_live_prompt(bench);
        add(&samples, time_request(bench, &prompt));
    }
    report(bench, &samples, "prompt: cached", "us", tokens);
}

static void measure_new_prompts(struct bench *bench, const char *what, uint64_t tokens)
{
    struct bench_samples samples = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        struct prompt prompt = make_prompt(bench, FRESH, new_number(bench));
        add(&samples, time_request(bench, &prompt));
        if (bench->cache->tree.n_free > PROMPT / bench->options.chunk) /* else the pool is meant to stay full */
            cattn_tree_invalidate(&bench->cache->tree, prompt.name, strlen(prompt.name));
    }
    report(bench, &samples, what, "us", tokens);
}

/* A request of a tenant of which nothing was heard for long. */
static void measure_tenants(struct bench *bench, uint64_t tokens)
{
    struct bench_samples samples = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        size_t n_cached;
        struct prompt prompt = make_prompt(bench, SMALL, next_random(bench, bench->n_small));
        double start = bench_now();
        cattn_seq seq = open_prompt(bench, &prompt, &n_cached);
        close_seq(bench, seq);
        double seconds = bench_now() - start;
        if (n_cached)
            add(&samples, 1e6 * seconds);
    }
    report(bench, &samples, "tenant: open and close", "us", tokens);
}

static void measure_calls(struct bench *bench, uint64_t tokens)
{
    struct bench_samples forks = {0}, truncates = {0}, closes = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        cattn_seq fork;
        double start = bench_now();
        must(cattn_seq_fork(bench->cache, bench->live[next_random(bench, bench->n_live)], &fork), "fork");
        double forked = bench_now();
        must(cattn_seq_truncate(bench->cache, fork, PROMPT - 30), "truncate");
        double cut = bench_now();
        close_seq(bench, fork);
        double end = bench_now();
        add(&forks, 1e6 * (forked - start));
        add(&truncates, 1e6 * (cut - forked));
        add(&closes, 1e6 * (end - cut));
    }
    report(bench, &forks, "fork", "us", tokens);
    report(bench, &truncates, "truncate", "us", tokens);
    report(bench, &closes, "close", "us", tokens);
}

/* ---- decoding */

/* A batch on one prompt, with a token of its own each. */
static void open_batch(struct bench *bench, struct cattn_item *items, uint32_t n)
{
    static const int32_t token = 7;
    for (uint32_t i = 0; i < n; i++) {
        struct prompt prompt = make_prompt(bench, MIDDLE, bench->live_prompt[0]);
        bench->text[PROMPT] = (int32_t)(200000 + i);
        items[i] = (struct cattn_item){.seq = serve(bench, &prompt), .tokens = &token, .n_tokens = 1};
    }
}

static void reverse(struct cattn_item *items, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        struct cattn_item item = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = item;
    }
}

/* step_begin of a decode batch; `changes`: in another order each time, so that the work list is built anew. */
static void measure_decode(struct bench *bench, uint32_t n, bool changes, const char *what, uint64_t tokens)
{
    struct bench_samples samples = {0};
    struct cattn_item items[MAX_BATCH];
    uint32_t n_steps = (uint32_t)bench->options.chunk - 2; /* as many as the own tails have room for */
    for (uint64_t i = 0; i < bench->options.repeats; i += n_steps) {
        open_batch(bench, items, n);
        for (uint32_t k = 0; k < n_steps; k++) {
            if (changes)
                reverse(items, n);
            double start = bench_now();
            must(cattn_step_begin(bench->step, items, n), "begin");
            if (k)
                add(&samples, 1e6 * (bench_now() - start));
            finish_step(bench);
        }
        for (uint32_t k = 0; k < n; k++)
            close_seq(bench, items[k].seq);
    }
    report(bench, &samples, what, "us", tokens);
}

/* ---- eviction */

/* One at a time, for the worst; then as many at once, for the mean. */
static void measure_eviction(struct bench *bench, uint64_t tokens)
{
    struct bench_samples single = {0}, many = {0};
    struct cattn_tree *tree = &bench->cache->tree;
    uint32_t n = tree->n_evictable / 16 < 4096 ? tree->n_evictable / 16 : 4096;
    for (uint32_t i = 0; i < n; i++) {
        double start = bench_thread_now();
        cattn_tree_evict(tree, 1);
        add(&single, 1e6 * (bench_thread_now() - start));
    }
    for (uint32_t i = 0; i < n; i += 64) {
        double start = bench_now();
        cattn_tree_evict(tree, 64);
        add(&many, 1e6 * (bench_now() - start) / 64);
    }
    report(bench, &many, "evict a chunk", "us", tokens);
    report(bench, &single, "evict one by itself", "us", tokens);
}

/* ---- memory */

static uint64_t tree_bytes(const struct bench *bench)
{
    const struct cattn_tree *tree = &bench->cache->tree;
    const struct cattn_roots *roots = &tree->roots;
    uint64_t slot = sizeof *tree->slots + tree->chunk_tokens * sizeof *tree->tokens + 3 * sizeof(uint32_t);
    uint64_t bytes = tree->n_slots * slot + 2 * ((uint64_t)tree->index.mask + 1) * sizeof *tree->index.entries;
    bytes += (tree->ghosts.mask + 1) * sizeof *tree->ghosts.hashes;
    bytes += (uint64_t)roots->n * sizeof(struct cattn_root) + roots->blocks_capacity * sizeof *roots->blocks;
    for (uint32_t i = 0; i < roots->n; i++)
        bytes += cattn_roots_at(roots, i)->name_length + 16; /* what malloc adds */
    return bytes;
}

static uint64_t sequence_bytes(const struct bench *bench)
{
    const struct cattn_sequences *sequences = &bench->cache->sequences;
    uint64_t bytes = sequences->capacity * sizeof *sequences->handles;
    for (uint32_t i = 0; i < sequences->n; i++) {
        const struct cattn_sequence *sequence = sequences->handles[i].sequence;
        if (sequence)
            bytes += sizeof *sequence + sequence->chunks_capacity * sizeof *sequence->chunks +
                     sequence->tokens_capacity * sizeof *sequence->tokens;
    }
    return bytes;
}

static void note(struct bench *bench, const char *what, const char *unit, uint64_t tokens, double value)
{
    struct bench_samples samples = {0};
    add(&samples, value);
    report(bench, &samples, what, unit, tokens);
}

static void measure_memory(struct bench *bench, uint64_t tokens)
{
    double tree = (double)tree_bytes(bench), sequences = (double)sequence_bytes(bench), n = (double)cached(bench);
    note(bench, "memory: tree", "bytes/token", tokens, tree / n);
    note(bench, "memory: sequences", "bytes/token", tokens, sequences / n);
    note(bench, "memory: of K and V", "%", tokens, 100 * (tree + sequences) / (n * KV_BYTES));
}

/* ---- all of it */

static void measure(struct bench *bench, uint64_t tokens)
{
    bench_progress("%llu tokens", (unsigned long long)tokens);
    grow(bench, tokens);
    add_live(bench, 1 + tokens * (bench->options.sequences - 1) / bench->options.tokens);
    measure_match(bench, tokens);
    measure_tenants(bench, tokens);
    measure_new_prompts(bench, "prompt: new", tokens);
    measure_cached_prompts(bench, tokens);
    measure_decode(bench, 32, false, "decode 32: unchanged", tokens);
    measure_decode(bench, 256, false, "decode 256: unchanged", tokens);
    measure_decode(bench, 32, true, "decode 32: list rebuilt", tokens);
    measure_decode(bench, 256, true, "decode 256: list rebuilt", tokens);
    measure_calls(bench, tokens);
    measure_eviction(bench, tokens);
}

/* In a pool that is full each new prompt evicts as much. */
static void measure_full(struct bench *bench)
{
    const struct cattn_tree *tree = &bench->cache->tree;
    while (tree->n_free > 1) { /* the tail of the last one is free again */
        struct prompt prompt = make_prompt(bench, FRESH, new_number(bench));
        close_seq(bench, serve(bench, &prompt));
    }
    measure_new_prompts(bench, "prompt: new and pool full", bench->options.tokens);
    measure_memory(bench, bench->options.tokens);
}

static void set_up(struct bench *bench)
{
    const struct options *options = &bench->options;
    uint64_t chunk = options->chunk, n_slots = options->tokens / chunk + options->sequences + MAX_BATCH +
                                               4 * (long_length(bench) + PROMPT) / chunk;
    struct cattn_shape shape = {.n_layers = 1,
                                .n_heads = 1,
                                .n_kv_heads = 1,
                                .head_dim = 1,
                                .v_head_dim = 1,
                                .chunk_tokens = (uint32_t)chunk,
                                .n_slots = (uint32_t)n_slots,
                                .n_threads = 1};
    must(cattn_cache_make(&shape, &bench_bare, NULL, 0, &bench->cache), "cache");
    must(cattn_step_create(bench->cache, &bench->step), "step");
    bench->text = malloc((LONGEST + PROMPT) * sizeof *bench->text);
    bench->live = malloc((options->sequences + 1) * sizeof *bench->live);
    bench->live_prompt = malloc((options->sequences + 1) * sizeof *bench->live_prompt);
    if (!bench->text || !bench->live || !bench->live_prompt)
        must(CATTN_ENOMEM, "memory");
}

static void tear_down(struct bench *bench)
{
    must(cattn_cache_selfcheck(bench->cache), "selfcheck");
    cattn_cache_destroy(bench->cache);
    free(bench->text);
    free(bench->live);
    free(bench->live_prompt);
}

/* ---- output */

static const struct row *row_at(const struct bench *bench, const char *what, uint64_t tokens)
{
    for (size_t i = 0; i < bench->n_rows; i++) {
        if (bench->rows[i].tokens == tokens && !strcmp(bench->rows[i].what, what))
            return &bench->rows[i];
    }
    return NULL;
}

static uint64_t size_at(const struct bench *bench, int i)
{
    return bench->options.tokens >> 2 * (MAX_SIZES - 1 - i);
}

/* A line for each thing measured, in the order in which they are at the largest size, which has all of them. */
static void print_table(const struct bench *bench)
{
    const struct options *options = &bench->options;
    printf("%llu tokens, %llu namespaces, %llu live sequences, chunk %llu: medians\n%-26s",
           (unsigned long long)options->tokens, (unsigned long long)options->namespaces,
           (unsigned long long)options->sequences, (unsigned long long)options->chunk, "tokens cached");
    for (int i = 0; i < MAX_SIZES; i++)
        printf(" %9llu", (unsigned long long)size_at(bench, i));
    puts("       p99     worst");
    for (size_t k = 0; k < bench->n_rows; k++) {
        const struct row *last = &bench->rows[k];
        if (last->tokens != options->tokens)
            continue;
        printf("%-26s", last->what);
        for (int i = 0; i < MAX_SIZES; i++) {
            const struct row *row = row_at(bench, last->what, size_at(bench, i));
            if (row)
                printf(" %9.3f", row->median);
            else
                printf(" %9s", "");
        }
        printf(" %9.3f %9.3f  %s\n", last->p99, last->maximum, last->unit);
    }
}

static int write_csv(const struct bench *bench)
{
    FILE *file = strcmp(bench->options.csv, "-") ? fopen(bench->options.csv, "w") : stdout;
    if (!file) {
        fprintf(stderr, "tree: cannot write %s\n", bench->options.csv);
        return 1;
    }
    fprintf(file, "what,tokens,unit,median,min,p99,max,samples\n");
    for (size_t i = 0; i < bench->n_rows; i++) {
        const struct row *row = &bench->rows[i];
        fprintf(file, "%s,%llu,%s,%.6g,%.6g,%.6g,%.6g,%zu\n", row->what, (unsigned long long)row->tokens, row->unit,
                row->median, row->minimum, row->p99, row->maximum, row->n);
    }
    return file != stdout && fclose(file);
}

static int refuse(const char *what)
{
    fprintf(stderr, "tree: %s; --help lists the options\n", what);
    return 2;
}

static int read_number(const char *text, uint64_t *number)
{
    char *end;
    if (*text < '0' || *text > '9')
        return 1;
    *number = strtoull(text, &end, 10);
    return *end || !*number || *number > UINT32_MAX;
}

static int read_options(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"tokens", 1, NULL, 't'}, {"namespaces", 1, NULL, 'n'}, {"sequences", 1, NULL, 's'},
        {"chunk", 1, NULL, 'c'},  {"repeats", 1, NULL, 'r'},    {"quick", 0, NULL, 'q'},
        {"csv", 1, NULL, 'f'},    {"help", 0, NULL, 'h'},       {0}};
    *options = (struct options){.tokens = 10000000, .chunk = 64, .repeats = 200};
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        uint64_t *number = name == 't'   ? &options->tokens
                           : name == 'n' ? &options->namespaces
                           : name == 's' ? &options->sequences
                           : name == 'c' ? &options->chunk
                           : name == 'r' ? &options->repeats
                                         : NULL;
        if (name == '?')
            return 2;
        if (name == 'h') {
            fputs(help, stdout);
            exit(0);
        }
        if (name == 'q') {
            options->tokens = 200000;
            options->repeats = 20;
        }
        if (name == 'f')
            options->csv = optarg;
        if (number && read_number(optarg, number))
            return refuse("not a number");
    }
    if (optind < argc)
        return refuse("an argument without an option");
    if (options->chunk != 32 && options->chunk != 64 && options->chunk != 128 && options->chunk != 256)
        return refuse("chunks have 32, 64, 128 or 256 tokens");
    if (options->tokens < 50000)
        return refuse("fewer than 50000 tokens");
    if (!options->namespaces)
        options->namespaces = options->tokens / 100;
    if (!options->sequences)
        options->sequences = options->tokens / 1000;
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench bench = {.random = 1};
    int status = read_options(argc, argv, &bench.options);
    if (status)
        return status;
    set_up(&bench);
    for (int i = 0; i < MAX_SIZES; i++)
        measure(&bench, size_at(&bench, i));
    measure_full(&bench);
    bench_progress_end();
    if (bench.options.csv)
        status = write_csv(&bench);
    if (!bench.options.csv || strcmp(bench.options.csv, "-"))
        print_table(&bench);
    tear_down(&bench);
    return status;
}
