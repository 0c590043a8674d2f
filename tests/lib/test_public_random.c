/* Random calls on namespaces that read each other, on a small tree.  What a prompt finds is compared with a search of
 * all slots that knows no index and no order; each cell says in which namespace it was computed, so that one that got
 * where it must not be is found out; allocations are made to fail.
 *
 * A token is 0 or 1, and 2 or 4 more if it has the one or the other extra identity. */
#include "failing_memory.h"
#include "small.h"
#include "support/random.h"
#include "support/suite.h"

#include <string.h>

enum { LONGEST = 24, MAX_SEQUENCES = 7, N_NAMES = 5 };

/* The first one is read by others from time to time. */
static const char *const names[N_NAMES] = {"op", "a", "b", "c", "other"};

struct place {
    cattn_seq seq;
    int name;
    bool in_step;
};

static struct small small;
static struct rng rng;
static struct place places[MAX_SEQUENCES];
static int reads[N_NAMES]; /* what each reads; -1: none */
static uint64_t reserves[N_NAMES], limits[N_NAMES], now;
static bool step_open, failing, quotas, images;
static size_t n_crossed, n_failed, n_ties, n_images, n_full; /* that the runs met what they are for */

/* ---- cells */

static const struct cattn_tree *tree(void)
{
    return &small.cache->tree;
}

/* A token as it is kept, and as it is meant here. */
static int32_t meant(int32_t token)
{
    const struct cattn_extras *extras = &tree()->extras;
    if (token >= 0)
        return token;
    const struct cattn_interned *id = &extras->ids.records[cattn_extras_id(extras, token)];
    ck_assert(id->length >= 1 && id->length <= 2 && !memcmp(id->bytes, "ii", id->length));
    return cattn_extras_token(extras, token) + 2 * (int32_t)id->length;
}

static int32_t token_at(uint32_t slot, size_t i)
{
    return meant(cattn_tree_tokens(tree(), slot)[i]);
}

/* What a call is given of tokens. */
struct given {
    int32_t tokens[LONGEST];
    struct cattn_extra extras[LONGEST];
    struct cattn_ext ext;
};

static struct given give(const int32_t *tokens, size_t n)
{
    struct given given = {.ext = {.size = sizeof given.ext}};
    for (size_t i = 0; i < n; i++) {
        given.tokens[i] = tokens[i] % 2;
        if (tokens[i] > 1)
            given.extras[given.ext.n_extras++] = (struct cattn_extra){i, 1, "ii", (size_t)tokens[i] / 2};
    }
    n_images += given.ext.n_extras > 0;
    return given;
}

/* NULL where there are none, now and then. */
static const struct cattn_ext *ext_of(struct given *given)
{
    given->ext.extras = given->extras;
    return given->ext.n_extras || rng_chance(&rng, 50) ? &given->ext : NULL;
}

/* 56 bits of all tokens up to it, below those of the namespace. */
static uint64_t cell_of(int name, uint64_t before, int32_t token)
{
    return (uint64_t)(name + 1) << 56 | rng_mix((before & UINT64_MAX >> 8) * 31 + (uint32_t)token + 1) >> 8;
}

static int name_of(uint32_t root)
{
    const struct cattn_root *record = cattn_roots_at(&tree()->roots, root);
    for (int i = 0; i < N_NAMES; i++)
        if (strlen(names[i]) == record->name_length && !memcmp(names[i], record->name, record->name_length))
            return i;
    ck_abort_msg("a root without a name");
    return 0;
}

/* The tokens of a slot were computed for its namespace or for the one that it reads, after the tokens above it. */
static void check_cells(uint32_t slot)
{
    uint32_t path[64], n = 0, c = tree()->chunk_tokens, root = tree()->slots[slot].root;
    uint32_t public = cattn_roots_at(&tree()->roots, root)->reads;
    for (uint32_t x = slot; x != CATTN_NONE; x = tree()->slots[x].parent)
        path[n++] = x;
    uint64_t cell = 0;
    while (n) {
        const struct cattn_slot *x = &tree()->slots[path[--n]];
        for (uint32_t i = 0; i < x->fill && i < c; i++) {
            uint64_t found = cells_of(small.cache->store, 0, path[n])[i];
            cell = cell_of(0, cell, token_at(path[n], i));
            ck_assert_uint_eq(found << 8, cell << 8);
            int made_for = (int)(found >> 56) - 1;
            CHECK(made_for == name_of(x->root) ||
                      (x->root == root && public != CATTN_NONE && made_for == name_of(public)),
                  "what was computed for %s is in %s", names[made_for], names[name_of(x->root)]);
        }
    }
}

