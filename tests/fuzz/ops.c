/* Scripts of calls on the library and on a naive model: each input is one.  Any bytes are a script.
 *
 * The backend is the one without floats: what it stores for a token is a number made from all tokens up to it, so that
 * whoever attends to a wrong one is found out.  selfcheck after every call, and every 1,000 calls where the pool has
 * more than 64 slots. */
#include "naive.h"

#include "fuzz.h"
#include "lib/cells.h"
#include "lib/failing_memory.h"

#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 8, MAX_LAYERS = 2, MAX_EVENTS = 2048, MAX_CHUNK = 16, SMALL = 64, SELDOM = 1000, MAX_OPS = 1200 };

const char *const fuzz_name = "ops";
const int fuzz_needs_corpus = 0;

struct event {
    unsigned kind;
    uint64_t hash, parent;
    size_t n_tokens;
    int ns;
    int32_t tokens[MAX_CHUNK];
};

static struct naive naive;
static cattn_cache *cache;
static cattn_step *steps[2];
static cattn_step *open_step;                   /* or NULL */
static struct naive_sequence *items[MAX_ITEMS]; /* of the open step */
static struct cattn_item given[MAX_ITEMS];
static size_t n_items;
static bool written[MAX_LAYERS];
static uint32_t n_layers;
static cattn_seq stale[16], foreign[4];
static size_t n_stale, n_foreign;
static struct event events[MAX_EVENTS];
static size_t n_events;
static uint64_t n_calls;

/* ---- the input */

static const uint8_t *input, *input_end;

static unsigned byte(void)
{
    return input < input_end ? *input++ : 0;
}

static unsigned below(unsigned n)
{
    return byte() % n;
}

/* Texts that have much in common: a document is long runs of few tokens, and what follows it depends on a byte.  In one
 * of them runs have extra identities, in another tokens are large. */
static void write_text(int32_t *tokens, size_t begin, size_t end, unsigned document)
{
    for (size_t i = begin; i < end; i++) {
        uint32_t x = (uint32_t)(document * 2654435761u + i / 5 * 40503u);
        tokens[i] = document < 2 ? (int32_t)document : (int32_t)(x >> 13 & 1);
        if (document == 3 && x >> 14 & 1)
            tokens[i] += INT32_MIN + (int32_t)(x >> 15 & 24);
        else if (document == 5)
            tokens[i] += INT32_MAX - 7;
    }
}

/* What the library is given of tokens. */
struct gift {
    int32_t tokens[NAIVE_TOKENS];
    struct cattn_extra extras[NAIVE_TOKENS];
    struct cattn_ext ext;
};

/* Ranges are of one token, or as long as they can be. */
static void wrap(struct gift *gift, const int32_t *tokens, size_t n)
{
    gift->ext = (struct cattn_ext){.size = sizeof(gift->ext), .extras = gift->extras};
    for (size_t i = 0; i < n; i++) {
        size_t length, before = 0;
        const char *id = naive_id(tokens[i], &length);
        gift->tokens[i] = naive_token(tokens[i]);
        if (!id)
            continue;
        if (i && n % 2 && naive_id(tokens[i - 1], &before) == id)
            gift->extras[gift->ext.n_extras - 1].n++;
        else
            gift->extras[gift->ext.n_extras++] = (struct cattn_extra){i, 1, id, length};
    }
}

static bool is_id(const struct cattn_extra *extra, int32_t token)
{
    size_t length;
    const char *id = naive_id(token, &length);
    return length == extra->id_len && !memcmp(id, extra->id, length);
}

/* And the way back. */
static void unwrap(int32_t *tokens, const struct cattn_event *event)
{
    memcpy(tokens, event->tokens, event->n_tokens * sizeof(*tokens));
    for (size_t i = 0; i < event->n_extras; i++) {
        const struct cattn_extra *x = &event->extras[i];
        for (uint64_t k = x->first; k < x->first + x->n; k++) {
            int32_t tag = 0;
            while (tag < 32 && !is_id(x, INT32_MIN + tag))
                tag += 8;
            FUZZ_CHECK(tag < 32 && k < event->n_tokens && tokens[k] >= 0 && tokens[k] < 8, "an event's extras");
            tokens[k] += INT32_MIN + tag;
        }
    }
}

static size_t some_text(int32_t *tokens)
{
    unsigned document = below(6), how = byte();
    size_t n = byte() % (naive.c * 8 + 1);
    if (how & 1)
        n = n / naive.c * naive.c;
    if (how & 2)
        n += (how >> 4) % 3;
    write_text(tokens, 0, n, document);
    if (n && (how & 12) == 12)
        tokens[byte() % n] ^= 1 + (int32_t)(how >> 6);
    return n;
}

/* ---- events */

static void on_event(void *context, const struct cattn_event *event)
{
    (void)context;
    size_t length;
    FUZZ_CHECK(n_events < MAX_EVENTS, "too many events");
    struct event *x = &events[n_events++];
    *x = (struct event){
        .kind = event->kind, .hash = event->hash, .parent = event->parent, .n_tokens = event->n_tokens, .ns = -1};
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++) {
        const char *name = naive_name(ns, &length);
        if (length == event->ns_len && (!length || !memcmp(name, event->ns, length)))
            x->ns = (int)ns;
    }
    FUZZ_CHECK(event->size == sizeof(*event) && x->ns >= 0, "an event's size or namespace is wrong");
    FUZZ_CHECK(x->n_tokens == (event->kind == CATTN_EVENT_CLEARED ? 0 : naive.c), "an event's number of tokens");
    if (x->n_tokens)
        unwrap(x->tokens, event);
}

static uint64_t parent_hash(int ns, const int32_t *tokens, size_t n)
{
    return n > naive.c ? naive_hash((unsigned)ns, tokens, n - naive.c) : 0;
}

/* A chunk of an item, below a cached one, and not cached yet. */
static void apply_published(const struct event *event)
{
    for (size_t i = 0; i < n_items; i++) {
        const struct naive_sequence *x = items[i];
        if (naive_current(&naive, x->space) != event->ns)
            continue;
        for (size_t n = naive.c; n <= x->n; n += naive.c) {
            if (naive_hash((unsigned)event->ns, x->tokens, n) != event->hash)
                continue;
            FUZZ_CHECK(!memcmp(x->tokens + n - naive.c, event->tokens, naive.c * sizeof(int32_t)), "event: tokens");
            FUZZ_CHECK(event->parent == parent_hash(event->ns, x->tokens, n), "event: parent");
            FUZZ_CHECK(!naive_find(&naive, x->space, x->tokens, n), "what is cached was published again");
            FUZZ_CHECK(n == naive.c || naive_find(&naive, x->space, x->tokens, n - naive.c),
                       "published before its parent");
            naive_add(&naive, x->space, x->tokens, n);
            return;
        }
    }
    fuzz_fault("published what no item has");
}

