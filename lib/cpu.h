/* What the processor and the operating system together allow. */
#ifndef CATTN_CPU_H
#define CATTN_CPU_H

#include <stdint.h>

enum cattn_cpu_feature {
    CATTN_CPU_AVX2 = 1,     /* with FMA and F16C */
    CATTN_CPU_AVX512 = 2,   /* F, BW, DQ and VL */
    CATTN_CPU_VNNI = 4,     /* AVX512_VNNI */
    CATTN_CPU_AMX = 8,      /* AMX-TILE and AMX-BF16, with AVX512_BF16 */
    CATTN_CPU_BASELINE = 16 /* what every processor has: missing only when CATTN_CPU_MASK makes no sense */
};

/* The features that may be used, or-ed: the CPU has them, the system saves their registers, and the environment
 * variable CATTN_CPU_MASK (see cattn_cpu_unmasked) does not forbid them; it is read at each call.
 * Linux keeps the tiles of AMX from a process until it asks for them, once for all of its threads and for good.  That
 * is done here, and only if everything else speaks for AMX; refused, the feature is missing. */
uint32_t cattn_cpu_features(void);

/* The features that a mask leaves: all but those that it names, separated by commas (avx2, avx512, vnni, amx), and
 * those that need them.  NULL, "" and "none" leave all.  0: a name is unknown; whoever wanted something left out must
 * not get it. */
uint32_t cattn_cpu_unmasked(const char *mask);

/* CPUs in the affinity mask of the calling thread; at least 1. */
uint32_t cattn_cpu_count(void);

#endif