static void check_all(void)
{
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    for (uint32_t slot = 0; slot < tree()->n_touched; slot++) {
        if (tree()->slots[slot].root == CATTN_NONE)
            continue;
        check_cells(slot);
        n_crossed += tree()->slots[slot].crossings;
    }
}

/* ---- the search */

struct found {
    size_t n_tokens, n_public, n_paths; /* n_paths: that find as much */
};

static uint32_t current_root(const char *name)
{
    for (uint32_t i = 0; i < tree()->roots.n; i++) {
        const struct cattn_root *record = cattn_roots_at(&tree()->roots, i);
        if (record->name && record->current && record->name_length == strlen(name) &&
            !memcmp(record->name, name, record->name_length))
            return i;
    }
    return CATTN_NONE - 1; /* no slot's */
}

static void note(struct found *best, size_t n_tokens, size_t n_public)
{
    if (n_tokens < best->n_tokens)
        return;
    if (n_tokens > best->n_tokens)
        *best = (struct found){.n_tokens = n_tokens};
    best->n_paths++;
    if (n_public > best->n_public)
        best->n_public = n_public;
}

/* All that goes on below a chunk; with whole chunks only, or a part of one more. */
static void search(uint32_t parent, size_t depth, size_t n_public, uint32_t own, uint32_t public, bool whole,
                   const int32_t *tokens, size_t n, struct found *best)
{
    size_t c = tree()->chunk_tokens;
    note(best, depth * c, n_public);
    for (uint32_t slot = 0; slot < tree()->n_touched; slot++) {
        const struct cattn_slot *x = &tree()->slots[slot];
        if (x->root == CATTN_NONE || !x->published || x->parent != parent || (x->root != own && x->root != public))
            continue;
        size_t common = 0;
        while (common < c && depth * c + common < n && token_at(slot, common) == tokens[depth * c + common])
            common++;
        if (common == c)
            search(slot, depth + 1, n_public + (x->root == public), own, public, whole, tokens, n, best);
        else if (!whole)
            note(best, depth * c + common, n_public);
    }
}

static size_t count_public(const struct cattn_sequence *sequence)
{
    size_t n = 0;
    for (size_t i = 0; i < sequence->n_chunks; i++)
        n += tree()->slots[sequence->chunks[i]].root != sequence->root;
    return n;
}

/* ---- what a call that fails must leave as it is */

static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t mix_roots(uint64_t hash, const struct cattn_roots *roots)
{
    for (uint32_t i = 0; i < roots->n; i++) {
        const struct cattn_root *x = cattn_roots_at(roots, i);
        uint64_t numbers[] = {i,        x->id,        x->refs,         x->n_slots, x->n_chunks, x->n_crossings,
                              x->reads, x->n_readers, x->has_settings, x->reserve, x->limit};
        if (x->name)
            hash = mix(mix(hash, numbers, sizeof numbers), x->name, x->name_length);
    }
    return hash;
}

static uint64_t fingerprint(void)
{
    const struct cattn_tree *t = tree();
    uint64_t hash = mix(1, t->index.entries, ((size_t)t->index.mask + 1) * sizeof(*t->index.entries));
    hash = mix(hash, t->firsts.entries, ((size_t)t->firsts.mask + 1) * sizeof(*t->firsts.entries));
    for (uint32_t slot = 0; slot < t->n_touched; slot++) {
        struct cattn_slot x = t->slots[slot];
        uint64_t numbers[] = {x.hash, x.refs,     x.root,   x.parent, x.next,  x.prev,
                              x.fill, x.children, x.pinned, x.writer, x.newer, x.published};
        hash = mix(hash, numbers, sizeof numbers);
    }
    uint64_t counts[] = {t->n_touched, t->free, t->n_free, t->oldest, t->newest, t->n_evictable, t->revision};
    hash = mix(hash, counts, sizeof counts);
    for (int i = 0; i < MAX_SEQUENCES; i++) {
        const struct cattn_sequence *x = places[i].seq ? cattn_sequence_find(small.cache, places[i].seq) : NULL;
        uint64_t numbers[] = {x ? x->n_tokens : 0, x ? x->n_chunks : 0, x ? x->tail : 0, x ? x->in_step : 0};
        hash = mix(hash, numbers, sizeof numbers);
    }
    return mix_roots(mix_roots(hash, &t->roots), &t->settings);
}