static void apply_removed(const struct event *event)
{
    for (size_t i = 0; i < naive.n_chunks; i++) {
        struct naive_chunk *x = &naive.chunks[i];
        if (x->hash != event->hash || naive_current(&naive, x->space) != event->ns)
            continue;
        FUZZ_CHECK(!memcmp(x->tokens + x->n - naive.c, event->tokens, naive.c * sizeof(int32_t)), "event: tokens");
        FUZZ_CHECK(event->parent == parent_hash(event->ns, x->tokens, x->n), "event: parent");
        FUZZ_CHECK(!naive_held(&naive, x->space, x->tokens, x->n, true), "removed what is held");
        FUZZ_CHECK(!naive_goes_on(&naive, x->space, x->tokens, x->n), "removed before what lies below");
        naive_remove(&naive, x);
        return;
    }
    fuzz_fault("removed what was not cached");
}

static size_t count_events(unsigned kind)
{
    size_t n = 0;
    for (size_t i = 0; i < n_events; i++)
        n += events[i].kind == kind;
    return n;
}

static void only_events(unsigned kinds)
{
    for (size_t i = 0; i < n_events; i++)
        FUZZ_CHECK(events[i].kind <= 3 && kinds >> events[i].kind & 1, "an event that this call cannot cause");
}

static void apply_all(unsigned kind)
{
    for (size_t i = 0; i < n_events; i++) {
        if (events[i].kind != kind)
            continue;
        if (kind == CATTN_EVENT_PUBLISHED)
            apply_published(&events[i]);
        else
            apply_removed(&events[i]);
    }
}

static void count_eviction(const struct event *event)
{
    naive.spaces[event->ns].evictions++;
    naive.evictions++;
}

/* What is evicted is counted under its namespace. */
static size_t apply_evictions(void)
{
    size_t n = count_events(CATTN_EVENT_REMOVED);
    only_events(1u << CATTN_EVENT_REMOVED);
    apply_all(CATTN_EVENT_REMOVED);
    for (size_t i = 0; i < n_events; i++)
        count_eviction(&events[i]);
    return n;
}

static bool is_over(const struct event *event)
{
    for (size_t i = 0; i < naive.n_chunks; i++) {
        const struct naive_chunk *x = &naive.chunks[i];
        if (x->hash == event->hash && naive_current(&naive, x->space) == event->ns)
            return x->over;
    }
    return false;
}

/* With retention chunks go with their last holder if their time is over, and are evicted so; and one may be reopened:
 * that with the hash, if it is not 0.  Without retention all go. */
static void apply_removals(uint64_t reopened)
{
    for (size_t i = 0; naive.retain && i < n_events; i++) {
        const struct event *event = &events[i];
        if (event->kind != CATTN_EVENT_REMOVED)
            continue;
        if (reopened && event->hash == reopened) {
            reopened = 0;
        } else {
            FUZZ_CHECK(is_over(event), "a chunk that is retained was removed");
            count_eviction(event);
        }
    }
    apply_all(CATTN_EVENT_REMOVED);
}

/* ---- what can be observed */

static struct cattn_stats get_stats(void)
{
    struct cattn_stats stats = {.size = sizeof(stats)};
    FUZZ_CHECK(cattn_cache_stats(cache, &stats) == CATTN_OK, "no stats");
    return stats;
}

static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static int mix_text(void *context, const char *text, size_t n)
{
    uint64_t *hash = context;
    *hash = mix(*hash, text, n);
    return 0;
}

/* A number for all that can be seen from outside. */
static uint64_t fingerprint(void)
{
    struct cattn_stats stats = get_stats();
    uint64_t hash = mix(1, &stats, sizeof(stats));
    FUZZ_CHECK(cattn_cache_dump_dot(cache, mix_text, &hash) == CATTN_OK, "no drawing");
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        const struct naive_sequence *x = &naive.sequences[i];
        struct cattn_why why = {.size = sizeof(why)};
        int32_t tokens[NAIVE_TOKENS];
        size_t n = 0;
        if (!x->used || x->closed)
            continue;
        FUZZ_CHECK(!cattn_seq_tokens(cache, x->handle, tokens, NAIVE_TOKENS, &n), "no tokens");
        FUZZ_CHECK(!cattn_seq_why(cache, x->handle, &why), "no reason");
        hash = mix(mix(hash, tokens, n * sizeof(*tokens)), &why, sizeof(why));
    }
    return hash;
}

static void check_sequence(const struct naive_sequence *x)
{
    struct cattn_why why = {.size = sizeof(why)};
    int32_t tokens[NAIVE_TOKENS];
    size_t length, n;
    FUZZ_CHECK(!cattn_seq_length(cache, x->handle, &length) && length == x->n, "the length is wrong");
    FUZZ_CHECK(!cattn_seq_tokens(cache, x->handle, tokens, NAIVE_TOKENS, &n) && n == x->n, "another length");
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(tokens[i] == naive_token(x->tokens[i]), "the tokens are wrong");
    FUZZ_CHECK(!cattn_seq_why(cache, x->handle, &why), "no reason");
    FUZZ_CHECK(why.reason < CATTN_N_WHY && x->reasons >> why.reason & 1, "the reason is %u of %x", why.reason,
               x->reasons);
    FUZZ_CHECK(why.n_prompt == x->n_prompt && why.n_cached == x->n_cached, "why: what open found");
    FUZZ_CHECK(!x->counts_known || (why.hits == x->hits && why.misses == x->misses), "why: hits and misses");
}

static void count_sequences(uint32_t space, uint64_t *n, uint64_t *tokens)
{
    *n = *tokens = 0;
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        const struct naive_sequence *x = &naive.sequences[i];
        if (x->used && !x->closed && (!space || x->space == space)) {
            ++*n;
            *tokens += x->n;
        }
    }
}

/* Cached chunks in current spaces that nobody holds. */
static size_t count_unheld(uint32_t space)
{
    size_t n = 0;
    for (size_t i = 0; i < naive.n_chunks; i++) {
        const struct naive_chunk *x = &naive.chunks[i];
        if (naive_current(&naive, x->space) >= 0 && (!space || x->space == space))
            n += !naive_held(&naive, x->space, x->tokens, x->n, true);
    }
    return n;
}

