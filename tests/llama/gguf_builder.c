#include "gguf_builder.h"

#include <stdlib.h>
#include <string.h>

void bytes_put(struct bytes *bytes, const void *data, size_t size)
{
    if (bytes->size + size > bytes->room) {
        bytes->room = 2 * (bytes->size + size);
        bytes->data = realloc(bytes->data, bytes->room);
        if (!bytes->data)
            abort();
    }
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static void put_number(struct bytes *bytes, uint64_t number, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++) {
        const unsigned char byte = (unsigned char)(number >> (8 * i));

        bytes_put(bytes, &byte, 1);
    }
}

void bytes_u32(struct bytes *bytes, uint32_t number)
{
    put_number(bytes, number, 4);
}

void bytes_u64(struct bytes *bytes, uint64_t number)
{
    put_number(bytes, number, 8);
}

void bytes_text(struct bytes *bytes, const char *text)
{
    bytes_u64(bytes, strlen(text));
    bytes_put(bytes, text, strlen(text));
}

static uint32_t bits_of(float number)
{
    uint32_t bits;

    memcpy(&bits, &number, sizeof bits);
    return bits;
}

void builder_init(struct gguf_builder *b)
{
    memset(b, 0, sizeof *b);
    b->version = 3;
    b->alignment = 32;
}

void builder_key(struct gguf_builder *b, const char *key, uint32_t type)
{
    bytes_text(&b->values, key);
    bytes_u32(&b->values, type);
    b->n_values++;
}

void builder_u32(struct gguf_builder *b, const char *key, uint32_t number)
{
    builder_key(b, key, 4);
    bytes_u32(&b->values, number);
}

void builder_f32(struct gguf_builder *b, const char *key, float number)
{
    builder_key(b, key, 6);
    bytes_u32(&b->values, bits_of(number));
}

void builder_bool(struct gguf_builder *b, const char *key, int truth)
{
    builder_key(b, key, 7);
    put_number(&b->values, (uint64_t)truth, 1);
}

void builder_text(struct gguf_builder *b, const char *key, const char *text)
{
    builder_key(b, key, 8);
    bytes_text(&b->values, text);
}

static void start_array(struct gguf_builder *b, const char *key, uint32_t element, size_t n)
{
    builder_key(b, key, 9);
    bytes_u32(&b->values, element);
    bytes_u64(&b->values, n);
}

void builder_texts(struct gguf_builder *b, const char *key, const char *const *texts, size_t n)
{
    start_array(b, key, 8, n);
    for (size_t i = 0; i < n; i++)
        bytes_text(&b->values, texts[i]);
}

void builder_f32s(struct gguf_builder *b, const char *key, const float *numbers, size_t n)
{
    start_array(b, key, 6, n);
    for (size_t i = 0; i < n; i++)
        bytes_u32(&b->values, bits_of(numbers[i]));
}

void builder_i32s(struct gguf_builder *b, const char *key, const int32_t *numbers, size_t n)
{
    start_array(b, key, 5, n);
    for (size_t i = 0; i < n; i++)
        bytes_u32(&b->values, (uint32_t)numbers[i]);
}

/* Normal numbers of f16's range and zero only. */
static uint32_t to_f16(float number)
{
    const uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000;
    const int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;

    return exponent <= 0 ? sign : sign | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff);
}

void builder_info(struct gguf_builder *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                  uint64_t offset)
{
    bytes_text(&b->infos, name);
    bytes_u32(&b->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        bytes_u64(&b->infos, dims[i]);
    bytes_u32(&b->infos, type);
    bytes_u64(&b->infos, offset);
    b->n_tensors++;
}

static void pad(struct bytes *bytes, size_t alignment)
{
    while (bytes->size % alignment)
        put_number(bytes, 0, 1);
}

void builder_tensor(struct gguf_builder *b, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out,
                    const float *values)
{
    const uint64_t dims[2] = {n_in, n_out};

    pad(&b->tensors, b->alignment);
    builder_info(b, name, n_out ? 2 : 1, dims, type, b->tensors.size);
    for (size_t i = 0; i < n_in * (n_out ? n_out : 1); i++) {
        if (type == 0)
            bytes_u32(&b->tensors, bits_of(values[i]));
        else
            put_number(&b->tensors, type == 1 ? to_f16(values[i]) : bits_of(values[i]) >> 16, 2);
    }
}

unsigned char *builder_finish(struct gguf_builder *b, size_t *size)
{
    struct bytes file = {0};

    bytes_put(&file, "GGUF", 4);
    bytes_u32(&file, b->version);
    bytes_u64(&file, b->n_tensors);
    bytes_u64(&file, b->n_values);
    bytes_put(&file, b->values.data, b->values.size);
    bytes_put(&file, b->infos.data, b->infos.size);
    if (b->n_tensors)
        pad(&file, b->alignment);
    bytes_put(&file, b->tensors.data, b->tensors.size);
    free(b->values.data);
    free(b->infos.data);
    free(b->tensors.data);
    builder_init(b);
    *size = file.size;
    return realloc(file.data, file.size);
}
