/* Code points of UTF-8 text. */
#ifndef LLAMA_UTF8_H
#define LLAMA_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the code point at the start of text, 1 .. 4; 0 when its first bytes are not UTF-8 (overlong forms,
 * surrogates and halves included) or length is 0. */
size_t utf8_length(const char *text, size_t length);

/* Writes a code point below 0x110000; returns its bytes, at most 4. */
size_t utf8_encode(uint32_t code, char *out);

#endif
