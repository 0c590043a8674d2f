/* The JSON reader against texts that are JSON and texts that are not, and the requests made of them. */
#include "llama/json.h"
#include "llama/requests.h"
#include "llama/utf8.h"
#include "support/random.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

/* Memory of exactly the text's size, so that a sanitizer sees one byte too many. */
static int parses(const char *text, size_t length)
{
    struct fault fault = {""};
    struct json *value;
    char *copy = malloc(length ? length : 1);

    memcpy(copy, text, length);
    const int good = json_parse(copy, length, &value, &fault) == 0;
    ck_assert_int_eq(good, value != NULL);
    ck_assert_int_eq(good, fault.text[0] == 0);
    json_free(value);
    free(copy);
    return good;
}

static const char *const good[] = {
    "0",
    "-0",
    "1",
    "-12",
    "1.5",
    "1e3",
    "1E+3",
    "1e-3",
    "0.0e0",
    "true",
    "false",
    "null",
    "\"\"",
    "\"a\"",
    "[]",
    "{}",
    " [ 1 , 2 ] ",
    "[[],[[]],{}]",
    "{\"a\":1}",
    "{\"a\":{\"b\":[1,\"c\",null]},\"d\":true}",
    "\t\r\n 1 \n",
    "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\"",
    "\"\\ud83d\\ude00\"",
    "\"\xc3\xa9\xe2\x98\x83\xf0\x9f\x98\x80\"",
    "\"\\u0000\"",
    "\"\x7f\"",
    "123456789012345678901234567890",
};

static const char *const bad[] = {
    "",
    " ",
    "01",
    "+1",
    "-",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x10",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "tru",
    "True",
    "nul",
    "truee",
    "\"",
    "\"a",
    "'a'",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\\u12g4\"",
    "\"\n\"",
    "\"\\ud83d\"",
    "\"\\ude00\"",
    "\"\\ud83d\\u0041\"",
    "\"\\ud83dx\"",
    "\"\xff\"",
    "\"\xc3\"",
    "\"\xc0\xaf\"",
    "\"\xed\xa0\x80\"",
    "\"\xf4\x90\x80\x80\"",
    "\"\xe2\x98\"",
    "[",
    "]",
    "[1",
    "[1,",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1}",
    "{",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":1",
    "{\"a\":1,",
    "{\"a\":1,}",
    "{a:1}",
    "{1:1}",
    "{\"a\" 1}",
    "{\"a\":1]",
    "1 2",
    "[] []",
    "//",
    "\"\\",
    "\"\\u",
    "\\",
};

START_TEST(test_good)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(parses(good[i], strlen(good[i])), "%s", good[i]);
}
END_TEST

START_TEST(test_bad)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!parses(bad[i], strlen(bad[i])), "%s", bad[i]);
    ck_assert(!parses("1\0", 2));
    ck_assert(!parses("\"a\0\"", 4));
}
END_TEST

START_TEST(test_values)
{
    static const char text[] = "{\"a\\u0000b\": [1, -2.5e1, \"\\u00e9\\ud83d\\ude00\\n\"], \"c\": false}";
    struct fault fault;
    struct json *value;

    ck_assert_int_eq(json_parse(text, sizeof text - 1, &value, &fault), 0);
    ck_assert_int_eq(value->type, JSON_OBJECT);
    const struct json *list = value->child, *last = list->next;
    ck_assert_uint_eq(list->key_length, 3);
    ck_assert_mem_eq(list->key, "a\0b", 4);
    ck_assert_int_eq(list->type, JSON_ARRAY);
    ck_assert(list->child->number == 1 && list->child->next->number == -25);
    ck_assert_str_eq(list->child->next->next->text, "\xc3\xa9\xf0\x9f\x98\x80\n");
    ck_assert_uint_eq(list->child->next->next->length, 7);
    ck_assert_ptr_null(list->child->next->next->next);
    ck_assert_int_eq(last->type, JSON_FALSE);
    ck_assert_ptr_null(last->next);
    json_free(value);
}
END_TEST

START_TEST(test_depth)
{
    const size_t n = 100000;
    char *text = malloc(2 * n);

    memset(text, '[', n);
    memset(text + n, ']', n);
    ck_assert(parses(text + n - 64, 128));
    ck_assert(!parses(text + n - 65, 130));
    ck_assert(!parses(text, 2 * n));
    ck_assert(!parses(text, n));
    for (size_t i = 0; i + 5 <= n; i += 5)
        memcpy(text + i, "{\"a\":", 5);
    ck_assert(!parses(text, n));
    free(text);
}
END_TEST

