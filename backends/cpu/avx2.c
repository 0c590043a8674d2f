#include "cpu.h"
#include "simd_avx2.h"

#define KERNEL_NAME     avx2
#define KERNEL_FEATURES CATTN_CPU_AVX2
#include "attend_tmpl.h"
