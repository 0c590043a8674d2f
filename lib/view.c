#include "view.h"

#include "readers.h"

struct cattn_view cattn_view_of(const struct cattn_tree *tree, uint32_t root)
{
    return (struct cattn_view){root, cattn_roots_at(&tree->roots, root)->reads};
}

struct cattn_view cattn_view_named(const struct cattn_tree *tree, const void *name, size_t length)
{
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    if (root != CATTN_NONE && !cattn_roots_is_idle(cattn_roots_at(&tree->roots, root)))
        return cattn_view_of(tree, root);
    const struct cattn_root *public = cattn_readers_public(tree, name, length);
    return (struct cattn_view){CATTN_NONE,
                               public ? cattn_roots_find(&tree->roots, public->name, public->name_length) : CATTN_NONE};
}

bool cattn_view_is_public(const struct cattn_tree *tree, struct cattn_view view, uint32_t parent)
{
    return view.public != CATTN_NONE && (parent == CATTN_NONE || tree->slots[parent].root == view.public);
}

/* ---- whole chunks */

struct match {
    const struct cattn_tree *tree;
    struct cattn_view view;
    const int32_t *tokens;
    size_t n, length; /* tokens to be found; chunks of the best path so far */
    uint32_t leaf;    /* its last one */
};

/* Tokens that are found behind a path of as many chunks as the best one. */
static uint32_t count_behind(const struct match *match, uint32_t leaf)
{
    size_t c = match->tree->chunk_tokens, done = match->length * c;
    uint32_t n = match->n - done < c ? (uint32_t)(match->n - done) : (uint32_t)c, length;
    cattn_view_partial(match->tree, match->view, leaf, match->tokens + done, n, &length);
    return length;
}

static void note_path(struct match *match, size_t length, uint32_t leaf)
{
    if (length > match->length ||
        (length == match->length && count_behind(match, leaf) > count_behind(match, match->leaf))) {
        match->length = length;
        match->leaf = leaf;
    }
}

size_t cattn_view_match(const struct cattn_tree *tree, struct cattn_view view, const int32_t *tokens, size_t n,
                        uint32_t *path)
{
    size_t c = tree->chunk_tokens;
    if (view.public == CATTN_NONE)
        return view.root == CATTN_NONE ? 0 : cattn_tree_match(tree, view.root, tokens, n / c, path);
    size_t n_public = cattn_tree_match(tree, view.public, tokens, n / c, path);
    if (view.root == CATTN_NONE || !cattn_roots_at(&tree->roots, view.root)->n_chunks)
        return n_public;
    struct match match = {tree, view, tokens, n, n_public, n_public ? path[n_public - 1] : CATTN_NONE};
    for (size_t i = n_public + 1; i-- > 0;) { /* own chunks behind i public ones */
        size_t n_own =
            cattn_tree_follow(tree, i ? path[i - 1] : CATTN_NONE, view.root, tokens + i * c, n / c - i, path + i);
        if (n_own)
            note_path(&match, i + n_own, path[i + n_own - 1]);
    }
    uint32_t slot = match.leaf;
    for (size_t i = match.length; i > 0; slot = tree->slots[slot].parent)
        path[--i] = slot;
    return match.length;
}

/* ---- a part of one more */

uint32_t cattn_view_partial(const struct cattn_tree *tree, struct cattn_view view, uint32_t parent,
                            const int32_t *tokens, uint32_t n, uint32_t *length)
{
    uint32_t best = CATTN_NONE, own = CATTN_NONE, n_own = 0;
    *length = 0;
    if (cattn_view_is_public(tree, view, parent))
        best = cattn_tree_find_partial(tree, parent, view.public, tokens, n, length);
    if (view.root != CATTN_NONE)
        own = cattn_tree_find_partial(tree, parent, view.root, tokens, n, &n_own);
    if (n_own <= *length)
        return best;
    *length = n_own;
    return own;
}