static uint64_t before;
static size_t fail_at;

static void arm(void)
{
    before = failing ? fingerprint() : 0;
    failing_memory_set(failing ? ++fail_at : 0);
}

/* Whether the call is to be made again. */
static bool disarm(int status)
{
    bool hit = failing_memory_hit();
    failing_memory_set(0);
    ck_assert_int_eq(status == CATTN_ENOMEM, hit);
    if (hit) {
        ck_assert_uint_eq(fingerprint(), before);
        check_all();
        n_failed++;
    } else {
        fail_at = 0;
    }
    return hit;
}

/* ---- the calls */

static size_t draw_tokens(int32_t *tokens)
{
    size_t n = rng_below(&rng, LONGEST), first = rng_below(&rng, 3 * LONGEST), image = 2 * rng_between(&rng, 1, 2);
    for (size_t i = 0; i < n; i++)
        tokens[i] = rng_chance(&rng, 8) + (images && i >= first ? (int32_t)image : 0);
    return n;
}

static int draw_name(void)
{
    return rng_chance(&rng, 80) ? (int)rng_below(&rng, 3) : (int)rng_below(&rng, N_NAMES);
}

static struct place *pick(bool open)
{
    struct place *place = &places[rng_below(&rng, MAX_SEQUENCES)];
    return open == (place->seq != 0) ? place : NULL;
}

static void open_one(void)
{
    int32_t tokens[LONGEST];
    size_t n = draw_tokens(tokens), n_cached;
    int name = draw_name(), status;
    struct place *place = pick(false);
    if (!place)
        return;
    struct found best = {0};
    search(CATTN_NONE, 0, 0, current_root(names[name]),
           reads[name] < 0 ? CATTN_NONE - 1 : current_root(names[reads[name]]), false, tokens, n ? n - 1 : 0, &best);
    cattn_seq seq;
    struct given given = give(tokens, n);
    const struct cattn_ext *ext = ext_of(&given);
    do {
        arm();
        status =
            cattn_seq_open_ext(small.cache, names[name], strlen(names[name]), given.tokens, n, ext, &seq, &n_cached);
    } while (disarm(status));
    ck_assert_int_eq(status, CATTN_OK);
    *place = (struct place){.seq = seq, .name = name};
    CHECK(n_cached == best.n_tokens, "%zu tokens found, not %zu", n_cached, best.n_tokens);
    ck_assert_uint_eq(count_public(cattn_sequence_find(small.cache, seq)), best.n_public);
    n_ties += reads[name] >= 0 && best.n_paths > 1 && n_cached > 0;
}

static void close_one(void)
{
    struct place *place = pick(true);
    if (!place)
        return;
    ck_assert_int_eq(cattn_seq_close(small.cache, place->seq), CATTN_OK);
    *place = (struct place){0};
}

static void fork_one(void)
{
    struct place *from = pick(true), *to = pick(false);
    cattn_seq seq;
    int status;
    if (!from || !to)
        return;
    do {
        arm();
        status = cattn_seq_fork(small.cache, from->seq, &seq);
    } while (disarm(status));
    ck_assert_int_eq(status, from->in_step ? CATTN_EBUSY : CATTN_OK);
    if (!status)
        *to = (struct place){.seq = seq, .name = from->name};
}

static void truncate_one(void)
{
    struct place *place = pick(true);
    size_t length;
    if (!place)
        return;
    ck_assert_int_eq(cattn_seq_length(small.cache, place->seq, &length), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, place->seq, rng_below(&rng, length + 1)),
                     place->in_step ? CATTN_EBUSY : CATTN_OK);
}

static void pin_one(void)
{
    int32_t tokens[LONGEST];
    size_t n = draw_tokens(tokens);
    const char *name = names[draw_name()];
    struct given given = give(tokens, n);
    const struct cattn_ext *ext = ext_of(&given);
    int status = rng_chance(&rng, 30) ? cattn_prefix_pin(small.cache, name, strlen(name), given.tokens, n, ext)
                                      : cattn_prefix_unpin(small.cache, name, strlen(name), given.tokens, n, ext);
    ck_assert(status == CATTN_OK || status == CATTN_ENOTFOUND);
}

