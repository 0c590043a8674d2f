/* Compares what the cache says about itself with what a walk over everything finds.  Memory may have been overwritten,
 * so no slot number is used before it was looked at. */
#include "cache.h"

#include "memory.h"
#include "readers.h"

#include <string.h>

struct root_counts {
    uint64_t refs, slots, chunks, evictable, pinned, crossings, readers;
};

struct walk {
    const struct cattn_cache *cache;
    const struct cattn_tree *tree;
    uint32_t n;        /* slots that were ever taken */
    uint64_t *refs;    /* of each slot */
    uint64_t *writers; /* how many sequences write to it ... */
    uint64_t *writer;  /* ... and the last one found */
    uint64_t *pinned;  /* pins that hold it */
    uint32_t *children;
    uint32_t *crossings;       /* of the children: those of other roots */
    uint32_t *place;           /* in the recency list, from 1; 0: not in it */
    struct root_counts *roots; /* of each root record */
    uint64_t *extras;          /* references of each token that has an extra */
    uint64_t *ids;             /* and of each extra */
    struct root_counts *settings;
};

static bool is_slot(const struct walk *walk, uint32_t slot)
{
    return slot < walk->n;
}

static bool is_used(const struct walk *walk, uint32_t slot)
{
    return is_slot(walk, slot) && walk->tree->slots[slot].root != CATTN_NONE;
}

static bool is_root(const struct walk *walk, uint32_t root)
{
    return root < walk->tree->roots.n && cattn_roots_at(&walk->tree->roots, root)->name;
}

/* ---- extras */

static bool is_interned(const struct cattn_intern *table, uint32_t number)
{
    return number < table->n && table->records[number].bytes;
}

/* *count: those of the tokens that have one. */
static bool refer_to_extras(const struct walk *walk, const int32_t *tokens, uint64_t n, uint64_t *count)
{
    for (uint64_t i = 0; i < n; i++) {
        if (tokens[i] >= 0)
            continue;
        uint32_t number = (uint32_t)(-1 - tokens[i]);
        if (!is_interned(&walk->tree->extras.tokens, number))
            return false;
        walk->extras[number]++;
        ++*count;
    }
    return true;
}

static bool find_extras(const struct walk *walk)
{
    const struct cattn_tree *tree = walk->tree;
    const struct cattn_sequences *sequences = &walk->cache->sequences;
    for (uint32_t slot = 0; slot < walk->n; slot++) {
        const struct cattn_slot *x = &tree->slots[slot];
        uint64_t n = 0;
        if (x->fill > tree->chunk_tokens || !refer_to_extras(walk, cattn_tree_tokens(tree, slot), x->fill, &n) ||
            (n && !x->extras))
            return false;
    }
    for (uint32_t i = 0; i < sequences->n; i++) {
        const struct cattn_sequence *x = sequences->handles[i].sequence;
        uint64_t n = 0;
        if (!x)
            continue;
        if (x->n_tokens > x->tokens_capacity || x->n_pending > x->tokens_capacity - x->n_tokens ||
            (x->n_pending && !x->in_step) || !refer_to_extras(walk, x->tokens, x->n_tokens + x->n_pending, &n) ||
            n != x->n_extras)
            return false;
    }
    return true;
}

/* Those that are used add up, and so do their references. */
static bool check_table(const struct cattn_intern *table, const uint64_t *refs)
{
    uint64_t n_used = 0, n_linked = 0;
    for (uint32_t i = 0; i < table->n; i++) {
        const struct cattn_interned *x = &table->records[i];
        if (x->bytes ? x->refs != refs[i] + x->held || !x->refs : x->refs || refs[i])
            return false;
        n_used += x->bytes != NULL;
    }
    for (size_t i = 0; i < table->n_buckets; i++) {
        for (uint32_t k = table->buckets[i]; k; k = table->records[k - 1].next) {
            if (!is_interned(table, k - 1) || n_linked++ == n_used ||
                (table->records[k - 1].hash & (table->n_buckets - 1)) != i)
                return false;
        }
    }
    return n_used == table->n_used && n_linked == n_used;
}