static void check_namespace(unsigned ns, bool exact)
{
    const struct naive_space *space = &naive.spaces[ns];
    struct cattn_usage usage = {.size = sizeof(usage)};
    size_t length;
    uint64_t n, tokens;
    const char *name = naive_name(ns, &length);
    int status = cattn_namespace_stats(cache, name, length, &usage);
    count_sequences(space->id, &n, &tokens);
    if (status == CATTN_ENOTFOUND) {
        FUZZ_CHECK(!n && !naive_has_chunks(&naive, space->id) && !naive_has_settings(&naive, ns),
                   "the namespace is not found");
        return;
    }
    FUZZ_CHECK(status == CATTN_OK &&
                   (n || naive_has_chunks(&naive, space->id) || open_step || naive_has_settings(&naive, ns)),
               "a namespace of nothing");
    FUZZ_CHECK(usage.reserve_slots == naive.settings[ns].reserve && usage.limit_slots == naive.settings[ns].limit,
               "the namespace's settings");
    FUZZ_CHECK(usage.n_sequences == n, "the namespace has %d sequences, not %d", (int)usage.n_sequences, (int)n);
    FUZZ_CHECK(usage.hits == space->hits && usage.misses == space->misses, "the namespace's hits and misses");
    FUZZ_CHECK(usage.evictions == space->evictions, "the namespace's evictions");
    FUZZ_CHECK(usage.pinned_slots == naive_pinned(&naive, (int)space->id), "the namespace's pinned slots");
    if (exact)
        FUZZ_CHECK(usage.evictable_slots <= count_unheld(space->id) &&
                       usage.evictable_slots + n >= (naive.retain ? count_unheld(space->id) : 0),
                   "the namespace's evictable slots");
}

static void check_stats(void)
{
    struct cattn_stats stats = get_stats();
    uint64_t n, tokens, n_pins = 0;
    count_sequences(0, &n, &tokens);
    for (size_t i = 0; i < naive.n_pins; i++)
        n_pins += naive.pins[i].count;
    FUZZ_CHECK(stats.n_sequences == n && stats.sequence_tokens == tokens, "the number of sequences or their tokens");
    FUZZ_CHECK(stats.n_slots == naive.n_slots &&
                   stats.used_slots + stats.free_slots + stats.evictable_slots == stats.n_slots,
               "slots do not add up");
    FUZZ_CHECK(stats.hits == naive.hits, "%d hits, not %d", (int)stats.hits, (int)naive.hits);
    FUZZ_CHECK(stats.misses == naive.misses, "%d misses, not %d", (int)stats.misses, (int)naive.misses);
    FUZZ_CHECK(stats.evictions == naive.evictions, "%d evictions, not %d", (int)stats.evictions, (int)naive.evictions);
    FUZZ_CHECK(stats.n_pins == n_pins && stats.pinned_slots == naive_pinned(&naive, -1), "pins");
    if (!open_step) {
        size_t unheld = count_unheld(0);
        FUZZ_CHECK(stats.evictable_slots <= unheld && stats.evictable_slots + n >= (naive.retain ? unheld : 0),
                   "%d evictable slots, %d chunks that nobody holds", (int)stats.evictable_slots, (int)unheld);
    }
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++)
        check_namespace(ns, !open_step);
}

/* ---- one call */

static unsigned armed; /* the allocation of the next call that fails; 0: none */
static uint64_t before;
static bool compared;

static void before_call(void)
{
    naive_sweep(&naive);
    n_events = 0;
    compared = armed || n_calls % 7 == 0;
    if (compared)
        before = fingerprint();
    failing_memory_set(armed);
}

static int after_call(int status)
{
    bool hit = failing_memory_hit();
    failing_memory_set(0);
    armed = 0;
    fuzz_operations++;
    FUZZ_CHECK(status <= 0 && status >= CATTN_EFORMAT, "status %d", status);
    FUZZ_CHECK(hit == (status == CATTN_ENOMEM), "a failed allocation and CATTN_ENOMEM do not go together");
    if (status) {
        FUZZ_CHECK(!n_events, "a failed call caused events");
        FUZZ_CHECK(!compared || fingerprint() == before, "a failed call changed something (status %d)", status);
    }
    if (naive.n_slots <= SMALL || n_calls % SELDOM == 0)
        FUZZ_CHECK(cattn_cache_selfcheck(cache) == CATTN_OK, "selfcheck");
    FUZZ_CHECK(!cache->store->fault, "cells: %s", cache->store->fault);
    n_calls++;
    return status;
}

#define CALL(call) (before_call(), after_call(call))

/* ---- sequences */

static struct naive_sequence *free_sequence(void)
{
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        if (!naive.sequences[i].used)
            return &naive.sequences[i];
    }
    return NULL;
}

static struct naive_sequence *some_sequence(void)
{
    size_t start = byte();
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        struct naive_sequence *x = &naive.sequences[(start + i) % NAIVE_SEQUENCES];
        if (x->used && !x->closed)
            return x;
    }
    return NULL;
}

static void check_handle(cattn_seq handle)
{
    FUZZ_CHECK(handle != 0, "a handle of 0");
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++)
        FUZZ_CHECK(!naive.sequences[i].used || naive.sequences[i].handle != handle, "a handle was given twice");
    for (size_t i = 0; i < n_stale; i++)
        FUZZ_CHECK(stale[i] != handle, "a stale handle was given again");
}

static struct naive_sequence *open_sequence(const int32_t *tokens, size_t n, unsigned ns)
{
    struct naive_sequence *x = free_sequence();
    uint32_t space = naive.spaces[ns].id;
    cattn_seq handle = 0;
    size_t n_cached = 0, least, most, length;
    const char *name = naive_name(ns, &length);
    struct gift gift;
    wrap(&gift, tokens, n);
    if (!x || CALL(cattn_seq_open_ext(cache, name, length, gift.tokens, n, &gift.ext, &handle, &n_cached)))
        return NULL;
    only_events(0);
    naive_match(&naive, space, tokens, n ? n - 1 : 0, &least, &most);
    FUZZ_CHECK(n_cached >= least && n_cached <= most, "open found %d tokens, not %d to %d", (int)n_cached, (int)least,
               (int)most);
    check_handle(handle);
    *x = (struct naive_sequence){.used = true,
                                 .handle = handle,
                                 .space = space,
                                 .n = n_cached,
                                 .uncounted = n_cached,
                                 .counts_known = true,
                                 .n_prompt = n,
                                 .n_cached = n_cached,
                                 .reasons = naive_reasons(&naive, space, tokens, n, n_cached)};
    memcpy(x->tokens, tokens, n_cached * sizeof(*tokens));
    check_sequence(x);
    return x;
}

