/* Runs a script of the model on the C tree and prints what the model prints; see README.md of the model.
 *
 *     script [--constant-hash] [--fail] FILE
 *
 * After each call: selfcheck, the cells of everything that is stored, and, if the call failed, whether anything
 * changed.
 * --fail makes every allocation of every call fail in turn first. */
#include "cache.h"
#include "cells.h"
#include "failing_memory.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORDS  4096
#define MAX_LABELS 4096
#define MAX_LABEL  32

struct label {
    char name[MAX_LABEL];
    cattn_seq handle;
};

struct text {
    int32_t *tokens;
    size_t n;
};

static struct cattn_cache *cache;
static struct cattn_step *step;
static struct label labels[MAX_LABELS]; /* in the order in which they were last given */
static size_t n_labels;
static uint64_t **ideals; /* of the items of the open step, for the layer that is looked at */
static char line[1 << 20], result[1 << 20];
static bool constant_hash, fail;

static void fault(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("FAULT: ");
    vprintf(format, arguments);
    printf(" in: %s\n", line);
    va_end(arguments);
    exit(1);
}

static void require(bool condition, const char *what)
{
    if (!condition)
        fault("%s", what);
}

static void *get_memory(size_t bytes)
{
    void *memory = calloc(bytes + 1, 1);
    require(memory != NULL, "no memory");
    return memory;
}

/* ---- labels and tokens */

static cattn_seq handle_of(const char *name)
{
    for (size_t i = 0; i < n_labels; i++) {
        if (!strcmp(labels[i].name, name))
            return labels[i].handle;
    }
    return 0;
}

static void give_label(const char *name, cattn_seq handle)
{
    size_t i = 0;
    while (i < n_labels && strcmp(labels[i].name, name))
        i++;
    if (i == n_labels)
        require(n_labels++ < MAX_LABELS && strlen(name) < MAX_LABEL, "too many labels");
    memmove(&labels[i], &labels[i + 1], (n_labels - 1 - i) * sizeof(labels[0]));
    strcpy(labels[n_labels - 1].name, name);
    labels[n_labels - 1].handle = handle;
}

/* "-", or numbers and ranges as in 1,2,10-14 */
static struct text parse_tokens(const char *word)
{
    struct text text = {get_memory(0), 0};
    while (*word && strcmp(word, "-")) {
        char *end;
        long first = strtol(word, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        text.tokens = realloc(text.tokens, (text.n + (size_t)(last - first) + 1) * sizeof(int32_t));
        require(text.tokens != NULL, "no memory");
        for (; first <= last; first++)
            text.tokens[text.n++] = (int32_t)first;
        word = *end == ',' ? end + 1 : end;
    }
    return text;
}

/* ---- cells */

static uint64_t next_cell(uint64_t value, uint64_t token)
{
    value = (value ^ (token + 1)) * UINT64_C(0xff51afd7ed558ccd);
    value ^= value >> 29;
    return value ? value : 1;
}

/* The cell that each token must have: a hash of all up to it. */
static uint64_t *ideal_cells(uint32_t root, uint32_t layer, const int32_t *tokens, size_t n)
{
    uint64_t *cells = get_memory(n * sizeof(*cells));
    uint64_t value = next_cell(next_cell(cattn_roots_at(&cache->tree.roots, root)->id, 77), layer);
    for (size_t i = 0; i < n; i++)
        cells[i] = value = next_cell(value, (uint32_t)tokens[i]);
    return cells;
}

static void check_path(uint32_t root, const uint32_t *slots, const int32_t *tokens, size_t n)
{
    size_t c = cache->tree.chunk_tokens;
    for (uint32_t layer = 0; layer < cache->shape.n_layers; layer++) {
        uint64_t *ideal = ideal_cells(root, layer, tokens, n);
        for (size_t first = 0; first < n; first += c) {
            size_t rest = n - first < c ? n - first : c;
            require(!memcmp(cells_of(cache->store, layer, slots[first / c]), ideal + first, rest * sizeof(*ideal)),
                    "wrong cells");
        }
        free(ideal);
    }
}

static void check_sequences(void)
{
    for (uint32_t i = 0; i < cache->sequences.n; i++) {
        const struct cattn_sequence *sequence = cache->sequences.handles[i].sequence;
        if (!sequence)
            continue;
        uint32_t *slots = get_memory((sequence->n_chunks + 1) * sizeof(*slots));
        memcpy(slots, sequence->chunks, sequence->n_chunks * sizeof(*slots));
        slots[sequence->n_chunks] = sequence->tail;
        check_path(sequence->root, slots, sequence->tokens, sequence->n_tokens);
        free(slots);
    }
}

static void check_published(void)
{
    const struct cattn_tree *tree = &cache->tree;
    uint32_t *slots = get_memory(tree->n_slots * sizeof(*slots));
    int32_t *tokens = get_memory((size_t)tree->n_slots * tree->chunk_tokens * sizeof(*tokens));
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        if (tree->slots[slot].root == CATTN_NONE || !tree->slots[slot].published)
            continue;
        size_t depth = 0, k;
        for (uint32_t x = slot; x != CATTN_NONE; x = tree->slots[x].parent)
            depth++;
        k = depth;
        for (uint32_t x = slot; x != CATTN_NONE; x = tree->slots[x].parent) {
            slots[--k] = x;
            memcpy(tokens + k * tree->chunk_tokens, cattn_tree_tokens(tree, x), tree->chunk_tokens * sizeof(*tokens));
        }
        check_path(tree->slots[slot].root, slots, tokens, depth * tree->chunk_tokens);
    }
    free(slots);
    free(tokens);
}

