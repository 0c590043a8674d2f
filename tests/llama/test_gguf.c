/* The reader of GGUF files against good files and against hostile ones. */
#include "gguf_builder.h"
#include "tiny_llama.h"

#include "llama/gguf.h"
#include "llama/model.h"
#include "llama/tokenizer.h"
#include "support/random.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A whole model; without its vocabulary it is small enough to try everything on every byte. */
static unsigned char *tiny_file(int with_vocabulary, size_t *size)
{
    const struct tiny_shape tiny = {.dim = 4,
                                    .hidden = 3,
                                    .n_layers = 1,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .vocabulary = with_vocabulary ? 3 + 256 + TINY_WORDS : 5};
    struct gguf_builder b;

    builder_init(&b);
    if (with_vocabulary)
        tiny_vocabulary_build(&b);
    tiny_llama_build(&b, &tiny);
    return builder_finish(&b, size);
}

/* Touches every byte that the reader hands out. */
static uint64_t touch(const struct gguf *gguf)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        const unsigned char *data = tensor->data;

        for (uint64_t j = 0; j < tensor->n_elements * (tensor->type == GGUF_TENSOR_F32 ? 4 : 2); j++)
            sum += data[j];
    }
    return sum;
}

/* Reads bytes that may be anything; what the reader accepts must be safe to use. */
static int survives(const unsigned char *data, size_t size)
{
    struct fault fault = {""};
    struct gguf *gguf;

    if (gguf_parse(data, size, &gguf, &fault)) {
        ck_assert_ptr_null(gguf);
        ck_assert_uint_gt(strlen(fault.text), 0);
        return 0;
    }
    struct model model;
    struct tokenizer *tokenizer = NULL;
    volatile uint64_t sum = touch(gguf);
    (void)sum;
    model_load(&model, gguf, &fault);
    model_release(&model);
    if (!tokenizer_open(gguf, &tokenizer, &fault) && tokenizer) {
        int32_t *ids;
        size_t n;

        if (!tokenizer_encode(tokenizer, "a b\n", 4, &ids, &n, &fault))
            free(ids);
    }
    tokenizer_close(tokenizer);
    gguf_close(gguf);
    return 1;
}

static void refused(struct gguf_builder *b, const char *why)
{
    struct fault fault = {""};
    struct gguf *gguf;
    size_t size;
    unsigned char *data = builder_finish(b, &size);

    ck_assert_int_eq(gguf_parse(data, size, &gguf, &fault), -1);
    ck_assert_ptr_null(gguf);
    ck_assert_msg(strstr(fault.text, why) != NULL, "'%s' does not say '%s'", fault.text, why);
    free(data);
}

START_TEST(test_good)
{
    static const float numbers[] = {1, -2, 0.5f, 3, 4, 5};
    struct gguf_builder b;
    struct fault fault;
    struct gguf *gguf;
    struct gguf_string text;
    uint64_t whole;
    double real;
    size_t size;

    for (uint32_t version = 2; version <= 3; version++) {
        builder_init(&b);
        b.version = version;
        b.alignment = 64;
        builder_u32(&b, "general.alignment", 64);
        builder_text(&b, "name", "value");
        builder_f32(&b, "real", 2.5f);
        builder_f32s(&b, "list", numbers, 6);
        builder_tensor(&b, "f32", 0, 3, 2, numbers);
        builder_tensor(&b, "f16", 1, 6, 0, numbers);
        builder_tensor(&b, "bf16", 30, 2, 3, numbers);
        unsigned char *data = builder_finish(&b, &size);

        ck_assert_int_eq(gguf_parse(data, size, &gguf, &fault), 0);
        ck_assert_int_eq(gguf_uint(gguf_find(gguf, "general.alignment"), &whole), 0);
        ck_assert_uint_eq(whole, 64);
        ck_assert_int_eq(gguf_text(gguf_find(gguf, "name"), &text), 0);
        ck_assert_mem_eq(text.text, "value", 5);
        ck_assert_int_eq(gguf_float(gguf_find(gguf, "real"), &real), 0);
        ck_assert(real == 2.5);
        ck_assert(gguf_f32_at(gguf_find(gguf, "list"), 5) == 5.0f);
        ck_assert_int_eq(gguf_uint(gguf_find(gguf, "name"), &whole), -1);
        ck_assert_int_eq(gguf_float(gguf_find(gguf, "name"), &real), -1);
        ck_assert_int_eq(gguf_text(gguf_find(gguf, "real"), &text), -1);
        ck_assert_ptr_null(gguf_find(gguf, "nam"));
        ck_assert_ptr_null(gguf_tensor(gguf, "f3"));
        ck_assert_mem_eq(gguf_tensor(gguf, "f32")->data, numbers, sizeof numbers);
        ck_assert_uint_eq(gguf_tensor(gguf, "f32")->dims[0], 3);
        ck_assert_uint_eq(gguf_tensor(gguf, "f32")->dims[1], 2);
        ck_assert_uint_eq(gguf_tensor(gguf, "bf16")->n_elements, 6);
        ck_assert_uint_eq(gguf_n_tensors(gguf), 3);
        gguf_close(gguf);
        free(data);
    }
}
END_TEST

