/* Builds the bytes of GGUF files for tests, good and bad ones. */
#ifndef TEST_GGUF_BUILDER_H
#define TEST_GGUF_BUILDER_H

#include <stddef.h>
#include <stdint.h>

struct bytes {
    unsigned char *data;
    size_t size, room;
};

struct gguf_builder {
    uint32_t version;
    uint64_t n_values, n_tensors;
    uint32_t alignment;
    struct bytes values, infos, tensors;
};

void bytes_put(struct bytes *bytes, const void *data, size_t size);
void bytes_u32(struct bytes *bytes, uint32_t number);
void bytes_u64(struct bytes *bytes, uint64_t number);
void bytes_text(struct bytes *bytes, const char *text);

void builder_init(struct gguf_builder *b);

/* A key and its type; the caller puts the value's bytes. */
void builder_key(struct gguf_builder *b, const char *key, uint32_t type);
void builder_u32(struct gguf_builder *b, const char *key, uint32_t number);
void builder_f32(struct gguf_builder *b, const char *key, float number);
void builder_bool(struct gguf_builder *b, const char *key, int truth);
void builder_text(struct gguf_builder *b, const char *key, const char *text);
void builder_texts(struct gguf_builder *b, const char *key, const char *const *texts, size_t n);
void builder_f32s(struct gguf_builder *b, const char *key, const float *numbers, size_t n);
void builder_i32s(struct gguf_builder *b, const char *key, const int32_t *numbers, size_t n);

/* A tensor of type 0 (F32), 1 (F16) or 30 (BF16); n_out 0: a vector of n_in.  Narrow types round towards zero. */
void builder_tensor(struct gguf_builder *b, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out,
                    const float *values);

/* A tensor's description alone, as bad as it is. */
void builder_info(struct gguf_builder *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                  uint64_t offset);

/* The whole file, in memory of exactly its size; the caller frees it.  The builder is empty afterwards. */
unsigned char *builder_finish(struct gguf_builder *b, size_t *size);

#endif
