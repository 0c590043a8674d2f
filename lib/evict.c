#include "evict.h"

#include "chunkattention.h"
#include "memory.h"
#include "tree.h"

/* ---- the order */

bool cattn_order_before(const void *order, uint32_t a, uint32_t b)
{
    const struct cattn_rank *ranks = ((const struct cattn_order *)order)->ranks, *x = &ranks[a], *y = &ranks[b];
    if (x->priority != y->priority)
        return x->priority < y->priority;
    return x->value != y->value ? x->value < y->value : x->stamp < y->stamp;
}

bool cattn_order_ends_before(const void *order, uint32_t a, uint32_t b)
{
    const struct cattn_rank *ranks = ((const struct cattn_order *)order)->ranks;
    return ranks[a].end != ranks[b].end ? ranks[a].end < ranks[b].end : a < b;
}

/* Of the tokens of a chunk: attention looks at all before, the rest of the model at the token alone. */
static uint64_t cost_of(const struct cattn_tree *tree, uint32_t slot)
{
    return tree->order.fixed_cost + (uint64_t)tree->order.ranks[slot].depth * tree->chunk_tokens +
           tree->chunk_tokens / 2;
}

static bool is_leaf(const struct cattn_tree *tree, uint32_t slot)
{
    return !tree->slots[slot].refs && !tree->slots[slot].children;
}

/* ---- leaves, and the first of each root */

uint32_t cattn_order_spare(const struct cattn_root *root)
{
    uint64_t n = (uint64_t)root->n_slots + root->coming;
    uint64_t least = root->coming ? root->least : root->reserve;
    uint64_t spare = n > least ? n - least : 0;
    return spare < root->n_evictable ? (uint32_t)spare : root->n_evictable;
}

void cattn_order_refresh(struct cattn_tree *tree, uint32_t root)
{
    struct cattn_order *order = &tree->order;
    struct cattn_root *x = cattn_roots_at(&tree->roots, root);
    uint32_t n_loose = cattn_order_spare(x);
    bool loose = n_loose > 0;
    order->n_loose += n_loose;
    order->n_loose -= x->n_loose;
    x->n_loose = n_loose;
    if (x->shown == x->leaves && x->loose == loose)
        return;
    if (x->shown != CATTN_NONE)
        cattn_heap_remove(&order->tops, x->loose ? &order->loose : &order->kept, x->shown);
    x->shown = x->leaves;
    x->loose = loose;
    if (x->shown != CATTN_NONE)
        cattn_heap_add(&order->tops, loose ? &order->loose : &order->kept, x->shown);
}

static void enter(struct cattn_tree *tree, uint32_t slot)
{
    uint32_t root = tree->slots[slot].root;
    cattn_heap_add(&tree->order.leaves, &cattn_roots_at(&tree->roots, root)->leaves, slot);
    cattn_order_refresh(tree, root);
}

static void leave(struct cattn_tree *tree, uint32_t slot)
{
    uint32_t root = tree->slots[slot].root;
    cattn_heap_remove(&tree->order.leaves, &cattn_roots_at(&tree->roots, root)->leaves, slot);
    cattn_order_refresh(tree, root);
}

uint32_t cattn_order_first(const struct cattn_tree *tree)
{
    return tree->order.loose != CATTN_NONE ? tree->order.loose : tree->order.kept;
}

/* ---- made when it is first needed */

void cattn_order_init(struct cattn_order *order)
{
    *order = (struct cattn_order){.loose = CATTN_NONE, .kept = CATTN_NONE, .next_end = CATTN_NONE, .asked = CATTN_NONE};
}

void cattn_order_release(struct cattn_order *order)
{
    cattn_free(order->ranks);
    cattn_free(order->leaves.links);
    cattn_free(order->tops.links);
    cattn_free(order->ends.links);
    cattn_order_init(order);
}

static int reserve(struct cattn_order *order, uint32_t n_slots)
{
    struct cattn_rank *ranks = cattn_calloc(n_slots, sizeof(*ranks));
    struct cattn_heap_link *leaves = cattn_malloc(n_slots, sizeof(*leaves));
    struct cattn_heap_link *tops = cattn_malloc(n_slots, sizeof(*tops));
    struct cattn_heap_link *ends = cattn_malloc(n_slots, sizeof(*ends));
    if (!ranks || !leaves || !tops || !ends) {
        cattn_free(ranks);
        cattn_free(leaves);
        cattn_free(tops);
        cattn_free(ends);
        return CATTN_ENOMEM;
    }
    order->ranks = ranks;
    order->leaves = (struct cattn_heap){leaves, cattn_order_before, order};
    order->tops = (struct cattn_heap){tops, cattn_order_before, order};
    order->ends = (struct cattn_heap){ends, cattn_order_ends_before, order};
    return CATTN_OK;
}

