#include "step.h"

#include "cache.h"
#include "memory.h"
#include "quota.h"
#include "view.h"

#include <string.h>

/* ---- create and destroy */

static const struct cattn_cache *cache_of(const struct cattn_step *step)
{
    return step ? step->cache : NULL;
}

static void link_step(struct cattn_cache *cache, struct cattn_step *step)
{
    cattn_lock(cache);
    step->next = cache->steps;
    if (step->next)
        step->next->prev = step;
    cache->steps = step;
    cattn_unlock(cache, CATTN_OK);
}

int cattn_step_create(cattn_cache *cache, cattn_step **step)
{
    if (!cache || !step)
        return CATTN_EINVAL;
    struct cattn_step *made = cattn_calloc(1, sizeof(*made));
    struct cattn_pass *passes = cattn_calloc(cache->shape.n_layers, sizeof(*passes));
    if (!made || !passes) {
        cattn_free(made);
        cattn_free(passes);
        return CATTN_ENOMEM;
    }
    made->cache = cache;
    made->passes = passes;
    link_step(cache, made);
    *step = made;
    return CATTN_OK;
}

static void unlink_step(struct cattn_cache *cache, struct cattn_step *step)
{
    cattn_lock(cache);
    if (cache->last_step == step)
        cache->last_step = NULL;
    if (step->next)
        step->next->prev = step->prev;
    if (step->prev)
        step->prev->next = step->next;
    else
        cache->steps = step->next;
    cattn_unlock(cache, CATTN_OK);
}

void cattn_step_destroy(cattn_step *step)
{
    if (!step)
        return;
    (void)cattn_step_abort(step); /* CATTN_ESTATE: it was not open */
    unlink_step(step->cache, step);
    cattn_free(step->plans);
    cattn_free(step->paths);
    cattn_free(step->pieces);
    cattn_free(step->hashes);
    cattn_free(step->pending);
    cattn_free(step->passes);
    cattn_free(step);
}

/* ---- the items */

static void leave_step(struct cattn_cache *cache, const struct cattn_item *items, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        struct cattn_sequence *sequence = cattn_sequence_find(cache, items[i].seq);
        sequence->in_step = false;
        cattn_sequence_drop_pending(cache, sequence);
    }
}

/* CATTN_EINVAL unless all items are good, as far as can be told without reading tokens; then their sequences are in the
 * step. */
static int enter_step(struct cattn_cache *cache, const struct cattn_item *items, size_t n_items)
{
    for (size_t i = 0; i < n_items; i++) {
        struct cattn_sequence *sequence = cattn_sequence_find(cache, items[i].seq);
        if (!sequence || sequence->in_step || !items[i].tokens || !items[i].n_tokens ||
            (items[i].ext && !cattn_ext_is_good(items[i].ext, items[i].n_tokens))) {
            leave_step(cache, items, i);
            return CATTN_EINVAL;
        }
        sequence->in_step = true;
    }
    return CATTN_OK;
}

/* ---- phase 1: match and hold, and cut the rest into pieces */

/* A pool's worth of chunks; more can never fit. */
static bool can_fit(const struct cattn_cache *cache, const struct cattn_sequence *sequence, uint32_t n_tokens)
{
    uint64_t capacity = (uint64_t)cache->tree.n_slots * cache->tree.chunk_tokens;
    return sequence->n_tokens + (uint64_t)n_tokens <= capacity;
}

static int reserve_pending(struct cattn_step *step, size_t n_full)
{
    size_t entries = 2;
    while (entries < 2 * n_full)
        entries *= 2;
    step->pending_possible = n_full > 0;
    if (!n_full)
        return CATTN_OK;
    uint32_t *pending = cattn_grow(step->pending, &step->pending_capacity, entries, sizeof(*pending));
    if (!pending)
        return CATTN_ENOMEM;
    memset(pending, 0, entries * sizeof(*pending));
    step->pending = pending;
    step->pending_mask = entries - 1;
    return CATTN_OK;
}

