/* What a namespace sees: its own chunks and, if it reads a public one, the chunks of that.  A path begins with public
 * chunks, perhaps none, and goes on with own ones, perhaps none. */
#ifndef CATTN_VIEW_H
#define CATTN_VIEW_H

#include "tree.h"

struct cattn_view {
    uint32_t root, public; /* records, or CATTN_NONE */
};

/* Of a record; of a name, which may have none. */
struct cattn_view cattn_view_of(const struct cattn_tree *tree, uint32_t root);
struct cattn_view cattn_view_named(const struct cattn_tree *tree, const void *name, size_t length);

/* Whether public chunks can follow a chunk (or CATTN_NONE) of a path. */
bool cattn_view_is_public(const struct cattn_tree *tree, struct cattn_view view, uint32_t parent);

/* The longest path of whole chunks that begin the n tokens; of equals the one with which more of the tokens behind it
 * can be found, then the one with most public chunks.  Returns its length; path[0 .. n / chunk_tokens) is written to.
 * Own chunks may lie behind each of the public ones, for what is public may have grown since they were made: so this
 * takes a look for each public chunk of the path, and time for own chunks as often as they are there. */
size_t cattn_view_match(const struct cattn_tree *tree, struct cattn_view view, const int32_t *tokens, size_t n,
                        uint32_t *path);

/* As cattn_tree_find_partial, below any chunk of a path; of equals the public one. */
uint32_t cattn_view_partial(const struct cattn_tree *tree, struct cattn_view view, uint32_t parent,
                            const int32_t *tokens, uint32_t n, uint32_t *length);

#endif
