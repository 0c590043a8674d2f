#include "suite.h"
#include "chunkattention.h"

#include <stdlib.h>
#include <string.h>

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

/* The backend that is tested: one forced from outside, or the default. */
static const char *backend(void)
{
    const char *forced = getenv("CATTN_BACKEND");
    return forced && *forced ? forced : "cpu";
}

/* Whether the name is one of those that commas separate. */
static int is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (; *list; list += *list == ',') {
        if (!strncmp(list, name, n) && (list[n] == ',' || !list[n]))
            return 1;
        list += strcspn(list, ",");
    }
    return 0;
}

/* Whether the kernel is tested and takes the data types, and then whether it is exact for them. */
static int takes(const char *kernel, unsigned io_dtype, unsigned kv_dtype, int *exact)
{
    const char *wanted = getenv("CATTN_TEST_KERNEL");
    struct cattn_config config = {.size = sizeof config,
                                  .backend = backend(),
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
    if (wanted && !is_listed(wanted, kernel))
        return 0;
    if (cattn_cache_create(&config, &cache) != CATTN_OK)
        return 0;
    *exact = cattn_cache_info(cache, &info) == CATTN_OK && info.exact;
    cattn_cache_destroy(cache);
    return 1;
}

int kernel_choice(unsigned i, struct kernel_choice *choice)
{
    for (unsigned k = 0; (choice->kernel = cattn_backend_kernel(backend(), k)); k++)
        for (choice->kv_dtype = CATTN_F32; choice->kv_dtype <= CATTN_I8; choice->kv_dtype++)
            if (takes(choice->kernel, CATTN_F32, choice->kv_dtype, &choice->exact) && i-- == 0)
                return 1;
    return 0;
}

const char *exact_kernel(unsigned i, unsigned io_dtype, unsigned kv_dtype)
{
    const char *kernel;
    int exact;
    for (unsigned k = 0; (kernel = cattn_backend_kernel(backend(), k)); k++)
        if (takes(kernel, io_dtype, kv_dtype, &exact) && exact && i-- == 0)
            return kernel;
    return NULL;
}
