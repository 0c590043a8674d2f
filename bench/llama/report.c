#include "report.h"

#include <inttypes.h>

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

void report_stats(FILE *file, const struct engine_report *r, const struct linear *linear)
{
    const struct cattn_stats *s = &r->stats;

    report_setup(file, r, linear);
    fprintf(file, "\nsteps:            %" PRIu64 "\n", r->n_steps);
    fprintf(file, "prompt tokens:    %" PRIu64 ", %" PRIu64 " found in the cache (%.1f%%), %.1f tokens/s\n",
            r->prompt_tokens, r->prompt_hits, 100 * report_hit_rate(r), report_prefill_rate(r));
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
}