static void do_open(void)
{
    int32_t tokens[NAIVE_TOKENS];
    size_t n = some_text(tokens);
    open_sequence(tokens, n, below(8) % NAIVE_NAMES);
}

static void do_fork(void)
{
    struct naive_sequence *from = some_sequence(), *x = free_sequence();
    cattn_seq handle = 0;
    if (!from || !x)
        return;
    int status = CALL(cattn_seq_fork(cache, from->handle, &handle));
    if (status != CATTN_ENOMEM)
        FUZZ_CHECK(status == (from->in_step ? CATTN_EBUSY : CATTN_OK), "fork: status %d", status);
    if (status)
        return;
    only_events(0);
    check_handle(handle);
    *x = *from;
    x->handle = handle;
    x->uncounted = 0;
    x->hits = x->misses = 0;
    x->counts_known = true;
    check_sequence(x);
}

static void forget(struct naive_sequence *x)
{
    x->used = x->in_step = x->closed = false;
}

static void make_stale(cattn_seq handle)
{
    size_t max = sizeof(stale) / sizeof(*stale);
    if (n_stale == max)
        memmove(stale, stale + 1, --n_stale * sizeof(*stale));
    stale[n_stale++] = handle;
}

static void close_sequence(struct naive_sequence *x)
{
    if (CALL(cattn_seq_close(cache, x->handle)))
        fuzz_fault("close failed");
    make_stale(x->handle);
    if (x->in_step)
        x->closed = true;
    else
        forget(x);
    only_events(1u << CATTN_EVENT_REMOVED);
    apply_removals(0);
}

static void do_close(void)
{
    struct naive_sequence *x = some_sequence();
    if (x)
        close_sequence(x);
}

static void do_truncate(void)
{
    struct naive_sequence *x = some_sequence();
    unsigned how = byte();
    if (!x)
        return;
    size_t old = x->n, n = how % (old + 1);
    if (how >= 240)
        n = old + how % 3;
    else if (how >= 180)
        n = old > how % 4 ? old - how % 4 : 0;
    int status = CALL(cattn_seq_truncate(cache, x->handle, n));
    FUZZ_CHECK(status == (x->in_step ? CATTN_EBUSY : n > old ? CATTN_EINVAL : CATTN_OK), "truncate: status %d", status);
    if (status)
        return;
    x->n = n;
    if (x->uncounted > n)
        x->uncounted = n;
    /* the one that is reopened is the one that is cut */
    size_t cut = (n / naive.c + 1) * naive.c;
    int ns = naive_current(&naive, x->space);
    only_events(1u << CATTN_EVENT_REMOVED);
    apply_removals(ns >= 0 && n % naive.c && cut <= old ? naive_hash((unsigned)ns, x->tokens, cut) : 0);
    check_sequence(x);
}

/* ---- steps */

static bool exists(uint32_t space, const int32_t *tokens, size_t n, size_t item, bool most)
{
    if (naive_cached(&naive, space, tokens, n, most))
        return true;
    for (size_t i = 0; i < item; i++) {
        const struct naive_sequence *x = items[i];
        if (x->space == space && x->n_after >= n && !memcmp(x->tokens, tokens, n * sizeof(*tokens)))
            return true;
    }
    return false;
}

/* Tokens of an item that need not be computed, from its first on. */
static size_t known_tokens(size_t item, bool most)
{
    const struct naive_sequence *x = items[item];
    size_t whole = x->n / naive.c * naive.c;
    while (whole + naive.c <= x->n_after && exists(x->space, x->tokens, whole + naive.c, item, most))
        whole += naive.c;
    return whole > x->n ? whole : x->n;
}

/* Slots of the items' paths and tails when the step ends, each once; of one space, or (0) all. */
static size_t slots_after(uint32_t space)
{
    size_t n_slots = 0;
    for (size_t i = 0; i < n_items; i++) {
        const struct naive_sequence *x = items[i];
        if (space && x->space != space)
            continue;
        for (size_t n = naive.c; n <= x->n_after; n += naive.c) {
            bool seen = false;
            for (size_t k = 0; k < i; k++)
                seen |= items[k]->space == x->space && items[k]->n_after >= n &&
                        !memcmp(items[k]->tokens, x->tokens, n * sizeof(int32_t));
            n_slots += !seen;
        }
        n_slots += x->n_after % naive.c > 0;
    }
    return n_slots;
}

/* The slots that must be had: at least, and at most, those of matched chunks that nobody holds included.  Of one space,
 * or (0) all. */
static void slots_wanted(uint32_t space, size_t *least, size_t *most)
{
    *least = *most = 0;
    for (size_t i = 0; i < n_items; i++) {
        const struct naive_sequence *x = items[i];
        if (space && x->space != space)
            continue;
        size_t all = (x->n_after + naive.c - 1) / naive.c;
        size_t fewest = known_tokens(i, false) / naive.c, many = known_tokens(i, true) / naive.c;
        *most += all - fewest;
        *least += all - many - (many == x->n / naive.c && x->n % naive.c);
        for (size_t n = (x->n / naive.c + 1) * naive.c; n <= many * naive.c; n += naive.c)
            *most += !naive_held(&naive, x->space, x->tokens, n, false);
    }
}

static void check_rows(const struct cattn_stats *old)
{
    struct cattn_stats now = get_stats();
    uint64_t sums[2] = {0, 0}, row = 0, n_tokens = 0;
    for (size_t i = 0; i < n_items; i++) {
        struct naive_sequence *x = items[i];
        const struct cattn_item *item = &given[i];
        uint64_t rows[2], wanted = item->min_rows ? item->min_rows : 1;
        for (int k = 0; k < 2; k++) {
            rows[k] = x->n_after - known_tokens(i, k == 0);
            sums[k] += rows[k];
            rows[k] = rows[k] < wanted ? wanted : rows[k];
            rows[k] = rows[k] < item->n_tokens ? rows[k] : item->n_tokens;
        }
        FUZZ_CHECK(item->n_rows >= rows[0] && item->n_rows <= rows[1], "item %d has %d rows, not %d to %d", (int)i,
                   (int)item->n_rows, (int)rows[0], (int)rows[1]);
        FUZZ_CHECK(item->first_row == row, "the first row of item %d", (int)i);
        FUZZ_CHECK(item->position == x->n_after - item->n_rows, "the position of item %d", (int)i);
        row += item->n_rows;
        n_tokens += item->n_tokens + x->uncounted;
        uint64_t missing = x->n_after - known_tokens(i, true);
        int ns = naive_current(&naive, x->space);
        x->counts_known = x->counts_known && ns >= 0;
        x->misses += missing;
        x->hits += item->n_tokens - missing + x->uncounted;
        if (ns >= 0) {
            naive.spaces[ns].misses += missing;
            naive.spaces[ns].hits += item->n_tokens - missing + x->uncounted;
        }
        x->uncounted = 0;
    }
    uint64_t misses = now.misses - old->misses;
    FUZZ_CHECK(misses >= sums[0] && misses <= sums[1], "%d tokens computed, not %d to %d", (int)misses, (int)sums[0],
               (int)sums[1]);
    naive.misses += misses;
    naive.hits += n_tokens - misses;
}

