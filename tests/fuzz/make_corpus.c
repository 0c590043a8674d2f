/* Writes the corpus of the readers of binary files: make_corpus FOLDER.  The rest of the corpus is what libFuzzer kept
 * of inputs of its own, and text. */
#include "llama/tiny_llama.h"

#include <stdio.h>
#include <stdlib.h>

static void write_file(const char *folder, const char *name, const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file)) {
        perror(path);
        exit(1);
    }
}

static void write_model(const char *folder, const char *name, const struct tiny_shape *shape, int with_vocabulary)
{
    struct gguf_builder b;
    size_t size;
    builder_init(&b);
    if (with_vocabulary)
        tiny_vocabulary_build(&b);
    tiny_llama_build(&b, shape);
    unsigned char *data = builder_finish(&b, &size);
    write_file(folder, name, data, size);
    free(data);
}

int main(int argc, char **argv)
{
    struct tiny_shape shape = {.dim = 4, .hidden = 3, .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .vocabulary = 5};
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    write_model(argv[1], "plain", &shape, 0);
    shape.tied = shape.factors = 1;
    shape.type = 1;
    write_model(argv[1], "f16-tied", &shape, 0);
    shape.type = 30;
    shape.head_dim = 6;
    shape.v_head_dim = 4;
    shape.rotary_dims = 4;
    shape.tied = 0;
    shape.n_layers = 2;
    write_model(argv[1], "bf16-dims", &shape, 0);
    shape = (struct tiny_shape){
        .dim = 2, .hidden = 1, .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .vocabulary = 3 + 256 + TINY_WORDS};
    shape.type = 1;
    write_model(argv[1], "vocabulary", &shape, 1);
    return 0;
}