/* Cost is asked for when the cache is made, so no chunk is there whose depth is not known. */
int cattn_order_open(struct cattn_tree *tree)
{
    struct cattn_order *order = &tree->order;
    if (order->ranks)
        return CATTN_OK;
    if (reserve(order, tree->n_slots))
        return CATTN_ENOMEM;
    for (uint32_t slot = 0; slot < tree->n_touched; slot++)
        order->ranks[slot].end = CATTN_NEVER;
    for (uint32_t slot = tree->oldest; slot != CATTN_NONE; slot = tree->slots[slot].next)
        cattn_order_unreferenced(tree, slot);
    return CATTN_OK;
}

/* ---- what happens to chunks */

void cattn_order_published(struct cattn_tree *tree, uint32_t slot)
{
    uint32_t parent = tree->slots[slot].parent;
    uint32_t depth = parent == CATTN_NONE ? 0 : tree->order.ranks[parent].depth + 1;
    tree->order.ranks[slot] = (struct cattn_rank){.depth = depth, .end = CATTN_NEVER};
}

static void set_end(struct cattn_order *order, uint32_t slot, uint64_t end)
{
    if (order->ranks[slot].end != CATTN_NEVER)
        cattn_heap_remove(&order->ends, &order->next_end, slot);
    order->ranks[slot].end = end;
    if (end != CATTN_NEVER)
        cattn_heap_add(&order->ends, &order->next_end, slot);
}

void cattn_order_unpublished(struct cattn_tree *tree, uint32_t slot)
{
    uint32_t parent = tree->slots[slot].parent;
    set_end(&tree->order, slot, CATTN_NEVER);
    if (parent != CATTN_NONE && is_leaf(tree, parent))
        enter(tree, parent);
}

void cattn_order_unreferenced(struct cattn_tree *tree, uint32_t slot)
{
    struct cattn_order *order = &tree->order;
    order->ranks[slot].stamp = ++order->stamp;
    order->ranks[slot].value = order->by_cost ? order->clock + cost_of(tree, slot) : 0;
    if (!tree->slots[slot].children)
        enter(tree, slot);
    else
        cattn_order_refresh(tree, tree->slots[slot].root);
}

void cattn_order_referenced(struct cattn_tree *tree, uint32_t slot)
{
    if (!tree->slots[slot].children)
        leave(tree, slot);
    else
        cattn_order_refresh(tree, tree->slots[slot].root);
}

/* What was evicted before its turn, since its time was over, says nothing of the others. */
void cattn_order_evicted(struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_rank *x = &tree->order.ranks[slot];
    if (!x->over && tree->order.clock < x->value)
        tree->order.clock = x->value;
}

bool cattn_order_is_over(const struct cattn_tree *tree, uint32_t slot)
{
    return tree->order.ranks && tree->order.ranks[slot].over && is_leaf(tree, slot);
}

/* ---- priorities and ends */

/* Puts a chunk where its priority belongs; what is no leaf is in no heap. */
static void set_priority(struct cattn_tree *tree, uint32_t slot, int32_t priority)
{
    bool moves = is_leaf(tree, slot) && tree->order.ranks[slot].priority != priority;
    if (moves)
        leave(tree, slot);
    tree->order.ranks[slot].priority = priority;
    if (moves)
        enter(tree, slot);
}

/* The chunk above that is of the same namespace: of what it reads none is its to say how it is kept. */
static uint32_t own_parent(const struct cattn_tree *tree, uint32_t slot)
{
    uint32_t parent = tree->slots[slot].parent;
    return parent != CATTN_NONE && tree->slots[parent].root == tree->slots[slot].root ? parent : CATTN_NONE;
}

void cattn_order_retain(struct cattn_tree *tree, uint32_t leaf, int32_t priority, uint64_t end)
{
    for (uint32_t slot = leaf; slot != CATTN_NONE; slot = own_parent(tree, slot)) {
        struct cattn_rank *x = &tree->order.ranks[slot];
        if (!x->retained || x->priority < priority)
            set_priority(tree, slot, priority);
        if (!x->retained || x->end < end)
            set_end(&tree->order, slot, end);
        x->retained = true;
        x->over = false;
    }
}

static void forget(struct cattn_tree *tree, uint32_t slot, bool over)
{
    set_priority(tree, slot, 0);
    set_end(&tree->order, slot, CATTN_NEVER);
    tree->order.ranks[slot].retained = false;
    tree->order.ranks[slot].over = over;
}

void cattn_order_forget(struct cattn_tree *tree, uint32_t leaf)
{
    for (uint32_t slot = leaf; slot != CATTN_NONE; slot = own_parent(tree, slot))
        forget(tree, slot, false);
}

void cattn_order_advance(struct cattn_tree *tree, uint64_t now)
{
    struct cattn_order *order = &tree->order;
    order->now = now;
    while (order->next_end != CATTN_NONE && order->ranks[order->next_end].end <= now) {
        uint32_t slot = order->next_end;
        forget(tree, slot, true);
        if (cattn_order_is_over(tree, slot))
            cattn_tree_evict_from(tree, slot);
    }
}
