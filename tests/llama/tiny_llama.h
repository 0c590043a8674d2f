/* A Llama small enough to read, with odd sizes, as a GGUF file and as numbers for an oracle. */
#ifndef TEST_TINY_LLAMA_H
#define TEST_TINY_LLAMA_H

#include "gguf_builder.h"

#include <stddef.h>
#include <stdint.h>

struct tiny_shape {
    uint32_t dim, hidden, n_layers, n_heads, n_kv_heads, vocabulary;
    uint32_t head_dim;    /* 0: left to dim / n_heads */
    uint32_t v_head_dim;  /* 0: left to head_dim */
    uint32_t rotary_dims; /* 0: left to head_dim */
    uint32_t type;        /* of the matrices */
    int tied, factors;    /* no output.weight; rope_freqs.weight */
};

/* Adds the keys and the tensors.  Weights are a fixed function of the tensor's name and of the index, exact in every
 * type. */
void tiny_llama_build(struct gguf_builder *b, const struct tiny_shape *shape);

/* The vocabulary of test_tokenizer.c, of 3 + 256 + TINY_WORDS tokens. */
#define TINY_WORDS 13
void tiny_vocabulary_build(struct gguf_builder *b);

/* Logits after each of n tokens, from a dense attention in double: logits[n][vocabulary]. */
void tiny_llama_oracle(const struct tiny_shape *shape, const int32_t *tokens, size_t n, double *logits);

#endif
