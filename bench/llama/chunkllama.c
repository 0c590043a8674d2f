/* A Llama that decodes a batch of requests through libchunkattention: it measures the library end to end, and shows
 * how an engine uses it (engine.c for the loop, model.c for the layers). */
#include "chunkattention.h"

#include "demo.h"
#include "device.h"
#include "engine.h"
#include "fault.h"
#include "gguf.h"
#include "harness.h"
#include "linear.h"
#include "model.h"
#include "report.h"
#include "requests.h"
#include "tokenizer.h"
#include "workload.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE    2
#define DEFAULT_SHAPE "42m"

struct settings {
    const char *model, *requests, *backend, *kernel, *kv_dtype, *shape, *logits, *generate, *trace, *tasks, *policy,
        *json, *weights, *load_prefix, *save_prefix;
    const char **prompts;
    size_t n_prompts;
    uint64_t n_predict, repeat, chunk, threads, prefill_rows, max_batch, kv_tokens, seed;
    uint64_t limit, trace_scale, trace_speed, ageing, output_percent, context;
    bool ids, stats, no_sharing, ignore_eos, exact_linear, demo, help, list_kernels;
};

enum kind { FLAG, TEXT, NUMBER, PROMPT };

static const struct option {
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t least, most;
} options[] = {
    {"--model", TEXT, offsetof(struct settings, model), 0, 0},
    {"--prompt", PROMPT, 0, 0, 0},
    {"--requests", TEXT, offsetof(struct settings, requests), 0, 0},
    {"--generate", TEXT, offsetof(struct settings, generate), 0, 0},
    {"--trace", TEXT, offsetof(struct settings, trace), 0, 0},
    {"--tasks", TEXT, offsetof(struct settings, tasks), 0, 0},
    {"--limit", NUMBER, offsetof(struct settings, limit), 1, INT32_MAX},
    {"--trace-scale", NUMBER, offsetof(struct settings, trace_scale), 1, 1000000},
    {"--trace-speed", NUMBER, offsetof(struct settings, trace_speed), 1, 1000000},
    {"--policy", TEXT, offsetof(struct settings, policy), 0, 0},
    {"--ageing", NUMBER, offsetof(struct settings, ageing), 1, INT32_MAX},
    {"--output-percent", NUMBER, offsetof(struct settings, output_percent), 1, 100},
    {"--context", NUMBER, offsetof(struct settings, context), 1, 1 << 24},
    {"--json", TEXT, offsetof(struct settings, json), 0, 0},
    {"--n-predict", NUMBER, offsetof(struct settings, n_predict), 1, INT32_MAX},
    {"--repeat", NUMBER, offsetof(struct settings, repeat), 1, 10000},
    {"--ids", FLAG, offsetof(struct settings, ids), 0, 0},
    {"--stats", FLAG, offsetof(struct settings, stats), 0, 0},
    {"--no-sharing", FLAG, offsetof(struct settings, no_sharing), 0, 0},
    {"--chunk", NUMBER, offsetof(struct settings, chunk), 1, UINT32_MAX},
    {"--backend", TEXT, offsetof(struct settings, backend), 0, 0},
    {"--kernel", TEXT, offsetof(struct settings, kernel), 0, 0},
    {"--kv-dtype", TEXT, offsetof(struct settings, kv_dtype), 0, 0},
    {"--kv-tokens", NUMBER, offsetof(struct settings, kv_tokens), 1, INT64_MAX},
    {"--threads", NUMBER, offsetof(struct settings, threads), 1, 1024},
    {"--prefill-rows", NUMBER, offsetof(struct settings, prefill_rows), 1, UINT32_MAX},
    {"--max-batch", NUMBER, offsetof(struct settings, max_batch), 1, UINT32_MAX},
    {"--ignore-eos", FLAG, offsetof(struct settings, ignore_eos), 0, 0},
    {"--exact-linear", FLAG, offsetof(struct settings, exact_linear), 0, 0},
    {"--weights", TEXT, offsetof(struct settings, weights), 0, 0},
    {"--load-prefix", TEXT, offsetof(struct settings, load_prefix), 0, 0},
    {"--save-prefix", TEXT, offsetof(struct settings, save_prefix), 0, 0},
    {"--shape", TEXT, offsetof(struct settings, shape), 0, 0},
    {"--seed", NUMBER, offsetof(struct settings, seed), 0, UINT64_MAX},
    {"--logits", TEXT, offsetof(struct settings, logits), 0, 0},
    {"--list-kernels", FLAG, offsetof(struct settings, list_kernels), 0, 0},
    {"--demo", FLAG, offsetof(struct settings, demo), 0, 0},
    {"--help", FLAG, offsetof(struct settings, help), 0, 0},
};

