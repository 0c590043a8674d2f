/* The reader of requests: JSON lines. */
#include "fuzz.h"

#include "llama/json.h"
#include "llama/requests.h"

#include <stdlib.h>
#include <string.h>

const char *const fuzz_name = "json";
const int fuzz_needs_corpus = 1;

enum { CONTEXT = 64 };

/* Counts the values; a string's text must be terminated. */
static void touch(const struct json *value)
{
    for (; value; value = value->next) {
        FUZZ_CHECK(value->type != JSON_STRING || value->text[value->length] == 0, "a string without an end");
        FUZZ_CHECK(!value->key || value->key[value->key_length] == 0, "a key without an end");
        touch(value->child); /* the reader bounds the depth */
        fuzz_operations++;
    }
}

static void parse_value(const char *text, size_t size)
{
    struct fault fault = {""};
    struct json *value = NULL;
    int status = json_parse(text, size, &value, &fault);
    FUZZ_CHECK(!status == (value != NULL) && !status == !*fault.text, "a text is refused without a reason");
    touch(value);
    json_free(value);
}

static void parse_requests(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    struct request_rules rules = {
        .tokenizer = tokenizer, .vocabulary = tokenizer ? tokenizer_size(tokenizer) : 100, .context = CONTEXT};
    struct requests requests = {0};
    struct fault fault = {""};
    rules.max_tokens = 8;
    int status = requests_parse(&requests, &rules, text, size, &fault);
    FUZZ_CHECK(!status == !*fault.text, "requests are refused without a reason");
    for (size_t i = 0; i < requests.n; i++) {
        const struct request *x = &requests.list[i];
        FUZZ_CHECK(x->n_prompt >= 1 && x->n_prompt <= CONTEXT && x->n_ids == x->n_prompt && x->max_tokens >= 1,
                   "a request breaks the rules");
        for (size_t k = 0; k < x->n_prompt; k++)
            FUZZ_CHECK(x->ids[k] >= 0 && (uint32_t)x->ids[k] < rules.vocabulary, "a token out of range");
        fuzz_operations++;
    }
    requests_release(&requests);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size ? size : 1);
    struct tokenizer *tokenizer = tokenizer_bytes();
    fuzz_begin();
    fuzz_operations++;
    if (copy && tokenizer) {
        if (size)
            memcpy(copy, data, size);
        parse_value(copy, size);
        parse_requests(tokenizer, copy, size);
        parse_requests(NULL, copy, size);
    }
    tokenizer_close(tokenizer);
    free(copy);
    return 0;
}