START_TEST(test_empty)
{
    struct gguf_builder b;
    size_t size;

    builder_init(&b);
    unsigned char *data = builder_finish(&b, &size);
    ck_assert_int_eq(survives(data, size), 1);
    ck_assert_int_eq(survives(data, 0), 0);
    ck_assert_int_eq(survives(NULL, 0), 0);
    free(data);
}
END_TEST

static void truncate_file(int with_vocabulary, size_t stride)
{
    size_t size;
    unsigned char *whole = tiny_file(with_vocabulary, &size);

    ck_assert_int_eq(survives(whole, size), 1);
    for (size_t n = 0; n < size; n += stride) {
        /* Memory of exactly this size, so that a sanitizer sees one byte too many. */
        unsigned char *part = malloc(n ? n : 1);

        memcpy(part, whole, n);
        ck_assert_msg(!survives(part, n), "%zu bytes of %zu", n, size);
        free(part);
    }
    free(whole);
}

START_TEST(test_truncated)
{
    truncate_file(0, 1);
    truncate_file(1, 11);
}
END_TEST

START_TEST(test_flipped_bits)
{
    size_t size;
    unsigned char *data = tiny_file(0, &size);

    for (size_t i = 0; i < 8 * size; i++) {
        data[i / 8] ^= (unsigned char)(1u << i % 8);
        survives(data, size);
        data[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    free(data);
}
END_TEST

START_TEST(test_random_damage)
{
    static const unsigned char extremes[] = {0, 1, 0x7f, 0x80, 0xff};
    struct rng rng;
    size_t size;
    unsigned char *whole = tiny_file(1, &size), *data = malloc(size);

    rng_init(&rng, 0x66);
    for (int round = 0; round < 1000; round++) {
        const size_t cut = rng_chance(&rng, 20) ? rng_below(&rng, size) : size;

        memcpy(data, whole, size);
        for (uint64_t n = rng_between(&rng, 1, 8); n > 0; n--)
            data[rng_below(&rng, size < 8192 ? size : 8192)] =
                rng_chance(&rng, 50) ? extremes[rng_below(&rng, sizeof extremes)] : (unsigned char)rng_next(&rng);
        survives(data, cut);
    }
    free(whole);
    free(data);
}
END_TEST

START_TEST(test_bad_header)
{
    struct gguf_builder b;
    static const uint32_t versions[] = {0, 1, 4, 0x03000000, UINT32_MAX};

    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        builder_init(&b);
        b.version = versions[i];
        refused(&b, "version");
    }
    builder_init(&b);
    b.n_values = UINT64_MAX;
    refused(&b, "promises");
    builder_init(&b);
    b.n_tensors = UINT64_MAX / 2;
    refused(&b, "promises");
    builder_init(&b);
    builder_u32(&b, "a", 1);
    b.n_values = 2;
    refused(&b, "ends inside");
}
END_TEST

START_TEST(test_bad_values)
{
    static const uint64_t lengths[] = {5, 1u << 31, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    struct gguf_builder b;

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        builder_init(&b);
        builder_key(&b, "text", 8);
        bytes_u64(&b.values, lengths[i]);
        bytes_put(&b.values, "abcd", 4);
        refused(&b, "ends inside");
        for (uint32_t type = 0; type <= 12; type++) {
            if (type == GGUF_ARRAY)
                continue;
            builder_init(&b);
            builder_key(&b, "list", GGUF_ARRAY);
            bytes_u32(&b.values, type);
            bytes_u64(&b.values, lengths[i]);
            bytes_put(&b.values, "\0\0\0", 4);
            refused(&b, "ends inside");
        }
    }
    builder_init(&b);
    builder_key(&b, "nested", GGUF_ARRAY);
    bytes_u32(&b.values, GGUF_ARRAY);
    bytes_u64(&b.values, 1);
    refused(&b, "unknown or an array");
    builder_init(&b);
    builder_key(&b, "unknown", 13);
    bytes_u64(&b.values, 1);
    refused(&b, "unknown or an array");
    builder_init(&b);
    builder_bool(&b, "truth", 2);
    refused(&b, "neither");
    builder_init(&b);
    builder_u32(&b, "", 2);
    refused(&b, "a key of 0 bytes");
    builder_init(&b);
    builder_u32(&b, "twice", 2);
    builder_u32(&b, "other", 2);
    builder_u32(&b, "twice", 3);
    refused(&b, "'twice' occurs twice");
    builder_init(&b);
    builder_u32(&b, "an\x1b[31mescape", 2);
    builder_u32(&b, "an\x1b[31mescape", 2);
    refused(&b, "an?[31mescape");
}
END_TEST

START_TEST(test_bad_tensors)
{
    static const uint64_t huge[][4] = {{UINT64_MAX, 2, 1, 1}, {1u << 31, 1u << 31, 4, 1}, {0, 1, 1, 1},
                                       {1, 0, 1, 1},          {UINT64_MAX, 1, 1, 1},      {(uint64_t)1 << 62, 4, 1, 1}};
    static const uint64_t dims[4] = {4, 2, 1, 1};
    static const float values[8] = {0};
    static const uint32_t alignments[] = {0, 1, 4, 3, 24, 1u << 31, UINT32_MAX};
    static const uint64_t offsets[] = {32, 4096, UINT64_MAX - 31, (uint64_t)1 << 63};
    struct gguf_builder b;

    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        builder_init(&b);
        builder_info(&b, "t", 4, huge[i], 0, 0);
        refused(&b, "tensor 't'");
    }
    for (uint32_t type = 0; type < 64; type++) {
        if (type == 0 || type == 1 || type == 30)
            continue;
        builder_init(&b);
        builder_info(&b, "t", 2, dims, type, 0);
        refused(&b, "only F32");
    }
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        builder_init(&b);
        builder_tensor(&b, "s", 0, 8, 0, values);
        builder_info(&b, "t", 2, dims, 0, offsets[i]);
        refused(&b, "beyond the end");
    }
    for (uint64_t offset = 1; offset < 32; offset++) {
        builder_init(&b);
        builder_tensor(&b, "s", 0, 8, 0, values);
        builder_info(&b, "t", 1, dims, 0, offset);
        refused(&b, "not aligned");
    }
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        builder_init(&b);
        builder_u32(&b, "general.alignment", alignments[i]);
        builder_tensor(&b, "s", 0, 8, 0, values);
        refused(&b, "general.alignment");
    }
    builder_init(&b);
    builder_text(&b, "general.alignment", "32");
    refused(&b, "general.alignment");
    builder_init(&b);
    builder_tensor(&b, "same", 0, 8, 0, values);
    builder_tensor(&b, "same", 0, 8, 0, values);
    refused(&b, "'same' occurs twice");
    for (uint32_t n_dims = 5; n_dims; n_dims += 0x33333333) {
        builder_init(&b);
        bytes_text(&b.infos, "t");
        bytes_u32(&b.infos, n_dims);
        b.n_tensors = 1;
        for (int i = 0; i < 8; i++)
            bytes_u64(&b.infos, 1);
        refused(&b, "dimensions");
        if (n_dims > 0xcccccccc)
            break;
    }
}
END_TEST