/* Room for the plans and for all pieces that there can be. */
static int reserve_plans(struct cattn_step *step, size_t n_items, size_t n_pieces, size_t n_full)
{
    struct cattn_plan *plans = cattn_grow(step->plans, &step->plans_capacity, n_items, sizeof(*plans));
    step->plans = plans ? plans : step->plans;
    struct cattn_work_path *paths = cattn_grow(step->paths, &step->paths_capacity, n_items, sizeof(*paths));
    step->paths = paths ? paths : step->paths;
    struct cattn_piece *pieces = cattn_grow(step->pieces, &step->pieces_capacity, n_pieces, sizeof(*pieces));
    step->pieces = pieces ? pieces : step->pieces;
    uint64_t *hashes = cattn_grow(step->hashes, &step->hashes_capacity, n_full, sizeof(*hashes));
    step->hashes = hashes ? hashes : step->hashes;
    return plans && paths && pieces && hashes ? reserve_pending(step, n_full) : CATTN_ENOMEM;
}

static int reserve_items(struct cattn_step *step, const struct cattn_item *items, size_t n_items)
{
    struct cattn_cache *cache = step->cache;
    size_t c = cache->tree.chunk_tokens, n_pieces = 0, n_full = 0;
    uint64_t n_tokens = 0;
    bool fits = true;
    for (size_t i = 0; i < n_items; i++) {
        const struct cattn_sequence *sequence = cattn_sequence_find(cache, items[i].seq);
        if (!can_fit(cache, sequence, items[i].n_tokens)) {
            fits = false; /* its tokens are not read */
            continue;
        }
        if (cattn_tokens_negative(items[i].tokens, items[i].n_tokens))
            return CATTN_EINVAL;
        n_pieces += (sequence->t + (size_t)items[i].n_tokens + c - 1) / c;
        n_full += (sequence->t + (size_t)items[i].n_tokens) / c;
        n_tokens += items[i].n_tokens;
    }
    if (!fits || n_tokens > UINT32_MAX || n_pieces >= CATTN_PENDING)
        return CATTN_ETOOBIG; /* rows are counted in 32 bits; no pool has as many slots as that takes */
    if (reserve_plans(step, n_items, n_pieces, n_full))
        return CATTN_ENOMEM;
    for (size_t i = 0; i < n_items; i++) {
        struct cattn_sequence *sequence = cattn_sequence_find(cache, items[i].seq);
        size_t n_chunks = (sequence->n_tokens + (size_t)items[i].n_tokens + c - 1) / c;
        if (cattn_sequence_reserve(sequence, n_chunks, n_chunks * c) ||
            cattn_sequence_add_pending(cache, sequence, items[i].tokens, items[i].n_tokens, items[i].ext))
            return CATTN_ENOMEM;
    }
    return CATTN_OK;
}

static bool is_pending(uint32_t node)
{
    return node != CATTN_NONE && node >= CATTN_PENDING;
}

/* What the hashes of the chunks of a root below a node start from. */
static uint64_t above_node(const struct cattn_step *step, uint32_t node, uint32_t root)
{
    const struct cattn_tree *tree = &step->cache->tree;
    if (!is_pending(node))
        return cattn_tree_above(tree, node, root);
    const struct cattn_piece *piece = &step->pieces[node - CATTN_PENDING];
    return piece->root == root ? piece->hash : cattn_tree_cross(tree, piece->hash, root);
}

/* The last of n whole chunks of a path. */
static uint32_t last_node(const struct cattn_sequence *sequence, size_t n)
{
    return n ? sequence->chunks[n - 1] : CATTN_NONE;
}

/* Hashes depend on tokens alone, so all of an item's are there before the first is looked for: those of the sequence's
 * own chunks from the n-th on. */
static void hash_chunks(struct cattn_step *step, struct cattn_plan *plan, size_t n)
{
    const struct cattn_tree *tree = &step->cache->tree;
    const struct cattn_sequence *sequence = plan->sequence;
    size_t c = tree->chunk_tokens, end = sequence->n_tokens + plan->n_tokens;
    plan->first_hash = step->n_hashes;
    if ((n + 1) * c > end)
        return;
    step->n_hashes += n - sequence->n_chunks;
    uint64_t hash = above_node(step, last_node(sequence, n), sequence->root);
    for (; (n + 1) * c <= end; n++) {
        hash = cattn_tree_hash(tree, hash, sequence->tokens + n * c);
        cattn_tree_fetch(tree, hash);
        step->hashes[step->n_hashes++] = hash;
    }
}

