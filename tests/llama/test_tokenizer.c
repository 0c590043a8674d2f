/* Text to tokens and back, with a small vocabulary whose merges can be followed by hand. */
#include "gguf_builder.h"
#include "tiny_llama.h"

#include "llama/gguf.h"
#include "llama/tokenizer.h"
#include "support/random.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The words of tiny_vocabulary_build; scores in brackets, the others -1000. */
enum {
    BOS = 1,
    EOS = 2,
    BYTE = 3,
    SPACE = 259,
    A,
    B,
    C,
    AB /* -2 */,
    BC /* -1 */,
    ABC /* -3 */,
    SPACE_A /* -4 */,
    E_ACUTE,
    CC /* -5 */,
    AA /* -6 */,
    OPEN_S /* "<s" */,
    S_CLOSE /* "s>" */
};

static unsigned char *file;
static struct gguf *gguf;
static struct tokenizer *tokenizer;

static void open_vocabulary(void)
{
    struct gguf_builder b;
    struct fault fault;
    size_t size;

    builder_init(&b);
    tiny_vocabulary_build(&b);
    file = builder_finish(&b, &size);
    ck_assert_int_eq(gguf_parse(file, size, &gguf, &fault), 0);
    ck_assert_int_eq(tokenizer_open(gguf, &tokenizer, &fault), 0);
    ck_assert_ptr_nonnull(tokenizer);
}

static void close_vocabulary(void)
{
    tokenizer_close(tokenizer);
    gguf_close(gguf);
    free(file);
}

static void gives(const char *text, size_t length, const int32_t *expected, size_t n_expected)
{
    struct fault fault;
    int32_t *ids;
    size_t n;

    ck_assert_int_eq(tokenizer_encode(tokenizer, text, length, &ids, &n, &fault), 0);
    ck_assert_msg(n == n_expected, "'%s': %zu tokens, not %zu", text, n, n_expected);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(ids[i] == expected[i], "'%s': token %zu is %d, not %d", text, i, ids[i], expected[i]);
    free(ids);
}

#define GIVES(text, ...)                                                                                               \
  do {                                                                                                                 \
    const int32_t expected_[] = {BOS, __VA_ARGS__};                                                                    \
    gives(text, sizeof text - 1, expected_, sizeof expected_ / sizeof expected_[0]);                                   \
  } while (0)

START_TEST(test_encode)
{
    const int32_t nothing[] = {BOS};

    gives("", 0, nothing, 1);
    GIVES("b", SPACE, B);
    GIVES("a", SPACE_A);      /* the leading space is a part of the text */
    GIVES("abc", SPACE, ABC); /* "bc" first; then "abc" is better than " a" */
}
END_TEST

START_TEST(test_merges)
{
    GIVES("cab", SPACE, C, AB);
    GIVES("ccc", SPACE, CC, C); /* equal scores: from the left */
    GIVES("cccc", SPACE, CC, CC);
    GIVES("b aaaa", SPACE, B, SPACE_A, AA, A); /* the better score first, wherever it stands */
    GIVES("  ", SPACE, SPACE, SPACE);
}
END_TEST

START_TEST(test_bytes)
{
    GIVES("\xc3\xa9", SPACE, E_ACUTE);
    GIVES("\xc3\xa8", SPACE, BYTE + 0xc3, BYTE + 0xa8);
    GIVES("b\nb", SPACE, B, BYTE + '\n', B);
    GIVES("\0b", SPACE, BYTE + 0, B);
    GIVES("b\xff\xc3", SPACE, B, BYTE + 0xff, BYTE + 0xc3); /* not UTF-8 */
    GIVES("\xe2\x98\x83", SPACE, BYTE + 0xe2, BYTE + 0x98, BYTE + 0x83);
    GIVES("b<s>", SPACE, B, BYTE + '<', BYTE + 's', BYTE + '>'); /* control tokens are not made from text */
}
END_TEST

static void text_of(const int32_t *ids, size_t n, const char *expected, size_t length)
{
    size_t got;
    char *text = tokenizer_decode(tokenizer, ids, n, &got);

    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(got, length);
    ck_assert_mem_eq(text, expected, length + 1);
    free(text);
}

START_TEST(test_decode)
{
    static const int32_t sentence[] = {BOS, SPACE_A, SPACE, B, EOS}, inside[] = {SPACE_A, SPACE_A};
    static const int32_t spaces[] = {BOS, SPACE, SPACE_A}, bytes[] = {BOS, BYTE + 0xe2, BYTE + 0x98, BYTE, BYTE + 0xff};

    text_of(sentence, 5, "a b", 3);
    text_of(inside, 2, " a a", 4);
    text_of(spaces, 3, " a", 2);
    text_of(bytes, 5, "\xe2\x98\0\xff", 4);
    text_of(bytes, 0, "", 0);
}
END_TEST

