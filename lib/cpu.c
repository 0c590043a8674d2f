#if defined(__linux__)
#  define _GNU_SOURCE /* sched_getaffinity, syscall */
#  include <sched.h>
#  include <sys/syscall.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu.h"

enum {
    ALL = CATTN_CPU_BASELINE | CATTN_CPU_AVX2 | CATTN_CPU_AVX512 | CATTN_CPU_VNNI | CATTN_CPU_AMX,
    NEED_AVX512 = CATTN_CPU_AVX512 | CATTN_CPU_VNNI | CATTN_CPU_AMX
};

/* What goes with each name of a mask. */
static const struct {
    const char *name;
    uint32_t features;
} masks[] = {{"none", 0},
             {"avx2", CATTN_CPU_AVX2 | NEED_AVX512},
             {"avx512", NEED_AVX512},
             {"vnni", CATTN_CPU_VNNI},
             {"amx", CATTN_CPU_AMX}};

uint32_t cattn_cpu_unmasked(const char *mask)
{
    const size_t n_masks = sizeof masks / sizeof *masks;
    uint32_t left = ALL;
    if (!mask || !*mask)
        return left;
    for (;; mask++) {
        size_t i = 0, length = strcspn(mask, ",");
        while (i < n_masks && (strlen(masks[i].name) != length || strncmp(masks[i].name, mask, length) != 0))
            i++;
        if (i == n_masks)
            return 0;
        left &= ~masks[i].features;
        mask += length;
        if (!*mask)
            return left;
    }
}

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

static uint32_t found(void)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29; /* leaf 1, ecx */
    const uint32_t avx2 = 1u << 5;                                                      /* leaf 7, ebx */
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;                  /* F, DQ, BW, VL */
    const uint32_t vnni = 1u << 11;                                                     /* leaf 7, ecx */
    const uint32_t amx = 1u << 22 | 1u << 24;                                           /* leaf 7, edx: BF16, TILE */
    const uint32_t avx512_bf16 = 1u << 5;                                               /* leaf 7.1, eax */
    const uint64_t ymm = 0x06, zmm = 0xe6, tiles = 0x600e6;
    uint32_t eax, ebx, ecx, edx, eax1, unused, features = CATTN_CPU_BASELINE;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has(ecx, fma | osxsave | avx | f16c))
        return features;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !has(ebx, avx2) || !has(saved_state(), ymm))
        return features;
    features |= CATTN_CPU_AVX2;
    if (!has(ebx, avx512) || !has(saved_state(), zmm))
        return features;
    features |= CATTN_CPU_AVX512;
    if (has(ecx, vnni))
        features |= CATTN_CPU_VNNI;
    if (has(edx, amx) && has(saved_state(), tiles) && eax >= 1 &&
        __get_cpuid_count(7, 1, &eax1, &unused, &unused, &unused) && has(eax1, avx512_bf16))
        features |= CATTN_CPU_AMX;
    return features;
}
#else
static uint32_t found(void)
{
    return CATTN_CPU_BASELINE;
}
#endif

/* Linux: ARCH_REQ_XCOMP_PERM for the tile data.  A kernel that does not know the request would not save the tiles. */
static int may_use_tiles(void)
{
#if defined(__linux__) && defined(__x86_64__) && defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return 0;
#endif
}

uint32_t cattn_cpu_features(void)
{
    uint32_t features = found() & cattn_cpu_unmasked(getenv("CATTN_CPU_MASK"));
    if (features & CATTN_CPU_AMX && !may_use_tiles())
        features &= ~(uint32_t)CATTN_CPU_AMX;
    return features;
}

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