static uint32_t find_pending(const struct cattn_step *step, uint32_t parent, uint32_t root, const int32_t *tokens,
                             uint64_t hash)
{
    for (size_t i = hash & step->pending_mask; step->pending[i]; i = (i + 1) & step->pending_mask) {
        const struct cattn_piece *piece = &step->pieces[step->pending[i] - 1];
        if (piece->hash == hash && piece->parent == parent && piece->root == root &&
            !memcmp(piece->tokens, tokens, step->cache->tree.chunk_tokens * sizeof(*tokens)))
            return CATTN_PENDING + (step->pending[i] - 1);
    }
    return CATTN_NONE;
}

static void add_pending(struct cattn_step *step, uint32_t number)
{
    size_t i = step->pieces[number].hash & step->pending_mask;
    while (step->pending[i])
        i = (i + 1) & step->pending_mask;
    step->pending[i] = number + 1;
}

/* A whole chunk that is published, or that an earlier item makes. */
static uint32_t find_node(const struct cattn_step *step, uint32_t parent, uint32_t root, const int32_t *tokens,
                          uint64_t hash)
{
    uint32_t node = CATTN_NONE;
    if (!is_pending(parent))
        node = cattn_tree_find(&step->cache->tree, parent, root, tokens, hash);
    return node != CATTN_NONE ? node : find_pending(step, parent, root, tokens, hash);
}

/* The tokens of the tail or borrow come first: what is matched replaces it. */
static void match_again(struct cattn_step *step, struct cattn_plan *plan)
{
    struct cattn_sequence *sequence = plan->sequence;
    size_t c = step->cache->tree.chunk_tokens, end = sequence->n_tokens + plan->n_tokens;
    uint32_t parent = last_node(sequence, sequence->n_chunks);
    plan->n_matched = 0;
    for (size_t n = sequence->n_chunks; (n + 1) * c <= end; n++) {
        uint64_t hash = step->hashes[plan->first_hash + plan->n_matched];
        uint32_t node = find_node(step, parent, sequence->root, sequence->tokens + n * c, hash);
        if (node == CATTN_NONE)
            break;
        sequence->chunks[n] = parent = node;
        plan->n_matched++;
    }
}

/* The chunks of one root that follow the first n of the path.  Returns how many there are. */
static size_t follow_nodes(const struct cattn_step *step, const struct cattn_plan *plan, size_t n, uint32_t root)
{
    const struct cattn_tree *tree = &step->cache->tree;
    struct cattn_sequence *sequence = plan->sequence;
    size_t c = tree->chunk_tokens, end = sequence->n_tokens + plan->n_tokens, first = n;
    uint32_t parent = last_node(sequence, n);
    uint64_t hash = above_node(step, parent, root);
    for (; (n + 1) * c <= end; n++) {
        hash = cattn_tree_hash(tree, hash, sequence->tokens + n * c);
        parent = find_node(step, parent, root, sequence->tokens + n * c, hash);
        if (parent == CATTN_NONE)
            break;
        sequence->chunks[n] = parent;
    }
    return n - first;
}

static uint32_t parent_of(const struct cattn_step *step, uint32_t node)
{
    return is_pending(node) ? step->pieces[node - CATTN_PENDING].parent : step->cache->tree.slots[node].parent;
}

/* The same for a path to which public chunks may be added yet, behind each of which own ones may follow: the longest,
 * and of equals the one with most public chunks. */
static void match_across(struct cattn_step *step, struct cattn_plan *plan, uint32_t public)
{
    struct cattn_sequence *sequence = plan->sequence;
    size_t held = sequence->n_chunks, n_public = held + follow_nodes(step, plan, held, public), best = n_public;
    uint32_t leaf = last_node(sequence, best);
    for (size_t n = n_public + 1; n-- > held;) {
        size_t length = n + follow_nodes(step, plan, n, sequence->root);
        if (length > best) {
            best = length;
            leaf = last_node(sequence, best);
        }
    }
    for (size_t n = best; n > held; leaf = parent_of(step, leaf))
        sequence->chunks[--n] = leaf;
    plan->n_matched = best - held;
}

/* Whole chunks that are there already. */
static void match_item(struct cattn_step *step, struct cattn_plan *plan)
{
    const struct cattn_tree *tree = &step->cache->tree;
    struct cattn_sequence *sequence = plan->sequence;
    struct cattn_view view = cattn_view_of(tree, sequence->root);
    if (cattn_view_is_public(tree, view, last_node(sequence, sequence->n_chunks))) {
        match_across(step, plan, view.public);
        hash_chunks(step, plan, sequence->n_chunks + plan->n_matched);
    } else {
        hash_chunks(step, plan, sequence->n_chunks);
        match_again(step, plan);
    }
}

