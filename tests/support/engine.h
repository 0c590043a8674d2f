/* A toy inference engine on the public interface.  Its model is a hash: Q, K and V of a token are a function of the
 * layer and of all tokens up to it (and of the namespace), so that equal prefixes have equal K and V, sharing the wrong
 * thing gives a wrong result, and each output can be told from the tokens alone. */
#ifndef TEST_ENGINE_H
#define TEST_ENGINE_H

#include "chunkattention.h"
#include "guard.h"
#include "random.h"

/* Tokens whose K and V are NaN, and infinite; whose query is NaN. */
#define TOKEN_NAN       INT32_MAX
#define TOKEN_INF       (INT32_MAX - 1)
#define TOKEN_NAN_QUERY (INT32_MAX - 2)

/* TOKEN_IMAGE + i, for 0 <= i < 65536, is a placeholder of image i: the library is given TOKEN_PLACEHOLDER for it, with
 * i (as an int32_t) as extra identity. */
#define TOKEN_IMAGE       (1 << 24)
#define TOKEN_PLACEHOLDER 7

/* What a sequence has put out so far, by layer and position. */
struct trace {
    size_t capacity, row_bytes; /* positions; bytes of a row of out and of lse */
    uint32_t n_layers;
    unsigned char *rows, *known;
};

/* A sequence, and what it should hold. */
struct toy {
    cattn_seq seq;
    uint64_t space; /* its namespace; 0 if all have one model */
    int32_t *tokens;
    uint64_t *hashes; /* of the tokens up to and including this one */
    size_t capacity;
    size_t length;  /* held */
    size_t pending; /* added by the open step */
    struct trace *trace;
};

enum engine_form {
    FORM_ATTEND,             /* attend with K and V */
    FORM_WRITE_ATTEND,       /* write, then attend */
    FORM_REWRITE,            /* write of NaN, then attend with K and V, then attend again */
    FORM_PARTS,              /* shares of attend with K and V, in any order */
    FORM_WRITE_PARTS,        /* shares of write, then shares of attend */
    FORM_WRITE_ATTEND_PARTS, /* write, then shares of attend */
    FORM_WRITE_PARTS_ATTEND, /* shares of write, then attend */
    FORM_THREADS,            /* shares of attend with K and V, each on a thread of its own */
    FORM_WRITE_THREADS,      /* shares of write on threads, then shares of attend on threads */
    N_FORMS,
    FORM_WRITE /* no attention at all */
};

struct buffer {
    void *data;
    size_t bytes;
    size_t row, head; /* strides in elements */
};

struct engine {
    struct cattn_config config;
    cattn_cache *cache;
    cattn_step *step;
    const char *kernel; /* that the cache has */
    struct rng rng;
    /* May be changed between steps. */
    enum engine_form form;
    uint32_t nth;                        /* shares of the forms in parts */
    enum guard_side guard;               /* of all buffers */
    size_t pad;                          /* elements of NaN between heads; twice as many between rows */
    double gain;                         /* of Q: how peaked the softmax is */
    const struct cattn_variant *variant; /* NULL: the plain one */
    int one_model;                       /* 1: equal tokens have equal K and V in all namespaces */
    int unchecked;                       /* 1: outputs are not compared with the oracle */
    size_t check_rows;                   /* rows of an item that are compared, picked at random; 0: all */
    /* The open step. */
    struct cattn_item *items;
    struct toy **toys;
    size_t n_items;
    uint32_t n_rows;
    uint64_t n_computed; /* tokens whose K and V it stores */
    struct buffer q, k, v, out, lse;
};

/* If set, called before and after the calls of each layer. */
extern void (*engine_watch)(int in_layer);

/* If set, changes the configuration of each engine: a test's for another kernel. */
extern void (*engine_adjust)(struct cattn_config *config);

struct engine_item {
    struct toy *toy;
    const int32_t *tokens;
    uint32_t n_tokens, min_rows;
};

/* A small configuration to start from: f32, 1 layer, 2 heads on 1, head_dim 16, chunks of 32, room for max_tokens. */
struct cattn_config engine_config(uint64_t max_tokens);

void engine_init(struct engine *engine, const struct cattn_config *config, uint64_t salt);
void engine_free(struct engine *engine);

/* Opens a sequence and notes what was found.  Returns n_cached. */
size_t engine_open(struct engine *engine, struct toy *toy, uint64_t space, const int32_t *tokens, size_t n);
void engine_fork(struct engine *engine, const struct toy *toy, struct toy *forked);

/* The same where it may fail; a toy that could not be had is all zero.  Return the status of the call. */
int engine_try_open(struct engine *engine, struct toy *toy, uint64_t space, const int32_t *tokens, size_t n);
int engine_try_fork(struct engine *engine, const struct toy *toy, struct toy *forked);

void engine_truncate(struct engine *engine, struct toy *toy, size_t n);
void engine_close(struct engine *engine, struct toy *toy);

/* What the library is given of a toy's tokens; freed with given_free. */
struct given {
    int32_t *tokens, *images;
    struct cattn_extra *extras;
    struct cattn_ext ext;
};

struct given given_tokens(const int32_t *tokens, size_t n);
void given_free(struct given *given);

/* The toy without its sequence. */
void toy_free(struct toy *toy);

/* The hash of a sequence that holds nothing yet, and of one more token. */
uint64_t toy_root(uint64_t space);
uint64_t toy_extend(uint64_t hash, int32_t token);

/* cattn_step_begin.  When it succeeds the items' out fields are checked against what must hold of them. */
int engine_begin(struct engine *engine, const struct engine_item *items, size_t n_items);

/* One layer in the engine's form; outputs are compared with the oracle and noted in the traces. */
void engine_layer(struct engine *engine, uint32_t layer);
void engine_layers(struct engine *engine);
void engine_end(struct engine *engine);
void engine_abort(struct engine *engine);

/* A whole step that must succeed. */
void engine_step(struct engine *engine, const struct engine_item *items, size_t n_items);

/* A step with one item. */
void engine_feed(struct engine *engine, struct toy *toy, const int32_t *tokens, size_t n);

/* Opens a sequence and feeds it what is not cached, at most `piece` tokens a step; 0: all in one. */
void engine_prefill(struct engine *engine, struct toy *toy, uint64_t space, const int32_t *tokens, size_t n,
                    size_t piece);

/* Selfcheck, and what the cache says of the toy. */
void engine_check(struct engine *engine, const struct toy *toys, size_t n_toys);

struct cattn_stats engine_stats(const struct engine *engine);
struct cattn_info engine_info(const struct engine *engine);

/* Fills the engine's buffers for the rows of the open step and a layer; io points at them. */
void engine_load(struct engine *engine, uint32_t layer, struct cattn_io *io);

/* Bytes of the output and the lse of the step's row r, without the padding. */
void engine_output(const struct engine *engine, uint32_t row, unsigned char *bytes);
size_t engine_output_bytes(const struct engine *engine);

/* n tokens below `vocabulary`. */
void random_tokens(struct rng *rng, int32_t *tokens, size_t n, int32_t vocabulary);

struct trace *trace_new(const struct engine *engine, size_t capacity);
void trace_free(struct trace *trace);

/* Positions that both know (at least one, or the comparison fails) with different bits. */
size_t trace_differences(const struct trace *a, const struct trace *b);

/* Positions of layer 0 that are known. */
size_t trace_known(const struct trace *trace);

#endif
