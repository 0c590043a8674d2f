/* Recorded traces: lengths, times and which blocks of tokens are equal.  The file is not trusted. */
#include "json.h"
#include "text.h"
#include "workload.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_BLOCK 512 /* tokens that a hash id stands for */
#define MOST_TOKENS 1e7 /* of a request */

struct trace {
    const struct trace_options *options;
    struct requests *requests;
    const struct request_rules *rules;
    struct fault *fault;
    uint64_t line;
};

/* ---- values */

static const struct json *member_of(const struct json *object, const char *key, enum json_type type)
{
    if (object->type != JSON_OBJECT)
        return NULL;
    for (const struct json *member = object->child; member; member = member->next) {
        if (member->key_length == strlen(key) && memcmp(member->key, key, member->key_length) == 0)
            return member->type == type ? member : NULL;
    }
    return NULL;
}

static bool number_of(const struct json *object, const char *key, double least, double most, double *number)
{
    const struct json *member = member_of(object, key, JSON_NUMBER);

    if (!member || !(member->number >= least && member->number <= most))
        return false;
    *number = member->number;
    return true;
}

/* ---- tokens */

static size_t scaled(const struct trace *trace, double n)
{
    const double x = n / (double)trace->options->scale;

    return x < 1 ? 1 : (size_t)x;
}

/* blocks[0 .. n) are the ids of the first tokens, `size` each; what follows is the request's own. */
static int add(struct trace *trace, const uint64_t *blocks, size_t n, double size, double length, double output,
               double arrival)
{
    const size_t n_tokens = scaled(trace, length), block = scaled(trace, size);
    const uint64_t own = UINT64_C(1) << 63 | (uint64_t)trace->requests->n;
    int32_t *ids = malloc(n_tokens * sizeof *ids);

    if (!ids)
        return fault_set(trace->fault, "out of memory");
    for (size_t i = 0; i < n_tokens; i++)
        ids[i] = i / block < n ? workload_token(blocks[i / block], i % block, trace->rules->vocabulary)
                               : workload_token(own, i, trace->rules->vocabulary);
    const int rc = requests_add_ids(trace->requests, trace->rules, ids, n_tokens, scaled(trace, output), trace->fault);
    free(ids);
    if (!rc)
        trace->requests->list[trace->requests->n - 1].arrival = arrival / trace->options->speed;
    return rc;
}

static bool is_full(const struct trace *trace)
{
    return trace->options->limit && trace->requests->n >= trace->options->limit;
}

/* ---- the two kinds of lines */

static int bad(const struct trace *trace, const char *what)
{
    return fault_set(trace->fault, "%s", what);
}

static int add_request(struct trace *trace, const struct json *object)
{
    const struct json *list = member_of(object, "hash_ids", JSON_ARRAY);
    double time, length, output;
    size_t n = 0;

    if (!list || !number_of(object, "timestamp", 0, 1e15, &time) ||
        !number_of(object, "input_length", 1, MOST_TOKENS, &length) ||
        !number_of(object, "output_length", 0, MOST_TOKENS, &output))
        return bad(trace, "a request needs timestamp, input_length, output_length and hash_ids");
    uint64_t *blocks = malloc(((size_t)length / TRACE_BLOCK + 1) * sizeof *blocks);
    if (!blocks)
        return bad(trace, "out of memory");
    for (const struct json *id = list->child; id && n <= (size_t)length / TRACE_BLOCK; id = id->next) {
        if (id->type != JSON_NUMBER || !(id->number >= 0 && id->number < 9e15)) {
            free(blocks);
            return bad(trace, "an element of \"hash_ids\" is no id");
        }
        blocks[n++] = (uint64_t)id->number;
    }
    const int rc = add(trace, blocks, n, TRACE_BLOCK, length, output, time / 1000);
    free(blocks);
    return rc;
}

/* Runs of ids, [first, count] each, become ids that no other line has; as many as fit.  -1: none of that form. */
static int expand_runs(const struct trace *trace, const struct json *runs, uint64_t *blocks, size_t most)
{
    size_t n = 0;

    for (const struct json *run = runs->child; run; run = run->next) {
        const struct json *first = run->type == JSON_ARRAY ? run->child : NULL, *count = first ? first->next : NULL;

        if (!count || first->type != JSON_NUMBER || count->type != JSON_NUMBER || !(first->number >= 0) ||
            !(first->number < 4e9) || !(count->number >= 0) || !(count->number <= MOST_TOKENS))
            return -1;
        for (uint64_t i = 0; i < (uint64_t)count->number && n < most; i++)
            blocks[n++] = trace->line << 33 | ((uint64_t)first->number + i);
    }
    return (int)n;
}

static int add_turn(struct trace *trace, const struct json *object, double block_size)
{
    const struct json *runs = member_of(object, "runs", JSON_ARRAY);
    double time, length, output;

    if (!runs || !number_of(object, "t", 0, 1e12, &time) || !number_of(object, "in", 1, MOST_TOKENS, &length) ||
        !number_of(object, "out", 0, MOST_TOKENS, &output))
        return bad(trace, "a request of a conversation needs t, in, out and runs");
    const size_t most = (size_t)(length / block_size);
    uint64_t *blocks = malloc((most + 1) * sizeof *blocks);
    const int n = blocks ? expand_runs(trace, runs, blocks, most) : 0;
    int rc;
    if (!blocks)
        rc = bad(trace, "out of memory");
    else if (n < 0)
        rc = bad(trace, "\"runs\" holds something else than [first, count]");
    else
        rc = add(trace, blocks, (size_t)n, block_size, length, output, time);
    free(blocks);
    return rc;
}

static int add_line(struct trace *trace, const struct json *object)
{
    const struct json *turns = member_of(object, "requests", JSON_ARRAY);
    double block_size;

    if (!turns)
        return add_request(trace, object);
    if (!number_of(object, "block_size", 1, 1e6, &block_size))
        return bad(trace, "a conversation needs block_size");
    for (const struct json *turn = turns->child; turn && !is_full(trace); turn = turn->next) {
        if (add_turn(trace, turn, block_size))
            return -1;
    }
    return 0;
}

static int parse_line(void *context, const char *line, size_t length, struct fault *fault)
{
    struct trace *trace = context;
    struct json *object;

    trace->line++;
    trace->fault = fault;
    if (is_full(trace))
        return 0;
    if (json_parse(line, length, &object, fault))
        return -1;
    const int rc = add_line(trace, object);
    json_free(object);
    return rc;
}

int trace_read(const char *path, const struct trace_options *options, struct requests *requests,
               const struct request_rules *rules, struct fault *fault)
{
    struct trace trace = {.options = options, .requests = requests, .rules = rules};

    return text_read_lines(path, parse_line, &trace, fault);
}
