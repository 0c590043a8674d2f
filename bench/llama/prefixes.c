#define _DEFAULT_SOURCE 1
#include "prefixes.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The scales of i8 are left out: the file then seems to have a few tokens more. */
static uint64_t token_bytes(const struct cattn_config *config)
{
    static const uint64_t element_bytes[] = {4, 2, 2, 1};

    return element_bytes[config->kv_dtype] * config->n_layers * config->n_kv_heads *
           ((uint64_t)config->head_dim + config->v_head_dim);
}

uint64_t prefixes_room(const char *path, const struct cattn_config *config)
{
    struct stat status;

    return stat(path, &status) || status.st_size < 0 ? 0 : (uint64_t)status.st_size / token_bytes(config);
}

/* What is wrong with a file, for which errno is still as the library left it. */
static int refuse(struct fault *fault, const char *path, const char *model, int status)
{
    if (status == CATTN_EIO)
        return fault_set(fault, "%s: %s", path, strerror(errno));
    if (status == CATTN_EFORMAT)
        return fault_set(fault,
                         "%s: damaged, or of another K and V type, or not saved by the model that runs, which is %s",
                         path, model);
    return fault_set(fault, "%s: %s", path, cattn_strerror(status));
}

int prefixes_load(cattn_cache *cache, const char *path, const char *model, uint64_t *n_tokens, struct fault *fault)
{
    const int status = cattn_prefix_load(cache, path, model, strlen(model), n_tokens);

    return status ? refuse(fault, path, model, status) : 0;
}

/* One pin, whether it has one already (equal prompts, what was loaded) or not. */
static int pin_once(cattn_cache *cache, const struct request *request)
{
    const uint32_t *tenant = &request->tenant;
    const int status = cattn_prefix_unpin(cache, tenant, sizeof *tenant, request->ids, request->n_prompt, NULL);

    if (status && status != CATTN_ENOTFOUND)
        return status;
    return cattn_prefix_pin(cache, tenant, sizeof *tenant, request->ids, request->n_prompt, NULL);
}

int prefixes_save(cattn_cache *cache, const char *path, const char *model, const struct requests *requests,
                  struct fault *fault)
{
    for (size_t i = 0; i < requests->n; i++) {
        const int status = pin_once(cache, &requests->list[i]);

        if (status && status != CATTN_ENOTFOUND)
            return fault_set(fault, "a prompt cannot be pinned: %s", cattn_strerror(status));
    }
    const int status = cattn_prefix_save(cache, path, model, strlen(model));
    return status ? refuse(fault, path, model, status) : 0;
}
