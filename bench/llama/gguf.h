/* Reads GGUF versions 2 and 3: named values and named tensors of F32, F16 and BF16.  The bytes are not trusted: every
 * offset, count, type and size is checked before it is used, so what these functions hand out can be used as it is. */
#ifndef LLAMA_GGUF_H
#define LLAMA_GGUF_H

#include "fault.h"

#include <stddef.h>
#include <stdint.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

enum gguf_tensor_type { GGUF_TENSOR_F32 = 0, GGUF_TENSOR_F16 = 1, GGUF_TENSOR_BF16 = 30 };

/* Not terminated; may hold any bytes. */
struct gguf_string {
    const char *text;
    size_t length;
};

struct gguf_value {
    struct gguf_string key;
    uint32_t type;             /* GGUF_ARRAY, or the type of the one element */
    uint32_t element;          /* type of the elements, never GGUF_ARRAY */
    uint64_t count;            /* of elements */
    const unsigned char *data; /* the elements as they are in the file */
};

#define GGUF_MAX_DIMS 4

struct gguf_tensor {
    struct gguf_string name;
    uint32_t type;                /* enum gguf_tensor_type */
    uint32_t n_dims;              /* 1 .. GGUF_MAX_DIMS */
    uint64_t dims[GGUF_MAX_DIMS]; /* fastest first, >= 1; 1 beyond n_dims */
    uint64_t n_elements;
    const void *data; /* aligned to 8 bytes */
};

struct gguf;

/* Reads size bytes at data, which are aligned to 8 bytes and outlive the result.  0, or -1 with the reason. */
int gguf_parse(const void *data, size_t size, struct gguf **gguf, struct fault *fault);

/* Maps a file and reads it. */
int gguf_open(const char *path, struct gguf **gguf, struct fault *fault);

/* A number for all bytes of a file that was opened, to tell it from others; no protection from who wants them equal. */
uint64_t gguf_hash(const struct gguf *gguf);

/* NULL is allowed. */
void gguf_close(struct gguf *gguf);

/* NULL: no such key, no such tensor. */
const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key);
const struct gguf_tensor *gguf_tensor(const struct gguf *gguf, const char *name);

size_t gguf_n_tensors(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i);

/* The one element as a number or a string: 0, or -1 where the value is of another type, negative or not finite. */
int gguf_uint(const struct gguf_value *value, uint64_t *number);
int gguf_float(const struct gguf_value *value, double *number);
int gguf_text(const struct gguf_value *value, struct gguf_string *string);

/* Element i < count of an array of 4-byte numbers. */
uint32_t gguf_u32_at(const struct gguf_value *value, uint64_t i);
float gguf_f32_at(const struct gguf_value *value, uint64_t i);

/* The string at *cursor of an array of strings, and the cursor of the next; start with value->data and take at
 * most value->count. */
struct gguf_string gguf_next_string(const unsigned char **cursor);

#endif