static void wrap_items(void)
{
    static struct gift gifts[MAX_ITEMS];
    for (size_t i = 0; i < n_items; i++) {
        wrap(&gifts[i], items[i]->tokens + items[i]->n, given[i].n_tokens);
        given[i].tokens = gifts[i].tokens;
        given[i].ext = &gifts[i].ext;
    }
}

static uint64_t slots_of(unsigned ns)
{
    struct cattn_usage usage = {.size = sizeof(usage)};
    size_t length;
    const char *name = naive_name(ns, &length);
    return cattn_namespace_stats(cache, name, length, &usage) ? 0 : usage.n_slots;
}

/* Whether the items can never be within the limits: certainly, or (most: true) possibly. */
static bool is_beyond_limits(bool possibly)
{
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++) {
        size_t least, most;
        slots_wanted(naive.spaces[ns].id, &least, &most);
        if (naive.settings[ns].limit && slots_after(naive.spaces[ns].id) > naive.settings[ns].limit &&
            (possibly || least))
            return true;
    }
    return false;
}

/* No namespace came above its limit, and those that have no items are left with their reserves. */
static void check_quotas(const uint64_t *n_before)
{
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++) {
        const struct naive_settings *x = &naive.settings[ns];
        uint64_t n = slots_of(ns), n_over = 0, least = n_before[ns] < x->reserve ? n_before[ns] : x->reserve;
        for (size_t i = 0; i < n_events; i++)
            n_over += events[i].ns == (int)ns && is_over(&events[i]);
        FUZZ_CHECK(!x->limit || n <= x->limit || n <= n_before[ns], "%d slots are above the limit", (int)n);
        FUZZ_CHECK(n + n_over >= least, "%d slots are below the reserve", (int)n);
    }
}

/* Begins a step with the items that are set up. */
static int begin(cattn_step *step)
{
    struct cattn_stats old = get_stats();
    size_t least = 0, most = 0, n_slots = 0;
    bool busy = open_step != NULL, beyond = false, perhaps = false;
    uint64_t n_before[NAIVE_NAMES];
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++)
        n_before[ns] = slots_of(ns);
    if (!busy) {
        n_slots = slots_after(0);
        slots_wanted(0, &least, &most);
        beyond = n_slots > naive.n_slots || is_beyond_limits(false);
        perhaps = beyond || is_beyond_limits(true);
    }
    wrap_items();
    int status = CALL(cattn_step_begin(step, given, n_items));
    if (status == CATTN_ENOMEM)
        return status;
    FUZZ_CHECK((status == CATTN_ESTATE) == busy, "begin: status %d", status);
    if (busy)
        return status;
    FUZZ_CHECK(status == CATTN_ETOOBIG ? perhaps : !beyond, "begin: status %d, %d slots of %d", status, (int)n_slots,
               (int)naive.n_slots);
    if (status == CATTN_EFULL && !naive_has_quotas(&naive))
        FUZZ_CHECK(most > old.free_slots + old.evictable_slots, "full, but %d slots are wanted", (int)most);
    if (status)
        return status;
    FUZZ_CHECK(least <= old.free_slots + old.evictable_slots, "more slots than there are");
    check_rows(&old);
    for (size_t i = 0; i < n_items; i++)
        items[i]->in_step = true;
    open_step = step;
    memset(written, 0, sizeof(written));
    check_quotas(n_before);
    apply_evictions();
    return status;
}

/* An item of n tokens more; nothing happens if it has no room or is there already. */
static void add_item(struct naive_sequence *x, size_t n, unsigned document, unsigned min_rows)
{
    for (size_t i = 0; i < n_items; i++) {
        if (items[i] == x)
            return;
    }
    if (!x || !n || n_items == MAX_ITEMS || x->in_step || x->n + n > NAIVE_TOKENS)
        return;
    x->n_after = x->n + n;
    write_text(x->tokens, x->n, x->n_after, document);
    given[n_items] = (struct cattn_item){.seq = x->handle, .n_tokens = (uint32_t)n, .min_rows = min_rows};
    items[n_items++] = x;
}

static void do_begin(void)
{
    static const unsigned min_rows[] = {0, 0, 1, 2, 1000};
    cattn_step *step = steps[below(8) == 7];
    if (open_step) {
        if (step)
            FUZZ_CHECK(CALL(cattn_step_begin(step, NULL, 0)) == CATTN_ESTATE, "begin while a step is open");
        return;
    }
    n_items = 0;
    for (unsigned n = below(MAX_ITEMS); n; n--) {
        struct naive_sequence *x = some_sequence();
        unsigned how = byte(), document = below(6);
        size_t most = how & 128 ? naive.c * 9 : naive.c + 2;
        add_item(x, (how & 127) % most, document, min_rows[how % 5]);
    }
    if (step)
        begin(step);
}

/* ---- layers: the cell of a token is a hash of the space, of the layer and of all tokens up to it */

static uint64_t cells[MAX_ITEMS][NAIVE_TOKENS];
static const uint64_t *ideal[MAX_ITEMS];

static uint64_t next_cell(uint64_t cell, uint64_t token)
{
    cell = (cell ^ (token + 1)) * UINT64_C(0xff51afd7ed558ccd);
    cell ^= cell >> 29;
    return cell ? cell : 1;
}

static void make_cells(uint32_t layer, uint64_t *rows)
{
    for (size_t i = 0; i < n_items; i++) {
        const struct naive_sequence *x = items[i];
        uint64_t cell = next_cell(next_cell(7, x->space), layer);
        for (size_t k = 0; k < x->n_after; k++)
            cells[i][k] = cell = next_cell(cell, (uint32_t)x->tokens[k]);
        ideal[i] = cells[i];
        memcpy(rows + given[i].first_row, cells[i] + given[i].position, given[i].n_rows * sizeof(*rows));
    }
}

typedef int part_call(cattn_step *, uint32_t, const struct cattn_io *, uint32_t, uint32_t);