static void invalidate_one(void)
{
    const char *name = names[draw_name()];
    int status = CATTN_OK;
    if (!rng_chance(&rng, 15))
        return;
    do {
        arm();
        status = cattn_namespace_invalidate(small.cache, name, strlen(name));
    } while (disarm(status));
    ck_assert_int_eq(status, CATTN_OK);
}

static void evict_some(void)
{
    ck_assert_int_eq(cattn_cache_evict(small.cache, rng_below(&rng, 3), NULL), CATTN_OK);
}

/* How all chunks are kept that are not of the namespace. */
static uint64_t kept_of_others(const char *name)
{
    uint64_t hash = 1;
    uint32_t own = current_root(name);
    for (uint32_t slot = 0; slot < tree()->n_touched; slot++) {
        struct cattn_rank none = {.end = CATTN_NEVER};
        const struct cattn_rank *x = tree()->order.ranks ? &tree()->order.ranks[slot] : &none;
        uint64_t numbers[] = {slot, (uint64_t)x->priority, x->end, x->retained, x->over};
        if (tree()->slots[slot].root != CATTN_NONE && tree()->slots[slot].root != own)
            hash = mix(hash, numbers, sizeof numbers);
    }
    return hash;
}

/* Priorities and times for what is there, and a clock that goes on. */
static void retain_one(void)
{
    int32_t tokens[LONGEST];
    size_t n = draw_tokens(tokens);
    const char *name = names[draw_name()];
    struct cattn_retention retention = {
        .size = sizeof retention, .priority = (int32_t)rng_below(&rng, 3), .ttl = rng_below(&rng, 20)};
    const struct cattn_retention *how = rng_chance(&rng, 80) ? &retention : NULL;
    struct given given = give(tokens, n);
    const struct cattn_ext *ext = ext_of(&given);
    uint64_t others = kept_of_others(name);
    int status;
    do {
        arm();
        status = cattn_prefix_retain(small.cache, name, strlen(name), given.tokens, n, ext, how);
    } while (disarm(status));
    ck_assert(status == CATTN_OK || status == CATTN_ENOTFOUND);
    ck_assert_uint_eq(kept_of_others(name), others);
    ck_assert_int_eq(cattn_cache_advance(small.cache, now += rng_below(&rng, 5)), CATTN_OK);
}

static bool is_used(uint32_t root)
{
    return root < tree()->roots.n && !cattn_roots_is_idle(cattn_roots_at(&tree()->roots, root));
}

static bool is_read(int name)
{
    for (int i = 0; i < N_NAMES; i++)
        if (reads[i] == name)
            return true;
    return false;
}

static int expected_set(int name, int public, uint64_t reserve, uint64_t limit)
{
    uint64_t reserved = reserve;
    for (int i = 0; i < N_NAMES; i++)
        reserved += i == name ? 0 : reserves[i];
    if (reserved > tree()->n_slots || (limit && (reserve > limit || is_read(name))) ||
        (public >= 0 && (reserve || limits[public])))
        return CATTN_EINVAL;
    for (int i = 0; i < N_NAMES && public >= 0; i++)
        if (reads[i] == name)
            return CATTN_EINVAL;
    if (public == name || (public >= 0 && reads[public] >= 0))
        return CATTN_EINVAL;
    return public != reads[name] && is_used(current_root(names[name])) ? CATTN_EBUSY : CATTN_OK;
}

static void set_one(void)
{
    int name = (int)rng_below(&rng, N_NAMES), public = (int)rng_below(&rng, N_NAMES + 1) - 1, status;
    if (rng_chance(&rng, 70) && name < 3) /* mostly as it was at the start */
    public = name ? 0 : -1;
    uint64_t limit = quotas && rng_chance(&rng, 30) ? rng_between(&rng, 3, 30) : 0;
    uint64_t reserve = quotas && rng_chance(&rng, 20) ? rng_below(&rng, 6) : 0;
    int expected = expected_set(name, public, reserve, limit);
    struct cattn_namespace_config config = {.size = sizeof config,
                                            .reserve_slots = reserve,
                                            .limit_slots = limit,
                                            .public_ns = public < 0 ? NULL : names[public]};
    config.public_ns_len = public < 0 ? 0 : strlen(names[public]);
    do {
        arm();
        status = cattn_namespace_set(small.cache, names[name], strlen(names[name]), &config);
    } while (disarm(status));
    ck_assert_int_eq(status, expected);
    if (status)
        return;
    reads[name] = public;
    reserves[name] = reserve;
    limits[name] = limit;
}

