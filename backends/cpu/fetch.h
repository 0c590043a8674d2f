/* Asking for the K or V of a block that is read later, a few lines at a time: all at once would fill the buffers of the
 * first-level cache.  Those who work on a block in turn share the asking. */
#ifndef CATTN_FETCH_H
#define CATTN_FETCH_H

#include <stddef.h>
#include <stdint.h>

/* A share of the asking.  Lines are asked for from four places in turn: that is faster than from one, since as many
 * streams of the processor's own run ahead. */
struct fetch {
    const unsigned char *at;         /* in the first place */
    size_t others[3];                /* how far behind it they are */
    uint32_t left, n, n_steps, done; /* lines of a place; done / n_steps of the next one is due */
};

/* Lines [begin, end) of the first place, in n_steps steps; base NULL: none. */
static inline struct fetch fetch_lines(const unsigned char *base, uint32_t begin, uint32_t end, uint32_t n_steps)
{
    struct fetch fetch = {0};
    if (base) {
        fetch.at = base + begin * 64;
        fetch.left = fetch.n = end - begin;
        fetch.n_steps = n_steps;
    }
    return fetch;
}

/* Of n_bytes from base on what falls to one of n_turns; the places are quarters, and what is over a multiple of 256 is
 * not asked for. */
static inline struct fetch fetch_of(const unsigned char *base, size_t n_bytes, uint32_t turn, uint32_t n_turns,
                                    uint32_t n_steps)
{
    const uint32_t n = (uint32_t)(n_bytes / 256);
    struct fetch fetch = fetch_lines(base, n * turn / n_turns, n * (turn + 1) / n_turns, n_steps);
    for (int i = 0; i < 3; i++)
        fetch.others[i] = (size_t)(i + 1) * (n_bytes / 4);
    return fetch;
}

/* As many lines in each step, as nearly as there can be: more at once wait for each other, and what is read meanwhile
 * waits for them. */
static inline void fetch_step(struct fetch *fetch)
{
    const size_t second = fetch->others[0], third = fetch->others[1], fourth = fetch->others[2];
    for (fetch->done += fetch->n; fetch->left && fetch->done >= fetch->n_steps; fetch->done -= fetch->n_steps) {
        const unsigned char *p = fetch->at;
        __builtin_prefetch(p, 0, 2);
        __builtin_prefetch(p + second, 0, 2);
        __builtin_prefetch(p + third, 0, 2);
        __builtin_prefetch(p + fourth, 0, 2);
        fetch->at = p + 64;
        fetch->left--;
    }
}

#endif
