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
#define MAX_ROWS  256
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
    double median, minimum, maximum;
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
    struct bench_samples samples, worst;
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

static void sample(struct bench *bench, double value)
{
    if (bench_samples_add(&bench->samples, value))
        must(CATTN_ENOMEM, "samples");
}

/* The samples so far become a row, and are forgotten. */
static void report(struct bench *bench, const char *what, const char *unit, uint64_t tokens)
{
    struct bench_samples *samples = &bench->samples;
    if (samples->n && bench->n_rows < MAX_ROWS) {
        double median = bench_samples_median(samples); /* sorts them */
        bench->rows[bench->n_rows++] =
            (struct row){what, unit, tokens, samples->n, median, samples->values[0], samples->values[samples->n - 1]};
    }
    samples->n = 0;
}

/* ---- filling */

static double behind(uint64_t made, double goal)
{
    return goal < 1 ? 2 : (double)made / goal;
}

/* One namespace after the other gets a chunk, some prompts are long, the rest is of middle length. */
static void grow(struct bench *bench, uint64_t tokens)
{
    double part = (double)tokens / (double)bench->options.tokens;
    double n_small = part * (double)bench->options.namespaces, n_long = floor(part * 4);
    double n_middle = 1 + part * 0.25 * (double)bench->options.tokens / (PROMPT - SYSTEM);
    while (cached(bench) < tokens) {
        double small = behind(bench->n_small, n_small), longs = behind(bench->n_long, n_long);
        double middle = behind(bench->n_middle, n_middle);
        enum kind kind = longs < 1 && longs <= small ? LONG : small < 1 && small <= middle ? SMALL : MIDDLE;
        uint64_t *n = kind == LONG ? &bench->n_long : kind == SMALL ? &bench->n_small : &bench->n_middle;
        struct prompt prompt = make_prompt(bench, kind, (*n)++);
        double start = bench_thread_now();
        close_seq(bench, serve(bench, &prompt));
        if (kind == SMALL)
            sample(bench, 1e6 * (bench_thread_now() - start));
    }
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

static struct prompt random_live_prompt(struct bench *bench)
{
    return make_prompt(bench, MIDDLE, bench->live_prompt[next_random(bench, bench->n_live)]);
}

/* Nanoseconds of a match that must find so many chunks. */
static double time_match(struct bench *bench, const struct prompt *prompt, uint32_t *path, bool hit)
{
    const struct cattn_tree *tree = &bench->cache->tree;
    size_t n = (prompt->length - 1) / tree->chunk_tokens;
    double start = bench_now();
    uint32_t root = cattn_roots_find(&tree->roots, prompt->name, strlen(prompt->name));
    size_t n_found = root == CATTN_NONE ? 0 : cattn_tree_match(tree, root, bench->text, n, path);
    double seconds = bench_now() - start;
    must(n_found == (hit ? n : 0) ? CATTN_OK : CATTN_ENOTFOUND, "match");
    return 1e9 * seconds;
}

static void measure_match(struct bench *bench, uint64_t tokens)
{
    uint32_t *path = malloc((LONGEST + 1) * sizeof *path);
    must(path ? CATTN_OK : CATTN_ENOMEM, "path");
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        struct prompt prompt = random_live_prompt(bench);
        sample(bench, time_match(bench, &prompt, path, true) / PROMPT);
    }
    report(bench, "match", "ns/token", tokens);
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        random_live_prompt(bench);
        double start = bench_now();
        sink += plain_hash(bench->text, PROMPT);
        sample(bench, 1e9 * (bench_now() - start) / PROMPT);
    }
    report(bench, "hash", "ns/token", tokens);
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        struct prompt prompt = make_prompt(bench, FRESH, 100 + bench->n_fresh++);
        snprintf(prompt.name, sizeof prompt.name, "group %d", (int)(i % 16));
        sample(bench, time_match(bench, &prompt, path, false));
    }
    report(bench, "match, miss", "ns", tokens);
    free(path);
}

/* ---- requests */