/* What an item finds that the sequence does not hold yet, if no other item comes before it: in whole chunks. */
static struct found find_more(const struct cattn_item *item, const int32_t *tokens)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(small.cache, item->seq);
    int32_t text[1024];
    size_t held = sequence->n_tokens, whole = sequence->n_chunks;
    for (size_t i = 0; i < held; i++)
        text[i] = meant(sequence->tokens[i]);
    memcpy(text + held, tokens, item->n_tokens * sizeof *text);
    struct found best = {0};
    uint32_t public = cattn_roots_at(&tree()->roots, sequence->root)->reads;
    search(whole ? sequence->chunks[whole - 1] : CATTN_NONE, whole, 0, sequence->root,
           public == CATTN_NONE ? CATTN_NONE - 1 : public, true, text, held + item->n_tokens, &best);
    best.n_tokens -= whole * tree()->chunk_tokens;
    return best;
}

static uint32_t expected_rows(const struct cattn_item *item, const struct found *found)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(small.cache, item->seq);
    size_t known = sequence->t < found->n_tokens ? found->n_tokens - sequence->t : 0;
    return known + 1 < item->n_tokens ? (uint32_t)(item->n_tokens - known) : 1;
}

/* Whether a step of one item may be refused for want of slots: in the pool, or for the limit of its namespace, for
 * which public chunks that it finds do not count. */
static bool may_be_full(const struct cattn_item *item, const struct found *found)
{
    const struct cattn_sequence *sequence = cattn_sequence_find(small.cache, item->seq);
    const struct cattn_root *x = cattn_roots_at(&tree()->roots, sequence->root);
    size_t c = tree()->chunk_tokens, all = (sequence->t + item->n_tokens + c - 1) / c, own = all - found->n_public;
    uint64_t reserved = 0;
    for (int name = 0; name < N_NAMES; name++)
        reserved += reserves[name];
    return all + reserved > (uint64_t)tree()->n_free + tree()->n_evictable ||
           (x->limit && x->n_slots + own > (uint64_t)x->limit + x->n_evictable);
}

/* Slots of a name; of them, those of chunks whose time is over. */
struct slots {
    uint64_t n, n_over;
};

static struct slots count_slots(int name)
{
    uint32_t root = current_root(names[name]);
    struct slots slots = {0, 0};
    for (uint32_t slot = 0; slot < tree()->n_touched; slot++) {
        slots.n += tree()->slots[slot].root == root;
        slots.n_over += tree()->slots[slot].root == root && cattn_order_is_over(tree(), slot);
    }
    return slots;
}

/* No name came above its limit, and all are left with their reserves. */
static void check_quotas(const struct slots *slots)
{
    for (int name = 0; name < N_NAMES; name++) {
        uint64_t n = count_slots(name).n, least = slots[name].n < reserves[name] ? slots[name].n : reserves[name];
        ck_assert(!limits[name] || n <= limits[name] || n <= slots[name].n);
        ck_assert_uint_ge(n + slots[name].n_over, least);
    }
}

static void begin(void)
{
    static int32_t tokens[MAX_SEQUENCES][LONGEST];
    static struct given given[MAX_SEQUENCES];
    struct cattn_item items[MAX_SEQUENCES];
    struct place *chosen[MAX_SEQUENCES];
    uint32_t rows[MAX_SEQUENCES];
    struct slots slots[N_NAMES];
    size_t n_items = 0, first = rng_below(&rng, MAX_SEQUENCES), most = rng_chance(&rng, 30) ? 1 : MAX_SEQUENCES;
    bool full = false;
    for (size_t i = 0; i < MAX_SEQUENCES && n_items < most; i++) {
        struct place *place = &places[(first + i) % MAX_SEQUENCES];
        size_t n = draw_tokens(tokens[i]);
        if (!place->seq || !n || rng_chance(&rng, 40))
            continue;
        given[i] = give(tokens[i], n);
        items[n_items] = small_item(place->seq, given[i].tokens, (uint32_t)n);
        items[n_items].ext = ext_of(&given[i]);
        struct found found = find_more(&items[n_items], tokens[i]);
        rows[n_items] = expected_rows(&items[n_items], &found);
        full = n_items || may_be_full(&items[n_items], &found);
        chosen[n_items++] = place;
    }
    for (int name = 0; name < N_NAMES; name++)
        slots[name] = count_slots(name);
    int status;
    do {
        arm();
        status = cattn_step_begin(small.step, items, n_items);
    } while (disarm(status));
    ck_assert(status == CATTN_OK || status == CATTN_EFULL || status == CATTN_ETOOBIG);
    ck_assert(status != CATTN_EFULL || full);
    n_full += n_items == 1 && status == CATTN_EFULL;
    step_open = status == CATTN_OK;
    if (step_open)
        check_quotas(slots);
    for (size_t i = 0; i < n_items && step_open; i++) {
        chosen[i]->in_step = true;
        ck_assert_uint_le(items[i].n_rows, rows[i]);
        ck_assert(i || items[i].n_rows == rows[i]);
    }
}

