#include "naive.h"

#include "fuzz.h"

#include <string.h>

static const char *const names[NAIVE_NAMES] = {"a", "", "ab", "b"};

void naive_init(struct naive *naive, size_t n_slots, size_t chunk_tokens, bool retain)
{
    naive->c = chunk_tokens;
    naive->n_slots = n_slots;
    naive->retain = retain;
    naive->n_chunks = naive->n_pins = 0;
    naive->hits = naive->misses = naive->evictions = 0;
    naive->last_space = 0;
    naive->now = 0;
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++)
        naive->sequences[i].used = false;
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++)
        naive->spaces[ns] = (struct naive_space){.id = ++naive->last_space};
    memset(naive->settings, 0, sizeof(naive->settings));
}

const char *naive_name(unsigned ns, size_t *length)
{
    *length = strlen(names[ns]);
    return names[ns];
}

int32_t naive_token(int32_t token)
{
    return token < 0 ? token & 7 : token;
}

const char *naive_id(int32_t token, size_t *length)
{
    static const char *const ids[] = {"i", "id", "another", "annotate"};
    const char *id = token < 0 ? ids[token >> 3 & 3] : NULL;
    *length = id ? strlen(id) : 0;
    return id;
}

static uint64_t fnv(uint64_t hash, uint64_t number, unsigned n_bytes)
{
    for (; n_bytes; n_bytes--, number >>= 8)
        hash = (hash ^ (number & 255)) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t naive_hash(unsigned ns, const int32_t *tokens, size_t n)
{
    uint64_t hash = fnv(UINT64_C(0xcbf29ce484222325), strlen(names[ns]), 8);
    for (const char *byte = names[ns]; *byte; byte++)
        hash = fnv(hash, (unsigned char)*byte, 1);
    for (size_t i = 0; i < n; i++) {
        size_t length;
        const char *id = naive_id(tokens[i], &length);
        hash = fnv(hash, (uint32_t)naive_token(tokens[i]) | (id ? 0x80000000u : 0), 4);
        if (id)
            hash = fnv(hash, length, 8);
        for (size_t k = 0; k < length; k++)
            hash = fnv(hash, (unsigned char)id[k], 1);
    }
    return hash ? hash : 1;
}

int naive_current(const struct naive *naive, uint32_t space)
{
    for (int ns = 0; ns < NAIVE_NAMES; ns++) {
        if (naive->spaces[ns].id == space)
            return ns;
    }
    return -1;
}

static bool same(const int32_t *a, const int32_t *b, size_t n)
{
    return n == 0 || !memcmp(a, b, n * sizeof(*a));
}

bool naive_held(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, bool after)
{
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        const struct naive_sequence *x = &naive->sequences[i];
        size_t length = after && x->in_step ? x->n_after : x->n;
        if (x->used && x->space == space && length >= n && same(x->tokens, tokens, n))
            return true;
    }
    for (size_t i = 0; i < naive->n_pins; i++) {
        const struct naive_pin *pin = &naive->pins[i];
        if (pin->space == space && pin->n >= n && same(pin->tokens, tokens, n))
            return true;
    }
    return false;
}

static const struct naive_chunk *look_up(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < naive->n_chunks; i++) {
        const struct naive_chunk *chunk = &naive->chunks[i];
        if (chunk->space == space && chunk->n == n && same(chunk->tokens, tokens, n))
            return chunk;
    }
    return NULL;
}

bool naive_cached(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, bool most)
{
    if (!most && naive_current(naive, space) < 0)
        return naive_held(naive, space, tokens, n, false);
    return look_up(naive, space, tokens, n) != NULL;
}

struct naive_chunk *naive_find(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n)
{
    return (struct naive_chunk *)look_up(naive, space, tokens, n);
}

void naive_add(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n)
{
    int ns = naive_current(naive, space);
    FUZZ_CHECK(naive->n_chunks < NAIVE_CHUNKS, "the naive model is full");
    struct naive_chunk *chunk = &naive->chunks[naive->n_chunks++];
    chunk->space = space;
    chunk->n = n;
    chunk->retained = chunk->over = false;
    chunk->end = UINT64_MAX;
    chunk->hash = ns < 0 ? 0 : naive_hash((unsigned)ns, tokens, n);
    memcpy(chunk->tokens, tokens, n * sizeof(*tokens));
}

void naive_remove(struct naive *naive, struct naive_chunk *chunk)
{
    size_t i = (size_t)(chunk - naive->chunks);
    memmove(chunk, chunk + 1, (--naive->n_chunks - i) * sizeof(*chunk));
}

bool naive_goes_on(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < naive->n_chunks; i++) {
        const struct naive_chunk *chunk = &naive->chunks[i];
        if (chunk->space == space && chunk->n == n + naive->c && same(chunk->tokens, tokens, n))
            return true;
    }
    return false;
}

bool naive_has_chunks(const struct naive *naive, uint32_t space)
{
    return naive_goes_on(naive, space, NULL, 0);
}

/* Tokens that a chunk behind the first `whole` ones has in common with the prompt; exact up to 8 candidates. */
static void match_partial(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, size_t whole,
                          size_t *least, size_t *most)
{
    size_t n_candidates = 0;
    *least = *most = whole;
    for (size_t i = 0; whole < n && i < naive->n_chunks; i++) {
        const struct naive_chunk *chunk = &naive->chunks[i];
        size_t common = whole;
        if (chunk->space != space || chunk->n != whole + naive->c || !same(chunk->tokens, tokens, whole))
            continue;
        while (common < n && common < chunk->n && chunk->tokens[common] == tokens[common])
            common++;
        n_candidates += common > whole;
        if (common > *most)
            *most = common;
    }
    *least = n_candidates > 8 ? whole + 1 : *most;
}