/* Nobody but the writer may look at what a step writes. */
static void check_writers(void)
{
    for (size_t i = 0; cache->open_step && i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        for (size_t k = 0; k < plan->n_pieces; k++) {
            const struct cattn_piece *piece = &step->pieces[plan->first_piece + k];
            const struct cattn_slot *x = &cache->tree.slots[piece->slot];
            require(x->writer == plan->handle && !x->published, "write into a foreign slot");
            for (uint32_t n = 0; n < cache->sequences.n; n++) {
                const struct cattn_sequence *other = cache->sequences.handles[n].sequence;
                if (other && other != plan->sequence && other->tail == piece->slot)
                    require(!other->owns && other->t <= piece->start, "write under a borrower");
            }
        }
    }
}

/* ---- the state, in words and in full */

static void append(char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + strlen(text), sizeof(result) - strlen(text), format, arguments);
    va_end(arguments);
}

/* Slots are numbered as they appear in the line. */
static uint32_t canonical(uint32_t *numbers, uint32_t *n, uint32_t slot)
{
    if (!numbers[slot])
        numbers[slot] = ++*n;
    return numbers[slot] - 1;
}

static void append_state(char *text)
{
    uint32_t *numbers = get_memory(cache->tree.n_slots * sizeof(*numbers)), n = 0;
    append(text, " | used=%u free=%u evictable=%u |", cattn_tree_used(&cache->tree), cache->tree.n_free,
           cache->tree.n_evictable);
    for (size_t i = 0; i < n_labels; i++) {
        const struct cattn_sequence *sequence = cattn_sequence_find(cache, labels[i].handle);
        if (!sequence)
            continue;
        append(text, " %s=", labels[i].name);
        for (size_t k = 0; k < sequence->n_chunks; k++)
            append(text, k ? ",%u" : "%u", canonical(numbers, &n, sequence->chunks[k]));
        if (sequence->tail != CATTN_NONE)
            append(text, "%s%u/%s:%u", sequence->n_chunks ? "," : "", canonical(numbers, &n, sequence->tail),
                   sequence->owns ? "own" : "borrow", sequence->t);
        else if (!sequence->n_chunks)
            append(text, "-");
    }
    free(numbers);
}

