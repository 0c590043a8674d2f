/* Linked into a test program, this makes it one of the kernels "amx" and "amxf32" on the twins of their instructions:
 * "amx" is the best of the list, tests of each kernel are done with these two, and the program fails if it multiplied no
 * tiles, in whatever process. */
#define _DEFAULT_SOURCE 1 /* MAP_ANONYMOUS */

/* The list of kernels: these two, and generic to compare with. */
#undef HAVE_CONFIG_H
#define HAVE_CATTN_AMX 1
#include "backends/cpu/kernels.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern uint64_t *twin_n_products;
uint64_t *twin_n_products; /* shared with the processes that Check makes */

static pid_t program;

__attribute__((unused)) static void check_products(void)
{
    if (getpid() != program || *twin_n_products)
        return;
    fprintf(stderr, "FAIL: no tiles were multiplied\n");
    fflush(NULL);
    _exit(EXIT_FAILURE);
}

__attribute__((constructor)) static void use_amx(void)
{
    if (!(cattn_cpu_features() & CATTN_CPU_AVX512)) {
        printf("SKIP: the kernel amx on twins of its instructions needs AVX-512\n");
        exit(77);
    }
    void *shared = mmap(NULL, sizeof *twin_n_products, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (strcmp(cattn_kernel_at(0)->name, "amx") || shared == MAP_FAILED) {
        fprintf(stderr, "FAIL: amx is not the best kernel, or there is no shared memory\n");
        exit(EXIT_FAILURE);
    }
    setenv("CATTN_TEST_KERNEL", "amx,amxf32", 0);
    twin_n_products = shared;
    program = getpid();
#ifndef MAY_MULTIPLY_NOTHING
    atexit(check_products);
#endif
}