/* Each is needed, and each that is needed is there once. */
static bool check_extras(const struct walk *walk)
{
    const struct cattn_extras *extras = &walk->tree->extras;
    if (!find_extras(walk))
        return false;
    for (uint32_t i = 0; i < extras->tokens.n; i++) {
        struct cattn_extra_token x;
        if (!is_interned(&extras->tokens, i))
            continue;
        memcpy(&x, extras->tokens.records[i].bytes, sizeof(x));
        if (extras->tokens.records[i].length != sizeof(x) || x.token < 0 || !is_interned(&extras->ids, x.id))
            return false;
        walk->ids[x.id]++;
    }
    return check_table(&extras->tokens, walk->extras) && check_table(&extras->ids, walk->ids);
}

/* Whether what has this root may refer to a slot: it is of the same root, or of the one that this reads. */
static bool sees(const struct walk *walk, uint32_t root, uint32_t slot)
{
    uint32_t other = walk->tree->slots[slot].root;
    return other == root || other == cattn_roots_at(&walk->tree->roots, root)->reads;
}

/* ---- who refers to what */

static bool refer(const struct walk *walk, uint32_t slot, uint64_t n)
{
    if (!is_used(walk, slot))
        return false;
    walk->refs[slot] += n;
    return true;
}

static void write_to(const struct walk *walk, uint32_t slot, uint64_t writer)
{
    walk->writers[slot]++;
    walk->writer[slot] = writer;
}

/* The whole chunks of a sequence are published, one below the other, and have its tokens.  (That public ones come first
 * is said of each slot and its parent.) */
static bool check_chunks(const struct walk *walk, const struct cattn_sequence *sequence)
{
    const struct cattn_tree *tree = walk->tree;
    uint32_t parent = CATTN_NONE;
    for (size_t i = 0; i < sequence->n_chunks; i++) {
        uint32_t slot = sequence->chunks[i];
        if (!refer(walk, slot, 1))
            return false;
        const struct cattn_slot *x = &tree->slots[slot];
        if (!x->published || x->parent != parent || !sees(walk, sequence->root, slot) ||
            memcmp(cattn_tree_tokens(tree, slot), sequence->tokens + i * tree->chunk_tokens,
                   tree->chunk_tokens * sizeof(int32_t)))
            return false;
        parent = slot;
    }
    return true;
}

static bool check_tail(const struct walk *walk, const struct cattn_sequence *sequence)
{
    const struct cattn_tree *tree = walk->tree;
    size_t n_whole = sequence->n_chunks * tree->chunk_tokens;
    if (sequence->tail == CATTN_NONE)
        return !sequence->t && !sequence->owns && sequence->n_tokens == n_whole;
    if (!sequence->t || sequence->t >= tree->chunk_tokens || sequence->n_tokens != n_whole + sequence->t ||
        !refer(walk, sequence->tail, 1))
        return false;
    const struct cattn_slot *x = &tree->slots[sequence->tail];
    uint32_t parent = sequence->n_chunks ? sequence->chunks[sequence->n_chunks - 1] : CATTN_NONE;
    if (sequence->owns)
        write_to(walk, sequence->tail, sequence->handle);
    if (x->root != sequence->root && (!sees(walk, sequence->root, sequence->tail) || !x->published || sequence->owns))
        return false;
    return x->parent == parent && x->fill >= sequence->t && (!sequence->owns || x->fill == sequence->t) &&
           !memcmp(cattn_tree_tokens(tree, sequence->tail), sequence->tokens + n_whole, sequence->t * sizeof(int32_t));
}

static bool check_sequences(const struct walk *walk)
{
    const struct cattn_sequences *sequences = &walk->cache->sequences;
    for (uint32_t i = 0; i < sequences->n; i++) {
        const struct cattn_sequence *sequence = sequences->handles[i].sequence;
        if (!sequence)
            continue;
        if (sequence->handle != sequences->handles[i].handle || cattn_handle_place(sequence->handle) != i ||
            !is_root(walk, sequence->root) || (sequence->closed && !sequence->in_step) ||
            (sequence->in_step && !walk->cache->open_step) || !check_chunks(walk, sequence) ||
            !check_tail(walk, sequence))
            return false;
        walk->roots[sequence->root].refs++;
    }
    return true;
}

static bool check_plan(const struct walk *walk, const struct cattn_step *step, const struct cattn_plan *plan)
{
    const uint32_t *slots;
    size_t n = cattn_plan_holds(plan, &slots);
    if (!plan->sequence->in_step)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!refer(walk, slots[i], 1))
            return false;
    }
    for (size_t i = 0; i < plan->n_pieces; i++) {
        const struct cattn_piece *piece = &step->pieces[plan->first_piece + i];
        if (!is_used(walk, piece->slot))
            return false;
        if (i || plan->how != CATTN_IN_PLACE) /* an own tail was counted with its sequence */
            write_to(walk, piece->slot, plan->handle);
    }
    return true;
}

