#if defined(__linux__)
#  define _GNU_SOURCE /* sched_getaffinity */
#  include <sched.h>
#endif
#include <unistd.h>

#include "cpu.h"

#if defined(__x86_64__) || defined(__i386__)
#  include <cpuid.h>

/* XCR0: which register files the operating system saves. */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

uint32_t cattn_cpu_features(void)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29; /* leaf 1, ecx */
    const uint32_t avx2 = 1u << 5;                                                      /* leaf 7, ebx */
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                  /* F, DQ, BW, VL */
    const uint64_t ymm = 0x06, zmm = 0xe6;
    uint32_t eax, ebx, ecx, edx, features = 0;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has(ecx, fma | osxsave | avx | f16c))
        return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return 0;
    if (has(ebx, avx2) && has(saved_state(), ymm))
        features |= CATTN_CPU_AVX2;
    if (has(ebx, avx2 | avx512) && has(saved_state(), zmm))
        features |= CATTN_CPU_AVX512;
    return features;
}
#else
uint32_t cattn_cpu_features(void)
{
    return 0;
}
#endif

uint32_t cattn_cpu_count(void)
{
    long n;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
#endif
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}