/* A borrow becomes an own tail, always: no row may read what another sequence writes on. */
static enum cattn_placing placing_of(const struct cattn_tree *tree, const struct cattn_plan *plan)
{
    const struct cattn_sequence *sequence = plan->sequence;
    if (sequence->tail == CATTN_NONE || plan->n_matched)
        return CATTN_TAKE;
    if (sequence->owns)
        return CATTN_IN_PLACE;
    const struct cattn_slot *x = &tree->slots[sequence->tail];
    return !x->published && x->refs == 1 ? CATTN_TAKEOVER : CATTN_COPY;
}

/* Cuts what is not matched into pieces, which continue the path.  Returns the number of tokens to store. */
static uint64_t cut_pieces(struct cattn_step *step, struct cattn_plan *plan)
{
    struct cattn_sequence *sequence = plan->sequence;
    size_t c = step->cache->tree.chunk_tokens, end = sequence->n_tokens + plan->n_tokens;
    size_t n = sequence->n_chunks + plan->n_matched;
    uint32_t parent = n ? sequence->chunks[n - 1] : CATTN_NONE;
    uint32_t start = plan->n_matched ? 0 : sequence->t;
    uint64_t n_stored = end > n * c ? end - n * c - start : 0;
    plan->first_piece = step->n_pieces;
    for (; n * c < end; n++, start = 0) {
        uint32_t number = (uint32_t)step->n_pieces++;
        struct cattn_piece *piece = &step->pieces[number];
        uint32_t n_tokens = end - n * c < c ? (uint32_t)(end - n * c) : (uint32_t)c;
        *piece = (struct cattn_piece){.tokens = sequence->tokens + n * c,
                                      .start = start,
                                      .end = n_tokens,
                                      .slot = CATTN_NONE,
                                      .parent = parent,
                                      .root = sequence->root};
        sequence->chunks[n] = parent = CATTN_PENDING + number;
        if (n_tokens == c) {
            piece->hash = step->hashes[plan->first_hash + (n - sequence->n_chunks)];
            add_pending(step, number);
        }
    }
    plan->n_pieces = step->n_pieces - plan->first_piece;
    return n_stored;
}

static void plan_item(struct cattn_step *step, struct cattn_plan *plan, const struct cattn_item *item)
{
    struct cattn_sequence *sequence = cattn_sequence_find(step->cache, item->seq);
    size_t end = sequence->n_tokens + item->n_tokens;
    *plan = (struct cattn_plan){.sequence = sequence,
                                .handle = item->seq,
                                .n_tokens = item->n_tokens,
                                .tail = CATTN_NONE,
                                .replaced = CATTN_NONE};
    if (step->pending_possible)
        match_item(step, plan);
    plan->how = placing_of(&step->cache->tree, plan);
    uint64_t n_rows = cut_pieces(step, plan);
    if (n_rows < item->min_rows)
        n_rows = item->min_rows;
    if (n_rows < 1)
        n_rows = 1;
    plan->n_rows = n_rows < item->n_tokens ? (uint32_t)n_rows : item->n_tokens;
    plan->position = end - plan->n_rows;
    plan->n_path = end / step->cache->tree.chunk_tokens;
}

/* Whether the item goes on where it stood when the last step had ended, in the tail that it has, with as many rows. */
static bool continues(const struct cattn_plan *before, const struct cattn_plan *plan)
{
    return before->handle == plan->handle && before->n_cuts == plan->sequence->n_cuts &&
           before->n_rows == plan->n_rows && plan->how == CATTN_IN_PLACE && plan->n_pieces == 1;
}

/* *advances: nothing but the lengths differs from the last step. */
static void plan_items(struct cattn_step *step, const struct cattn_item *items, size_t n_items, bool *advances)
{
    *advances = step->cache->last_step == step && step->n_plans == n_items;
    step->cache->last_step = NULL;
    step->n_plans = n_items;
    step->n_pieces = step->n_hashes = 0;
    for (size_t i = 0; i < n_items; i++) {
        struct cattn_plan before = {0};
        if (*advances)
            before = step->plans[i];
        plan_item(step, &step->plans[i], &items[i]);
        *advances = *advances && continues(&before, &step->plans[i]);
    }
}

/* ---- phase 2: count the slots and get all memory */

static bool needs_no_slot(const struct cattn_plan *plan)
{
    return plan->how == CATTN_IN_PLACE || plan->how == CATTN_TAKEOVER;
}

