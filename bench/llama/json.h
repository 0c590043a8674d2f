/* A strict reader of JSON (RFC 8259) for the requests file.  The text is not trusted: nesting is bounded, strings must
 * be UTF-8, and nothing is read past the end. */
#ifndef LLAMA_JSON_H
#define LLAMA_JSON_H

#include "fault.h"

#include <stddef.h>

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    double number;
    char *text; /* of a string, decoded; terminated, but may hold zero bytes */
    size_t length;
    char *key; /* of an object's member */
    size_t key_length;
    struct json *child; /* first element or member */
    struct json *next;
};

/* Reads one value that fills the text but for white space.  0, or -1 with the reason and the byte. */
int json_parse(const char *text, size_t length, struct json **value, struct fault *fault);

/* NULL is allowed. */
void json_free(struct json *value);

#endif
