/* The batch loop: requests arrive, the scheduler says what runs, the model computes it. */
#ifndef LLAMA_ENGINE_H
#define LLAMA_ENGINE_H

#include "chunkattention.h"

#include "fault.h"
#include "linear.h"
#include "model.h"
#include "requests.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Called with the logits that follow n_output generated tokens of a request. */
typedef void engine_observer(void *context, size_t request, size_t n_output, const float *logits);

/* Called after each step. */
struct engine_progress {
    size_t n_requests, n_ended, n_running, n_waiting; /* those that have not arrived are in none of the last three */
    uint64_t prompt_tokens, output_tokens;            /* of those that have arrived; generated so far */
    double seconds;                                   /* since the start */
};
typedef void engine_progress_observer(void *context, const struct engine_progress *progress);

struct engine_options {
    struct device *device; /* that computes, with the library's backend "cuda"; NULL: the CPU does */
    const char *kernel;    /* NULL: the library's choice */
    uint32_t chunk_tokens, kv_dtype, n_threads;
    size_t prefill_rows;                     /* tokens of prompts in a step, all in all; 0: 4096 */
    size_t max_batch;                        /* requests that run at once; 0: all */
    uint64_t kv_tokens;                      /* size of the pool; 0: room for all requests */
    bool no_sharing;                         /* a namespace for each request */
    uint32_t policy, ageing, output_percent; /* of the scheduler */
    /* Files of prefixes, to be loaded before the first request, to be written after the last; NULL: none.  model names
     * what makes their K and V. */
    const char *load_prefix, *save_prefix, *model;
    int32_t stop[2]; /* tokens that end a request; -1: none */
    engine_observer *observer;
    engine_progress_observer *progress;
    void *context;
};

struct engine_report {
    struct cattn_info info;
    struct cattn_stats stats; /* as the last step left it */
    struct cattn_sched_counts sched;
    double seconds; /* from the start to the last token, idle time included */
    double attention_seconds, linear_seconds;
    double tree_seconds;             /* of scheduler and tree */
    double prefill_seconds;          /* of steps with tokens of a prompt */
    double decode_seconds;           /* of the others */
    double decode_attention_seconds; /* in them */
    uint64_t prompt_tokens;
    uint64_t prompt_hits;   /* of them found in the cache */
    uint64_t loaded_tokens; /* of the prefixes that were loaded */
    uint64_t decode_tokens; /* generated in decode_seconds */
    uint64_t output_tokens;
    uint64_t n_steps;
    uint64_t peak_bytes;          /* of K and V that running requests held, whole chunks */
    uint64_t peak_unshared_bytes; /* what the same requests would have held, each its own */
};

/* Runs all requests to their ends. */
int engine_run(const struct model *model, const struct linear *linear, const struct engine_options *options,
               struct requests *requests, struct engine_report *report, struct fault *fault);

#endif
