/* Asking for the K or V of a block that is read later, a few lines at a time: all at once would fill the buffers of the
 * first-level cache.  Those who work on a block in turn share the asking. */
#ifndef CATTN_FETCH_H
#define CATTN_FETCH_H

#include <stddef.h>
#include <stdint.h>

/* One turn's share.  Lines are asked for from four places, quarters of the whole, in turn: that is faster than from
 * one, since as many streams of the processor's own run ahead. */
struct fetch {
    const unsigned char *at, *end; /* in the first quarter */
    size_t step, quarter;
};

/* n_bytes from base on (NULL: nothing) in n_steps steps; what is over a multiple of 256 is not asked for. */
static inline struct fetch fetch_of(const unsigned char *base, size_t n_bytes, uint32_t turn, uint32_t n_turns,
                                    uint32_t n_steps)
{
    struct fetch fetch = {0};
    if (base) {
        const uint32_t n_lines = (uint32_t)(n_bytes / 256);
        const uint32_t begin = n_lines * turn / n_turns, end = n_lines * (turn + 1) / n_turns;
        fetch.at = base + begin * 64;
        fetch.end = base + end * 64;
        fetch.step = (end - begin + n_steps - 1) / n_steps * 64;
        fetch.quarter = n_bytes / 4;
    }
    return fetch;
}

static inline void fetch_step(struct fetch *fetch)
{
    if (!fetch->step)
        return;
    const unsigned char *p = fetch->at, *stop = p + fetch->step < fetch->end ? p + fetch->step : fetch->end;
    const size_t quarter = fetch->quarter;
    fetch->at = stop;
    for (; p < stop; p += 64) {
        __builtin_prefetch(p, 0, 2);
        __builtin_prefetch(p + quarter, 0, 2);
        __builtin_prefetch(p + 2 * quarter, 0, 2);
        __builtin_prefetch(p + 3 * quarter, 0, 2);
    }
}

#endif
