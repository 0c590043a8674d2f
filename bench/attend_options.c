#ifndef _GNU_SOURCE
#  define _GNU_SOURCE
#endif
#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend_options.h"
#ifdef HAVE_CATTN_CUDA
#  include "attend_cuda.h"
#endif
#include "backend.h"
#include "chunkattention.h"
#include "cpu.h"
#include "harness.h"

static const struct bench_place bench_cpu = {
    .backend = "cpu",
    .variants = {[BENCH_NAIVE] = &bench_naive,
                 [BENCH_PAPER] = &bench_paper,
                 [BENCH_ONEDNN] = &bench_onednn,
                 [BENCH_PAGED] = &bench_paged,
                 [BENCH_PAGED_SHARED] = &bench_paged_shared,
                 [BENCH_CHUNK] = &bench_chunk,
                 [BENCH_UNCUT] = &bench_uncut,
                 [BENCH_READ] = &bench_read,
                 [BENCH_FMA] = &bench_fma,
                 [BENCH_AMX] = &bench_amx},
    .last_level_cache = bench_last_level_cache,
    .memory_available = bench_memory_available,
};

static const struct bench_place *const places[] = {
    &bench_cpu,
#ifdef HAVE_CATTN_CUDA
    &bench_cuda,
#endif
};
enum { N_PLACES = sizeof places / sizeof places[0] };

/* The values that a number takes in turn; n = 0: the one given. */
struct axis {
    uint32_t n, values[8];
};

/* Shapes of that many batches, shared and private lengths, every one with every other.  Decoding goes through private
 * lengths from 0 on: the rate of figure 3 for a number of generated tokens is that at about half as many. */
static const struct grid {
    const char *name;
    struct axis batch, shared, private;
    int prefill; /* all private tokens are rows */
} grids[] = {
    {"table3", .shared = {4, {0, 1024, 2048, 4096}}},
    {"figure3", .shared = {3, {1024, 2048, 4096}}, .private = {4, {256, 512, 1024, 2048}}},
    {"figure4", .batch = {6, {16, 32, 48, 64, 80, 96}}, .shared = {1, {2048}}, .private = {1, {64}}},
    {"prefill", .batch = {1, {1}}, .shared = {2, {2048, 4096}}, .private = {3, {128, 256, 512}}, .prefill = 1},
    {"batch", .batch = {8, {1, 2, 4, 8, 16, 32, 64, 128}}, .shared = {2, {1024, 2048}}, .private = {1, {64}}},
};
enum { N_GRIDS = sizeof grids / sizeof grids[0] };
static const struct grid given_shape, quick_shapes = {.shared = {2, {1024, 2048}}};

enum option_name {
    BATCH,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    CHUNK,
    SHARED,
    PRIVATE,
    ROWS,
    THREADS,
    PASSES,
    WINDOW,
    SINK_TOKENS, /* numbers */
    SOFTCAP,
    ALIBI,
    SINKS,
    VARIANT_GRID,
    BALANCE,
    PACK,
    DTYPE,
    GRID,
    VARIANTS,
    BACKEND,
    KERNEL,
    SECONDS,
    MEMORY,
    WARM,
    QUICK,
    CSV,
    HELP
};

