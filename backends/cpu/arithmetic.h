/* The floating-point control word of the library's arithmetic.  Kernels count on the processor's default: round to
 * nearest, denormals kept, nothing trapped. */
#ifndef CATTN_ARITHMETIC_H
#define CATTN_ARITHMETIC_H

#include <stdint.h>
#if defined(__SSE__)
#  include <xmmintrin.h>
#endif

/* What the caller had, to be put back. */
static inline uint64_t cattn_enter_arithmetic(void)
{
    uint64_t saved = 0;
#if defined(__SSE__)
    saved = _mm_getcsr();
    _mm_setcsr(0x1f80);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, xzr" : "=&r"(saved) : : "memory");
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
