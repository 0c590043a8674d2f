/* Writes the corpus of the readers of binary files: make_corpus FOLDER, which has folders gguf and saved.  The rest of
 * the corpus is what libFuzzer kept of inputs of its own, and text. */
#include "fuzz.h"
#include "llama/tiny_llama.h"
#include "saved_cache.h"
#include "saved_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const fuzz_name = "make_corpus";

static const char *folder;

static void write_file(const char *target, const char *name, const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file)) {
        perror(path);
        exit(1);
    }
}

/* ---- models */

static void write_model(const char *name, const struct tiny_shape *shape, int with_vocabulary)
{
    struct gguf_builder b;
    size_t size;
    builder_init(&b);
    if (with_vocabulary)
        tiny_vocabulary_build(&b);
    tiny_llama_build(&b, shape);
    unsigned char *data = builder_finish(&b, &size);
    write_file("gguf", name, data, size);
    free(data);
}

static void write_models(void)
{
    struct tiny_shape shape = {.dim = 4, .hidden = 3, .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .vocabulary = 5};
    write_model("plain", &shape, 0);
    shape.tied = shape.factors = 1;
    shape.type = 1;
    write_model("f16-tied", &shape, 0);
    shape.type = 30;
    shape.head_dim = 6;
    shape.v_head_dim = 4;
    shape.rotary_dims = 4;
    shape.tied = 0;
    shape.n_layers = 2;
    write_model("bf16-dims", &shape, 0);
    shape = (struct tiny_shape){
        .dim = 2, .hidden = 1, .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .vocabulary = 3 + 256 + TINY_WORDS};
    shape.type = 1;
    write_model("vocabulary", &shape, 1);
}

/* ---- saved prefixes */

/* Prompts that begin alike, in all namespaces, some pinned twice and some in the middle; with extra identities, each of
 * the kinds, and none in one of them. */
static void pin_prompts(cattn_cache *cache, size_t n, unsigned images)
{
    struct saved_prompt prompt;
    for (unsigned i = 0; i < 5; i++) {
        const char *name = saved_namespace(i % SAVED_NAMES);
        saved_prompt(&prompt, n, i, images ? (images + i / 2) % 4 : 0);
        FUZZ_CHECK(!saved_feed(cache, i % SAVED_NAMES, &prompt, NULL), "a prompt does not fit");
        if (i == 3)
            saved_prompt(&prompt, n / 2, i, images ? (images + i / 2) % 4 : 0);
        for (unsigned k = 0; k < 1 + i % 2; k++)
            FUZZ_CHECK(!cattn_prefix_pin(cache, name, strlen(name), prompt.tokens, prompt.n, &prompt.ext), "no pin");
    }
}

/* `name`: what is written under the first choice is loaded under the second. */
static void write_saved(const char *name, const unsigned char *written, const unsigned char *loaded, size_t n_tokens)
{
    static unsigned char data[SAVED_CHOICES + SAVED_MAX];
    const char *path = "make_corpus.saved";
    struct saved_choice choice = saved_choice(written);
    cattn_cache *cache = saved_make(&choice);
    if (n_tokens)
        pin_prompts(cache, n_tokens, choice.images);
    FUZZ_CHECK(!cattn_prefix_save(cache, path, SAVED_MODEL, strlen(SAVED_MODEL)), "no file");
    cattn_cache_destroy(cache);
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file, "no file");
    memcpy(data, loaded, SAVED_CHOICES);
    size_t n = fread(data + SAVED_CHOICES, 1, SAVED_MAX, file);
    FUZZ_CHECK(n < SAVED_MAX, "%s is too long", name);
    fclose(file);
    remove(path);
    write_file("saved", name, data, SAVED_CHOICES + n);
}

#define SAVED(name, n_tokens, ...)                                                                                     \
  write_saved(name, ((const unsigned char[][SAVED_CHOICES]){__VA_ARGS__})[0],                                          \
              ((const unsigned char[][SAVED_CHOICES]){__VA_ARGS__})[1], n_tokens)

/* Bytes of a choice: backend and shape; chunk size, what is cached and flags; slots; repair and failures; extra
 * identities and a rival. */
static void write_prefixes(void)
{
    SAVED("cells", 50, {1, 3, 250, 0, 0}, {1, 3, 250, 0, 0});
    SAVED("cells-empty", 0, {1, 3, 250, 0, 0}, {1, 3, 250, 0, 0});
    SAVED("cells-joined", 50, {3, 1, 250, 0, 0}, {3, 4 + 8, 250, 8, 0});
    SAVED("cells-split", 50, {1, 6, 250, 0, 0}, {1, 2 + 16, 250, 8, 0});
    SAVED("cells-ones", 50, {1, 0, 250, 0, 0}, {1, 0 + 24 + 128, 250, 8 + 1, 0});
    SAVED("cells-full", 50, {1, 3, 250, 0, 0}, {1, 3, 20, 8, 0});
    SAVED("cells-evicting", 50, {1, 3, 250, 0, 0}, {1, 3 + 8 + 32, 38, 8, 0});
    SAVED("cells-no-memory", 50, {1, 3, 250, 0, 0}, {1, 3 + 64, 250, 8 + 128 + 64, 0});
    SAVED("cells-tree", 20, {1, 3, 250, 0, 0}, {1, 3, 250, 15, 0});
    SAVED("cells-rival", 50, {1, 3, 250, 0, 0}, {1, 3 + 8, 37, 8, 4});
    SAVED("images", 50, {1, 3, 250, 0, 1}, {1, 3 + 8, 250, 8, 1});
    SAVED("images-all", 50, {1, 3, 250, 0, 3}, {1, 3 + 24, 250, 8, 3 + 4});
    SAVED("images-joined", 50, {1, 1, 250, 0, 2}, {1, 5 + 16, 250, 8, 2});
    SAVED("images-no-memory", 20, {1, 3, 250, 0, 1}, {1, 3 + 8, 251, 8 + 128 + 112, 1});
    SAVED("images-ones", 20, {1, 0, 250, 0, 2}, {1, 0 + 128, 250, 8, 2});
    SAVED("images-split", 50, {1, 6, 250, 0, 1}, {1, 2 + 24, 250, 8, 1 + 4});
    SAVED("images-f32", 70, {0, 0, 30, 0, 1}, {0 + 32, 1, 30, 8, 2});
    SAVED("f32", 70, {0, 0, 30, 0, 0}, {0 + 32, 0, 30, 8, 0});
    SAVED("f16", 150, {4, 0, 30, 0, 0}, {4 + 32, 1 + 8, 30, 8, 0});
    SAVED("bf16", 70, {8, 0, 30, 0, 0}, {8 + 64, 1 + 16, 30, 8, 0});
    SAVED("i8", 70, {12 + 16, 0, 30, 0, 0}, {12 + 16 + 32, 0 + 24 + 32, 30, 8, 0});
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    folder = argv[1];
    write_models();
    write_prefixes();
    return 0;
}