static void measure_prompts(struct bench *bench, enum kind kind, const char *what, uint64_t tokens)
{
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        struct prompt prompt =
            kind == FRESH ? make_prompt(bench, FRESH, 100 + bench->n_fresh++) : random_live_prompt(bench);
        double start = bench_now();
        close_seq(bench, serve(bench, &prompt));
        sample(bench, 1e6 * (bench_now() - start));
        if (kind == FRESH)
            cattn_tree_invalidate(&bench->cache->tree, prompt.name, strlen(prompt.name));
    }
    report(bench, what, "us", tokens);
}

/* A request of a tenant of which nothing was heard for long. */
static void measure_tenants(struct bench *bench, uint64_t tokens)
{
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        size_t n_cached;
        struct prompt prompt = make_prompt(bench, SMALL, next_random(bench, bench->n_small));
        double start = bench_now();
        cattn_seq seq = open_prompt(bench, &prompt, &n_cached);
        close_seq(bench, seq);
        double seconds = bench_now() - start;
        if (n_cached)
            sample(bench, 1e6 * seconds);
    }
    report(bench, "tenant: open, close", "us", tokens);
}

static void measure_calls(struct bench *bench, uint64_t tokens)
{
    struct bench_samples truncates = {0}, closes = {0};
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        cattn_seq fork;
        double start = bench_now();
        must(cattn_seq_fork(bench->cache, bench->live[next_random(bench, bench->n_live)], &fork), "fork");
        double forked = bench_now();
        must(cattn_seq_truncate(bench->cache, fork, PROMPT - 30), "truncate");
        double cut = bench_now();
        close_seq(bench, fork);
        double end = bench_now();
        sample(bench, 1e6 * (forked - start));
        if (bench_samples_add(&truncates, 1e6 * (cut - forked)) || bench_samples_add(&closes, 1e6 * (end - cut)))
            must(CATTN_ENOMEM, "samples");
    }
    report(bench, "fork", "us", tokens);
    struct bench_samples forks = bench->samples;
    bench->samples = truncates;
    report(bench, "truncate", "us", tokens);
    truncates = bench->samples;
    bench->samples = closes;
    report(bench, "close", "us", tokens);
    bench_samples_release(&truncates);
    bench_samples_release(&forks);
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
                sample(bench, 1e6 * (bench_now() - start));
            finish_step(bench);
        }
        for (uint32_t k = 0; k < n; k++)
            close_seq(bench, items[k].seq);
    }
    report(bench, what, "us", tokens);
}

/* ---- eviction */

/* One at a time, for the worst; then as many at once, for the mean. */
static void measure_eviction(struct bench *bench, uint64_t tokens)
{
    struct cattn_tree *tree = &bench->cache->tree;
    uint32_t n = tree->n_evictable / 16 < 4096 ? tree->n_evictable / 16 : 4096;
    for (uint32_t i = 0; i < n; i++) {
        double start = bench_thread_now();
        cattn_tree_evict(tree, 1);
        sample(bench, 1e9 * (bench_thread_now() - start));
    }
    report(bench, "evict, one by one", "ns/chunk", tokens);
    for (uint32_t i = 0; i < n; i += 64) {
        double start = bench_now();
        cattn_tree_evict(tree, 64);
        sample(bench, 1e9 * (bench_now() - start) / 64);
    }
    report(bench, "evict", "ns/chunk", tokens);
}

/* ---- memory */

