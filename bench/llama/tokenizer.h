/* Text to token ids and back, with the SentencePiece-style vocabulary of a GGUF file. */
#ifndef LLAMA_TOKENIZER_H
#define LLAMA_TOKENIZER_H

#include "fault.h"
#include "gguf.h"

#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* The vocabulary of a file, which outlives the result.  *tokenizer is NULL, with 0 returned, where the file has none
 * of this kind: then requests are given as ids. */
int tokenizer_open(const struct gguf *gguf, struct tokenizer **tokenizer, struct fault *fault);

/* NULL is allowed. */
void tokenizer_close(struct tokenizer *tokenizer);

/* A vocabulary for models without one: a byte b is the token 3 + b, as in byte fallback; 1 and 2 begin and end. */
struct tokenizer *tokenizer_bytes(void);

uint32_t tokenizer_size(const struct tokenizer *tokenizer);
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);

/* BOS, a leading space unless the text is empty, code points or else bytes, then the merges of the best score.
 * Bytes that are not UTF-8 are taken one by one.  *ids is the caller's to free. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length, int32_t **ids, size_t *n,
                     struct fault *fault);

/* The text of ids, each in 0 .. size - 1: control tokens are left out, and one space after BOS.  NULL: out of
 * memory; else terminated, and the caller's to free. */
char *tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, size_t *length);

#endif
