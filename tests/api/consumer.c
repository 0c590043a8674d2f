/* A user of the installed library, as C99 and as C++11: the header is the library's, and a cache can be made. */
#include <chunkattention.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    struct cattn_config config;
    cattn_cache *cache;
    int status;

    if (strcmp(cattn_version(), CATTN_VERSION_STRING) != 0) {
        fprintf(stderr, "header %s, library %s\n", CATTN_VERSION_STRING, cattn_version());
        return 1;
    }
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.n_layers = 2;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.head_dim = 16;
    config.max_tokens = 1024;
    status = cattn_cache_create(&config, &cache);
    if (status != CATTN_OK) {
        fprintf(stderr, "cattn_cache_create: %s\n", cattn_strerror(status));
        return 1;
    }
    cattn_cache_destroy(cache);
    printf("%s\n", cattn_version());
    return 0;
}
