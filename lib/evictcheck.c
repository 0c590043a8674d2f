/* Whether the order of eviction is as it must be.  No memory is needed: a slot that comes before what hangs below it,
 * at every link and in a strict order, is in no circle, and so all that are in a heap hang below its top. */
#include "evict.h"

#include "tree.h"

static bool is_cached(const struct cattn_tree *tree, uint32_t slot)
{
    return tree->slots[slot].root != CATTN_NONE && tree->slots[slot].published;
}

static bool is_leaf(const struct cattn_tree *tree, uint32_t slot)
{
    return is_cached(tree, slot) && !tree->slots[slot].refs && !tree->slots[slot].children;
}

static bool is_shown(const struct cattn_tree *tree, uint32_t slot)
{
    return is_leaf(tree, slot) && cattn_roots_at(&tree->roots, tree->slots[slot].root)->shown == slot;
}

static bool has_end(const struct cattn_tree *tree, uint32_t slot)
{
    return is_cached(tree, slot) && tree->order.ranks[slot].end != CATTN_NEVER;
}

/* Which slots a heap has, and the one of each slot. */
struct kind {
    const struct cattn_heap *heap;
    bool (*has)(const struct cattn_tree *tree, uint32_t slot);
    uint32_t (*top_of)(const struct cattn_tree *tree, uint32_t slot);
};

static uint32_t top_of_leaves(const struct cattn_tree *tree, uint32_t slot)
{
    return cattn_roots_at(&tree->roots, tree->slots[slot].root)->leaves;
}

static uint32_t top_of_shown(const struct cattn_tree *tree, uint32_t slot)
{
    bool loose = cattn_roots_at(&tree->roots, tree->slots[slot].root)->loose;
    return loose ? tree->order.loose : tree->order.kept;
}

static uint32_t top_of_ends(const struct cattn_tree *tree, uint32_t slot)
{
    (void)slot;
    return tree->order.next_end;
}

static uint32_t rank_of(const struct cattn_heap *heap, uint32_t slot)
{
    return slot == CATTN_NONE ? 0 : heap->links[slot].rank;
}

static bool check_below(const struct cattn_tree *tree, const struct kind *kind, uint32_t slot, uint32_t below)
{
    if (below == CATTN_NONE)
        return true;
    const struct cattn_heap *heap = kind->heap;
    return below < tree->n_touched && kind->has(tree, below) && heap->links[below].up == slot &&
           kind->top_of(tree, below) == kind->top_of(tree, slot) && heap->before(heap->context, slot, below);
}

static bool check_link(const struct cattn_tree *tree, const struct kind *kind, uint32_t slot)
{
    const struct cattn_heap *heap = kind->heap;
    const struct cattn_heap_link *x = &heap->links[slot];
    if (!check_below(tree, kind, slot, x->left) || !check_below(tree, kind, slot, x->right) ||
        rank_of(heap, x->left) < rank_of(heap, x->right) || x->rank != rank_of(heap, x->right) + 1)
        return false;
    if (x->up == CATTN_NONE)
        return kind->top_of(tree, slot) == slot;
    return x->up < tree->n_touched && kind->has(tree, x->up) &&
           (heap->links[x->up].left == slot) != (heap->links[x->up].right == slot);
}

static bool check_rank(const struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_order *order = &tree->order;
    const struct cattn_rank *x = &order->ranks[slot];
    uint32_t parent = tree->slots[slot].parent;
    uint32_t depth = parent == CATTN_NONE ? 0 : order->ranks[parent].depth + 1;
    return (!order->by_cost || x->depth == depth) && (x->retained || (!x->priority && x->end == CATTN_NEVER)) &&
           (x->end == CATTN_NEVER || x->end > order->now) && !(x->retained && x->over) &&
           !(x->over && is_leaf(tree, slot));
}

static bool check_top(const struct cattn_tree *tree, const struct kind *kind, uint32_t top)
{
    return top == CATTN_NONE || (top < tree->n_touched && kind->has(tree, top) && kind->top_of(tree, top) == top);
}

static bool check_heap(const struct cattn_tree *tree, const struct kind *kind)
{
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        if (kind->has(tree, slot) && !check_link(tree, kind, slot))
            return false;
    }
    return true;
}

/* Unreferenced chunks without a leaf among them: those that are read may have chunks of their readers below. */
static bool check_leaves(const struct cattn_root *x)
{
    return x->leaves != CATTN_NONE ? x->n_evictable > 0 : !x->n_evictable || x->n_readers;
}

static bool check_root(const struct cattn_root *x)
{
    return x->shown == x->leaves && check_leaves(x) && !x->is_asked && !x->n_new && !x->n_held && !x->coming &&
           x->n_loose == cattn_order_spare(x) && x->loose == (x->n_loose > 0) &&
           x->has_settings == (x->reserve || x->limit) && (!x->has_settings || x->current);
}

static bool check_roots(const struct cattn_tree *tree, const struct kind *leaves)
{
    uint64_t n_loose = 0, reserved = 0, n_settings = 0;
    for (uint32_t i = 0; i < tree->roots.n; i++) {
        const struct cattn_root *x = cattn_roots_at(&tree->roots, i);
        if (!x->name)
            continue;
        if (!check_root(x) || !check_top(tree, leaves, x->leaves) ||
            (x->leaves != CATTN_NONE && tree->slots[x->leaves].root != i))
            return false;
        n_loose += x->n_loose;
        reserved += x->reserve;
        n_settings += x->has_settings;
    }
    const struct cattn_order *order = &tree->order;
    return n_loose == order->n_loose && reserved == order->reserved && n_settings == order->n_settings &&
           reserved <= tree->n_slots && order->asked == CATTN_NONE && !order->n_asked;
}

bool cattn_order_check(const struct cattn_tree *tree)
{
    const struct cattn_order *order = &tree->order;
    if (!order->ranks)
        return !order->n_settings && order->asked == CATTN_NONE && !order->n_asked;
    const struct kind leaves = {&order->leaves, is_leaf, top_of_leaves};
    const struct kind shown = {&order->tops, is_shown, top_of_shown};
    const struct kind ends = {&order->ends, has_end, top_of_ends};
    for (uint32_t slot = 0; slot < tree->n_touched; slot++) {
        if (is_cached(tree, slot) && !check_rank(tree, slot))
            return false;
    }
    return check_roots(tree, &leaves) && check_heap(tree, &leaves) && check_heap(tree, &shown) &&
           check_heap(tree, &ends) && check_top(tree, &shown, order->loose) && check_top(tree, &shown, order->kept) &&
           check_top(tree, &ends, order->next_end);
}
