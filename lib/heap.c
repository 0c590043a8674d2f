#include "heap.h"

#include "roots.h"

static uint32_t rank_of(const struct cattn_heap *heap, uint32_t slot)
{
    return slot == CATTN_NONE ? 0 : heap->links[slot].rank;
}

/* Puts the children in order and counts anew. */
static void settle(const struct cattn_heap *heap, uint32_t slot)
{
    struct cattn_heap_link *x = &heap->links[slot];
    if (rank_of(heap, x->left) < rank_of(heap, x->right)) {
        uint32_t left = x->left;
        x->left = x->right;
        x->right = left;
    }
    x->rank = rank_of(heap, x->right) + 1;
}

/* Joins two heaps, each below nothing, along their right sides, and hangs the result below `up`.  Returns its top. */
static uint32_t merge(const struct cattn_heap *heap, uint32_t a, uint32_t b, uint32_t up)
{
    uint32_t top = CATTN_NONE, last = up;
    while (a != CATTN_NONE && b != CATTN_NONE) {
        if (heap->before(heap->context, b, a)) {
            uint32_t other = a;
            a = b;
            b = other;
        }
        heap->links[a].up = last;
        if (top == CATTN_NONE)
            top = a;
        else
            heap->links[last].right = a;
        last = a;
        a = heap->links[a].right;
    }
    uint32_t rest = a != CATTN_NONE ? a : b;
    if (rest != CATTN_NONE)
        heap->links[rest].up = last;
    if (top == CATTN_NONE)
        return rest;
    heap->links[last].right = rest;
    for (; last != up; last = heap->links[last].up)
        settle(heap, last);
    return top;
}

void cattn_heap_add(const struct cattn_heap *heap, uint32_t *top, uint32_t slot)
{
    heap->links[slot] = (struct cattn_heap_link){CATTN_NONE, CATTN_NONE, CATTN_NONE, 1};
    *top = merge(heap, *top, slot, CATTN_NONE);
}

/* Ranks above change as long as each is larger than the one before: at most log n of them. */
void cattn_heap_remove(const struct cattn_heap *heap, uint32_t *top, uint32_t slot)
{
    const struct cattn_heap_link x = heap->links[slot];
    uint32_t rest = merge(heap, x.left, x.right, x.up), up = x.up;
    if (up == CATTN_NONE)
        *top = rest;
    else if (heap->links[up].left == slot)
        heap->links[up].left = rest;
    else
        heap->links[up].right = rest;
    for (uint32_t rank = 0; up != CATTN_NONE; up = heap->links[up].up) {
        rank = heap->links[up].rank;
        settle(heap, up);
        if (heap->links[up].rank == rank)
            break;
    }
}
