#include "report.h"

#include <inttypes.h>
#include <stdlib.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

double report_hit_rate(const struct engine_report *report)
{
    return ratio((double)report->prompt_hits, (double)report->prompt_tokens);
}

double report_prefill_rate(const struct engine_report *report)
{
    return ratio((double)report->prompt_tokens, report->prefill_seconds);
}

double report_decode_rate(const struct engine_report *report)
{
    return ratio((double)report->decode_tokens, report->decode_seconds);
}

static double busy_seconds(const struct engine_report *report)
{
    return report->prefill_seconds + report->decode_seconds;
}

/* ---- what requests saw --------------------------------------------------------------------------------------------
 */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void summarise(double *values, size_t n, double *mean, double *p50, double *p99)
{
    double sum = 0;

    qsort(values, n, sizeof *values, compare);
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    *mean = sum / (double)n;
    *p50 = values[(n + 1) / 2 - 1];
    *p99 = values[(n * 99 + 99) / 100 - 1];
}

struct report_latency report_latency(const struct requests *requests)
{
    struct report_latency latency = {0};
    double *per_token = calloc(requests->n + 1, sizeof *per_token), *first = calloc(requests->n + 1, sizeof *first);
    size_t n = 0;

    for (size_t i = 0; per_token && first && i < requests->n; i++) {
        const struct request *request = &requests->list[i];

        if (request->n_ids == request->n_prompt)
            continue;
        per_token[n] = (request->finished - request->arrival) / (double)(request->n_ids - request->n_prompt);
        first[n++] = request->first_token - request->arrival;
    }
    if (n) {
        summarise(per_token, n, &latency.per_token_mean, &latency.per_token_p50, &latency.per_token_p99);
        summarise(first, n, &latency.first_token_mean, &latency.first_token_p50, &latency.first_token_p99);
    }
    free(per_token);
    free(first);
    return latency;
}

/* ---- printing -----------------------------------------------------------------------------------------------------
 */

const char *dtype_name(uint32_t dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "i8"};

    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "?";
}

void report_setup(FILE *file, const struct engine_report *report, const struct linear *linear)
{
    const struct cattn_info *info = &report->info;

    fprintf(file, "backend %s, kernel %s%s, %" PRIu32 " thread%s, chunk %" PRIu32 ", K and V %s, linear layers by %s",
            info->backend, info->kernel, info->exact ? " (exact)" : "", info->n_threads,
            info->n_threads == 1 ? "" : "s", info->chunk_tokens, dtype_name(info->kv_dtype), linear->name);
}

void report_stats(FILE *file, const struct engine_report *r, const struct requests *requests,
                  const struct linear *linear)
{
    const struct report_latency l = report_latency(requests);
    const struct cattn_stats *s = &r->stats;

    report_setup(file, r, linear);
    fprintf(file, "\nsteps:            %" PRIu64 "\n", r->n_steps);
    fprintf(file, "prompt tokens:    %" PRIu64 ", %" PRIu64 " found in the cache (%.1f%%), %.1f tokens/s\n",
            r->prompt_tokens, r->prompt_hits, 100 * report_hit_rate(r), report_prefill_rate(r));
    if (r->loaded_tokens)
        fprintf(file, "loaded tokens:    %" PRIu64 "\n", r->loaded_tokens);
    fprintf(file, "output tokens:    %" PRIu64 ", %.1f tokens/s in steps without prompts\n", r->output_tokens,
            report_decode_rate(r));
    fprintf(file, "all tokens:       %" PRIu64 " hits, %" PRIu64 " misses\n", s->hits, s->misses);
    fprintf(file,
            "slots:            %" PRIu64 " of %" PRIu64 " bytes; at the end %" PRIu64 " used, %" PRIu64
            " cached, %" PRIu64 " free; peak %" PRIu64 "; %" PRIu64 " evictions\n",
            s->n_slots, r->info.slot_bytes, s->used_slots, s->evictable_slots, s->free_slots, s->peak_used_slots,
            s->evictions);
    fprintf(file, "K and V held:     %" PRIu64 " bytes at most, %" PRIu64 " without sharing\n", r->peak_bytes,
            r->peak_unshared_bytes);
    fprintf(file, "K and V read:     %" PRIu64 " bytes, %" PRIu64 " without sharing\n", s->read_bytes,
            s->read_bytes_unshared);
    fprintf(file,
            "requests:         %" PRIu64 " in %.3f s; %" PRIu64 " at once at most, %" PRIu64 " put back, %" PRIu64
            " times one waited for another's prefix\n",
            r->sched.n_finished, r->seconds, r->sched.peak_running, r->sched.n_preempted, r->sched.n_deferred);
    fprintf(file, "latency:          %.2f ms a token (p99 %.2f), first token after %.1f ms (p99 %.1f)\n",
            1e3 * l.per_token_mean, 1e3 * l.per_token_p99, 1e3 * l.first_token_mean, 1e3 * l.first_token_p99);
    fprintf(file, "time:             %.1f%% attention, %.1f%% linear layers, %.2f%% scheduler and tree\n",
            100 * ratio(r->attention_seconds, busy_seconds(r)), 100 * ratio(r->linear_seconds, busy_seconds(r)),
            100 * ratio(r->tree_seconds, busy_seconds(r)));
}