static bool check_step(const struct walk *walk)
{
    const struct cattn_step *step = walk->cache->open_step;
    for (size_t i = 0; step && i < step->n_plans; i++) {
        if (!check_plan(walk, step, &step->plans[i]))
            return false;
    }
    return true;
}

/* A pin is a reference on each chunk from its leaf up. */
static bool check_pins(const struct walk *walk)
{
    uint64_t n_pins = 0, n_pinned = 0;
    for (uint32_t leaf = 0; leaf < walk->n; leaf++) {
        uint32_t n = walk->tree->slots[leaf].pins, length = 0;
        n_pins += n;
        for (uint32_t slot = leaf; n && slot != CATTN_NONE; slot = walk->tree->slots[slot].parent) {
            if (length++ > walk->n || !refer(walk, slot, n))
                return false;
            walk->pinned[slot] += n;
        }
    }
    for (uint32_t slot = 0; slot < walk->n; slot++) {
        if (walk->tree->slots[slot].pinned != walk->pinned[slot])
            return false;
        n_pinned += walk->pinned[slot] > 0;
    }
    return n_pins == walk->tree->n_pins && n_pinned == walk->tree->n_pinned;
}

/* ---- slots */

static void count_for_root(struct root_counts *counts, const struct cattn_slot *x)
{
    counts->refs++;
    counts->slots++;
    counts->chunks += x->published;
    counts->evictable += !x->refs;
    counts->pinned += x->pinned > 0;
}

static bool check_slot(const struct walk *walk, uint32_t slot)
{
    const struct cattn_tree *tree = walk->tree;
    const struct cattn_slot *x = &tree->slots[slot];
    uint64_t refs = walk->refs[slot], writers = walk->writers[slot];
    if (!is_root(walk, x->root) || x->refs != refs || (!x->published && !refs) || x->fill > tree->chunk_tokens)
        return false;
    if (writers != (x->writer != 0) || (writers && walk->writer[slot] != x->writer) || (x->published && writers))
        return false;
    if ((x->dirty < x->fill && !walk->cache->open_step) || (x->published && x->fill != tree->chunk_tokens))
        return false;
    count_for_root(&walk->roots[x->root], x);
    if (x->parent == CATTN_NONE)
        return true;
    if (!is_used(walk, x->parent) || !sees(walk, x->root, x->parent) || (refs && !walk->refs[x->parent]) ||
        (x->published && !tree->slots[x->parent].published))
        return false;
    walk->children[x->parent] += x->published;
    if (x->published && tree->slots[x->parent].root != x->root) {
        walk->crossings[x->parent]++;
        walk->roots[x->root].crossings++;
    }
    return true;
}

static bool check_slots(const struct walk *walk)
{
    uint64_t stored = 0;
    for (uint32_t slot = 0; slot < walk->n; slot++) {
        if (!is_used(walk, slot))
            continue;
        if (!check_slot(walk, slot))
            return false;
        stored += walk->tree->slots[slot].fill;
    }
    for (uint32_t slot = 0; slot < walk->n; slot++) {
        if (walk->tree->slots[slot].children != walk->children[slot] ||
            walk->tree->slots[slot].crossings != walk->crossings[slot])
            return false;
    }
    return stored == walk->tree->stored_tokens;
}

/* ---- lists */

static bool check_free_list(const struct walk *walk)
{
    const struct cattn_tree *tree = walk->tree;
    uint64_t n_unused = 0, n_listed = 0;
    for (uint32_t slot = 0; slot < walk->n; slot++)
        n_unused += !is_used(walk, slot);
    for (uint32_t slot = tree->free; slot != CATTN_NONE; slot = tree->slots[slot].next) {
        if (!is_slot(walk, slot) || is_used(walk, slot) || n_listed++ == n_unused)
            return false;
    }
    return n_listed == n_unused && tree->n_free == n_unused + (tree->n_slots - walk->n);
}

