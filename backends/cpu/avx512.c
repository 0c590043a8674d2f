#include "cpu.h"
#include "simd_avx512.h"

#define KERNEL_NAME     avx512
#define KERNEL_FEATURES (CATTN_CPU_AVX2 | CATTN_CPU_AVX512)
#include "attend_tmpl.h"