void report_json(FILE *file, const struct engine_report *r, const struct requests *requests)
{
    const struct report_latency l = report_latency(requests);

    fprintf(file, "{\"requests\": %" PRIu64 ", \"seconds\": %.6f, \"requests_per_s\": %.6g, ", r->sched.n_finished,
            r->seconds, ratio((double)r->sched.n_finished, r->seconds));
    fprintf(file, "\"prefill_tokens_per_s\": %.6g, \"decode_tokens_per_s\": %.6g, ", report_prefill_rate(r),
            report_decode_rate(r));
    fprintf(file, "\"ms_per_token_mean\": %.6g, \"ms_per_token_p50\": %.6g, \"ms_per_token_p99\": %.6g, ",
            1e3 * l.per_token_mean, 1e3 * l.per_token_p50, 1e3 * l.per_token_p99);
    fprintf(file, "\"ttft_ms_mean\": %.6g, \"ttft_ms_p50\": %.6g, \"ttft_ms_p99\": %.6g, ", 1e3 * l.first_token_mean,
            1e3 * l.first_token_p50, 1e3 * l.first_token_p99);
    fprintf(file, "\"peak_kv_bytes\": %" PRIu64 ", \"peak_kv_bytes_unshared\": %" PRIu64 ", ", r->peak_bytes,
            r->peak_unshared_bytes);
    fprintf(file, "\"peak_batch\": %" PRIu64 ", \"hit_rate\": %.6g, ", r->sched.peak_running, report_hit_rate(r));
    fprintf(file, "\"bytes_read\": %" PRIu64 ", \"bytes_read_unshared\": %" PRIu64 ", ", r->stats.read_bytes,
            r->stats.read_bytes_unshared);
    fprintf(file, "\"preempted\": %" PRIu64 ", \"deferred\": %" PRIu64 ", \"evictions\": %" PRIu64 ", ",
            r->sched.n_preempted, r->sched.n_deferred, r->stats.evictions);
    fprintf(file, "\"output_tokens\": %" PRIu64 ", \"steps\": %" PRIu64 ", ", r->output_tokens, r->n_steps);
    fprintf(file, "\"decode_frac_attention\": %.6g, ", ratio(r->decode_attention_seconds, r->decode_seconds));
    fprintf(file, "\"frac_attention\": %.6g, \"frac_linear\": %.6g, \"frac_tree\": %.6g}\n",
            ratio(r->attention_seconds, busy_seconds(r)), ratio(r->linear_seconds, busy_seconds(r)),
            ratio(r->tree_seconds, busy_seconds(r)));
}
