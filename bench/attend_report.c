#include "attend_report.h"

/* With what is added to plain attention of one row, as in chunk+softcap. */
struct row_name {
    char text[64];
};

static struct row_name name_of(const struct bench_row *row)
{
    const struct cattn_variant *a = &row->instance->attention;
    const char *const base = row->variant->name;
    struct row_name name;
    char rows[16] = "";

    if (row->shape->rows > 1)
        snprintf(rows, sizeof rows, "+%urows", row->shape->rows);
    if (row->variant->computes != BENCH_ANY)
        snprintf(name.text, sizeof name.text, "%s", base);
    else if (a->softcap > 0.0f && a->window > 0 && a->alibi_slopes != NULL && a->sinks != NULL)
        snprintf(name.text, sizeof name.text, "%s%s+all", base, rows);
    else
        snprintf(name.text, sizeof name.text, "%s%s%s%s%s%s", base, rows, a->softcap > 0.0f ? "+softcap" : "",
                 a->window > 0 ? "+window" : "", a->alibi_slopes != NULL ? "+alibi" : "",
                 a->sinks != NULL ? "+sinks" : "");
    return name;
}

/* What follows from a row's times. */
struct derived {
    uint64_t bytes;
    double gbps, of_read, gflops, of_compute, intensity;
    const char *bound;
};

/* Twice a multiply and add for each score and each weighted V. */
static double operations(const struct bench_row *row)
{
    const struct bench_shape *s = row->shape;
    if (row->variant->computes == BENCH_NOTHING)
        return row->instance->operations;
    return 4.0 * s->head_dim * s->heads * s->batch * bench_pairs(s, &row->instance->attention);
}

static struct derived derive(const struct bench_row *row)
{
    const struct bench_shape seen = bench_seen(row->shape, &row->instance->attention);
    struct derived derived;
    double seconds = row->us * 1e-6, work = operations(row), bytes;

    derived.bytes = row->variant->bytes(&seen);
    bytes = (double)derived.bytes;
    derived.gbps = bytes / seconds * 1e-9;
    derived.of_read = bytes / seconds / row->usual.read;
    derived.gflops = work / seconds * 1e-9;
    derived.of_compute = work / seconds / row->usual.compute;
    derived.intensity = derived.bytes > 0 ? work / bytes : 0.0;
    derived.bound = work / row->best.compute > bytes / row->best.read ? "compute" : "memory";
    return derived;
}

void bench_csv_header(FILE *file)
{
    fputs("variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads,us,us_min,unique_bytes,gbps,"
          "frac_read,gflops,intensity,bound,rel_err,frac_compute\n",
          file);
}

void bench_csv_row(FILE *file, const struct bench_row *row)
{
    const struct bench_shape *s = row->shape;
    struct derived d = derive(row);

    fprintf(file, "%s,%s,%s,%u,%u,%u,%u,%u,%u,%u,%u,", name_of(row).text, row->instance->kernel,
            bench_dtype_name(row->instance->dtype), s->batch, s->heads, s->kv_heads, s->head_dim, s->chunk, s->shared,
            s->private, s->threads);
    fprintf(file, "%.1f,%.1f,%llu,%.2f,%.3f,%.2f,%.2f,%s,%.2e,%.3f\n", row->us, row->us_min,
            (unsigned long long)d.bytes, d.gbps, d.of_read, d.gflops, d.intensity, d.bound, row->relative_error,
            d.of_compute);
}

void bench_table_header(FILE *file, const struct bench_shape *s)
{
    fprintf(file, "\nbatch %u, heads %u / %u of %u, chunk %u, shared %u, private %u, %s, %u thread%s\n", s->batch,
            s->heads, s->kv_heads, s->head_dim, s->chunk, s->shared, s->private, bench_dtype_name(s->dtype), s->threads,
            s->threads == 1 ? "" : "s");
    fprintf(file, "%-20s %-18s %-5s %10s %10s %8s %8s %8s %8s %-8s %s\n", "variant", "kernel", "K, V", "us median",
            "us least", "GB/s", "of read", "GFLOP/s", "of peak", "bound", "error");
}

void bench_table_row(FILE *file, const struct bench_row *row)
{
    struct derived d = derive(row);

    fprintf(file, "%-20s %-18s %-5s %10.0f %10.0f %8.1f %7.0f%% %8.1f %7.0f%% %-8s %.0e%s%s\n", name_of(row).text,
            row->instance->kernel, bench_dtype_name(row->instance->dtype), row->us, row->us_min, d.gbps,
            100.0 * d.of_read, d.gflops, 100.0 * d.of_compute, d.bound, row->relative_error,
            row->instance->detail[0] != '\0' ? "  " : "", row->instance->detail);
}
