#include <string.h>

#include "cpu.h"
#include "simd.h"

/* Keeps results alive. */
static volatile float sink;

#define VECTOR_BYTES 16
#define TARGET
#define NAME(x)      x##_generic
#define NAME_STRING  "generic"
#define FMA(a, b, c) ((a) * (b) + (c))
#include "simd_tmpl.h"

#if defined(__x86_64__)
#  include <immintrin.h>

#  define VECTOR_BYTES 32
#  define TARGET       __attribute__((target("avx2,fma")))
#  define NAME(x)      x##_avx2
#  define NAME_STRING  "avx2"
#  define FMA(a, b, c) ((NAME(floats))_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#  include "simd_tmpl.h"

#  define VECTOR_BYTES 64
#  define TARGET       __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#  define NAME(x)      x##_avx512
#  define NAME_STRING  "avx512"
#  define FMA(a, b, c) ((NAME(floats))_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#  include "simd_tmpl.h"
#endif

const struct bench_simd *bench_simd(void)
{
#if defined(__x86_64__)
    uint32_t features = cattn_cpu_features();
    if (features & CATTN_CPU_AVX512)
        return &simd_avx512;
    if (features & CATTN_CPU_AVX2)
        return &simd_avx2;
#endif
    return &simd_generic;
}