static const char usage[] =
    "Usage: chunkllama [--model FILE.gguf] --prompt TEXT [--prompt TEXT ...] [OPTION ...]\n"
    "       chunkllama [--model FILE.gguf] --requests FILE.jsonl [OPTION ...]\n"
    "       chunkllama --demo [OPTION ...]\n"
    "Decodes a batch of requests, greedily, with one copy of the K and V of every shared prefix.\n"
    "\n"
    "  --model FILE       a Llama in GGUF form (F32, F16 or BF16); without it a model of seeded random weights, whose\n"
    "                     output is printed as token ids\n"
    "  --shape NAME       shape of the random model:";

static const char usage_options[] =
    " (" DEFAULT_SHAPE ")\n"
    "  --seed N           its seed (1)\n"
    "  --prompt TEXT      a request\n"
    "  --requests FILE    a request a line: {\"prompt\": text} or {\"ids\": [...]}, and \"max_tokens\", \"arrival\"\n"
    "                     (seconds) and \"tenant\" (a number) if it likes\n"
    "  --generate SPEC    requests of random ids: "
    "np=1024,ns=0,nc=128,batch=32[,requests=N,rate=R,tenants=T,prompts=P,\n"
    "                     zipf=Z]: prompts of np tokens, the first ns common; nc new ones; rate: arrivals a second\n"
    "  --trace FILE       requests of a recorded trace: hash-block or conversation lines\n"
    "  --trace-scale N    its lengths divided by N;  --trace-speed N: the times between arrivals divided by N\n"
    "  --tasks FILE       prompts of published tasks: a template with questions, system prompts, first turns\n"
    "  --limit N          only the first N requests of the trace or the tasks\n"
    "  --n-predict N      tokens to generate where a request says nothing (64)\n"
    "  --repeat N         each request so many times (1)\n"
    "  --ignore-eos       do not stop at the end-of-text tokens\n"
    "  --max-batch N      requests that run at once (all)\n"
    "  --prefill-rows N   tokens of prompts in a step, all in all (4096)\n"
    "  --policy NAME      fcfs, or prefix: those that share most with what runs or is cached first (fcfs)\n"
    "  --ageing N         a request waits at most N times as long as first come first served would let it (4)\n"
    "  --output-percent N of the tokens that a request may generate, those it is admitted for (100)\n"
    "  --context N        context of the random model (as its shape says)\n"
    "  --no-sharing       a namespace for each request, so that nothing is shared\n"
    "  --chunk N          tokens of a chunk: 32, 64, 128 or 256 (64)\n"
    "  --backend NAME     cpu, or cuda, where it was built: the first GPU (cpu)\n"
    "  --kernel NAME      kernel of the attention (the best); --list-kernels prints those that run here\n"
    "  --kv-dtype TYPE    of the stored K and V: f32, f16, bf16 or i8 (f32; on a GPU, without i8, that of the "
    "weights)\n"
    "  --kv-tokens N      size of the pool (room for all requests); less makes requests wait\n"
    "  --threads N        threads (as many as CPUs)\n"
    "  --exact-linear     linear layers whose rows do not depend on the batch, bit for bit\n"
    "  --weights TYPE     of the linear layers: f32, or bf16, packed by oneDNN (f32); on a GPU f32, f16 or bf16 "
    "(bf16)\n"
    "  --save-prefix FILE write K and V of the whole chunks of all prompts, for another run of this model\n"
    "  --load-prefix FILE read them before the first request; kernel and chunk size may be others\n"
    "  --ids              print a JSON object a request: {\"prompt_ids\": [...], \"output_ids\": [...]}\n"
    "  --logits FILE      write the logits after each prompt, f32, in the order of the requests\n"
    "  --stats            print statistics to standard error\n"
    "  --json FILE        write them as a JSON object; - is standard output, which then has nothing else\n"
    "  --demo             eight requests with one system prompt, with and without sharing\n";