static int all_parts(part_call *call, cattn_step *step, uint32_t layer, const struct cattn_io *io, uint32_t n)
{
    int status = CATTN_OK;
    uint32_t first = byte() % n;
    for (uint32_t i = 0; !status && i < n; i++)
        status = call(step, layer, io, (first + i) % n, n);
    return status;
}

/* Writes or attends a layer of the open step; n_parts 0: the whole-layer call. */
static void work_layer(uint32_t layer, bool attend, bool with_kv, uint32_t n_parts)
{
    static uint64_t rows[MAX_ITEMS * NAIVE_TOKENS], q, out;
    cattn_step *step = open_step ? open_step : steps[0];
    struct cattn_io io = {.size = sizeof(io), .q = &q, .out = &out};
    if (!step)
        return;
    if (open_step)
        make_cells(layer, rows);
    if (with_kv)
        io.k = io.v = rows;
    cache->store->ideal = open_step ? ideal : NULL;
    int status =
        n_parts  ? CALL(all_parts(attend ? cattn_step_attend_part : cattn_step_write_part, step, layer, &io, n_parts))
        : attend ? CALL(cattn_step_attend(step, layer, &io))
                 : CALL(cattn_step_write(step, layer, &io));
    cache->store->ideal = NULL;
    only_events(0);
    if (!open_step) {
        FUZZ_CHECK(status == CATTN_ESTATE, "no step is open: status %d", status);
    } else if (layer >= n_layers || (!attend && !with_kv && n_items)) {
        FUZZ_CHECK(status == CATTN_EINVAL, "a layer that is not there: status %d", status);
    } else if (attend && !with_kv && !written[layer]) {
        FUZZ_CHECK(status == CATTN_ESTATE, "a layer that is not written: status %d", status);
    } else {
        FUZZ_CHECK(status == CATTN_OK, "a layer: status %d", status);
        written[layer] |= with_kv || !attend;
    }
}

static void do_layer(void)
{
    unsigned how = byte();
    uint32_t layer = how % 4 == 3 ? n_layers : how % n_layers;
    work_layer(layer, how & 16, how & 96, how & 8 ? 1 + byte() % 5 : 0);
}

static void end(void)
{
    cattn_step *step = open_step ? open_step : steps[0];
    bool ready = true;
    for (uint32_t layer = 0; n_items && layer < n_layers; layer++)
        ready = ready && written[layer];
    if (!step)
        return;
    int status = CALL(cattn_step_end(step));
    FUZZ_CHECK(status == (open_step && ready ? CATTN_OK : CATTN_ESTATE), "end: status %d", status);
    if (status)
        return;
    open_step = NULL;
    for (size_t i = 0; i < n_items; i++) {
        items[i]->n = items[i]->n_after;
        items[i]->in_step = false;
    }
    only_events(1u << CATTN_EVENT_PUBLISHED | 1u << CATTN_EVENT_REMOVED);
    apply_all(CATTN_EVENT_PUBLISHED);
    for (size_t i = 0; i < n_items; i++) {
        const struct naive_sequence *x = items[i];
        for (size_t n = naive.c; n <= x->n; n += naive.c) {
            if (naive_find(&naive, x->space, x->tokens, n))
                continue;
            FUZZ_CHECK(naive_current(&naive, x->space) < 0, "a chunk that is full was not published");
            naive_add(&naive, x->space, x->tokens, n);
        }
    }
    for (size_t i = 0; i < n_items; i++) {
        if (items[i]->closed)
            forget(items[i]);
    }
    apply_removals(0);
}

static void do_abort(void)
{
    cattn_step *step = open_step ? open_step : steps[0];
    if (!step)
        return;
    int status = CALL(cattn_step_abort(step));
    FUZZ_CHECK(status == (open_step ? CATTN_OK : CATTN_ESTATE), "abort: status %d", status);
    if (status)
        return;
    open_step = NULL;
    for (size_t i = 0; i < n_items; i++) {
        items[i]->in_step = false;
        if (items[i]->closed)
            forget(items[i]);
    }
    only_events(1u << CATTN_EVENT_REMOVED);
    apply_removals(0);
}

static void finish(void)
{
    for (uint32_t layer = 0; open_step && layer < n_layers; layer++)
        work_layer(layer, true, true, 0);
    if (open_step)
        end();
}

static void do_step_object(void)
{
    unsigned i = below(2);
    if (!steps[i]) {
        int status = CALL(cattn_step_create(cache, &steps[i]));
        FUZZ_CHECK(status == CATTN_OK || status == CATTN_ENOMEM, "step_create: status %d", status);
    } else if (i || below(4) == 0) {
        if (steps[i] == open_step)
            do_abort();
        cattn_step_destroy(steps[i]);
        steps[i] = NULL;
    }
}

/* A whole request: opens, computes what is missing, and perhaps closes. */
static void do_serve(void)
{
    int32_t tokens[NAIVE_TOKENS];
    size_t n = some_text(tokens);
    unsigned how = byte();
    if (open_step)
        finish();
    struct naive_sequence *x = open_sequence(tokens, n, how % NAIVE_NAMES);
    if (!x || !n || !steps[0])
        return;
    n_items = 0;
    size_t rest = n - x->n;
    add_item(x, rest, 0, how >> 5);
    memcpy(x->tokens + x->n, tokens + x->n, rest * sizeof(*tokens));
    if (n_items && begin(steps[0]) == CATTN_OK)
        finish();
    if (how & 16)
        close_sequence(x);
}

/* Attends from each sequence by a step that is taken back. */
static void audit(void)
{
    if (open_step || !steps[0])
        return;
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        n_items = 0;
        if (naive.sequences[i].used)
            add_item(&naive.sequences[i], 1, (unsigned)i % 3, 0);
        if (!n_items || begin(steps[0]))
            continue;
        for (uint32_t layer = 0; layer < n_layers; layer++)
            work_layer(layer, true, true, 0);
        do_abort();
    }
}

/* ---- prefixes and namespaces */

static size_t some_prefix(int32_t *tokens, unsigned *ns)
{
    unsigned how = byte();
    const struct naive_sequence *x = how & 1 ? some_sequence() : NULL;
    *ns = how >> 1 & (NAIVE_NAMES - 1);
    if (!x)
        return some_text(tokens);
    if (naive_current(&naive, x->space) >= 0)
        *ns = (unsigned)naive_current(&naive, x->space);
    memcpy(tokens, x->tokens, x->n * sizeof(*tokens));
    return how & 64 ? x->n : x->n / 2;
}