/* Each row has what its namespace computes. */
static void write_rows(void)
{
    static uint64_t rows[MAX_SEQUENCES * LONGEST], q, out;
    for (size_t i = 0; i < small.step->n_plans; i++) {
        const struct cattn_plan *plan = &small.step->plans[i];
        int name = name_of(plan->sequence->root);
        uint64_t cell = 0;
        for (uint64_t at = 0; at < plan->position + plan->n_rows; at++) {
            cell = cell_of(name, cell, meant(plan->sequence->tokens[at]));
            if (at >= plan->position)
                rows[plan->first_row + (at - plan->position)] = cell;
        }
    }
    struct cattn_io io = {.size = sizeof io, .q = &q, .k = rows, .v = rows, .out = &out};
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_OK);
}

static void finish(void)
{
    if (rng_chance(&rng, 25)) {
        ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    } else {
        write_rows();
        ck_assert_int_eq(cattn_step_end(small.step), CATTN_OK);
    }
    step_open = false;
    for (size_t i = 0; i < MAX_SEQUENCES; i++)
        places[i].in_step = false;
}

static void step(void)
{
    if (step_open)
        finish();
    else
        begin();
}

/* ---- runs */

static void run(uint64_t number, size_t n_calls)
{
    static void (*const calls[])(void) = {open_one,       open_one,   close_one,    fork_one, step,
                                          step,           step,       truncate_one, pin_one,  set_one,
                                          invalidate_one, evict_some, retain_one};
    rng_init(&rng, number);
    small = small_make((uint32_t)rng_between(&rng, 4, 60), (uint32_t)rng_between(&rng, 1, 4), 1,
                       number % 5 == 0   ? CATTN_NO_RETAIN
                       : number % 4 == 3 ? CATTN_EVICT_BY_COST
                                         : 0);
    small.cache->tree.constant_hash = number % 7 == 0;
    failing = number % 3 == 0;
    quotas = number % 2;
    images = number % 4 > 1;
    now = 0;
    memset(reserves, 0, sizeof reserves);
    memset(limits, 0, sizeof limits);
    step_open = false;
    memset(places, 0, sizeof places);
    memset(reads, -1, sizeof reads);
    set_one();
    for (int i = 1; i < 3; i++) {
        struct cattn_namespace_config config = {.size = sizeof config, .public_ns = "op", .public_ns_len = 2};
        if (expected_set(i, 0, 0, 0) == CATTN_OK) {
            ck_assert_int_eq(cattn_namespace_set(small.cache, names[i], 1, &config), CATTN_OK);
            reads[i] = 0;
            reserves[i] = limits[i] = 0;
        }
    }
    for (size_t i = 0; i < n_calls; i++) {
        calls[rng_below(&rng, sizeof calls / sizeof *calls - !quotas)]();
        check_all();
    }
    if (step_open)
        finish();
    small_free(&small);
}

START_TEST(random_calls_agree_with_a_search)
{
    for (uint64_t number = 0; number < (test_full() ? 2000u : 50u); number++)
        run(number, 250);
    ck_assert_uint_gt(n_crossed, 0);
    ck_assert_uint_gt(n_failed, 0);
    ck_assert_uint_gt(n_ties, 0);
    ck_assert_uint_gt(n_images, 0);
    ck_assert_uint_gt(n_full, 0);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("public, at random");
    tcase_add_test(tests, random_calls_agree_with_a_search);
    return suite_run(tests);
}