START_TEST(test_damage)
{
    static const char text[] =
        "{\"prompt\": \"caf\\u00e9 \xe2\x98\x83\", \"ids\": [1, 22, -3.5e2], \"x\": [true, null]}";
    const size_t length = sizeof text - 1;
    struct rng rng;
    char copy[sizeof text];

    ck_assert(parses(text, length));
    for (size_t n = 0; n < length; n++)
        ck_assert(!parses(text, n));
    rng_init(&rng, 0x72);
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, text, length);
        for (uint64_t n = rng_between(&rng, 1, 4); n > 0; n--) {
            const size_t at = rng_below(&rng, length);

            copy[at] = rng_chance(&rng, 50) ? text[rng_below(&rng, length)] : (char)rng_next(&rng);
        }
        parses(copy, rng_chance(&rng, 20) ? rng_below(&rng, length) : length);
    }
}
END_TEST

START_TEST(test_utf8)
{
    char out[4];

    for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 61) {
        const size_t n = utf8_encode(code, out);
        const int surrogate = code >= 0xd800 && code <= 0xdfff;

        ck_assert_uint_eq(utf8_length(out, n), surrogate ? 0 : n);
        ck_assert_uint_eq(utf8_length(out, n - 1), 0);
    }
}
END_TEST

/* ---- requests -----------------------------------------------------------------------------------------------------
 */

static int n_requests(const char *text)
{
    struct tokenizer *tokenizer = tokenizer_bytes();
    const struct request_rules rules = {tokenizer, 300, 10, 7};
    struct requests requests = {0};
    struct fault fault = {""};
    const int rc = requests_parse(&requests, &rules, text, strlen(text), &fault);
    const int n = rc ? -1 : (int)requests.n;

    if (rc)
        ck_assert_ptr_nonnull(strstr(fault.text, "line "));
    requests_release(&requests);
    tokenizer_close(tokenizer);
    return n;
}

START_TEST(test_requests)
{
    struct tokenizer *tokenizer = tokenizer_bytes();
    const struct request_rules rules = {tokenizer, 300, 10, 7};
    static const char text[] = "{\"prompt\": \"ab\"}\r\n\n  \n{\"max_tokens\": 3, \"ids\": [299, 0]}";
    struct requests requests = {0};
    struct fault fault;

    ck_assert_int_eq(requests_parse(&requests, &rules, text, sizeof text - 1, &fault), 0);
    ck_assert_uint_eq(requests.n, 2);
    ck_assert_uint_eq(requests.list[0].n_prompt, 3);
    ck_assert_int_eq(requests.list[0].ids[2], 3 + 'b');
    ck_assert_uint_eq(requests.list[0].max_tokens, 7);
    ck_assert_uint_eq(requests.list[1].n_prompt, 2);
    ck_assert_int_eq(requests.list[1].ids[0], 299);
    ck_assert_uint_eq(requests.list[1].max_tokens, 3);
    requests_release(&requests);
    tokenizer_close(tokenizer);
}
END_TEST

START_TEST(test_bad_requests)
{
    static const char *const wrong[] = {
        "{}",
        "[]",
        "1",
        "{\"prompt\": 1}",
        "{\"ids\": 1}",
        "{\"ids\": []}",
        "{\"ids\": [300]}",
        "{\"ids\": [-1]}",
        "{\"ids\": [1.5]}",
        "{\"ids\": [\"1\"]}",
        "{\"ids\": [1e300]}",
        "{\"prompt\": \"a\", \"ids\": [1]}",
        "{\"prompt\": \"a\", \"prompt\": \"a\"}",
        "{\"prompt\": \"a\", \"max_tokens\": 0}",
        "{\"prompt\": \"a\", \"max_tokens\": 1e10}",
        "{\"prompt\": \"a\", \"max_tokens\": \"1\"}",
        "{\"prompt\": \"a\", \"other\": 1}",
        "{\"prompt\": \"more than the context\"}",
        "{\"prompt\": \"a\"",
        "\"a\"",
        "{\"prompt\": \"a\"}\n{\"prompt\": \"a\"} x\n",
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(n_requests(wrong[i]) == -1, "%s", wrong[i]);
    ck_assert_int_eq(n_requests(""), 0);
    ck_assert_int_eq(n_requests("{\"prompt\": \"\"}\n{\"prompt\": \"\"}\n"), 2);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("json");

    tcase_add_test(tcase, test_good);
    tcase_add_test(tcase, test_bad);
    tcase_add_test(tcase, test_values);
    tcase_add_test(tcase, test_depth);
    tcase_add_test(tcase, test_damage);
    tcase_add_test(tcase, test_utf8);
    tcase_add_test(tcase, test_requests);
    tcase_add_test(tcase, test_bad_requests);
    return suite_run(tcase);
}
