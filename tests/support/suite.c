#include "suite.h"
#include "chunkattention.h"

#include <stdlib.h>

static const char *suite_name;

TCase *suite_case(const char *name)
{
    suite_name = name;
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 1800);
    return tcase;
}

int suite_run(TCase *tcase)
{
    Suite *suite = suite_create(suite_name);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int is_exact(const char *kernel, unsigned io_dtype, unsigned kv_dtype)
{
    struct cattn_config config = {.size = sizeof config,
                                  .backend = "cpu",
                                  .kernel = kernel,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 8,
                                  .io_dtype = io_dtype,
                                  .kv_dtype = kv_dtype,
                                  .max_tokens = 64,
                                  .n_threads = 1};
    struct cattn_info info = {.size = sizeof info};
    cattn_cache *cache;
    if (cattn_cache_create(&config, &cache) != CATTN_OK)
        return 0;
    int exact = cattn_cache_info(cache, &info) == CATTN_OK && info.exact;
    cattn_cache_destroy(cache);
    return exact;
}

const char *exact_kernel(unsigned i, unsigned io_dtype, unsigned kv_dtype)
{
    const char *kernel;
    for (unsigned k = 0; (kernel = cattn_kernel_name(k)); k++)
        if (is_exact(kernel, io_dtype, kv_dtype) && i-- == 0)
            return kernel;
    return NULL;
}