static void round_trip(const char *text, size_t length)
{
    struct fault fault;
    int32_t *ids;
    size_t n;

    ck_assert_int_eq(tokenizer_encode(tokenizer, text, length, &ids, &n, &fault), 0);
    text_of(ids, n, text, length);
    free(ids);
}

START_TEST(test_round_trip)
{
    static const char alphabet[] = "aabbcc  \n<s>\xc3\xa9\xff";
    struct rng rng;
    char text[65];

    rng_init(&rng, 0x70);
    for (int round = 0; round < 2000; round++) {
        const size_t length = rng_below(&rng, 64);

        for (size_t i = 0; i < length; i++)
            text[i] = alphabet[rng_below(&rng, sizeof alphabet - 1)];
        text[length] = 0;
        round_trip(text, length);
    }
}
END_TEST

/* The rule itself, slow and plain: of all pairs that make a token the best score, and of equal ones the first. */
static size_t merge_slowly(int32_t *ids, size_t n)
{
    static const struct {
        int32_t left, right, whole;
        int score;
    } pairs[] = {{A, B, AB, -2},          {B, C, BC, -1}, {A, BC, ABC, -3}, {AB, C, ABC, -3},
                 {SPACE, A, SPACE_A, -4}, {C, C, CC, -5}, {A, A, AA, -6}};

    for (;;) {
        size_t at = n, pair = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
                if (ids[i] == pairs[p].left && ids[i + 1] == pairs[p].right &&
                    (at == n || pairs[p].score > pairs[pair].score)) {
                    at = i;
                    pair = p;
                }
            }
        }
        if (at == n)
            return n;
        ids[at] = pairs[pair].whole;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

START_TEST(test_random_merges)
{
    static const char letters[] = "abc ";
    static const int32_t tokens[] = {A, B, C, SPACE};
    struct rng rng;
    char text[40];
    int32_t expected[42];

    rng_init(&rng, 0x71);
    for (int round = 0; round < 5000; round++) {
        const size_t length = rng_between(&rng, 1, sizeof text);

        expected[0] = BOS;
        expected[1] = SPACE;
        for (size_t i = 0; i < length; i++) {
            const uint64_t letter = rng_below(&rng, 4);

            text[i] = letters[letter];
            expected[2 + i] = tokens[letter];
        }
        gives(text, length, expected, 1 + merge_slowly(expected + 1, length + 1));
    }
}
END_TEST

START_TEST(test_long_text)
{
    const size_t length = 1 << 20; /* would take for ever in quadratic time */
    char *text = malloc(length + 1);

    memset(text, 'a', length);
    text[length] = 0;
    round_trip(text, length);
    free(text);
}
END_TEST

START_TEST(test_byte_vocabulary)
{
    static const int32_t expected[] = {BOS, BYTE + 'a', BYTE + ' ', BYTE + 0xff};
    struct tokenizer *words = tokenizer;

    tokenizer = tokenizer_bytes();
    ck_assert_ptr_nonnull(tokenizer);
    gives("a \xff", 3, expected, 4);
    round_trip("a \xff", 3);
    tokenizer_close(tokenizer);
    tokenizer = words;
}
END_TEST

static int open_damaged(const char *skip, const char *key, uint32_t type, const void *value, size_t size)
{
    static const char *const texts[] = {"<unk>", "<s>", "</s>", "a"};
    static const float scores[] = {0, 0, 0, 0};
    static const int32_t types[] = {2, 3, 3, 1};
    struct gguf_builder b;
    struct gguf *damaged;
    struct tokenizer *opened = NULL;
    struct fault fault;
    size_t file_size;

    builder_init(&b);
    builder_text(&b, "tokenizer.ggml.model", "llama");
    if (strcmp(skip, "tokens") != 0)
        builder_texts(&b, "tokenizer.ggml.tokens", texts, 4);
    if (strcmp(skip, "scores") != 0)
        builder_f32s(&b, "tokenizer.ggml.scores", scores, 4);
    if (strcmp(skip, "types") != 0)
        builder_i32s(&b, "tokenizer.ggml.token_type", types, 4);
    if (key) {
        builder_key(&b, key, type);
        bytes_put(&b.values, value, size);
    }
    unsigned char *data = builder_finish(&b, &file_size);
    ck_assert_int_eq(gguf_parse(data, file_size, &damaged, &fault), 0);
    const int rc = tokenizer_open(damaged, &opened, &fault);
    ck_assert_int_eq(rc == 0, opened != NULL);
    tokenizer_close(opened);
    gguf_close(damaged);
    free(data);
    return rc;
}