static void print_help(void)
{
    fputs(usage, stdout);
    for (unsigned i = 0; model_shape_name(i); i++)
        printf(" %s", model_shape_name(i));
    fputs(usage_options, stdout);
}

/* ---- the command line ---------------------------------------------------------------------------------------------
 */

static bool on_gpu(const struct settings *settings)
{
    return settings->backend && strcmp(settings->backend, "cuda") == 0;
}

static int parse_number(const struct option *option, const char *text, uint64_t *number, struct fault *fault)
{
    char *end;

    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < option->least || value > option->most)
        return fault_set(fault, "%s takes a number from %llu to %llu", option->name, (unsigned long long)option->least,
                         (unsigned long long)option->most);
    *number = value;
    return 0;
}

static int set_option(struct settings *settings, const struct option *option, const char *argument, struct fault *fault)
{
    char *place = (char *)settings + option->offset;

    switch (option->kind) {
    case FLAG: *(bool *)place = true; return 0;
    case TEXT: *(const char **)place = argument; return 0;
    case PROMPT: settings->prompts[settings->n_prompts++] = argument; return 0;
    default: return parse_number(option, argument, (uint64_t *)place, fault);
    }
}

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    }
    return NULL;
}

static int parse_arguments(struct settings *settings, int argc, char **argv, struct fault *fault)
{
    for (int i = 1; i < argc; i++) {
        const struct option *option = find_option(argv[i]);

        if (!option)
            return fault_set(fault, "unknown option '%s'", argv[i]);
        if (option->kind != FLAG && ++i == argc)
            return fault_set(fault, "%s takes an argument", option->name);
        if (set_option(settings, option, argv[i], fault))
            return -1;
    }
    if (settings->help || settings->list_kernels)
        return 0;
    const bool others =
        settings->n_prompts || settings->requests || settings->generate || settings->trace || settings->tasks;
    if (!settings->demo && !others)
        return fault_set(fault, "no requests: give --prompt, --requests, --generate, --trace, --tasks or --demo");
    if (settings->demo && (others || settings->repeat > 1))
        return fault_set(fault, "--demo has its own requests");
    if ((settings->load_prefix || settings->save_prefix) && (settings->demo || settings->no_sharing))
        return fault_set(fault, "--load-prefix and --save-prefix are not for --demo and --no-sharing");
    if (settings->backend && strcmp(settings->backend, "cpu") != 0 && strcmp(settings->backend, "cuda") != 0)
        return fault_set(fault, "--backend takes cpu or cuda");
    if (on_gpu(settings) && settings->exact_linear)
        return fault_set(fault, "--exact-linear is for --backend cpu");
    if (settings->model && settings->shape)
        return fault_set(fault, "--shape is for random models, --model is a file");
    return 0;
}

static int parse_dtype(const char *option, const char *name, uint32_t last, uint32_t *dtype, struct fault *fault)
{
    for (*dtype = CATTN_F32; *dtype <= last; (*dtype)++) {
        if (strcmp(name, dtype_name(*dtype)) == 0)
            return 0;
    }
    return fault_set(fault, "%s takes %s", option, last == CATTN_I8 ? "f32, f16, bf16 or i8" : "f32, f16 or bf16");
}

/* ---- a run --------------------------------------------------------------------------------------------------------
 */

struct run {
    const struct settings *settings;
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    struct model model;
    struct linear linear;
    struct device *device; /* NULL: the CPU computes */
    struct requests requests;
    struct engine_options options;
    float *logits;        /* of --logits */
    double shown;         /* when the progress line was last written */
    char model_name[128]; /* names what makes K and V, for files of prefixes */
    struct fault *fault;
};

static int load_file(struct run *run)
{
    struct fault reason;

    if (gguf_open(run->settings->model, &run->gguf, run->fault))
        return -1;
    if (model_load(&run->model, run->gguf, &reason) || tokenizer_open(run->gguf, &run->tokenizer, &reason))
        return fault_set(run->fault, "%s: %s", run->settings->model, reason.text);
    if (run->tokenizer && tokenizer_size(run->tokenizer) != run->model.shape.vocabulary)
        return fault_set(run->fault, "%s: %lu tokens have names, %lu have embeddings", run->settings->model,
                         (unsigned long)tokenizer_size(run->tokenizer), (unsigned long)run->model.shape.vocabulary);
    return 0;
}

