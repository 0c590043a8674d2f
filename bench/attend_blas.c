#ifndef _GNU_SOURCE
#  define _GNU_SOURCE
#endif
#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "attend_blas.h"
#include "cpu.h"

#ifdef HAVE_OPENBLAS
#  include <cblas.h>

/* The kernels of a release that does not know a CPU are those of an older one. */
static int core_fits(const char *core)
{
#  if defined(__x86_64__)
    static const char *const with_avx512[] = {"SkylakeX", "Cooperlake", "Sapphirerapids", NULL};
    static const char *const with_avx2[] = {"Haswell", "Zen", NULL};
    uint32_t features = cattn_cpu_features();
    const char *const *fitting = features & CATTN_CPU_AVX512 ? with_avx512 : with_avx2;

    if (!(features & (CATTN_CPU_AVX512 | CATTN_CPU_AVX2)))
        return 1;
    for (; *fitting != NULL; fitting++)
        if (strcasecmp(core, *fitting) == 0)
            return 1;
    return 0;
#  else
    (void)core;
    return 1;
#  endif
}

void bench_blas_prepare(char **argv)
{
    if (getenv("OPENBLAS_CORETYPE") == NULL && !core_fits(openblas_get_corename())) {
        setenv("OPENBLAS_CORETYPE", cattn_cpu_features() & CATTN_CPU_AVX512 ? "SkylakeX" : "Haswell", 1);
        execv("/proc/self/exe", argv);
    }
    openblas_set_num_threads(1);
}

const char *bench_blas_unusable(void)
{
    static char reason[96];
    const char *core = openblas_get_corename();
    if (core_fits(core))
        return NULL;
    snprintf(reason, sizeof reason, "OpenBLAS runs its %s kernels, which are not those for this CPU", core);
    return reason;
}

const char *bench_blas_name(void)
{
    static char name[48];
    snprintf(name, sizeof name, "openblas-%s", openblas_get_corename());
    return name;
}
#else
void bench_blas_prepare(char **argv)
{
    (void)argv;
}

const char *bench_blas_unusable(void)
{
    return "built without OpenBLAS";
}

const char *bench_blas_name(void)
{
    return "none";
}
#endif