void naive_match(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, size_t *least,
                 size_t *most)
{
    size_t whole = 0, c = naive->c;
    while (whole + c <= n && naive_cached(naive, space, tokens, whole + c, true))
        whole += c;
    match_partial(naive, space, tokens, n, whole, least, most);
}

unsigned naive_reasons(const struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, size_t n_cached)
{
    size_t findable = n ? n - 1 : 0, whole = n_cached / naive->c * naive->c;
    unsigned evicted = naive->evictions ? 1u << CATTN_WHY_EVICTED : 0;
    if (n_cached == findable)
        return 1u << CATTN_WHY_ALL;
    if (findable - whole < naive->c)
        return 1u << CATTN_WHY_BELOW_CHUNK;
    if (!naive_has_chunks(naive, space))
        return 1u << CATTN_WHY_EMPTY | evicted;
    if (!whole || naive_goes_on(naive, space, tokens, whole))
        return 1u << CATTN_WHY_DIFFERS | evicted;
    return 1u << CATTN_WHY_ENDS | evicted;
}

bool naive_has_settings(const struct naive *naive, unsigned ns)
{
    return naive->settings[ns].reserve || naive->settings[ns].limit;
}

bool naive_has_quotas(const struct naive *naive)
{
    bool any = false;
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++)
        any |= naive_has_settings(naive, ns);
    return any;
}

void naive_retain(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n, uint64_t end)
{
    for (size_t k = naive->c; k <= n; k += naive->c) {
        struct naive_chunk *chunk = naive_find(naive, space, tokens, k);
        if (!chunk->retained || chunk->end < end)
            chunk->end = end;
        chunk->retained = true;
        chunk->over = false;
    }
}

void naive_forget(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n)
{
    for (size_t k = naive->c; k <= n; k += naive->c) {
        struct naive_chunk *chunk = naive_find(naive, space, tokens, k);
        chunk->retained = chunk->over = false;
        chunk->end = UINT64_MAX;
    }
}

void naive_advance(struct naive *naive, uint64_t now)
{
    naive->now = now;
    for (size_t i = 0; i < naive->n_chunks; i++) {
        struct naive_chunk *chunk = &naive->chunks[i];
        if (chunk->end <= now && chunk->end != UINT64_MAX) {
            chunk->over = true;
            chunk->retained = false;
            chunk->end = UINT64_MAX;
        }
    }
}

size_t naive_count_overdue(const struct naive *naive)
{
    size_t n = 0;
    for (size_t i = 0; i < naive->n_chunks; i++) {
        const struct naive_chunk *x = &naive->chunks[i];
        n += x->over && naive_current(naive, x->space) >= 0 && !naive_held(naive, x->space, x->tokens, x->n, true) &&
             !naive_goes_on(naive, x->space, x->tokens, x->n);
    }
    return n;
}

struct naive_pin *naive_pin(struct naive *naive, uint32_t space, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < naive->n_pins; i++) {
        struct naive_pin *pin = &naive->pins[i];
        if (pin->space == space && pin->n == n && same(pin->tokens, tokens, n))
            return pin;
    }
    return NULL;
}

size_t naive_pinned(const struct naive *naive, int space)
{
    size_t n = 0;
    for (size_t i = 0; i < naive->n_chunks; i++) {
        const struct naive_chunk *chunk = &naive->chunks[i];
        bool pinned = false;
        for (size_t k = 0; k < naive->n_pins; k++) {
            const struct naive_pin *pin = &naive->pins[k];
            pinned |= pin->space == chunk->space && pin->n >= chunk->n && same(pin->tokens, chunk->tokens, chunk->n);
        }
        n += pinned && (space < 0 || chunk->space == (uint32_t)space);
    }
    return n;
}

static bool has_sequences(const struct naive *naive, uint32_t space)
{
    for (size_t i = 0; i < NAIVE_SEQUENCES; i++) {
        if (naive->sequences[i].used && naive->sequences[i].space == space)
            return true;
    }
    return false;
}

void naive_invalidate(struct naive *naive, unsigned ns, bool *cleared)
{
    uint32_t old = naive->spaces[ns].id;
    *cleared = naive_has_chunks(naive, old);
    for (size_t i = naive->n_pins; i-- > 0;) {
        if (naive->pins[i].space == old)
            naive->pins[i] = naive->pins[--naive->n_pins];
    }
    naive->spaces[ns] = (struct naive_space){.id = ++naive->last_space};
}

void naive_sweep(struct naive *naive)
{
    for (size_t i = naive->n_chunks; i-- > 0;) {
        uint32_t space = naive->chunks[i].space;
        if (naive_current(naive, space) < 0 && !has_sequences(naive, space))
            naive_remove(naive, &naive->chunks[i]);
    }
    for (unsigned ns = 0; ns < NAIVE_NAMES; ns++) {
        struct naive_space *space = &naive->spaces[ns];
        if (!has_sequences(naive, space->id) && !naive_has_chunks(naive, space->id) && !naive_has_settings(naive, ns))
            *space = (struct naive_space){.id = space->id};
    }
}
