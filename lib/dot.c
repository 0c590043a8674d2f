/* The tree as a drawing, in the language of Graphviz. */
#include "cache.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define NAME_BYTES   32 /* of a namespace, in a label */
#define LABEL_TOKENS 3  /* of a chunk */

struct pen {
    int (*write)(void *context, const char *text, size_t n);
    void *context;
    int status; /* what write returned; after a failure nothing more is written */
};

__attribute__((format(printf, 2, 3))) static void draw(struct pen *pen, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof(text), format, arguments); /* names and lists come in pieces: all of it fits */
    va_end(arguments);
    if (!pen->status && n > 0)
        pen->status = pen->write(pen->context, text, (size_t)n);
}

/* Bytes that are not plain are shown as \x.., so that no name can end the label. */
static void draw_name(struct pen *pen, const struct cattn_root *root)
{
    for (size_t i = 0; i < root->name_length && i < NAME_BYTES; i++) {
        unsigned char byte = root->name[i];
        bool plain = byte >= ' ' && byte < 127 && byte != '"' && byte != '\\';
        draw(pen, plain ? "%c" : "\\\\x%02x", byte);
    }
    if (root->name_length > NAME_BYTES)
        draw(pen, "...");
}

static void draw_roots(struct pen *pen, const struct cattn_roots *roots)
{
    for (uint32_t i = 0; i < roots->n; i++) {
        const struct cattn_root *root = cattn_roots_at(roots, i);
        if (!root->name)
            continue;
        draw(pen, "    r%" PRIu32 " [shape=ellipse, label=\"", i);
        draw_name(pen, root);
        draw(pen, root->current ? "\"];\n" : "\\n(invalidated)\"];\n");
        if (root->reads != CATTN_NONE)
            draw(pen, "    r%" PRIu32 " -> r%" PRIu32 " [style=dashed, label=\"reads\"];\n", i, root->reads);
    }
}

static const char *style_of(const struct cattn_slot *x)
{
    if (!x->published)
        return "dotted";
    if (x->pinned)
        return "bold";
    return x->refs ? "solid" : "dashed";
}

/* From what is above it; with the name of its namespace where that is another one. */
static void draw_edge(struct pen *pen, const struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_slot *x = &tree->slots[slot];
    if (x->parent == CATTN_NONE) {
        draw(pen, "    r%" PRIu32 " -> c%" PRIu32 ";\n", x->root, slot);
        return;
    }
    draw(pen, "    c%" PRIu32 " -> c%" PRIu32, x->parent, slot);
    if (tree->slots[x->parent].root != x->root) {
        draw(pen, " [label=\"");
        draw_name(pen, cattn_roots_at(&tree->roots, x->root));
        draw(pen, "\"]");
    }
    draw(pen, ";\n");
}

static void draw_slot(struct pen *pen, const struct cattn_tree *tree, uint32_t slot)
{
    const struct cattn_slot *x = &tree->slots[slot];
    draw(pen, "    c%" PRIu32 " [style=%s, label=\"", slot, style_of(x));
    for (uint32_t i = 0; i < x->fill && i < LABEL_TOKENS; i++)
        draw(pen, "%" PRId32 " ", cattn_extras_token(&tree->extras, cattn_tree_tokens(tree, slot)[i]));
    draw(pen, "%s\\n%" PRIu32 " tokens, %" PRIu64 " refs\"];\n", x->fill > LABEL_TOKENS ? "..." : "", x->fill, x->refs);
    draw_edge(pen, tree, slot);
}

/* With a line to what it holds last. */
static void draw_sequence(struct pen *pen, const struct cattn_sequence *sequence)
{
    draw(pen, "    s%" PRIu64 " [shape=plaintext, label=\"sequence %" PRIu64 "\\n%zu tokens\"];\n", sequence->handle,
         sequence->handle, sequence->n_tokens);
    draw(pen, "    s%" PRIu64 " -> ", sequence->handle);
    if (sequence->tail != CATTN_NONE)
        draw(pen, "c%" PRIu32 " [style=dotted, label=\"%s %" PRIu32 "\"];\n", sequence->tail,
             sequence->owns ? "writes" : "borrows", sequence->t);
    else if (sequence->n_chunks)
        draw(pen, "c%" PRIu32 " [style=dotted];\n", sequence->chunks[sequence->n_chunks - 1]);
    else
        draw(pen, "r%" PRIu32 " [style=dotted];\n", sequence->root);
}

static int draw_tree(const struct cattn_cache *cache, int (*write)(void *context, const char *text, size_t n),
                     void *context)
{
    if (!cache || !write)
        return CATTN_EINVAL;
    const struct cattn_tree *tree = &cache->tree;
    struct pen pen = {.write = write, .context = context};
    draw(&pen, "digraph chunks {\n    rankdir=LR;\n    node [shape=box];\n");
    draw_roots(&pen, &tree->roots);
    for (uint32_t slot = 0; slot < tree->n_touched && !pen.status; slot++) {
        if (tree->slots[slot].root != CATTN_NONE)
            draw_slot(&pen, tree, slot);
    }
    for (uint32_t i = 0; i < cache->sequences.n && !pen.status; i++) {
        if (cache->sequences.handles[i].sequence)
            draw_sequence(&pen, cache->sequences.handles[i].sequence);
    }
    draw(&pen, "}\n");
    return pen.status;
}

int cattn_cache_dump_dot(const cattn_cache *cache, int (*write)(void *context, const char *text, size_t n),
                         void *context)
{
    return CATTN_LOCKED(cache, draw_tree(cache, write, context));
}