static int make_random(struct run *run)
{
    const char *name = run->settings->shape ? run->settings->shape : DEFAULT_SHAPE;
    const struct model_shape *shape = model_shape_named(name);

    if (!shape)
        return fault_set(run->fault, "--shape: unknown name '%s'", name);
    fprintf(run->settings->demo ? stdout : stderr,
            "The model is random (shape %s, seed %llu): its output means nothing, its speed and memory do.\n", name,
            (unsigned long long)run->settings->seed);
    run->tokenizer = tokenizer_bytes();
    if (!run->tokenizer)
        return fault_set(run->fault, "out of memory");
    struct model_shape chosen = *shape;
    if (run->settings->context)
        chosen.context = (uint32_t)run->settings->context;
    return model_random(&run->model, &chosen, run->settings->seed, run->fault);
}

/* A batch of the workload is the batch of the run, unless that is given. */
static int generate_requests(struct run *run, const struct request_rules *rules)
{
    struct workload workload;

    if (workload_parse(&workload, run->settings->generate, run->fault))
        return -1;
    run->options.max_batch = workload.batch;
    return workload_generate(&workload, run->settings->seed, &run->requests, rules, run->fault);
}

static int read_trace(struct run *run, const struct request_rules *rules)
{
    const struct settings *settings = run->settings;
    const struct trace_options choice = {settings->limit, settings->trace_scale ? settings->trace_scale : 1,
                                         settings->trace_speed ? (double)settings->trace_speed : 1};

    return trace_read(settings->trace, &choice, &run->requests, rules, run->fault);
}

static int collect_requests(struct run *run)
{
    const struct settings *settings = run->settings;
    const struct request_rules rules = {run->tokenizer, run->model.shape.vocabulary, run->model.shape.context,
                                        (size_t)settings->n_predict};

    for (size_t i = 0; i < settings->n_prompts; i++) {
        if (requests_add_text(&run->requests, &rules, settings->prompts[i], strlen(settings->prompts[i]),
                              rules.max_tokens, run->fault))
            return -1;
    }
    if ((settings->generate && generate_requests(run, &rules)) || (settings->trace && read_trace(run, &rules)) ||
        (settings->tasks && tasks_read(settings->tasks, settings->limit, &run->requests, &rules, run->fault)))
        return -1;
    if (settings->demo)
        return demo_requests(&run->requests, &rules, run->fault);
    if (settings->requests && requests_read(&run->requests, &rules, settings->requests, run->fault))
        return -1;
    return requests_repeat(&run->requests, &rules, (size_t)settings->repeat, run->fault);
}

static void keep_logits(void *context, size_t request, size_t n_output, const float *logits)
{
    const struct run *run = context;
    const size_t n = run->model.shape.vocabulary;

    if (n_output == 0)
        memcpy(run->logits + request * n, logits, n * sizeof *logits);
}

/* On a terminal, not more often than it can be read. */
static void show_progress(void *context, const struct engine_progress *p)
{
    const double now = bench_now();
    struct run *run = context;

    if (now - run->shown < 0.2)
        return;
    run->shown = now;
    bench_progress("%.1f s: %zu of %zu requests done, %zu running, %zu waiting; %.1f tokens/s", p->seconds, p->n_ended,
                   p->n_requests, p->n_running, p->n_waiting,
                   p->seconds > 0 ? (double)p->output_tokens / p->seconds : 0.0);
}

/* All that K and V depend on, but for the kernel, whose errors are those of rounding, and their type, which the library
 * compares itself. */
static void name_model(struct run *run)
{
    const struct settings *settings = run->settings;
    const char *shape = settings->shape ? settings->shape : DEFAULT_SHAPE;

    if (run->gguf)
        snprintf(run->model_name, sizeof run->model_name, "a file with hash %016llx, linear layers by %s",
                 (unsigned long long)gguf_hash(run->gguf), run->linear.name);
    else
        snprintf(run->model_name, sizeof run->model_name, "random of shape %s, seed %llu, linear layers by %s", shape,
                 (unsigned long long)settings->seed, run->linear.name);
}

