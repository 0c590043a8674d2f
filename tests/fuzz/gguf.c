/* The reader of GGUF, the vocabulary and the model that are made of what it reads, and a text through the vocabulary.
 */
#include "fuzz.h"

#include "llama/gguf.h"
#include "llama/model.h"
#include "llama/tokenizer.h"

#include <stdlib.h>
#include <string.h>

const char *const fuzz_name = "gguf";
const int fuzz_needs_corpus = 1;

/* Touches every byte that the reader hands out. */
static void touch_tensors(const struct gguf *gguf)
{
    volatile uint64_t sum = 0;
    for (size_t i = 0; i < gguf_n_tensors(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        const unsigned char *data = tensor->data;
        for (uint64_t n = tensor->n_elements * (tensor->type == GGUF_TENSOR_F32 ? 4 : 2); n; n--)
            sum += *data++;
    }
}

static void use_tokenizer(const struct tokenizer *tokenizer)
{
    static const char text[] = "a b\n\xc3\xa9 hello \xff\xf0\x9f\x98\x80 the end";
    struct fault fault = {""};
    int32_t *ids;
    size_t n, length;
    if (tokenizer_encode(tokenizer, text, sizeof(text), &ids, &n, &fault))
        return;
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_size(tokenizer), "a token out of range");
    char *back = tokenizer_decode(tokenizer, ids, n, &length);
    FUZZ_CHECK(back != NULL && back[length] == 0, "no text");
    free(back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fault fault = {""};
    struct gguf *gguf = NULL;
    struct tokenizer *tokenizer = NULL;
    struct model model;
    /* aligned, and of exactly its size */
    unsigned char *copy = malloc(size ? size : 1);
    fuzz_begin();
    fuzz_operations++;
    if (!copy)
        return 0;
    if (size)
        memcpy(copy, data, size);
    int status = gguf_parse(copy, size, &gguf, &fault);
    FUZZ_CHECK(!status == (gguf != NULL) && !status == !*fault.text, "a file is refused without a reason");
    if (!status) {
        touch_tensors(gguf);
        if (!model_load(&model, gguf, &fault))
            fuzz_operations++;
        model_release(&model);
        if (!tokenizer_open(gguf, &tokenizer, &fault) && tokenizer) {
            fuzz_operations++;
            use_tokenizer(tokenizer);
        }
        tokenizer_close(tokenizer);
        gguf_close(gguf);
    }
    free(copy);
    return 0;
}
