/* A Llama: its weights, and its forward pass over the rows of a step.  Keys, values and attention are the library's. */
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include "chunkattention.h"

#include "fault.h"
#include "gguf.h"
#include "linear.h"
#include "packed.h"

#include <stddef.h>
#include <stdint.h>

struct model_shape {
    uint32_t dim, hidden, n_layers, n_heads, n_kv_heads, head_dim, v_head_dim, vocabulary, context;
    uint32_t rotary_dims; /* of each head, the first ones; even */
    double rotary_base, epsilon;
};

struct model_layer {
    const float *attention_norm, *wq, *wk, *wv, *wo;
    const float *ffn_norm, *gate, *up, *down;
};

struct model {
    struct model_shape shape;
    const float *embedding; /* [vocabulary][dim] */
    const float *output_norm, *output;
    double *frequencies; /* of the rotary_dims / 2 pairs, in radians a token */
    struct model_layer *layers;
    void **owned; /* arrays to free: weights that were converted or made */
    size_t n_owned, room;
};

/* The model of a GGUF file, which outlives it. */
int model_load(struct model *model, const struct gguf *gguf, struct fault *fault);

/* A model of seeded random weights.  Its text means nothing. */
int model_random(struct model *model, const struct model_shape *shape, uint64_t seed, struct fault *fault);

/* A named shape; NULL: unknown.  The names, for i = 0, 1, ...; NULL past the last. */
const struct model_shape *model_shape_named(const char *name);
const char *model_shape_name(unsigned i);

/* Packs the weights of all products. */
int model_pack(const struct model *model, struct packed *packed, struct fault *fault);

void model_release(struct model *model);

/* cosines and sines [n_rows][rotary_dims / 2] of the angles by which rows at these positions are turned. */
void model_angles(const struct model *model, size_t n_rows, const uint64_t *positions, float *cosines, float *sines);

struct device;

/* What a forward pass needs besides the weights. */
struct forward {
    const struct model *model;
    const struct linear *linear;
    struct device *device; /* that computes instead; NULL: none */
    size_t n_rows;         /* that the buffers have room for */
    double attention_seconds, linear_seconds;
    float *x, *normed, *q, *k, *v, *attention, *gate, *up, *cosines, *sines;
};

void forward_init(struct forward *forward, const struct model *model, const struct linear *linear,
                  struct device *device);
void forward_release(struct forward *forward);

/* Computes the open step's rows: row r is tokens[r] at positions[r].  logits[i][vocabulary] are those of the row
 * logit_rows[i].  0, or -1 with the reason: out of memory, or the library's. */
int forward_step(struct forward *forward, cattn_step *step, size_t n_rows, const int32_t *tokens,
                 const uint64_t *positions, size_t n_logits, const size_t *logit_rows, float *logits,
                 struct fault *fault);

#endif