static uint64_t slots_needed(const struct cattn_step *step)
{
    uint64_t need = step->n_pieces;
    for (size_t i = 0; i < step->n_plans; i++)
        need -= needs_no_slot(&step->plans[i]);
    return need;
}

/* 1 the first time in a walk, then 0. */
static uint32_t mark_slot(struct cattn_tree *tree, uint32_t slot)
{
    if (tree->slots[slot].mark == tree->mark)
        return 0;
    tree->slots[slot].mark = tree->mark;
    return 1;
}

/* Matched chunks of an item that nobody refers to, and that were not counted before: evictable no more.  demand: adds
 * them to that of their roots. */
static uint32_t count_idle(struct cattn_tree *tree, const struct cattn_plan *plan, bool demand)
{
    const uint32_t *matched = plan->sequence->chunks + plan->sequence->n_chunks;
    uint32_t n = 0;
    for (size_t k = 0; k < plan->n_matched; k++) {
        if (is_pending(matched[k]) || tree->slots[matched[k]].refs || !mark_slot(tree, matched[k]))
            continue;
        n++;
        if (demand)
            cattn_demand_add(tree, tree->slots[matched[k]].root, 0, 1);
    }
    return n;
}

static uint32_t count_held(const struct cattn_step *step)
{
    struct cattn_tree *tree = &step->cache->tree;
    uint32_t n = 0;
    tree->mark++;
    for (size_t i = 0; i < step->n_plans; i++)
        n += count_idle(tree, &step->plans[i], false);
    return n;
}

/* The slots that the items below a root keep (CATTN_NONE: below any), each counted once: those of their paths and tails
 * once the step ends that are there already. */
static uint64_t count_kept(const struct cattn_step *step, uint32_t root)
{
    struct cattn_tree *tree = &step->cache->tree;
    uint64_t n = 0;
    tree->mark++;
    for (size_t i = 0; i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        const struct cattn_sequence *sequence = plan->sequence;
        if (root != CATTN_NONE && sequence->root != root)
            continue;
        for (size_t k = 0; k < sequence->n_chunks + plan->n_matched; k++) {
            uint32_t slot = sequence->chunks[k];
            if (!is_pending(slot) && (root == CATTN_NONE || tree->slots[slot].root == root))
                n += mark_slot(tree, slot);
        }
        if (needs_no_slot(plan))
            n += mark_slot(tree, sequence->tail);
    }
    return n;
}

/* The same by namespace, where there are reserves and limits. */
static bool fits_quotas(struct cattn_step *step)
{
    struct cattn_tree *tree = &step->cache->tree;
    tree->mark++;
    for (size_t i = 0; i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        uint64_t n_new = plan->n_pieces - needs_no_slot(plan);
        cattn_demand_add(tree, plan->sequence->root, n_new, 0);
        count_idle(tree, plan, true);
    }
    step->refused = cattn_demand_above(tree);
    return step->refused == CATTN_NONE && cattn_demand_has_room(tree);
}

static bool fits_limits(const struct cattn_step *step)
{
    const struct cattn_tree *tree = &step->cache->tree;
    for (uint32_t root = tree->order.asked; root != CATTN_NONE;) {
        const struct cattn_root *x = cattn_roots_at(&tree->roots, root);
        if (x->limit && x->n_new && count_kept(step, root) + x->n_new > x->limit)
            return false;
        root = x->next_asked;
    }
    return true;
}

/* Items that can never fit cannot fit now either, so the longer count is made for those alone that do not. */
static int count_slots(struct cattn_step *step)
{
    struct cattn_tree *tree = &step->cache->tree;
    uint64_t need = slots_needed(step);
    if (!need || (tree->order.n_settings ? fits_quotas(step)
                                         : need <= (uint64_t)tree->n_free + tree->n_evictable - count_held(step)))
        return CATTN_OK;
    bool possible = count_kept(step, CATTN_NONE) + need <= tree->n_slots && fits_limits(step);
    return possible ? CATTN_EFULL : CATTN_ETOOBIG;
}

static size_t path_slots(const struct cattn_plan *plan, size_t chunk_tokens)
{
    return plan->n_path + ((plan->sequence->n_tokens + plan->n_tokens) % chunk_tokens > 0);
}