static const char help[] =
    "Usage: attend [OPTION]...\n"
    "Times one decode step of attention over one layer of K and V, for a batch of sequences whose first tokens are\n"
    "the same, in several ways:\n"
    "  naive         dense, each sequence by itself over its own copies, OpenBLAS, f32\n"
    "  paper         the CPU algorithm that came with the ChunkAttention paper, OpenBLAS, f32\n"
    "  onednn        the shared and the private part by hand, oneDNN\n"
    "  paged         this library's kernel, each sequence over its own copies\n"
    "  paged_shared  this library's kernel, each sequence by itself over shared memory\n"
    "  chunk         this library: what is shared is read once for all sequences\n"
    "  uncut         the same without the cut of states that makes results the same bit by bit (not unless it is "
    "named)\n"
    "  read          reading the bytes that chunk reads, nothing else\n"
    "  fma           multiplying and adding f32 in registers, nothing else\n"
    "  amx           multiplying tiles of bf16 in registers, nothing else\n"
    "\n"
    "Shape:\n"
    "  --batch N       sequences (32)\n"
    "  --heads N       query heads (32)\n"
    "  --kv-heads N    heads of K and V (as many)\n"
    "  --head-dim N    size of a head (128)\n"
    "  --chunk N       tokens of a chunk: 32, 64, 128 or 256 (64)\n"
    "  --shared N      tokens that all sequences have in common, whole chunks (1024)\n"
    "  --private N     tokens of each sequence's own (64)\n"
    "  --rows N        of each sequence: its last N tokens, as when it is prefilled (1)\n"
    "  --dtype T       K and V are f32, f16, bf16 or i8 (f32)\n"
    "  --grid NAME     many shapes, instead of the numbers given for\n"
    "                  table3    shared 0, 1024, 2048 and 4096, as in table 3 of the paper\n"
    "                  figure3   shared 1024, 2048 and 4096 with private 256, 512, 1024 and 2048, as in figure 3\n"
    "                  figure4   batch 16, 32, 48, 64, 80 and 96 with shared 2048 and private 64, as in figure 4\n"
    "                  prefill   batch 1, rows 128, 256 and 512 behind shared 2048 and 4096\n"
    "                  batch     batch 1, 2, 4 ... 128 with shared 1024 and 2048 and private 64\n"
    "Attention (plain, unless one of these is given; only this library does the others):\n"
    "  --softcap X     scores x become X * tanh(x / X)\n"
    "  --window N      the last N tokens are seen, ...\n"
    "  --sink-tokens N ... and the first N (0)\n"
    "  --alibi         scores fall with the distance, by a slope for each head\n"
    "  --sinks         a logit of each head is added to the denominator\n"
    "  --variant-grid  chunk plain, then with each of these, then with all: the numbers given, else softcap 30, "
    "window\n"
    "                  half the tokens, 4 sink tokens\n"
    "How:\n"
    "  --variants LIST comma-separated (all)\n"
    "  --backend NAME  cpu or, where it was built, cuda (cpu).  On a GPU there are paged, paged_shared, chunk and\n"
    "                  copy     copying in its memory, half as many bytes as chunk reads\n"
    "                  matmul   a large matrix product, cuBLAS\n"
    "                  and the times are those between events, of calls that were put on the stream before\n"
    "  --kernel NAME   of this library (the best)\n"
    "  --threads N     (as many as CPUs in the affinity mask)\n"
    "  --passes N      each runs every variant in turn (3)\n"
    "  --seconds S     of each variant in each pass, roughly (0.3)\n"
    "  --memory BYTES  each variant rotates over as many layers as fill this, K, M or G may follow (1600M, or twice\n"
    "                  the last-level cache where that is more)\n"
    "  --warm          one layer only\n"
    "  --quick         a short run: shared 1024 and 2048, 8 heads, own kernels only, and a short table\n"
    "Instead of all this, through the public interface:\n"
    "  --balance       how far the slowest of the threads (2) is behind their mean, over batches of long and short\n"
    "                  sequences and of deep and flat trees\n"
    "  --pack          what storing the new K and V takes of a decode step (private 256)\n"
    "Output:\n"
    "  --csv FILE      results as CSV; those of each pass in FILE with .passN before its ending; -: standard output\n"
    "  --help          this text\n"
    "\n"
    "Exit status: 0, 1 when a variant gave wrong results or failed, 2 for bad options.\n";

static int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int complain(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("attend: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    return -1;
}

static int parse_number(const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    unsigned long long number;
    char *end, sign = text[strspn(text, " \t\n")];

    number = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || sign == '-' || number < least || number > most)
        return complain("--%s takes a number from %llu to %llu, not '%s'", name, (unsigned long long)least,
                        (unsigned long long)most, text);
    *value = number;
    return 0;
}

static int parse_size(const char *name, const char *text, uint64_t *value)
{
    static const char units[] = "KMG";
    size_t length = strlen(text);
    const char *unit = length > 0 ? strchr(units, text[length - 1]) : NULL;
    char digits[24];

    snprintf(digits, sizeof digits, "%.*s", (int)(unit != NULL ? length - 1 : length), text);
    if (parse_number(name, digits, 1, unit != NULL ? 1u << 30 : UINT64_C(1) << 44, value) != 0)
        return -1;
    for (const char *u = units; unit != NULL && u <= unit; u++)
        *value *= 1000;
    return 0;
}

static int parse_seconds(const char *name, const char *text, double *value)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end != '\0' || !(seconds >= 0.0 && seconds <= 3600.0))
        return complain("--%s takes a number from 0 to 3600, not '%s'", name, text);
    *value = seconds;
    return 0;
}

