/* One step of attention over one layer, in several ways.  A sequence is `shared` tokens that all have in common and
 * `private` ones of its own; its last tokens are its rows: one when it decodes, more when it is prefilled. */
#ifndef BENCH_ATTEND_H
#define BENCH_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "chunkattention.h"

struct bench_shape {
    uint32_t batch, heads, kv_heads, head_dim, chunk;
    uint32_t shared, private; /* tokens; shared is whole chunks */
    uint32_t rows;            /* of each sequence, at most `private`; 1 at least */
    uint32_t dtype;           /* of K and V: enum cattn_dtype */
    uint32_t threads;
    const char *backend;
    const char *kernel; /* NULL: the best */
};

struct bench_tree;

/* What the variants work on. */
struct bench_setup {
    struct bench_shape shape;
    float *q, *out;                 /* [batch][rows][heads][head_dim] */
    float *slopes, *sinks;          /* [heads] */
    struct bench_tree *shared_tree; /* attend_view.c: the store that chunk and paged_shared have in common */
};

/* A variant that is ready to run. */
struct bench_instance {
    struct cattn_variant attention; /* what it computes: set before it is opened */
    void *state;
    uint32_t dtype;    /* of the K and V that it reads */
    double tolerance;  /* of its relative error */
    double operations; /* of a run that is no attention */
    char kernel[48];   /* what does the arithmetic */
    char detail[80];   /* what else was chosen; may be empty */
};

enum bench_computes {
    BENCH_NOTHING, /* it is what others are compared with */
    BENCH_PLAIN,   /* attention of one row with nothing to it, over floats */
    BENCH_ANY      /* whatever this library does */
};

struct bench_variant {
    const char *name;
    enum bench_computes computes;

    /* Bytes of K and V that one step must read at least once, if all tokens are seen: what is in memory for a layer. */
    uint64_t (*bytes)(const struct bench_shape *shape);

    /* Takes memory for n_layers and fills it.  NULL, or why it cannot run here. */
    const char *(*open)(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance);
    void (*close)(struct bench_setup *setup, struct bench_instance *instance);

    /* Called before runs that follow those of another variant; may be NULL. */
    void (*turn)(struct bench_setup *setup, struct bench_instance *instance);

    /* One step over a layer: setup->out is written.  Returns the seconds it took, or a negative number when it
     * failed. */
    double (*run)(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer);
};

extern const struct bench_variant bench_naive, bench_paper, bench_onednn, bench_paged, bench_paged_shared, bench_chunk,
    bench_uncut, bench_read, bench_fma, bench_amx;

/* ---- attend_data.c: the same random K, V and Q for all, and what is right --------------------------------------- */

uint32_t bench_dtype_bytes(uint32_t dtype);
const char *bench_dtype_name(uint32_t dtype);

/* Chunks are numbered: the shared ones, then those of each sequence. */
uint32_t bench_shared_chunks(const struct bench_shape *shape);
uint32_t bench_private_chunks(const struct bench_shape *shape);
uint32_t bench_chunks(const struct bench_shape *shape);
uint32_t bench_sequence_chunk(const struct bench_shape *shape, uint32_t sequence, uint32_t index);
uint32_t bench_chunk_tokens(const struct bench_shape *shape, uint32_t chunk);

/* K and V of n_tokens tokens: with and without what is shared. */
uint64_t bench_unique_bytes(const struct bench_shape *shape, uint32_t dtype);
uint64_t bench_copied_bytes(const struct bench_shape *shape, uint32_t dtype);

/* No more than a softmax of scaled products. */
int bench_is_plain(const struct cattn_variant *attention);

/* The shape with as many tokens as some row sees; the pairs of a row and a token that it sees, of one sequence. */
struct bench_shape bench_seen(const struct bench_shape *shape, const struct cattn_variant *attention);
double bench_pairs(const struct bench_shape *shape, const struct cattn_variant *attention);

/* Floats of setup->q. */
size_t bench_q_floats(const struct bench_shape *shape);

enum bench_what { BENCH_K, BENCH_V };

/* head_dim values of one token of a chunk.  They are exact in the shape's dtype. */
void bench_data_row(const struct bench_shape *shape, uint32_t layer, enum bench_what what, uint32_t chunk,
                    uint32_t token, uint32_t head, float *row);
void bench_data_q(const struct bench_shape *shape, float *q);

/* Slopes as ALiBi has them, and sinks that weigh about as much as the tokens, for every head. */
void bench_data_heads(const struct bench_shape *shape, float *slopes, float *sinks);

/* Calls chunk for every chunk of every layer, on the shape's threads. */
typedef void bench_fill_chunk(void *state, uint32_t layer, uint32_t chunk);
void bench_fill(const struct bench_shape *shape, uint32_t n_layers, bench_fill_chunk *chunk, void *state);

/* RMS of the differences between out and attention in double, over that of the latter, on sampled rows and heads.
 * Not finite: out is not, or there was no memory. */
double bench_relative_error(const struct bench_setup *setup, const struct cattn_variant *attention, uint32_t layer);

#endif