/* Exactly the chunks without references, parents behind their children. */
static bool check_recency(const struct walk *walk)
{
    const struct cattn_tree *tree = walk->tree;
    uint32_t n = 0, before = CATTN_NONE;
    for (uint32_t slot = tree->oldest; slot != CATTN_NONE; slot = tree->slots[slot].next) {
        if (!is_used(walk, slot) || walk->place[slot] || tree->slots[slot].prev != before)
            return false;
        const struct cattn_slot *x = &tree->slots[slot];
        if (x->refs || !x->published || !cattn_roots_at(&tree->roots, x->root)->current ||
            (x->parent != CATTN_NONE && walk->place[x->parent]))
            return false;
        walk->place[slot] = ++n;
        before = slot;
    }
    if (tree->newest != before || tree->n_evictable != n)
        return false;
    for (uint32_t slot = 0; slot < walk->n; slot++) {
        if (is_used(walk, slot) && !tree->slots[slot].refs != (walk->place[slot] > 0))
            return false;
    }
    return true;
}

/* ---- the index */

static uint64_t count_entries(const struct walk *walk, const struct cattn_table *table, bool *good)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i <= table->mask; i++) {
        uint32_t entry = table->entries[i].slot;
        if (entry && (!is_used(walk, entry - 1) || !walk->tree->slots[entry - 1].published))
            *good = false;
        n += entry != 0;
    }
    return n;
}

static bool check_tags(const struct walk *walk)
{
    const struct cattn_tree *tree = walk->tree;
    for (uint64_t i = 0; i <= tree->index.mask; i++) {
        struct cattn_entry entry = tree->index.entries[i], first = tree->firsts.entries[i];
        if ((entry.slot && entry.tag != (uint32_t)tree->slots[entry.slot - 1].hash) ||
            (first.slot && first.tag != tree->slots[first.slot - 1].first_tag))
            return false;
    }
    return true;
}

/* The slot is found by its tokens, and by its first token among the others that begin with it. */
static bool check_published(const struct walk *walk, uint32_t slot, uint64_t *n_chains)
{
    const struct cattn_tree *tree = walk->tree;
    const struct cattn_slot *x = &tree->slots[slot];
    const int32_t *tokens = cattn_tree_tokens(tree, slot);
    uint64_t hash = cattn_tree_hash(tree, cattn_tree_above(tree, x->parent, x->root), tokens);
    if (x->hash != hash || cattn_tree_find(tree, x->parent, x->root, tokens, hash) != slot)
        return false;
    if (x->older != CATTN_NONE && (!is_used(walk, x->older) || tree->slots[x->older].newer != slot))
        return false;
    if (x->newer != CATTN_NONE) {
        const struct cattn_slot *newer = &tree->slots[x->newer];
        return is_used(walk, x->newer) && newer->published && newer->older == slot && newer->parent == x->parent &&
               newer->root == x->root && newer->first_tag == x->first_tag &&
               *cattn_tree_tokens(tree, x->newer) == *tokens;
    }
    ++*n_chains;
    return cattn_tree_find_first(tree, x->parent, x->root, *tokens) == slot;
}

static bool check_index(const struct walk *walk)
{
    bool good = true;
    uint64_t n_published = 0, n_chains = 0;
    uint64_t n_index = count_entries(walk, &walk->tree->index, &good);
    uint64_t n_firsts = count_entries(walk, &walk->tree->firsts, &good);
    /* a full table has no end to look for */
    good = good && n_index <= walk->tree->index.mask && n_firsts <= walk->tree->firsts.mask && check_tags(walk);
    for (uint32_t slot = 0; good && slot < walk->n; slot++) {
        if (is_used(walk, slot) && walk->tree->slots[slot].published) {
            n_published++;
            good = check_published(walk, slot, &n_chains);
        }
    }
    return good && n_index == n_published && n_firsts == n_chains;
}

/* Who is read reads nobody, is there at all, and has its name if its readers have theirs. */
static bool check_readers(const struct cattn_roots *roots, struct root_counts *counts)
{
    for (uint32_t i = 0; i < roots->n; i++) {
        const struct cattn_root *root = cattn_roots_at(roots, i);
        if (!root->name || root->reads == CATTN_NONE)
            continue;
        const struct cattn_root *public = root->reads < roots->n ? cattn_roots_at(roots, root->reads) : NULL;
        if (!public || !public->name || public->reads != CATTN_NONE || (root->current && !public->current))
            return false;
        counts[root->reads].refs++;
        counts[root->reads].readers++;
    }
    return true;
}