static int choose_options(struct run *run)
{
    const struct settings *settings = run->settings;
    /* Random weights and a fixed number of tokens make runs that can be compared. */
    const bool stops = run->tokenizer && run->gguf && !settings->ignore_eos;
    const bool prefix = settings->policy && strcmp(settings->policy, "prefix") == 0;
    if (settings->policy && !prefix && strcmp(settings->policy, "fcfs") != 0)
        return fault_set(run->fault, "--policy takes fcfs or prefix");

    run->options = (struct engine_options){
        .device = run->device,
        .kernel = settings->kernel,
        .policy = prefix ? CATTN_PREFIX : CATTN_FCFS,
        .chunk_tokens = (uint32_t)settings->chunk,
        .n_threads = (uint32_t)settings->threads,
        .prefill_rows = (size_t)settings->prefill_rows,
        .max_batch = settings->max_batch ? (size_t)settings->max_batch : run->options.max_batch,
        .ageing = (uint32_t)settings->ageing,
        .output_percent = (uint32_t)settings->output_percent,
        .kv_tokens = settings->kv_tokens,
        .no_sharing = settings->no_sharing,
        .load_prefix = settings->load_prefix,
        .save_prefix = settings->save_prefix,
        .model = run->model_name,
        .stop = {stops ? tokenizer_bos(run->tokenizer) : -1, stops ? tokenizer_eos(run->tokenizer) : -1},
        .progress = show_progress,
        .context = run,
    };
    if (settings->logits) {
        run->logits = calloc(run->requests.n + 1, run->model.shape.vocabulary * sizeof *run->logits);
        run->options.observer = keep_logits;
        if (!run->logits)
            return fault_set(run->fault, "out of memory");
    }
    if (!settings->kv_dtype) {
        run->options.kv_dtype = run->device ? device_dtype(run->device) : CATTN_F32;
        return 0;
    }
    return parse_dtype("--kv-dtype", settings->kv_dtype, run->device ? CATTN_BF16 : CATTN_I8, &run->options.kv_dtype,
                       run->fault);
}

static int write_logits(const struct run *run)
{
    const char *path = run->settings->logits;
    const size_t n = run->requests.n * run->model.shape.vocabulary;
    FILE *file = fopen(path, "wb");

    if (!file)
        return fault_set(run->fault, "%s: %s", path, strerror(errno));
    const bool written = fwrite(run->logits, sizeof *run->logits, n, file) == n;
    return fclose(file) == 0 && written ? 0 : fault_set(run->fault, "%s: cannot be written", path);
}

/* ---- output -------------------------------------------------------------------------------------------------------
 */

static void print_ids(const int32_t *ids, size_t n)
{
    putchar('[');
    for (size_t i = 0; i < n; i++)
        printf("%s%ld", i ? ", " : "", (long)ids[i]);
    putchar(']');
}

static void print_json(const struct request *request)
{
    printf("{\"prompt_ids\": ");
    print_ids(request->ids, request->n_prompt);
    printf(", \"output_ids\": ");
    print_ids(request->ids + request->n_prompt, request->n_ids - request->n_prompt);
    printf("}\n");
}

static int print_text(const struct run *run, const struct request *request)
{
    size_t length;

    if (!run->tokenizer || !run->gguf) {
        print_ids(request->ids + request->n_prompt, request->n_ids - request->n_prompt);
        putchar('\n');
        return 0;
    }
    char *text = tokenizer_decode(run->tokenizer, request->ids, request->n_ids, &length);
    if (!text)
        return fault_set(run->fault, "out of memory");
    fwrite(text, 1, length, stdout);
    putchar('\n');
    free(text);
    return 0;
}

static int print_outputs(const struct run *run)
{
    const size_t n = run->requests.n;

    for (size_t i = 0; i < n; i++) {
        const struct request *request = &run->requests.list[i];

        if (run->settings->ids) {
            print_json(request);
            continue;
        }
        if (n > 1)
            printf("%s== request %zu: %zu + %zu tokens\n", i ? "\n" : "", i + 1, request->n_prompt,
                   request->n_ids - request->n_prompt);
        if (print_text(run, request))
            return -1;
    }
    return fflush(stdout) || ferror(stdout) ? fault_set(run->fault, "standard output cannot be written") : 0;
}