static uint64_t tree_bytes(const struct bench *bench)
{
    const struct cattn_tree *tree = &bench->cache->tree;
    const struct cattn_roots *roots = &tree->roots;
    uint64_t slot = sizeof *tree->slots + tree->chunk_tokens * sizeof *tree->tokens + 3 * sizeof(uint32_t);
    uint64_t bytes = tree->n_slots * slot + 2 * ((uint64_t)tree->index.mask + 1) * sizeof *tree->index.entries;
    bytes += roots->records_capacity * sizeof *roots->records + roots->buckets_capacity * sizeof *roots->buckets;
    for (uint32_t i = 0; i < roots->n; i++)
        bytes += roots->records[i].name_length + 16; /* what malloc adds */
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

static void measure_memory(struct bench *bench, uint64_t tokens)
{
    sample(bench, (double)tree_bytes(bench) / (double)cached(bench));
    report(bench, "tree", "bytes/token", tokens);
    sample(bench, (double)sequence_bytes(bench) / (double)cached(bench));
    report(bench, "sequences", "bytes/token", tokens);
    sample(bench, 100.0 * (double)(tree_bytes(bench) + sequence_bytes(bench)) / (double)(cached(bench) * KV_BYTES));
    report(bench, "both, of K and V", "%", tokens);
}

/* ---- all of it */

static void measure(struct bench *bench, uint64_t tokens)
{
    bench_progress("%llu tokens", (unsigned long long)tokens);
    grow(bench, tokens);
    report(bench, "tenant: first request", "us", tokens);
    add_live(bench, 1 + tokens * (bench->options.sequences - 1) / bench->options.tokens);
    measure_memory(bench, tokens);
    measure_match(bench, tokens);
    measure_tenants(bench, tokens);
    measure_prompts(bench, FRESH, "prompt, new", tokens);
    measure_prompts(bench, MIDDLE, "prompt, cached", tokens);
    measure_decode(bench, 32, false, "decode 32", tokens);
    measure_decode(bench, 256, false, "decode 256", tokens);
    measure_decode(bench, 32, true, "decode 32, changed", tokens);
    measure_decode(bench, 256, true, "decode 256, changed", tokens);
    measure_calls(bench, tokens);
    measure_eviction(bench, tokens);
}

/* In a pool that is full each new prompt evicts as much. */
static void measure_full(struct bench *bench)
{
    const struct cattn_tree *tree = &bench->cache->tree;
    while (tree->n_free > 1) { /* the tail of the last one is free again */
        struct prompt prompt = make_prompt(bench, FRESH, 100 + bench->n_fresh++);
        close_seq(bench, serve(bench, &prompt));
    }
    for (uint64_t i = 0; i < bench->options.repeats; i++) {
        struct prompt prompt = make_prompt(bench, FRESH, 100 + bench->n_fresh++);
        double start = bench_now();
        close_seq(bench, serve(bench, &prompt));
        sample(bench, 1e6 * (bench_now() - start));
    }
    report(bench, "prompt, new, pool full", "us", bench->options.tokens);
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
    bench_samples_release(&bench->samples);
    free(bench->text);
    free(bench->live);
    free(bench->live_prompt);
}

/* ---- output */

static void print_table(const struct bench *bench)
{
    const struct options *options = &bench->options;
    printf("%llu tokens, %llu namespaces, %llu live sequences, chunk %llu: medians, and the worst\n",
           (unsigned long long)options->tokens, (unsigned long long)options->namespaces,
           (unsigned long long)options->sequences, (unsigned long long)options->chunk);
    for (size_t i = 0; i < bench->n_rows; i++) {
        const struct row *row = &bench->rows[i];
        printf("%-24s %10llu  %10.3f %10.3f  %s\n", row->what, (unsigned long long)row->tokens, row->median,
               row->maximum, row->unit);
    }
}

static int write_csv(const struct bench *bench)
{
    FILE *file = strcmp(bench->options.csv, "-") ? fopen(bench->options.csv, "w") : stdout;
    if (!file) {
        fprintf(stderr, "tree: cannot write %s\n", bench->options.csv);
        return 1;
    }
    fprintf(file, "what,tokens,unit,median,min,max,samples\n");
    for (size_t i = 0; i < bench->n_rows; i++) {
        const struct row *row = &bench->rows[i];
        fprintf(file, "\"%s\",%llu,%s,%.6g,%.6g,%.6g,%zu\n", row->what, (unsigned long long)row->tokens, row->unit,
                row->median, row->minimum, row->maximum, row->n);
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
    for (int i = MAX_SIZES; i-- > 0;)
        measure(&bench, bench.options.tokens >> 2 * i);
    measure_full(&bench);
    bench_progress_end();
    if (bench.options.csv)
        status = write_csv(&bench);
    if (!bench.options.csv || strcmp(bench.options.csv, "-"))
        print_table(&bench);
    tear_down(&bench);
    return status;
}
