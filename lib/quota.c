#include "quota.h"

#include "chunkattention.h"
#include "tree.h"

/* ---- settings */

/* Slots are counted in 32 bits; a limit beyond the pool is none that is ever reached. */
static uint32_t clip(uint64_t n)
{
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void change(struct cattn_tree *tree, uint32_t root, uint32_t reserve, uint32_t limit)
{
    struct cattn_root *x = cattn_roots_at(&tree->roots, root);
    bool had = x->has_settings;
    tree->order.reserved += reserve;
    tree->order.reserved -= x->reserve;
    x->reserve = reserve;
    x->limit = limit;
    x->has_settings = reserve || limit;
    tree->order.n_settings += x->has_settings;
    tree->order.n_settings -= had;
    cattn_order_refresh(tree, root);
    if (x->has_settings)
        cattn_roots_acquire(&tree->roots, root);
    if (had)
        cattn_roots_drop(&tree->roots, root);
}

bool cattn_quota_is_possible(const struct cattn_tree *tree, const void *name, size_t length, uint64_t reserve)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    uint64_t before = root == CATTN_NONE ? 0 : cattn_roots_at(&tree->roots, root)->reserve;
    return reserve <= tree->n_slots - (tree->order.reserved - before);
}

int cattn_quota_set(struct cattn_tree *tree, const void *name, size_t length, uint64_t reserve, uint64_t limit)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    if (!cattn_quota_is_possible(tree, name, length, reserve))
        return CATTN_EINVAL;
    if (!reserve && !limit && (root == CATTN_NONE || !cattn_roots_at(&tree->roots, root)->has_settings))
        return CATTN_OK;
    if (cattn_order_open(tree) || (root == CATTN_NONE && cattn_roots_add(&tree->roots, name, length, &root)))
        return CATTN_ENOMEM;
    change(tree, root, (uint32_t)reserve, clip(limit));
    return CATTN_OK;
}

/* ---- a demand */

static struct cattn_root *first_asked(const struct cattn_tree *tree)
{
    return tree->order.asked == CATTN_NONE ? NULL : cattn_roots_at(&tree->roots, tree->order.asked);
}

static struct cattn_root *next_asked(const struct cattn_tree *tree, const struct cattn_root *x)
{
    return x->next_asked == CATTN_NONE ? NULL : cattn_roots_at(&tree->roots, x->next_asked);
}

void cattn_demand_add(struct cattn_tree *tree, uint32_t root, uint64_t n_new, uint32_t n_held)
{
    tree->order.n_asked += n_new;
    if (root == CATTN_NONE)
        return;
    struct cattn_root *x = cattn_roots_at(&tree->roots, root);
    if (!x->is_asked) {
        x->is_asked = true;
        x->next_asked = tree->order.asked;
        tree->order.asked = root;
    }
    x->n_new += n_new;
    x->n_held += n_held;
}

/* Chunks that it must evict of its own not to come above its limit. */
static uint64_t own_evictions(const struct cattn_root *x)
{
    uint64_t after = x->n_slots + x->n_new;
    return x->limit && x->n_new && after > x->limit ? after - x->limit : 0;
}

/* Chunks that it may lose, all in all. */
static uint64_t most_evictions(const struct cattn_root *x)
{
    uint64_t n = x->n_slots > x->reserve ? x->n_slots - x->reserve : 0, most = x->n_evictable - x->n_held;
    return n + x->n_new < most ? n + x->n_new : most;
}

bool cattn_demand_has_room(const struct cattn_tree *tree)
{
    const struct cattn_order *order = &tree->order;
    uint64_t room = tree->n_free + (order->ranks ? order->n_loose : tree->n_evictable);
    for (const struct cattn_root *x = first_asked(tree); x; x = next_asked(tree, x))
        room += most_evictions(x) - (uint64_t)cattn_order_spare(x); /* of the sum, never less than nothing */
    return order->n_asked <= room;
}

bool cattn_demand_is_above(const struct cattn_tree *tree, uint32_t root)
{
    const struct cattn_root *x = cattn_roots_at(&tree->roots, root);
    return own_evictions(x) > x->n_evictable - x->n_held;
}

uint32_t cattn_demand_above(const struct cattn_tree *tree)
{
    uint32_t root = tree->order.asked;
    while (root != CATTN_NONE && !cattn_demand_is_above(tree, root))
        root = cattn_roots_at(&tree->roots, root)->next_asked;
    return root;
}

/* Counts the slots to come as if they were there, so that what it evicts for itself does not go below its reserve. */
static void expect(struct cattn_tree *tree, struct cattn_root *x, uint32_t root)
{
    x->least = x->reserve < x->n_slots ? x->reserve : x->n_slots;
    x->coming = (uint32_t)x->n_new;
    cattn_order_refresh(tree, root);
}

void cattn_demand_meet(struct cattn_tree *tree)
{
    const struct cattn_order *order = &tree->order;
    for (uint32_t root = order->asked; root != CATTN_NONE; root = cattn_roots_at(&tree->roots, root)->next_asked)
        expect(tree, cattn_roots_at(&tree->roots, root), root);
    for (struct cattn_root *x = first_asked(tree); x; x = next_asked(tree, x)) {
        while (own_evictions(x) && x->leaves != CATTN_NONE)
            cattn_tree_evict_from(tree, x->leaves);
    }
    while (order->n_asked > tree->n_free && order->loose != CATTN_NONE)
        cattn_tree_evict_from(tree, order->loose);
}

void cattn_demand_clear(struct cattn_tree *tree)
{
    for (struct cattn_root *x = first_asked(tree), *next; x; x = next) {
        next = next_asked(tree, x);
        x->is_asked = false;
        x->next_asked = CATTN_NONE;
        x->n_new = x->n_held = 0;
    }
    tree->order.asked = CATTN_NONE;
    tree->order.n_asked = 0;
}
