#include "cpu.h"
#define SIMD_VNNI 1
#include "simd_avx512.h"

#define KERNEL_NAME     avx512vnni
#define KERNEL_SHOWN    avx512
#define KERNEL_FEATURES (CATTN_CPU_AVX2 | CATTN_CPU_AVX512 | CATTN_CPU_VNNI)
#define KERNEL_I8_ONLY  1
#include "attend_tmpl.h"