static bool check_root(const struct cattn_roots *roots, uint32_t i, const struct root_counts *counts)
{
    const struct cattn_root *root = cattn_roots_at(roots, i);
    if (root->n_slots != counts->slots || root->n_chunks != counts->chunks || root->n_evictable != counts->evictable ||
        root->n_pinned != counts->pinned || root->n_crossings != counts->crossings ||
        root->n_readers != counts->readers)
        return false;
    if (root->refs != counts->refs + root->has_settings || (root->name && !root->refs) ||
        (root->current && !root->name))
        return false;
    return !root->name || (cattn_roots_find(roots, root->name, root->name_length) == i) == root->current;
}

/* A record reads what the setting of its name says. */
static bool follows_setting(const struct walk *walk, const struct cattn_root *root)
{
    const struct cattn_root *public = cattn_readers_public(walk->tree, root->name, root->name_length);
    if (!public || cattn_roots_is_idle(root))
        return root->reads == CATTN_NONE;
    return root->reads != CATTN_NONE &&
           root->reads == cattn_roots_find(&walk->tree->roots, public->name, public->name_length);
}

static bool check_roots(const struct walk *walk)
{
    const struct cattn_roots *roots = &walk->tree->roots;
    if (!check_readers(roots, walk->roots))
        return false;
    for (uint32_t i = 0; i < roots->n; i++) {
        const struct cattn_root *root = cattn_roots_at(roots, i);
        if (!check_root(roots, i, &walk->roots[i]) || (root->current && !follows_setting(walk, root)) ||
            root->spare != (root->name ? CATTN_NONE : 0))
            return false;
    }
    return true;
}

/* Each name that reads another refers to itself. */
static bool check_settings(const struct walk *walk)
{
    const struct cattn_roots *settings = &walk->tree->settings;
    if (!check_readers(settings, walk->settings))
        return false;
    for (uint32_t i = 0; i < settings->n; i++) {
        const struct cattn_root *setting = cattn_roots_at(settings, i);
        walk->settings[i].refs += setting->name && setting->reads != CATTN_NONE;
        if (!check_root(settings, i, &walk->settings[i]) || (setting->name && !setting->current))
            return false;
    }
    return true;
}

static bool check_all(const struct walk *walk)
{
    return check_extras(walk) && check_sequences(walk) && check_step(walk) && check_pins(walk) && check_slots(walk) &&
           check_free_list(walk) && check_recency(walk) && check_index(walk) && check_settings(walk) &&
           check_roots(walk) && cattn_order_check(walk->tree);
}

static int selfcheck(const struct cattn_cache *cache)
{
    if (!cache)
        return CATTN_EINVAL;
    const struct cattn_tree *tree = &cache->tree;
    if (tree->n_touched > tree->n_slots)
        return CATTN_ESTATE;
    uint32_t n = tree->n_touched;
    struct walk walk = {.cache = cache,
                        .tree = tree,
                        .n = n,
                        .refs = cattn_calloc(n, sizeof(*walk.refs)),
                        .writers = cattn_calloc(n, sizeof(*walk.writers)),
                        .writer = cattn_calloc(n, sizeof(*walk.writer)),
                        .pinned = cattn_calloc(n, sizeof(*walk.pinned)),
                        .children = cattn_calloc(n, sizeof(*walk.children)),
                        .crossings = cattn_calloc(n, sizeof(*walk.crossings)),
                        .place = cattn_calloc(n, sizeof(*walk.place)),
                        .roots = cattn_calloc(tree->roots.n, sizeof(*walk.roots)),
                        .settings = cattn_calloc(tree->settings.n, sizeof(*walk.settings)),
                        .extras = cattn_calloc(tree->extras.tokens.n, sizeof(*walk.extras)),
                        .ids = cattn_calloc(tree->extras.ids.n, sizeof(*walk.ids))};
    int status = CATTN_ENOMEM;
    if (walk.refs && walk.writers && walk.writer && walk.pinned && walk.children && walk.crossings && walk.place &&
        walk.roots && walk.settings && walk.extras && walk.ids)
        status = check_all(&walk) ? CATTN_OK : CATTN_ESTATE;
    cattn_free(walk.refs);
    cattn_free(walk.writers);
    cattn_free(walk.writer);
    cattn_free(walk.pinned);
    cattn_free(walk.children);
    cattn_free(walk.crossings);
    cattn_free(walk.place);
    cattn_free(walk.roots);
    cattn_free(walk.settings);
    cattn_free(walk.extras);
    cattn_free(walk.ids);
    return status;
}

int cattn_cache_selfcheck(const cattn_cache *cache)
{
    return CATTN_LOCKED(cache, selfcheck(cache));
}