START_TEST(test_unaligned_memory)
{
    size_t size;
    struct fault fault;
    struct gguf *gguf;
    unsigned char *whole = tiny_file(0, &size), *shifted = malloc(size + 1);

    memcpy(shifted + 1, whole, size);
    ck_assert_int_eq(gguf_parse(shifted + 1, size, &gguf, &fault), -1);
    free(whole);
    free(shifted);
}
END_TEST

START_TEST(test_files)
{
    struct fault fault;
    struct gguf *gguf;
    size_t size;
    char path[64];
    unsigned char *data = tiny_file(0, &size);

    ck_assert_int_eq(gguf_open("/nonexistent/file.gguf", &gguf, &fault), -1);
    ck_assert_int_eq(gguf_open("/", &gguf, &fault), -1);
    snprintf(path, sizeof path, "test_gguf.%ld.tmp", (long)getpid());
    for (int whole = 0; whole < 3; whole++) {
        FILE *file = fopen(path, "wb");

        ck_assert_ptr_nonnull(file);
        fwrite(data, 1, whole == 2 ? size : whole ? size / 2 : 0, file);
        fclose(file);
        ck_assert_int_eq(gguf_open(path, &gguf, &fault), whole == 2 ? 0 : -1);
        gguf_close(gguf);
    }
    remove(path);
    free(data);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("gguf");

    tcase_add_test(tcase, test_good);
    tcase_add_test(tcase, test_empty);
    tcase_add_test(tcase, test_truncated);
    tcase_add_test(tcase, test_flipped_bits);
    tcase_add_test(tcase, test_random_damage);
    tcase_add_test(tcase, test_bad_header);
    tcase_add_test(tcase, test_bad_values);
    tcase_add_test(tcase, test_bad_tensors);
    tcase_add_test(tcase, test_unaligned_memory);
    tcase_add_test(tcase, test_files);
    return suite_run(tcase);
}
