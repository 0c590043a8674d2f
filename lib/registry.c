#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include "backend.h"

#include <string.h>

#define BACKEND(name) extern const struct cattn_backend cattn_backend_##name;
#include "backends.def"
#undef BACKEND

static const struct cattn_backend *const backends[] = {
#define BACKEND(name) &cattn_backend_##name,
#include "backends.def"
#undef BACKEND
};

const struct cattn_backend *cattn_backend_at(unsigned i)
{
    return i < sizeof(backends) / sizeof(backends[0]) ? backends[i] : NULL;
}

const struct cattn_backend *cattn_backend_find(const char *name)
{
    const struct cattn_backend *backend = NULL;
    for (unsigned i = 0; name && (backend = cattn_backend_at(i)) && strcmp(backend->name, name);)
        i++;
    return backend;
}

const char *cattn_backend_name(unsigned i)
{
    const struct cattn_backend *backend = cattn_backend_at(i);
    return backend ? backend->name : NULL;
}

int cattn_backend_usable(const char *name)
{
    const struct cattn_backend *backend = cattn_backend_find(name);
    return backend && backend->usable();
}

const char *cattn_backend_kernel(const char *name, unsigned i)
{
    const struct cattn_backend *backend = cattn_backend_find(name);
    return backend ? backend->kernel_name(i) : NULL;
}

const char *cattn_kernel_name(unsigned i)
{
    return cattn_backend_kernel("cpu", i);
}