static int parse_softcap(const char *text, float *value)
{
    char *end;
    float softcap = strtof(text, &end);

    if (end == text || *end != '\0' || !(softcap > 0.0f && softcap <= 1e6f))
        return complain("--softcap takes a number above 0, up to a million, not '%s'", text);
    *value = softcap;
    return 0;
}

static int parse_dtype(const char *text, uint32_t *dtype)
{
    for (*dtype = CATTN_F32; *dtype <= CATTN_I8; ++*dtype)
        if (strcmp(text, bench_dtype_name(*dtype)) == 0)
            return 0;
    return complain("--dtype takes f32, f16, bf16 or i8, not '%s'", text);
}

static int parse_variants(const struct bench_place *place, const char *text, int *wanted)
{
    memset(wanted, 0, BENCH_N_VARIANTS * sizeof *wanted);
    for (;;) {
        size_t length = strcspn(text, ",");
        int found = 0;
        for (int i = 0; i < BENCH_N_VARIANTS; i++) {
            const char *name = place->variants[i] != NULL ? place->variants[i]->name : "";
            if (strlen(name) == length && memcmp(name, text, length) == 0)
                wanted[i] = found = 1;
        }
        if (!found)
            return complain("no variant is called '%.*s'", (int)length, text);
        if (text[length] == '\0')
            return 0;
        text += length + 1;
    }
}

static int check_kernel(const char *name, const char *kernel)
{
    const struct cattn_backend *backend = cattn_backend_find(name);

    for (unsigned i = 0; backend->kernel_name(i) != NULL; i++)
        if (strcmp(backend->kernel_name(i), kernel) == 0)
            return 0;
    return complain("no kernel '%s' runs here", kernel);
}

static const struct bench_place *find_place(const char *name)
{
    for (int i = 0; i < N_PLACES; i++)
        if (strcmp(places[i]->backend, name) == 0)
            return places[i];
    (void)complain("this build has no backend '%s'", name);
    return NULL;
}

static int check_place(const struct bench_options *options)
{
    if (!cattn_backend_usable(options->place->backend))
        return complain("backend '%s' cannot run here", options->place->backend);
    if (options->place != &bench_cpu && (options->balance || options->pack))
        return complain("--balance and --pack are for --backend cpu");
    return 0;
}

static int check_shape(const struct bench_shape *s)
{
    if (s->heads % s->kv_heads != 0)
        return complain("--kv-heads %u does not divide --heads %u", s->kv_heads, s->heads);
    if (s->chunk != 32 && s->chunk != 64 && s->chunk != 128 && s->chunk != 256)
        return complain("--chunk takes 32, 64, 128 or 256, not %u", s->chunk);
    if (s->shared % s->chunk != 0)
        return complain("--shared %u is not whole chunks of %u", s->shared, s->chunk);
    if (s->shared + s->private == 0)
        return complain("--shared and --private are both 0");
    if (s->rows > 1 && s->rows > s->private)
        return complain("--rows %u is more than --private %u", s->rows, s->private);
    return s->kernel != NULL ? check_kernel(s->backend, s->kernel) : 0;
}

static const struct grid *find_grid(const char *name)
{
    for (const struct grid *grid = grids; grid < grids + N_GRIDS; grid++)
        if (strcmp(grid->name, name) == 0)
            return grid;
    (void)complain("no grid is called '%s'", name);
    return NULL;
}

static uint32_t at(const struct axis *axis, uint32_t i, uint32_t given)
{
    return axis->n > 0 ? axis->values[i] : given;
}

static uint32_t size(const struct axis *axis)
{
    return axis->n > 0 ? axis->n : 1;
}

static int add_shapes(struct bench_options *options, const struct bench_shape *given, const struct grid *grid)
{
    options->n_shapes = 0;
    for (uint32_t i = 0; i < size(&grid->batch); i++)
        for (uint32_t j = 0; j < size(&grid->shared); j++)
            for (uint32_t k = 0; k < size(&grid->private); k++) {
                struct bench_shape *shape = &options->shapes[options->n_shapes++];
                *shape = *given;
                shape->batch = at(&grid->batch, i, given->batch);
                shape->shared = at(&grid->shared, j, given->shared);
                shape->private = at(&grid->private, k, given->private);
                shape->rows = grid->prefill ? shape->private : given->rows;
                if (check_shape(shape) != 0)
                    return -1;
            }
    return 0;
}

