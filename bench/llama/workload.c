#include "workload.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- the description */

static const struct field {
    const char *name;
    size_t offset;
    bool real;
    double least, most;
} fields[] = {
    {"np", offsetof(struct workload, np), false, 1, 1e7},
    {"ns", offsetof(struct workload, ns), false, 0, 1e7},
    {"nc", offsetof(struct workload, nc), false, 1, 1e7},
    {"batch", offsetof(struct workload, batch), false, 1, 65536},
    {"requests", offsetof(struct workload, requests), false, 1, 1e7},
    {"tenants", offsetof(struct workload, tenants), false, 1, 1e6},
    {"prompts", offsetof(struct workload, prompts), false, 1, 1e5},
    {"zipf", offsetof(struct workload, zipf), true, 0, 10},
    {"rate", offsetof(struct workload, rate), true, 0, 1e6},
};

static int set_field(struct workload *workload, const struct field *field, const char *text, char **end,
                     struct fault *fault)
{
    errno = 0;
    const double value = strtod(text, end);
    if (*end == text || errno || !(value >= field->least && value <= field->most) ||
        (!field->real && value != floor(value)))
        return fault_set(fault, "%s takes a number from %g to %g", field->name, field->least, field->most);
    char *place = (char *)workload + field->offset;
    if (field->real)
        *(double *)place = value;
    else
        *(uint64_t *)place = (uint64_t)value;
    return 0;
}

static const struct field *find_field(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strlen(fields[i].name) == length && memcmp(fields[i].name, name, length) == 0)
            return &fields[i];
    }
    return NULL;
}

int workload_parse(struct workload *workload, const char *text, struct fault *fault)
{
    *workload = (struct workload){.np = 1024, .nc = 128, .batch = 32, .tenants = 1, .prompts = 1};
    for (;;) {
        const size_t length = strcspn(text, "=,");
        const struct field *field = find_field(text, length);
        char *end;

        if (!field || text[length] != '=')
            return fault_set(fault,
                             "--generate: '%.*s' is none of np, ns, nc, batch, requests, tenants, prompts, "
                             "zipf and rate, with = and a number",
                             (int)(length < 40 ? length : 40), text);
        if (set_field(workload, field, text + length + 1, &end, fault))
            return -1;
        if (!*end)
            break;
        if (*end != ',')
            return fault_set(fault, "--generate: '%.40s' after a number", end);
        text = end + 1;
    }
    if (workload->ns > workload->np)
        return fault_set(fault, "--generate: ns is more than np");
    if (!workload->requests)
        workload->requests = workload->batch;
    return 0;
}

/* ---- the requests */

static uint64_t scatter(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

struct draw {
    uint64_t state;
};

static uint64_t draw_number(struct draw *draw)
{
    return scatter(draw->state += UINT64_C(0x9e3779b97f4a7c15));
}

/* 0 < x <= 1 */
static double draw_real(struct draw *draw)
{
    return ((double)(draw_number(draw) >> 11) + 1) / 9007199254740992.0;
}

static uint64_t draw_prompt(struct draw *draw, const struct workload *workload)
{
    double sum = 0, left;

    for (uint64_t i = 1; i <= workload->prompts; i++)
        sum += pow((double)i, -workload->zipf);
    left = draw_real(draw) * sum;
    for (uint64_t i = 1; i < workload->prompts; i++) {
        left -= pow((double)i, -workload->zipf);
        if (left <= 0)
            return i - 1;
    }
    return workload->prompts - 1;
}

int32_t workload_token(uint64_t text, uint64_t i, uint32_t vocabulary)
{
    return (int32_t)(scatter((text + 1) * UINT64_C(0x9e3779b97f4a7c15) + i) % vocabulary);
}

int workload_generate(const struct workload *workload, uint64_t seed, struct requests *requests,
                      const struct request_rules *rules, struct fault *fault)
{
    struct draw draw = {seed};
    int32_t *ids = malloc(workload->np * sizeof *ids);
    double arrival = 0;
    int rc = 0;

    if (!ids)
        return fault_set(fault, "out of memory");
    for (uint64_t r = 0; !rc && r < workload->requests; r++) {
        const uint64_t common = scatter(seed) + draw_prompt(&draw, workload), own = draw_number(&draw);

        for (uint64_t i = 0; i < workload->np; i++)
            ids[i] = workload_token(i < workload->ns ? common : own, i, rules->vocabulary);
        rc = requests_add_ids(requests, rules, ids, workload->np, workload->nc, fault);
        if (rc)
            break;
        requests->list[requests->n - 1].tenant = (uint32_t)(r % workload->tenants);
        requests->list[requests->n - 1].arrival = arrival;
        if (workload->rate > 0)
            arrival -= log(draw_real(&draw)) / workload->rate;
    }
    free(ids);
    return rc;
}