static void do_pin(void)
{
    int32_t tokens[NAIVE_TOKENS];
    unsigned ns;
    size_t length, n = some_prefix(tokens, &ns), whole = n / naive.c * naive.c;
    uint32_t space = naive.spaces[ns].id;
    const char *name = naive_name(ns, &length);
    struct naive_pin *pin = naive_pin(&naive, space, tokens, whole);
    if (!pin && naive.n_pins == NAIVE_PINS)
        return;
    struct gift gift;
    wrap(&gift, tokens, n);
    int status = CALL(cattn_prefix_pin(cache, name, length, gift.tokens, n, &gift.ext));
    if (status == CATTN_ENOMEM)
        return;
    bool cached = whole && naive_cached(&naive, space, tokens, whole, true);
    FUZZ_CHECK(status == (cached ? CATTN_OK : CATTN_ENOTFOUND), "pin: status %d", status);
    only_events(0);
    if (status)
        return;
    if (!pin) {
        pin = &naive.pins[naive.n_pins++];
        *pin = (struct naive_pin){.space = space, .n = whole};
        memcpy(pin->tokens, tokens, whole * sizeof(*tokens));
    }
    pin->count++;
}

static void do_unpin(void)
{
    int32_t tokens[NAIVE_TOKENS];
    unsigned ns, i = byte();
    size_t length, n;
    struct naive_pin *pin;
    if (i & 1 && naive.n_pins) {
        pin = &naive.pins[i / 2 % naive.n_pins];
        ns = (unsigned)naive_current(&naive, pin->space);
        n = pin->n;
        memcpy(tokens, pin->tokens, n * sizeof(*tokens));
    } else {
        n = some_prefix(tokens, &ns);
        pin = naive_pin(&naive, naive.spaces[ns].id, tokens, n / naive.c * naive.c);
    }
    const char *name = naive_name(ns, &length);
    struct gift gift;
    wrap(&gift, tokens, n);
    int status = CALL(cattn_prefix_unpin(cache, name, length, gift.tokens, n, &gift.ext));
    if (status == CATTN_ENOMEM)
        return;
    FUZZ_CHECK(status == (pin ? CATTN_OK : CATTN_ENOTFOUND), "unpin: status %d", status);
    if (pin && !--pin->count)
        *pin = naive.pins[--naive.n_pins];
    only_events(1u << CATTN_EVENT_REMOVED);
    apply_removals(0);
}

static void do_retain(void)
{
    int32_t tokens[NAIVE_TOKENS];
    unsigned ns, how = byte();
    size_t length, n = some_prefix(tokens, &ns), whole = n / naive.c * naive.c;
    uint32_t space = naive.spaces[ns].id;
    const char *name = naive_name(ns, &length);
    struct cattn_retention retention = {
        .size = sizeof(retention), .priority = (int)(how >> 4 & 3) - 1, .ttl = how & 8 ? 1 + how % 8 : 0};
    bool gives = how < 224, found = whole && naive_cached(&naive, space, tokens, whole, true);
    struct gift gift;
    wrap(&gift, tokens, n);
    int status = CALL(cattn_prefix_retain(cache, name, length, gift.tokens, n, &gift.ext, gives ? &retention : NULL));
    only_events(0);
    if (status == CATTN_ENOMEM)
        return;
    FUZZ_CHECK(status == (found ? CATTN_OK : CATTN_ENOTFOUND), "retain: status %d", status);
    if (!status && gives)
        naive_retain(&naive, space, tokens, whole, retention.ttl ? naive.now + retention.ttl : UINT64_MAX);
    else if (!status)
        naive_forget(&naive, space, tokens, whole);
}

static void do_advance(void)
{
    unsigned how = byte();
    uint64_t now = how == 255 ? naive.now - 1 : naive.now + how % 5;
    int status = CALL(cattn_cache_advance(cache, now));
    FUZZ_CHECK(status == (now < naive.now ? CATTN_EINVAL : CATTN_OK), "advance: status %d", status);
    if (status)
        return;
    naive_advance(&naive, now);
    only_events(1u << CATTN_EVENT_REMOVED);
    apply_removals(0);
    size_t n = 0; /* each may borrow from one */
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++)
        n += naive.sequences[i].used;
    FUZZ_CHECK(naive_count_overdue(&naive) <= n, "chunks whose time is over are there still");
}

static void do_set(void)
{
    unsigned ns = below(NAIVE_NAMES), how = byte();
    uint64_t reserve = how & 1 ? how / 4 % (naive.n_slots + 1) : 0, limit = how & 2 ? 1 + byte() % naive.n_slots : 0;
    uint64_t others = 0;
    size_t length;
    const char *name = naive_name(ns, &length);
    struct cattn_namespace_config config = {.size = sizeof(config), .reserve_slots = reserve, .limit_slots = limit};
    for (unsigned i = 0; i < NAIVE_NAMES; i++)
        others += i == ns ? 0 : naive.settings[i].reserve;
    int status = CALL(cattn_namespace_set(cache, name, length, &config));
    only_events(0);
    if (status == CATTN_ENOMEM)
        return;
    bool bad = (limit && reserve > limit) || others + reserve > naive.n_slots;
    FUZZ_CHECK(status == (bad ? CATTN_EINVAL : CATTN_OK), "namespace_set: status %d", status);
    if (!status)
        naive.settings[ns] = (struct naive_settings){reserve, limit};
}

static void do_invalidate(void)
{
    unsigned ns = below(16);
    size_t length;
    bool cleared;
    if (ns >= NAIVE_NAMES)
        return; /* seldom enough for something to live on */
    const char *name = naive_name(ns, &length);
    int status = CALL(cattn_namespace_invalidate(cache, name, length));
    FUZZ_CHECK(status == CATTN_OK || (status == CATTN_ENOMEM && naive_has_settings(&naive, ns)), "invalidate failed");
    if (status)
        return;
    naive_invalidate(&naive, ns, &cleared);
    only_events(1u << CATTN_EVENT_CLEARED);
    FUZZ_CHECK(n_events == cleared && (!cleared || events[0].ns == (int)ns), "invalidate: %d events", (int)n_events);
}

static void do_evict(void)
{
    unsigned how = byte();
    uint64_t wanted = how == 255 ? UINT64_MAX : how % 8, n_evicted = 0, most = get_stats().evictable_slots;
    FUZZ_CHECK(CALL(cattn_cache_evict(cache, wanted, &n_evicted)) == CATTN_OK, "evict failed");
    FUZZ_CHECK(n_evicted >= (wanted < most ? wanted : most) && n_evicted <= most, "%d slots evicted", (int)n_evicted);
    size_t n_over = 0; /* what lies above an evicted chunk may go with it */
    for (size_t i = 0; i < n_events; i++)
        n_over += is_over(&events[i]);
    FUZZ_CHECK(n_evicted <= wanted || n_evicted - wanted <= n_over, "too many slots evicted");
    FUZZ_CHECK(apply_evictions() == n_evicted, "evictions without events");
}