static int reserve_work(const struct cattn_step *step)
{
    struct cattn_cache *cache = step->cache;
    struct cattn_work_bounds bounds = {0};
    bounds.n_items = step->n_plans;
    for (size_t i = 0; i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        uint64_t n_tokens = plan->sequence->n_tokens + (uint64_t)plan->n_tokens;
        bounds.n_chunks += path_slots(plan, cache->tree.chunk_tokens);
        bounds.n_rows += plan->n_rows;
        if (bounds.max_tokens < n_tokens)
            bounds.max_tokens = n_tokens;
    }
    if (cattn_work_reserve(&cache->work, step->n_plans, (size_t)bounds.n_chunks, step->n_pieces))
        return CATTN_ENOMEM;
    return cache->backend->reserve(cache->store, &bounds);
}

/* ---- phase 3: evict, take, copy.  From here on nothing can fail. */

static void hold_matched(struct cattn_step *step)
{
    for (size_t i = 0; i < step->n_plans; i++) {
        const struct cattn_plan *plan = &step->plans[i];
        const uint32_t *matched = plan->sequence->chunks + plan->sequence->n_chunks;
        for (size_t k = 0; k < plan->n_matched; k++) {
            if (!is_pending(matched[k]))
                cattn_tree_acquire(&step->cache->tree, matched[k]);
        }
    }
}

static void copy_borrow(struct cattn_cache *cache, uint32_t from, uint32_t to, uint32_t t)
{
    memcpy(cattn_tree_tokens(&cache->tree, to), cattn_tree_tokens(&cache->tree, from), t * sizeof(int32_t));
    cattn_tree_set_fill(&cache->tree, to, t);
    cache->backend->copy(cache->store, from, to, t);
}

static void place_piece(struct cattn_cache *cache, const struct cattn_plan *plan, struct cattn_piece *piece,
                        uint32_t parent)
{
    const struct cattn_sequence *sequence = plan->sequence;
    if (piece->start && needs_no_slot(plan)) {
        piece->slot = sequence->tail;
        cattn_tree_set_fill(&cache->tree, piece->slot, piece->start);
        cache->tree.slots[piece->slot].writer = sequence->handle;
        return;
    }
    piece->slot = cattn_tree_take(&cache->tree, parent, sequence->root, sequence->handle);
    if (piece->start)
        copy_borrow(cache, sequence->tail, piece->slot, piece->start);
}

/* Gives each node that the step adds to the path its slot.  The sequence itself is not touched before the step ends. */
static void place(struct cattn_step *step, struct cattn_plan *plan)
{
    struct cattn_cache *cache = step->cache;
    struct cattn_sequence *sequence = plan->sequence;
    size_t n = sequence->n_chunks;
    for (size_t k = 0; k < plan->n_matched; k++, n++) {
        if (is_pending(sequence->chunks[n])) {
            sequence->chunks[n] = step->pieces[sequence->chunks[n] - CATTN_PENDING].slot;
            cattn_tree_acquire(&cache->tree, sequence->chunks[n]);
        }
    }
    for (size_t k = 0; k < plan->n_pieces; k++, n++) {
        struct cattn_piece *piece = &step->pieces[plan->first_piece + k];
        place_piece(cache, plan, piece, n ? sequence->chunks[n - 1] : CATTN_NONE);
        sequence->chunks[n] = piece->slot;
    }
    if (n > plan->n_path)
        plan->tail = sequence->chunks[plan->n_path];
}

static void get_slots(struct cattn_step *step)
{
    struct cattn_tree *tree = &step->cache->tree;
    uint64_t need = slots_needed(step);
    hold_matched(step);
    if (tree->order.asked != CATTN_NONE)
        cattn_demand_meet(tree);
    else if (need > tree->n_free)
        cattn_tree_evict(tree, (uint32_t)(need - tree->n_free));
    for (size_t i = 0; i < step->n_plans; i++)
        place(step, &step->plans[i]);
}

/* ---- phase 4: rows and work list */

/* In the statistics of the cache and of the sequence. */
static void count_tokens(struct cattn_cache *cache, const struct cattn_plan *plan, uint64_t n_stored)
{
    struct cattn_sequence *sequence = plan->sequence;
    uint64_t hits = plan->n_tokens - n_stored + sequence->uncounted;
    sequence->uncounted = 0;
    struct cattn_root *root = cattn_roots_at(&cache->tree.roots, sequence->root);
    sequence->hits += hits;
    sequence->misses += n_stored;
    root->hits += hits;
    root->misses += n_stored;
    cache->hits += hits;
    cache->misses += n_stored;
}

