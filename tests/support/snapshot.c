#define _POSIX_C_SOURCE 200809L
#include "snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(void *file, const char *bytes, size_t n)
{
    return fwrite(bytes, 1, n, file) != n;
}

static void add_sequence(FILE *file, const struct engine *e, const struct toy *toy)
{
    struct cattn_why why = {.size = sizeof why};
    size_t length = 0;
    ck_assert_int_eq(cattn_seq_why(e->cache, toy->seq, &why), CATTN_OK);
    ck_assert_int_eq(cattn_seq_length(e->cache, toy->seq, &length), CATTN_OK);
    int32_t *tokens = calloc(length + 1, sizeof *tokens);
    ck_assert_int_eq(cattn_seq_tokens(e->cache, toy->seq, tokens, length, NULL), CATTN_OK);
    add(file, (const char *)&why, sizeof why);
    add(file, (const char *)tokens, length * sizeof *tokens);
    free(tokens);
}

static void add_space(FILE *file, const struct engine *e, uint64_t space)
{
    struct cattn_usage usage = {.size = sizeof usage};
    int status = cattn_namespace_stats(e->cache, &space, space ? sizeof space : 0, &usage);
    add(file, (const char *)&status, sizeof status);
    add(file, (const char *)&usage, sizeof usage);
}

struct snapshot snapshot_take(const struct engine *e, const struct toy *toys, size_t n_toys, uint64_t n_spaces)
{
    struct snapshot snapshot = {0};
    FILE *file = open_memstream(&snapshot.bytes, &snapshot.n);
    struct cattn_stats stats = engine_stats(e);
    add(file, (const char *)&stats, sizeof stats);
    ck_assert_int_eq(cattn_cache_dump_dot(e->cache, add, file), CATTN_OK);
    for (uint64_t space = 0; space < n_spaces; space++)
        add_space(file, e, space);
    for (size_t i = 0; i < n_toys; i++) {
        if (toys[i].seq)
            add_sequence(file, e, &toys[i]);
    }
    fclose(file);
    return snapshot;
}

int snapshot_same(struct snapshot a, struct snapshot b)
{
    int same = a.n == b.n && !memcmp(a.bytes, b.bytes, a.n);
    free(a.bytes);
    free(b.bytes);
    return same;
}