static uint64_t mix_in(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t mix_number(uint64_t hash, uint64_t number)
{
    return mix_in(hash, &number, sizeof(number));
}

/* A number for all that a call that fails must leave as it is, list order included. */
static uint64_t fingerprint(void)
{
    const struct cattn_tree *tree = &cache->tree;
    uint64_t hash = mix_number(mix_number(1, cache->hits), cache->misses);
    hash = mix_number(mix_number(hash, tree->stored_tokens), tree->evictions);
    hash = mix_number(mix_number(hash, tree->n_pins), tree->n_pinned);
    hash = mix_number(hash, tree->peak_used);
    hash = mix_in(hash, cache->opens, sizeof(cache->opens));
    hash = mix_in(hash, cache->unfound, sizeof(cache->unfound));
    hash = mix_in(hash, tree->ghosts.hashes, (tree->ghosts.mask + 1) * sizeof(*tree->ghosts.hashes));
    for (uint32_t i = 0; i < tree->n_touched; i++) {
        const struct cattn_slot *x = &tree->slots[i];
        uint64_t all[] = {x->refs, x->writer, x->root, x->parent, x->children,
                          x->fill, x->dirty,  x->pins, x->pinned, x->root == CATTN_NONE ? 0 : x->published};
        hash = mix_in(hash, all, sizeof(all));
    }
    for (uint32_t i = tree->oldest; i != CATTN_NONE; i = tree->slots[i].next)
        hash = mix_number(hash, i);
    for (uint32_t i = tree->free; i != CATTN_NONE; i = tree->slots[i].next)
        hash = mix_number(hash, i);
    for (uint32_t i = 0; i < tree->roots.n; i++) {
        const struct cattn_root *x = cattn_roots_at(&tree->roots, i);
        uint64_t all[] = {x->refs,     x->current, x->n_slots, x->n_chunks, x->n_evictable,
                          x->n_pinned, x->hits,    x->misses,  x->evictions};
        hash = mix_in(hash, all, sizeof(all));
    }
    for (uint32_t i = 0; i < cache->sequences.n; i++) {
        const struct cattn_sequence *x = cache->sequences.handles[i].sequence;
        if (!x)
            continue;
        uint64_t all[] = {x->handle, x->tail,     x->t,        x->owns,     x->in_step,
                          x->closed, x->n_tokens, x->n_chunks, x->uncounted};
        hash = mix_in(hash, all, sizeof(all));
        hash = mix_in(hash, x->chunks, x->n_chunks * sizeof(*x->chunks));
        hash = mix_in(hash, x->tokens, x->n_tokens * sizeof(*x->tokens));
    }
    return mix_number(hash, cache->open_step != NULL);
}

/* ---- calls */

static int call_open(char **words)
{
    struct text text = parse_tokens(words[3]);
    cattn_seq handle;
    size_t n_cached;
    int status = cattn_seq_open(cache, words[1], strlen(words[1]), text.tokens, text.n, &handle, &n_cached);
    free(text.tokens);
    if (status == CATTN_OK) {
        give_label(words[2], handle);
        append(result, " n_cached=%zu", n_cached);
    }
    return status;
}

static int call_fork(char **words)
{
    cattn_seq handle;
    int status = cattn_seq_fork(cache, handle_of(words[1]), &handle);
    if (status == CATTN_OK)
        give_label(words[2], handle);
    return status;
}

static int call_length(char **words)
{
    size_t length;
    int status = cattn_seq_length(cache, handle_of(words[1]), &length);
    if (status == CATTN_OK)
        append(result, " length=%zu", length);
    return status;
}

static int call_tokens(char **words)
{
    size_t length;
    int status = cattn_seq_tokens(cache, handle_of(words[1]), NULL, 0, &length);
    if (status != CATTN_OK)
        return status;
    int32_t *tokens = get_memory(length * sizeof(*tokens));
    status = cattn_seq_tokens(cache, handle_of(words[1]), tokens, length, NULL);
    append(result, " tokens=%s", length ? "" : "-");
    for (size_t i = 0; i < length; i++)
        append(result, i ? ",%d" : "%d", tokens[i]);
    free(tokens);
    return status;
}

static void append_item(const char *label, const struct cattn_item *item)
{
    append(result, " %s:first_row=%u,n_rows=%u,position=%" PRIu64, label, item->first_row, item->n_rows,
           item->position);
}

static int call_begin(char **words)
{
    size_t n = 0;
    while (words[1 + n])
        n++;
    struct cattn_item *items = get_memory(n * sizeof(*items));
    struct text *texts = get_memory(n * sizeof(*texts));
    char(*names)[MAX_LABEL] = get_memory(n * sizeof(*names));
    for (size_t i = 0; i < n; i++) {
        const char *colon = strchr(words[1 + i], ':');
        memcpy(names[i], words[1 + i], (size_t)(colon - words[1 + i]));
        texts[i] = parse_tokens(strchr(colon + 1, ':') + 1);
        items[i] = (struct cattn_item){.seq = handle_of(names[i]),
                                       .tokens = texts[i].tokens,
                                       .n_tokens = (uint32_t)texts[i].n,
                                       .min_rows = (uint32_t)strtoul(colon + 1, NULL, 10)};
    }
    int status = cattn_step_begin(step, items, n);
    for (size_t i = 0; i < n; i++) {
        if (status == CATTN_OK)
            append_item(names[i], &items[i]);
        free(texts[i].tokens); /* read by step_begin only */
    }
    free(items);
    free(texts);
    free(names);
    return status;
}

static void make_ideals(uint32_t layer)
{
    ideals = get_memory(step->n_plans * sizeof(*ideals));
    for (size_t i = 0; i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        ideals[i] =
            ideal_cells(plan->sequence->root, layer, plan->sequence->tokens, plan->sequence->n_tokens + plan->n_tokens);
    }
}

static void free_ideals(void)
{
    for (size_t i = 0; i < step->n_plans; i++)
        free(ideals[i]);
    free(ideals);
}

static int call_write(char **words)
{
    uint32_t layer = (uint32_t)strtoul(words[1], NULL, 10);
    if (!cache->open_step)
        return cattn_step_write(step, layer, &(struct cattn_io){.size = sizeof(struct cattn_io)});
    make_ideals(layer);
    uint64_t *rows = get_memory(cache->work.n_rows * sizeof(*rows));
    for (size_t i = 0; i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        memcpy(rows + plan->first_row, ideals[i] + plan->position, plan->n_rows * sizeof(*rows));
    }
    check_writers();
    struct cattn_io io = {.size = sizeof(io), .k = rows, .v = rows};
    int status = cattn_step_write(step, layer, &io);
    free(rows);
    free_ideals();
    return status;
}

static int call_attend(char **words)
{
    uint32_t layer = (uint32_t)strtoul(words[1], NULL, 10);
    char q, out;
    struct cattn_io io = {.size = sizeof(io), .q = &q, .out = &out};
    if (!cache->open_step)
        return cattn_step_attend(step, layer, &io);
    make_ideals(layer);
    cache->store->ideal = (const uint64_t **)ideals;
    int status = cattn_step_attend(step, layer, &io);
    cache->store->ideal = NULL;
    free_ideals();
    return status;
}

static int call_end(char **words)
{
    (void)words;
    for (uint32_t layer = 0; cache->open_step && layer < cache->shape.n_layers; layer++) {
        char number[16], *arguments[] = {NULL, number};
        snprintf(number, sizeof(number), "%u", layer);
        if (call_write(arguments) || call_attend(arguments))
            return CATTN_EINVAL;
    }
    return cattn_step_end(step);
}

static int call_stats(void)
{
    struct cattn_stats stats = {.size = sizeof(stats)};
    int status = cattn_cache_stats(cache, &stats);
    append(result, " hits=%" PRIu64 " misses=%" PRIu64, stats.hits, stats.misses);
    return status;
}

static int call_pin(char **words,
                    int (*pin)(cattn_cache *, const void *, size_t, const int32_t *, size_t, const struct cattn_ext *))
{
    struct text text = parse_tokens(words[2]);
    int status = pin(cache, words[1], strlen(words[1]), text.tokens, text.n, NULL);
    free(text.tokens);
    return status;
}

static int call(char **words)
{
    const char *name = words[0];
    if (!strcmp(name, "open"))
        return call_open(words);
    if (!strcmp(name, "fork"))
        return call_fork(words);
    if (!strcmp(name, "truncate"))
        return cattn_seq_truncate(cache, handle_of(words[1]), strtoul(words[2], NULL, 10));
    if (!strcmp(name, "close"))
        return cattn_seq_close(cache, handle_of(words[1]));
    if (!strcmp(name, "length"))
        return call_length(words);
    if (!strcmp(name, "tokens"))
        return call_tokens(words);
    if (!strcmp(name, "begin"))
        return call_begin(words);
    if (!strcmp(name, "write"))
        return call_write(words);
    if (!strcmp(name, "attend"))
        return call_attend(words);
    if (!strcmp(name, "end"))
        return call_end(words);
    if (!strcmp(name, "end_now"))
        return cattn_step_end(step);
    if (!strcmp(name, "abort"))
        return cattn_step_abort(step);
    if (!strcmp(name, "pin"))
        return call_pin(words, cattn_prefix_pin);
    if (!strcmp(name, "unpin"))
        return call_pin(words, cattn_prefix_unpin);
    if (!strcmp(name, "stats"))
        return call_stats();
    if (!strcmp(name, "invalidate"))
        return cattn_namespace_invalidate(cache, words[1], strlen(words[1]));
    if (!strcmp(name, "evict"))
        return cattn_cache_evict(cache, strtoul(words[1], NULL, 10), NULL);
    require(!strcmp(name, "selfcheck"), "unknown command");
    return CATTN_OK;
}

static const char *status_name(int status)
{
    static const char *const names[] = {"OK",     "EINVAL",    "ENOMEM",  "EFULL", "ETOOBIG", "EBUSY",
                                        "ESTATE", "ENOTFOUND", "ENOTSUP", "EIO",   "EFORMAT"};
    return names[-status];
}

static void check(void)
{
    require(cattn_cache_selfcheck(cache) == CATTN_OK, "selfcheck");
    require(!cache->store->fault, cache->store->fault);
    check_sequences();
    check_published();
}

/* One call after which everything is checked. */
static int checked_call(char **words, size_t fail_at)
{
    uint64_t before = fingerprint();
    result[0] = 0;
    failing_memory_set(fail_at);
    int status = call(words);
    bool hit = failing_memory_hit();
    failing_memory_set(0);
    check();
    if (status != CATTN_OK)
        require(fingerprint() == before, "a failed call changed something");
    require((status == CATTN_ENOMEM) == hit, "a failed allocation and CATTN_ENOMEM do not go together");
    return status;
}

static void run(char **words)
{
    int status = CATTN_ENOMEM;
    for (size_t fail_at = 1; fail && status == CATTN_ENOMEM; fail_at++)
        status = checked_call(words, fail_at);
    if (!fail)
        status = checked_call(words, 0);
    for (char **word = words; *word; word++)
        printf(word == words ? "%s" : " %s", *word);
    printf(" -> %s%s", status_name(status), result);
    result[0] = 0;
    append_state(result);
    printf("%s\n", result);
}

static void make_cache(char **words)
{
    struct cattn_shape shape = cells_shape((uint32_t)strtoul(words[1], NULL, 10), (uint32_t)strtoul(words[2], NULL, 10),
                                           (uint32_t)strtoul(words[4], NULL, 10));
    bool no_retain = words[5] && !strcmp(words[5], "no_retain");
    cattn_cache_destroy(cache);
    n_labels = 0;
    int status = CATTN_ENOMEM;
    for (size_t fail_at = fail; status == CATTN_ENOMEM; fail_at++) {
        failing_memory_set(fail_at);
        status = cattn_cache_make(&shape, &cells_backend, NULL, no_retain ? CATTN_NO_RETAIN : 0, &cache);
    }
    require(status == CATTN_OK, "no cache");
    status = CATTN_ENOMEM;
    for (size_t fail_at = fail; status == CATTN_ENOMEM; fail_at++) {
        failing_memory_set(fail_at);
        status = cattn_step_create(cache, &step);
    }
    require(status == CATTN_OK, "no step");
    failing_memory_set(0);
    cache->store->granule = (uint32_t)strtoul(words[3], NULL, 10);
    cache->tree.constant_hash = constant_hash;
}

int main(int argc, char **argv)
{
    static char copy[sizeof(line)], *words[MAX_WORDS + 1];
    for (; argc > 2; argc--, argv++) {
        constant_hash |= !strcmp(argv[1], "--constant-hash");
        fail |= !strcmp(argv[1], "--fail");
    }
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!file) {
        fprintf(stderr, "usage: script [--constant-hash] [--fail] FILE\n");
        return 2;
    }
    while (fgets(line, sizeof(line), file)) {
        size_t n = 0;
        line[strcspn(line, "#\n")] = 0;
        strcpy(copy, line);
        for (char *word = strtok(copy, " \t\r"); word && n < MAX_WORDS; word = strtok(NULL, " \t\r"))
            words[n++] = word;
        words[n] = NULL;
        if (n && !strcmp(words[0], "cache"))
            make_cache(words);
        else if (n)
            run(words);
    }
    fclose(file);
    cattn_cache_destroy(cache);
    require(!failing_memory_live(), "memory was not given back");
    return 0;
}
