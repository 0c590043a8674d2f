/* What the processor and the operating system together allow. */
#ifndef CATTN_CPU_H
#define CATTN_CPU_H

#include <stdint.h>

enum cattn_cpu_feature {
    CATTN_CPU_AVX2 = 1,  /* with FMA and F16C */
    CATTN_CPU_AVX512 = 2 /* F, BW, DQ and VL */
};

/* The features that may be used, or-ed: the CPU has them and the system saves their registers. */
uint32_t cattn_cpu_features(void);

/* CPUs in the affinity mask of the calling thread; at least 1. */
uint32_t cattn_cpu_count(void);

#endif