static int write_json(const struct run *run, const struct engine_report *report)
{
    const char *path = run->settings->json;
    const bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdout : fopen(path, "w");

    if (!file)
        return fault_set(run->fault, "%s: %s", path, strerror(errno));
    report_json(file, report, &run->requests);
    const bool written = !fflush(file) && !ferror(file);
    return (standard || fclose(file) == 0) && written ? 0 : fault_set(run->fault, "%s: cannot be written", path);
}

static int decode(struct run *run)
{
    const struct settings *settings = run->settings;
    const bool quiet = (settings->json && strcmp(settings->json, "-") == 0) || settings->generate || settings->trace;
    struct engine_report report;

    const int status = engine_run(&run->model, &run->linear, &run->options, &run->requests, &report, run->fault);
    bench_progress_end();
    if (status || (run->logits && write_logits(run)) || (!quiet && print_outputs(run)) ||
        (settings->json && write_json(run, &report)))
        return -1;
    if (settings->stats)
        report_stats(stderr, &report, &run->requests, &run->linear);
    return 0;
}

static int open_device(struct run *run)
{
    const char *type = run->settings->weights ? run->settings->weights : "bf16";
    uint32_t dtype;

    if (!on_gpu(run->settings))
        return 0;
    if (parse_dtype("--weights", type, CATTN_BF16, &dtype, run->fault) ||
        device_open(&run->model, dtype, &run->device, run->fault))
        return -1;
    run->linear.name = device_name(run->device);
    return 0;
}

static int pack_weights(struct run *run)
{
    const char *type = run->settings->weights;

    if (run->device || !type || strcmp(type, "f32") == 0)
        return 0;
    if (strcmp(type, "bf16") != 0)
        return fault_set(run->fault, "--weights takes f32 or bf16");
    if (run->settings->exact_linear)
        return fault_set(run->fault, "--exact-linear is for f32 weights");
    if (!packed_likes_bf16())
        return fault_set(run->fault, "--weights bf16 needs oneDNN and a CPU with products of bf16");
    run->linear.packed = packed_create(true);
    if (!run->linear.packed)
        return fault_set(run->fault, "oneDNN does not work");
    run->linear.name = "oneDNN, weights bf16";
    return model_pack(&run->model, run->linear.packed, run->fault);
}

static int run_all(struct run *run)
{
    const struct settings *settings = run->settings;

    linear_init(&run->linear, settings->exact_linear, (unsigned)settings->threads);
    if (run->linear.refused)
        fprintf(settings->demo ? stdout : stderr, "%s gives wrong products here; linear layers by %s.\n",
                run->linear.refused, run->linear.name);
    if ((settings->model ? load_file(run) : make_random(run)) || collect_requests(run) || open_device(run) ||
        choose_options(run) || pack_weights(run))
        return -1;
    if (settings->load_prefix || settings->save_prefix)
        name_model(run);
    if (!settings->demo)
        return decode(run);
    return demo_run(&run->model, &run->linear, &run->options, &run->requests, run->gguf ? run->tokenizer : NULL,
                    run->fault);
}

static void release(struct run *run)
{
    requests_release(&run->requests);
    packed_destroy(run->linear.packed);
    device_close(run->device);
    model_release(&run->model);
    tokenizer_close(run->tokenizer);
    gguf_close(run->gguf);
    free(run->logits);
}

static void list_kernels(void)
{
    for (unsigned i = 0; cattn_kernel_name(i); i++)
        puts(cattn_kernel_name(i));
}

int main(int argc, char **argv)
{
    struct settings settings = {.n_predict = 64, .repeat = 1, .seed = 1};
    struct fault fault = {""};
    struct run run = {.settings = &settings, .fault = &fault};
    int status = EXIT_SUCCESS;

    settings.prompts = calloc((size_t)argc + 1, sizeof *settings.prompts);
    if (!settings.prompts)
        return EXIT_FAILURE;
    if (parse_arguments(&settings, argc, argv, &fault)) {
        fprintf(stderr, "chunkllama: %s\nchunkllama --help lists the options.\n", fault.text);
        status = EXIT_USAGE;
    } else if (settings.help) {
        print_help();
    } else if (settings.list_kernels) {
        list_kernels();
    } else if (run_all(&run)) {
        fflush(stdout);
        fprintf(stderr, "chunkllama: %s\n", fault.text);
        status = EXIT_FAILURE;
    }
    release(&run);
    free(settings.prompts);
    return status;
}