static int open_with_array(const char *skip, const char *key, uint32_t element, const void *elements, uint64_t n)
{
    unsigned char value[64];

    memcpy(value, &element, 4);
    memcpy(value + 4, &n, 8);
    memcpy(value + 12, elements, 4 * n);
    return open_damaged(skip, key, GGUF_ARRAY, value, 12 + 4 * n);
}

START_TEST(test_bad_vocabulary)
{
    const uint32_t outside = 4, inside = 3;
    const float scores[] = {0, 0, 0, NAN};
    const int32_t types[] = {2, 3, 3, 7}, no_byte[] = {2, 3, 3, 6}, good[] = {2, 3, 3, 1};

    ck_assert_int_eq(open_damaged("", NULL, 0, NULL, 0), 0);
    ck_assert_int_eq(open_damaged("types", NULL, 0, NULL, 0), 0);
    ck_assert_int_eq(open_damaged("tokens", NULL, 0, NULL, 0), -1);
    ck_assert_int_eq(open_damaged("scores", NULL, 0, NULL, 0), -1);
    ck_assert_int_eq(open_damaged("", "tokenizer.ggml.bos_token_id", GGUF_U32, &inside, 4), 0);
    ck_assert_int_eq(open_damaged("", "tokenizer.ggml.bos_token_id", GGUF_U32, &outside, 4), -1);
    ck_assert_int_eq(open_damaged("", "tokenizer.ggml.eos_token_id", GGUF_F32, &outside, 4), -1);
    ck_assert_int_eq(open_damaged("tokens", "tokenizer.ggml.tokens", GGUF_U32, &inside, 4), -1);
    ck_assert_int_eq(open_with_array("tokens", "tokenizer.ggml.tokens", GGUF_I32, good, 4), -1);
    ck_assert_int_eq(open_with_array("scores", "tokenizer.ggml.scores", GGUF_F32, scores, 4), -1);
    ck_assert_int_eq(open_with_array("scores", "tokenizer.ggml.scores", GGUF_F32, scores, 3), -1);
    ck_assert_int_eq(open_with_array("types", "tokenizer.ggml.token_type", GGUF_I32, types, 4), -1);
    ck_assert_int_eq(open_with_array("types", "tokenizer.ggml.token_type", GGUF_I32, no_byte, 4), -1);
    ck_assert_int_eq(open_with_array("types", "tokenizer.ggml.token_type", GGUF_I32, good, 3), -1);
    ck_assert_int_eq(open_with_array("types", "tokenizer.ggml.token_type", GGUF_I32, good, 4), 0);
}
END_TEST

START_TEST(test_no_token_for_a_byte)
{
    static const char *const texts[] = {"a", "b"};
    static const float scores[] = {0, 0};
    struct gguf_builder b;
    struct gguf *small;
    struct tokenizer *few;
    struct fault fault;
    int32_t *ids;
    size_t size, n;
    const uint32_t none = UINT32_MAX;

    builder_init(&b);
    builder_text(&b, "tokenizer.ggml.model", "llama");
    builder_texts(&b, "tokenizer.ggml.tokens", texts, 2);
    builder_f32s(&b, "tokenizer.ggml.scores", scores, 2);
    builder_u32(&b, "tokenizer.ggml.unknown_token_id", none);
    builder_u32(&b, "tokenizer.ggml.bos_token_id", none);
    builder_bool(&b, "tokenizer.ggml.add_space_prefix", 0);
    unsigned char *data = builder_finish(&b, &size);
    ck_assert_int_eq(gguf_parse(data, size, &small, &fault), 0);
    ck_assert_int_eq(tokenizer_open(small, &few, &fault), 0);
    ck_assert_int_eq(tokenizer_encode(few, "ab", 2, &ids, &n, &fault), 0);
    ck_assert_uint_eq(n, 2);
    free(ids);
    ck_assert_int_eq(tokenizer_encode(few, "ac", 2, &ids, &n, &fault), -1);
    tokenizer_close(few);
    gguf_close(small);
    free(data);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("tokenizer");

    tcase_add_checked_fixture(tcase, open_vocabulary, close_vocabulary);
    tcase_add_test(tcase, test_encode);
    tcase_add_test(tcase, test_merges);
    tcase_add_test(tcase, test_bytes);
    tcase_add_test(tcase, test_decode);
    tcase_add_test(tcase, test_round_trip);
    tcase_add_test(tcase, test_random_merges);
    tcase_add_test(tcase, test_long_text);
    tcase_add_test(tcase, test_byte_vocabulary);
    tcase_add_test(tcase, test_bad_vocabulary);
    tcase_add_test(tcase, test_no_token_for_a_byte);
    return suite_run(tcase);
}
