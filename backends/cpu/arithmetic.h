/* The floating-point control word of the library's arithmetic: round to nearest, nothing trapped, and denormals are
 * zero, as operands and as results: some processors take a hundred times as long over each of them. */
#ifndef CATTN_ARITHMETIC_H
#define CATTN_ARITHMETIC_H

#include <stdint.h>
#if defined(__SSE__)
#  include <xmmintrin.h>
#endif

/* Denormal operands count as zero, results become zero; all masked.  (The first came after SSE itself.) */
#if defined(__x86_64__)
#  define CATTN_MXCSR 0x9fc0
#else
#  define CATTN_MXCSR 0x9f80
#endif

/* What the caller had, to be put back. */
static inline uint64_t cattn_enter_arithmetic(void)
{
    uint64_t saved = 0;
#if defined(__SSE__)
    saved = _mm_getcsr();
    _mm_setcsr(CATTN_MXCSR);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, %1" : "=&r"(saved) : "r"(UINT64_C(1) << 24) : "memory");
#endif
    return saved;
}

static inline void cattn_leave_arithmetic(uint64_t saved)
{
#if defined(__SSE__)
    _mm_setcsr((unsigned)saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
#else
    (void)saved;
#endif
}

#endif