/* Those of the grid; fewer and narrower ones for a quick run. */
static int set_shapes(struct bench_options *options, const struct grid *grid, int shared_given)
{
    struct bench_shape first = options->shapes[0];

    if (options->quick && !options->heads_given)
        first.heads = 8;
    if (first.kv_heads == 0)
        first.kv_heads = first.heads;
    if (grid == NULL)
        grid = options->quick && !shared_given ? &quick_shapes : &given_shape;
    return add_shapes(options, &first, grid);
}

static uint64_t default_memory(const struct bench_options *options)
{
    int is_short = options->quick || options->balance || options->pack;
    uint64_t usual = is_short ? UINT64_C(256000000) : UINT64_C(1600000000),
             caches = 2 * options->place->last_level_cache();
    return usual > caches ? usual : caches;
}

static const struct bench_options defaults = {
    .shapes = {{.batch = 32, .heads = 32, .head_dim = 128, .chunk = 64, .shared = 1024, .private = 64, .rows = 1}},
    .place = &bench_cpu,
    .passes = 3,
    .turn_seconds = -1.0, /* not given */
};

static const struct option names[] = {
    {"batch", 1, NULL, BATCH},
    {"heads", 1, NULL, HEADS},
    {"kv-heads", 1, NULL, KV_HEADS},
    {"head-dim", 1, NULL, HEAD_DIM},
    {"chunk", 1, NULL, CHUNK},
    {"shared", 1, NULL, SHARED},
    {"private", 1, NULL, PRIVATE},
    {"rows", 1, NULL, ROWS},
    {"threads", 1, NULL, THREADS},
    {"window", 1, NULL, WINDOW},
    {"sink-tokens", 1, NULL, SINK_TOKENS},
    {"softcap", 1, NULL, SOFTCAP},
    {"alibi", 0, NULL, ALIBI},
    {"sinks", 0, NULL, SINKS},
    {"variant-grid", 0, NULL, VARIANT_GRID},
    {"balance", 0, NULL, BALANCE},
    {"pack", 0, NULL, PACK},
    {"passes", 1, NULL, PASSES},
    {"dtype", 1, NULL, DTYPE},
    {"grid", 1, NULL, GRID},
    {"variants", 1, NULL, VARIANTS},
    {"backend", 1, NULL, BACKEND},
    {"kernel", 1, NULL, KERNEL},
    {"seconds", 1, NULL, SECONDS},
    {"memory", 1, NULL, MEMORY},
    {"warm", 0, NULL, WARM},
    {"quick", 0, NULL, QUICK},
    {"csv", 1, NULL, CSV},
    {"help", 0, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static int set_number(struct bench_options *options, int option, const char *text)
{
    static const uint64_t limits[][2] = {
        [BATCH] = {1, 1024},      [HEADS] = {1, 1024},
        [KV_HEADS] = {1, 1024},   [HEAD_DIM] = {1, 1024},
        [CHUNK] = {1, 256},       [SHARED] = {0, 1 << 20},
        [PRIVATE] = {0, 1 << 20}, [ROWS] = {1, 1 << 16},
        [THREADS] = {1, 1024},    [PASSES] = {1, BENCH_MAX_PASSES},
        [WINDOW] = {1, 1 << 21},  [SINK_TOKENS] = {0, 1 << 21},
    };
    struct bench_shape *s = &options->shapes[0];
    uint32_t *const targets[] = {
        [BATCH] = &s->batch,
        [HEADS] = &s->heads,
        [KV_HEADS] = &s->kv_heads,
        [HEAD_DIM] = &s->head_dim,
        [CHUNK] = &s->chunk,
        [SHARED] = &s->shared,
        [PRIVATE] = &s->private,
        [ROWS] = &s->rows,
        [THREADS] = &s->threads,
        [PASSES] = &options->passes,
        [WINDOW] = &options->scoring.window,
        [SINK_TOKENS] = &options->scoring.n_sink_tokens,
    };
    uint64_t value;

    if (parse_number(names[option].name, text, limits[option][0], limits[option][1], &value) != 0)
        return -1;
    *targets[option] = (uint32_t)value;
    return 0;
}

static void want_usual(struct bench_options *options)
{
    for (int i = 0; i < BENCH_N_VARIANTS; i++) {
        const int is_ours = i == BENCH_CHUNK || i == BENCH_PAGED || i == BENCH_PAGED_SHARED;
        options->wanted[i] = options->quick          ? is_ours || i == BENCH_READ
                             : options->variant_grid ? i == BENCH_CHUNK || i >= BENCH_READ
                                                     : i != BENCH_UNCUT;
        options->wanted[i] &= options->place->variants[i] != NULL;
    }
}

static int parse_all(struct bench_options *options, int argc, char **argv, int *helped)
{
    const struct grid *grid = NULL;
    const char *variants = NULL;
    int option, given[HELP + 1] = {0}, status = 0;

    while (status == 0 && (option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (option == '?')
            return -1;
        given[option] = 1;
        switch (option) {
        case DTYPE: status = parse_dtype(optarg, &options->shapes[0].dtype); break;
        case GRID: status = (grid = find_grid(optarg)) != NULL ? 0 : -1; break;
        case VARIANTS: variants = optarg; break;
        case SOFTCAP: status = parse_softcap(optarg, &options->scoring.softcap); break;
        case ALIBI: options->scoring.alibi = 1; break;
        case SINKS: options->scoring.sinks = 1; break;
        case BALANCE: options->balance = 1; break;
        case PACK: options->pack = 1; break;
        case VARIANT_GRID: options->variant_grid = 1; break;
        case BACKEND: status = (options->place = find_place(optarg)) != NULL ? 0 : -1; break;
        case KERNEL: options->shapes[0].kernel = optarg; break;
        case SECONDS: status = parse_seconds("seconds", optarg, &options->turn_seconds); break;
        case MEMORY: status = parse_size("memory", optarg, &options->memory); break;
        case WARM: options->warm = 1; break;
        case QUICK: options->quick = 1; break;
        case CSV: options->csv = optarg; break;
        case HELP: *helped = 1; return 0;
        default: status = set_number(options, option, optarg);
        }
    }
    if (status != 0)
        return status;
    if (optind < argc)
        return complain("unexpected argument '%s'", argv[optind]);
    if (options->variant_grid + options->quick + options->balance + options->pack > 1)
        return complain("--variant-grid, --balance, --pack and --quick exclude each other");
    if (options->balance && !given[THREADS])
        options->shapes[0].threads = 2;
    if (options->balance && options->shapes[0].threads < 2)
        return complain("--balance takes at least two threads");
    if (options->pack && !given[PRIVATE])
        options->shapes[0].private = 256;
    if (check_place(options) != 0)
        return -1;
    options->shapes[0].backend = options->place->backend;
    options->heads_given = given[HEADS] || given[KV_HEADS];
    if (variants != NULL && parse_variants(options->place, variants, options->wanted) != 0)
        return -1;
    if (variants == NULL)
        want_usual(options);
    return set_shapes(options, grid, given[SHARED]);
}

void bench_options_scorings(const struct bench_options *options, uint32_t n,
                            struct bench_scoring scorings[BENCH_N_SCORINGS])
{
    const struct bench_scoring *given = &options->scoring;
    const struct bench_scoring all = {
        .softcap = given->softcap > 0.0f ? given->softcap : 30.0f,
        .window = given->window > 0 ? given->window : (n + 1) / 2,
        .n_sink_tokens = given->n_sink_tokens > 0 ? given->n_sink_tokens : 4,
        .alibi = 1,
        .sinks = 1,
    };
    const struct bench_scoring each[BENCH_N_SCORINGS] = {
        {.softcap = 0.0f},
        {.softcap = all.softcap},
        {.window = all.window, .n_sink_tokens = all.n_sink_tokens},
        {.alibi = 1},
        {.sinks = 1},
        all,
    };
    memcpy(scorings, each, sizeof each);
}

int bench_options_parse(struct bench_options *options, int argc, char **argv, int *status)
{
    int helped = 0;

    *options = defaults;
    options->shapes[0].threads = cattn_cpu_count();
    if (parse_all(options, argc, argv, &helped) != 0) {
        fputs("Try --help.\n", stderr);
        *status = 2;
        return -1;
    }
    if (helped) {
        fputs(help, stdout);
        *status = 0;
        return -1;
    }
    if (options->turn_seconds < 0.0)
        options->turn_seconds = options->quick ? 0.15 : 0.3;
    if (options->memory == 0)
        options->memory = default_memory(options);
    return 0;
}
