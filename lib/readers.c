#include "readers.h"

#include "chunkattention.h"

#include <string.h>

const struct cattn_root *cattn_readers_public(const struct cattn_tree *tree, const void *name, size_t length)
{
    const struct cattn_roots *settings = &tree->settings;
    uint32_t setting = cattn_roots_find(settings, name, length);
    if (setting == CATTN_NONE || cattn_roots_at(settings, setting)->reads == CATTN_NONE)
        return NULL;
    return cattn_roots_at(settings, cattn_roots_at(settings, setting)->reads);
}

/* The record of a name, with a reference. */
static int hold_record(struct cattn_roots *roots, const void *name, size_t length, uint32_t *root)
{
    *root = cattn_roots_find(roots, name, length);
    if (*root == CATTN_NONE && cattn_roots_add(roots, name, length, root))
        return CATTN_ENOMEM;
    cattn_roots_acquire(roots, *root);
    return CATTN_OK;
}

/* ---- settings */

static int read_public(struct cattn_roots *settings, const void *name, size_t length, const void *public,
                       size_t public_length)
{
    uint32_t setting = cattn_roots_find(settings, name, length), above;
    if (hold_record(settings, public, public_length, &above))
        return CATTN_ENOMEM;
    int status = setting == CATTN_NONE ? hold_record(settings, name, length, &setting) : CATTN_OK;
    if (!status)
        cattn_roots_read(settings, setting, above);
    cattn_roots_drop(settings, above);
    return status;
}

static bool is_same(const struct cattn_root *setting, const void *public, size_t length)
{
    if (!setting || !public)
        return !setting && !public;
    return setting->name_length == length && (!length || !memcmp(setting->name, public, length));
}

/* A public name reads none, and one that is read is public. */
static bool is_chain(const struct cattn_roots *settings, const void *name, size_t length, const void *public,
                     size_t public_length)
{
    uint32_t below = cattn_roots_find(settings, name, length);
    uint32_t above = cattn_roots_find(settings, public, public_length);
    return (length == public_length && (!length || !memcmp(name, public, length))) ||
           (below != CATTN_NONE && cattn_roots_at(settings, below)->n_readers) ||
           (above != CATTN_NONE && cattn_roots_at(settings, above)->reads != CATTN_NONE);
}

int cattn_readers_check(const struct cattn_tree *tree, const void *name, size_t length, const void *public,
                        size_t public_length)
{
    if (public && is_chain(&tree->settings, name, length, public, public_length))
        return CATTN_EINVAL;
    uint32_t root = cattn_roots_find(&tree->roots, name, length);
    bool busy = root != CATTN_NONE && !cattn_roots_is_idle(cattn_roots_at(&tree->roots, root));
    return busy && !is_same(cattn_readers_public(tree, name, length), public, public_length) ? CATTN_EBUSY : CATTN_OK;
}

int cattn_readers_set(struct cattn_tree *tree, const void *name, size_t length, const void *public,
                      size_t public_length)
{
    struct cattn_roots *settings = &tree->settings;
    int status = cattn_readers_check(tree, name, length, public, public_length);
    if (status || is_same(cattn_readers_public(tree, name, length), public, public_length))
        return status;
    if (public && read_public(settings, name, length, public, public_length))
        return CATTN_ENOMEM;
    if (!public)
        cattn_roots_drop(settings, cattn_roots_find(settings, name, length));
    tree->revision++;
    return CATTN_OK;
}

/* ---- records */

int cattn_readers_enter(struct cattn_tree *tree, const void *name, size_t length, uint32_t *root)
{
    struct cattn_roots *roots = &tree->roots;
    const struct cattn_root *public = cattn_readers_public(tree, name, length);
    uint32_t above = CATTN_NONE;
    *root = cattn_roots_find(roots, name, length);
    if (*root != CATTN_NONE && !cattn_roots_is_idle(cattn_roots_at(roots, *root)))
        return CATTN_OK;
    if (public && hold_record(roots, public->name, public->name_length, &above))
        return CATTN_ENOMEM;
    int status = *root == CATTN_NONE ? cattn_roots_add(roots, name, length, root) : CATTN_OK;
    if (!status && public)
        cattn_roots_read(roots, *root, above);
    cattn_roots_drop(roots, above);
    return status;
}