static void lay_out_rows(struct cattn_step *step)
{
    struct cattn_cache *cache = step->cache;
    uint32_t row = 0;
    for (size_t i = 0; i < step->n_plans; i++) {
        struct cattn_plan *plan = &step->plans[i];
        uint64_t n_stored = 0;
        for (size_t k = 0; k < plan->n_pieces; k++)
            n_stored += step->pieces[plan->first_piece + k].end - step->pieces[plan->first_piece + k].start;
        plan->first_row = row;
        row += plan->n_rows;
        count_tokens(cache, plan, n_stored);
        step->paths[i] = (struct cattn_work_path){
            plan->sequence->chunks, (uint32_t)path_slots(plan, cache->tree.chunk_tokens), plan->n_rows, plan->position};
    }
}

static void add_writes(struct cattn_step *step, const struct cattn_plan *plan)
{
    struct cattn_cache *cache = step->cache;
    uint64_t first = (plan->sequence->n_chunks + plan->n_matched) * (uint64_t)cache->tree.chunk_tokens;
    for (size_t k = 0; k < plan->n_pieces; k++, first += cache->tree.chunk_tokens) {
        const struct cattn_piece *piece = &step->pieces[plan->first_piece + k];
        struct cattn_work_write write = {.slot = piece->slot,
                                         .begin = piece->start,
                                         .end = piece->end,
                                         .row = plan->first_row + (uint32_t)(first + piece->start - plan->position),
                                         .dirty = cache->tree.slots[piece->slot].dirty};
        cattn_work_add_write(&cache->work, &write);
    }
}

static void build_work(struct cattn_step *step, bool advances)
{
    struct cattn_cache *cache = step->cache;
    if (advances) {
        /* each item reads on in its own tail, which no other sees */
        uint64_t n_tokens = cattn_work_advance(&cache->work, step->paths);
        step->read_tokens += n_tokens;
        step->read_tokens_unshared += n_tokens;
        cattn_work_clear_writes(&cache->work);
    } else {
        cattn_work_build(&cache->work, step->paths, step->n_plans, 1);
        cattn_work_count_tokens(&cache->work, 0, 0, &step->read_tokens, &step->read_tokens_unshared);
    }
    for (size_t i = 0; i < step->n_plans; i++)
        add_writes(step, &step->plans[i]);
    cache->backend->plan(cache->store, &cache->work);
    step->plan = cache->backend->device ? cache->backend->device->plan_number(cache->store) : 0;
    step->replayed = false;
}

/* ---- begin */

static void open_step(struct cattn_step *step, struct cattn_item *items, bool advances)
{
    get_slots(step);
    lay_out_rows(step);
    build_work(step, advances);
    atomic_store(&step->n_passes, 0);
    for (uint32_t layer = 0; layer < step->cache->shape.n_layers; layer++)
        cattn_pass_reset(&step->passes[layer]);
    for (size_t i = 0; i < step->n_plans; i++) {
        items[i].first_row = step->plans[i].first_row;
        items[i].n_rows = step->plans[i].n_rows;
        items[i].position = step->plans[i].position;
    }
    step->cache->open_step = step;
}

static int begin_step(struct cattn_step *step, struct cattn_item *items, size_t n_items)
{
    if (!step)
        return CATTN_EINVAL;
    struct cattn_cache *cache = step->cache;
    step->refused = CATTN_NONE;
    if (cache->open_step)
        return CATTN_ESTATE;
    if (cattn_store_status(cache->backend, cache->store))
        return CATTN_EDEVICE;
    if ((!items && n_items) || enter_step(cache, items, n_items))
        return CATTN_EINVAL;
    bool advances = false;
    int status = reserve_items(step, items, n_items);
    if (!status) {
        plan_items(step, items, n_items, &advances);
        status = count_slots(step);
    }
    if (!status)
        status = reserve_work(step);
    if (status)
        leave_step(cache, items, n_items);
    else
        open_step(step, items, advances);
    cattn_demand_clear(&cache->tree);
    return status;
}

int cattn_step_begin(cattn_step *step, struct cattn_item *items, size_t n_items)
{
    return CATTN_LOCKED(cache_of(step), begin_step(step, items, n_items));
}

/* ---- end and abort */

