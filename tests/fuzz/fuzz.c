#define _DEFAULT_SOURCE 1
#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

uint64_t fuzz_inputs, fuzz_operations;
static uint64_t random_number;

static void print_counts(void)
{
    printf("%s: %llu inputs, %llu operations, 0 faults\n", fuzz_name, (unsigned long long)fuzz_inputs,
           (unsigned long long)fuzz_operations);
}

void fuzz_begin(void)
{
    if (!fuzz_inputs++)
        atexit(print_counts);
    random_number = 0;
}

void fuzz_fault(const char *format, ...)
{
    va_list arguments;
    fflush(stdout);
    fputs("FAULT: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

/* The library seeds its hashes with this.  In every run an input finds the same numbers. */
ssize_t getrandom(void *buffer, size_t size, unsigned flags);

ssize_t getrandom(void *buffer, size_t size, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < size; i++) {
        random_number = random_number * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ((unsigned char *)buffer)[i] = (unsigned char)(random_number >> 56);
    }
    return (ssize_t)size;
}