/* ---- bad handles */

static bool is_live(cattn_seq handle)
{
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        const struct naive_sequence *x = &naive.sequences[i];
        if (x->used && !x->closed && x->handle == handle)
            return true;
    }
    return false;
}

static cattn_seq bad_handle(void)
{
    unsigned how = below(5), i = byte();
    const struct naive_sequence *x;
    if (how == 0)
        return i & 1 ? 0 : UINT64_MAX;
    if (how == 1 && n_stale)
        return stale[i % n_stale];
    if (how == 2 && n_foreign)
        return foreign[i % n_foreign];
    if (how == 3 && (x = some_sequence()))
        return x->handle ^ UINT64_C(1) << i % 64;
    return (uint64_t)i << 32 | byte();
}

static void do_bad_handle(void)
{
    cattn_seq handle = bad_handle(), made;
    struct cattn_why why = {.size = sizeof(why)};
    int32_t token = 1;
    size_t length;
    if (is_live(handle))
        return;
    FUZZ_CHECK(CALL(cattn_seq_fork(cache, handle, &made)) == CATTN_EINVAL, "fork of a bad handle");
    FUZZ_CHECK(CALL(cattn_seq_truncate(cache, handle, 0)) == CATTN_EINVAL, "truncate of a bad handle");
    FUZZ_CHECK(CALL(cattn_seq_close(cache, handle)) == CATTN_EINVAL, "close of a bad handle");
    FUZZ_CHECK(CALL(cattn_seq_length(cache, handle, &length)) == CATTN_EINVAL, "length of a bad handle");
    FUZZ_CHECK(CALL(cattn_seq_tokens(cache, handle, &token, 1, NULL)) == CATTN_EINVAL, "tokens of a bad handle");
    FUZZ_CHECK(CALL(cattn_seq_why(cache, handle, &why)) == CATTN_EINVAL, "why of a bad handle");
    if (open_step || !steps[0])
        return;
    const struct naive_sequence *x = some_sequence();
    struct cattn_item bad[] = {{.seq = x ? x->handle : handle, .tokens = &token, .n_tokens = 1},
                               {.seq = x && byte() & 1 ? x->handle : handle, .tokens = &token, .n_tokens = 1}};
    FUZZ_CHECK(CALL(cattn_step_begin(steps[0], bad, 2)) == CATTN_EINVAL, "begin with a bad handle");
}

/* ---- scripts */

static bool in_order; /* with calls about the order of eviction */

static void do_something(void)
{
    static void (*const all[])(void) = {do_open,  do_open,        do_serve,    do_serve,      do_serve,   do_fork,
                                        do_close, do_close,       do_truncate, do_truncate,   do_begin,   do_begin,
                                        do_begin, do_layer,       finish,      finish,        finish,     end,
                                        do_abort, do_pin,         do_unpin,    do_invalidate, do_evict,   do_bad_handle,
                                        audit,    do_step_object, do_retain,   do_retain,     do_advance, do_set};
    size_t n = sizeof(all) / sizeof(*all) - (in_order ? 0 : 4); /* those about the order are the last */
    unsigned i = byte();
    if (i >= 230)
        armed = 1 + i % 6;
    all[i % n]();
    armed = 0;
    naive_sweep(&naive);
    if (naive.n_slots <= SMALL || n_calls % 16 == 0)
        check_stats();
    const struct naive_sequence *x = some_sequence();
    if (x)
        check_sequence(x);
}

/* Handles of another cache. */
static void make_foreign(cattn_cache *other)
{
    int32_t tokens[] = {1, 2, 3};
    for (n_foreign = 0; n_foreign < sizeof(foreign) / sizeof(*foreign); n_foreign++)
        FUZZ_CHECK(!cattn_seq_open(other, "a", 1, tokens, 3, &foreign[n_foreign], NULL), "no other sequence");
}

static cattn_cache *make_cache(uint32_t n_slots, uint32_t chunk_tokens, unsigned flags)
{
    struct cattn_shape shape = cells_shape(n_slots, chunk_tokens, flags & 2 ? 2 : 1);
    cattn_cache *made;
    uint32_t options =
        (flags & 4 ? CATTN_NO_RETAIN : 0) | (flags & 8 ? CATTN_ZERO_FREED : 0) | (flags & 64 ? CATTN_EVICT_BY_COST : 0);
    FUZZ_CHECK(!cattn_cache_make(&shape, &cells_backend, NULL, options, &made), "no cache");
    made->store->granule = flags & 16 ? 1 : chunk_tokens;
    made->tree.constant_hash = flags & 1;
    return made;
}

static void close_all(void)
{
    if (open_step)
        do_abort();
    audit();
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        if (naive.sequences[i].used)
            close_sequence(&naive.sequences[i]);
    }
    naive_sweep(&naive);
    check_stats();
    FUZZ_CHECK(get_stats().used_slots == naive_pinned(&naive, -1), "slots are used, but nothing holds them");
    FUZZ_CHECK(cattn_cache_selfcheck(cache) == CATTN_OK, "selfcheck at the end");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 4, 5, 8, MAX_CHUNK};
    size_t live = failing_memory_live();
    fuzz_begin();
    input = data;
    input_end = data + size;
    unsigned pool = byte(), chunk = byte(), flags = byte();
    uint32_t n_slots = pool < 200 ? 1 + pool % 40 : 1 + pool * 2, chunk_tokens = sizes[chunk % 8];
    n_layers = flags & 2 ? 2 : 1;
    in_order = flags & 32;
    n_stale = n_calls = n_items = 0;
    armed = 0;
    open_step = NULL;
    naive_init(&naive, n_slots, chunk_tokens, !(flags & 4));
    cache = make_cache(n_slots, chunk_tokens, flags);
    FUZZ_CHECK(!cattn_events_open(&cache->tree.events, n_slots, chunk_tokens, on_event, NULL), "no events");
    cattn_cache *other = make_cache(4, 2, 0);
    make_foreign(other);
    for (int i = 0; i < 2; i++)
        FUZZ_CHECK(!cattn_step_create(cache, &steps[i]), "no step");
    for (int n = 0; input < input_end && n < MAX_OPS; n++)
        do_something();
    close_all();
    cattn_cache_destroy(cache);
    cattn_cache_destroy(other);
    FUZZ_CHECK(failing_memory_live() == live, "memory leaked");
    return 0;
}