size_t cattn_plan_holds(const struct cattn_plan *plan, const uint32_t **slots)
{
    size_t in_place = needs_no_slot(plan);
    *slots = plan->sequence->chunks + plan->sequence->n_chunks + in_place;
    return plan->n_matched + plan->n_pieces - in_place;
}

static void raise_dirty(struct cattn_step *step)
{
    for (size_t i = 0; i < step->n_pieces; i++) {
        struct cattn_slot *x = &step->cache->tree.slots[step->pieces[i].slot];
        if (x->dirty < step->pieces[i].end)
            x->dirty = step->pieces[i].end;
    }
}

static void commit_piece(struct cattn_tree *tree, const struct cattn_piece *piece)
{
    size_t n = piece->end - piece->start;
    memcpy(cattn_tree_tokens(tree, piece->slot) + piece->start, piece->tokens + piece->start, n * sizeof(int32_t));
    cattn_tree_set_fill(tree, piece->slot, piece->end);
    if (piece->end == tree->chunk_tokens)
        cattn_tree_publish(tree, piece->slot, piece->hash);
}

/* Publishes the full pieces and moves the sequence. */
static void commit(struct cattn_step *step, struct cattn_plan *plan)
{
    struct cattn_tree *tree = &step->cache->tree;
    struct cattn_sequence *sequence = plan->sequence;
    if (sequence->tail != CATTN_NONE && !needs_no_slot(plan)) {
        plan->replaced = sequence->tail;
        if (sequence->owns)
            tree->slots[sequence->tail].writer = 0;
    }
    for (size_t k = 0; k < plan->n_pieces; k++)
        commit_piece(tree, &step->pieces[plan->first_piece + k]);
    sequence->n_tokens += sequence->n_pending;
    sequence->n_pending = 0;
    sequence->n_chunks = plan->n_path;
    sequence->tail = plan->tail;
    sequence->t = (uint32_t)(sequence->n_tokens % tree->chunk_tokens);
    sequence->owns = plan->tail != CATTN_NONE;
    plan->n_cuts = sequence->n_cuts;
}

static void close_step(struct cattn_step *step)
{
    step->cache->open_step = NULL;
    for (size_t i = 0; i < step->n_plans; i++) {
        struct cattn_sequence *sequence = step->plans[i].sequence;
        sequence->in_step = false;
        if (sequence->n_pending)
            cattn_sequence_drop_pending(step->cache, sequence);
        if (sequence->closed)
            cattn_sequence_remove(step->cache, sequence);
        step->plans[i].sequence = NULL;
    }
}

static int end_step(struct cattn_step *step)
{
    if (!step)
        return CATTN_EINVAL;
    struct cattn_cache *cache = step->cache;
    if (cache->open_step != step)
        return CATTN_ESTATE;
    for (uint32_t layer = 0; step->n_plans && layer < cache->shape.n_layers; layer++) {
        if (!step->passes[layer].written)
            return CATTN_ESTATE;
    }
    if (cattn_store_status(cache->backend, cache->store))
        return CATTN_EDEVICE;
    if (!step->replayed)
        step->ended_plan = step->plan;
    raise_dirty(step);
    for (size_t i = 0; i < step->n_plans; i++)
        commit(step, &step->plans[i]);
    for (size_t i = 0; i < step->n_plans; i++) {
        if (step->plans[i].replaced != CATTN_NONE)
            cattn_tree_unref(&cache->tree, step->plans[i].replaced);
    }
    close_step(step);
    cache->last_step = step;
    return CATTN_OK;
}

int cattn_step_end(cattn_step *step)
{
    return CATTN_LOCKED(cache_of(step), end_step(step));
}

static int abort_step(struct cattn_step *step)
{
    if (!step)
        return CATTN_EINVAL;
    struct cattn_cache *cache = step->cache;
    if (cache->open_step != step)
        return CATTN_ESTATE;
    raise_dirty(step);
    for (size_t i = 0; i < step->n_plans; i++) {
        if (step->plans[i].how == CATTN_TAKEOVER)
            cache->tree.slots[step->plans[i].sequence->tail].writer = 0;
    }
    for (size_t i = 0; i < step->n_plans; i++) {
        const uint32_t *slots;
        for (size_t n = cattn_plan_holds(&step->plans[i], &slots); n; n--)
            cattn_tree_unref(&cache->tree, slots[n - 1]);
    }
    close_step(step);
    return CATTN_OK;
}

int cattn_step_abort(cattn_step *step)
{
    return CATTN_LOCKED(cache_of(step), abort_step(step));
}
