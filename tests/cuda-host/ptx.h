/* The host twin of backends/cuda/ptx.h: the same names, executed by exec.cc.  Which lane holds which element of a
 * matrix is from the PTX ISA (9.2, sections "Matrix Fragments for mma.m16n8k16 with floating point type" and
 * "ldmatrix"); test_exec.cc compares it with the layouts of CUTLASS (cute/atom/mma_traits_sm80.hpp), which say the same
 * in another way.  The guard is that of the device's ptx.h, so that whoever has this one does not get the other. */
#ifndef CATTN_PTX_H
#define CATTN_PTX_H

#include "exec.h"
#include "runtime.h"

#include <math.h>
#include <string.h>

#define PTX_GLOBAL
#define PTX_DEVICE static inline
#define PTX_BOUNDS(threads, blocks)
#define PTX_UNROLL

#define PTX_INLINE static inline __attribute__((unused))
/* What moves registers between lanes is no access to memory. */
#if defined(__SANITIZE_THREAD__)
#  define PTX_REGISTERS __attribute__((unused, no_sanitize("thread")))
#elif defined(__has_feature)
#  if __has_feature(thread_sanitizer)
#    define PTX_REGISTERS __attribute__((unused, no_sanitize("thread")))
#  endif
#endif
#ifndef PTX_REGISTERS
#  define PTX_REGISTERS __attribute__((unused))
#endif

/* ---- places ----------------------------------------------------------------------------------------------------- */

PTX_INLINE uint32_t ptx_thread()
{
    return exec_now.thread;
}
PTX_INLINE uint32_t ptx_block_x()
{
    return exec_now.block_x;
}
PTX_INLINE uint32_t ptx_block_y()
{
    return exec_now.block_y;
}
PTX_INLINE uint32_t ptx_grid_x()
{
    return exec_now.grid_x;
}
PTX_INLINE char *ptx_shared()
{
    return exec_now.shared;
}

/* ---- waiting, copying ------------------------------------------------------------------------------------------- */

PTX_INLINE void ptx_barrier()
{
    exec_barrier();
}
PTX_INLINE void ptx_warp_barrier()
{
    exec_warp_barrier();
}

PTX_INLINE void ptx_copy16(void *shared, const void *global, uint32_t bytes)
{
    exec_copy16(shared, global, bytes);
}
PTX_INLINE void ptx_copy_commit()
{
    exec_copy_commit();
}
template <int N> static inline void ptx_copy_wait()
{
    exec_copy_wait(N);
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

PTX_INLINE uint32_t ptx_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

PTX_INLINE float ptx_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

PTX_INLINE float ptx_bf16_to_f32(uint16_t x)
{
    return ptx_float((uint32_t)x << 16);
}

PTX_INLINE float ptx_f16_to_f32(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
    if (magnitude >= 0x7c00)
        return ptx_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    /* As a float its exponent is 112 too small; the product makes good for it, and for subnormal numbers too. */
    return ptx_float(sign | ptx_bits(ptx_float(magnitude << 13) * 0x1p112f));
}

/* Any NaN becomes the one that cvt makes. */
PTX_INLINE uint16_t ptx_f32_to_bf16(float x)
{
    const uint32_t bits = ptx_bits(x);
    return x != x ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

PTX_INLINE uint16_t ptx_f32_to_f16(float x)
{
    const uint32_t bits = ptx_bits(x), magnitude = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return 0x7fff;
    if (magnitude >= 0x477ff000) /* 65520: halfway to what would be the next */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below 2^-14 the step is 2^-24: added to 1/2, that is the last bit */
        return (uint16_t)(sign | (ptx_bits(ptx_float(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

PTX_INLINE uint32_t ptx_pack_f16(float low, float high)
{
    return (uint32_t)ptx_f32_to_f16(high) << 16 | ptx_f32_to_f16(low);
}

PTX_INLINE uint32_t ptx_pack_bf16(float low, float high)
{
    return (uint32_t)ptx_f32_to_bf16(high) << 16 | ptx_f32_to_bf16(low);
}

/* Subnormal numbers are zeros, before and after. */
PTX_INLINE float ptx_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
PTX_INLINE float ptx_exp2(float x)
{
    return ptx_flush(exp2f(ptx_flush(x)));
}

/* Not joined with a sum: see the build's -ffp-contract=off. */
PTX_INLINE float ptx_mul(float a, float b)
{
    return a * b;
}

/* ---- collectives of a warp -------------------------------------------------------------------------------------- */

enum { PTX_LANES = 32 };

struct ptx_shuffle_lane {
    uint32_t in, out;
    int from;
};

static PTX_REGISTERS void ptx_shuffle_all(void *const *lanes)
{
    for (int i = 0; i < PTX_LANES; i++) {
        struct ptx_shuffle_lane *to = (struct ptx_shuffle_lane *)lanes[i];
        to->out = ((struct ptx_shuffle_lane *)lanes[to->from])->in;
    }
}

static PTX_REGISTERS uint32_t ptx_shuffle_bits(uint32_t x, int from)
{
    struct ptx_shuffle_lane lane = {x, 0, from % PTX_LANES};
    exec_warp("a shuffle", &lane, ptx_shuffle_all);
    return lane.out;
}

PTX_INLINE uint32_t ptx_shuffle_xor(uint32_t x, int mask)
{
    return ptx_shuffle_bits(x, (int)ptx_thread() ^ mask);
}
PTX_INLINE float ptx_shuffle_xor(float x, int mask)
{
    return ptx_float(ptx_shuffle_xor(ptx_bits(x), mask));
}
PTX_INLINE float ptx_shuffle(float x, int lane)
{
    return ptx_float(ptx_shuffle_bits(ptx_bits(x), lane));
}

static PTX_REGISTERS void ptx_vote_all(void *const *lanes)
{
    int any = 0;
    for (int i = 0; i < PTX_LANES; i++)
        any |= *(int *)lanes[i];
    for (int i = 0; i < PTX_LANES; i++)
        *(int *)lanes[i] = any;
}

static PTX_REGISTERS int ptx_any(int x)
{
    int lane = x != 0;
    exec_warp("a vote", &lane, ptx_vote_all);
    return lane;
}

PTX_INLINE int ptx_all(int x)
{
    return !ptx_any(!x);
}

/* Four matrices of 8 rows of 16 bytes.  Lane 8 i + r has brought the address of row r of matrix i; lane 4 r + c gets
 * elements 2 c and 2 c + 1 of row r (transposed: of column r). */
PTX_INLINE void *const *ptx_rows(const void *row)
{
    if ((uintptr_t)row % 16)
        exec_fail("loads a row of a matrix from %p, which is not aligned", row);
    return exec_warp("ldmatrix", const_cast<void *>(row), nullptr);
}

static PTX_REGISTERS const uint16_t *ptx_row(void *const *rows, uint32_t i)
{
    return (const uint16_t *)rows[i];
}

/* Elements are read by the lane that gets them, so that they must be in order after what has written them. */

PTX_INLINE void ptx_ldmatrix_x4(uint32_t r[4], const void *shared_row)
{
    void *const *rows = ptx_rows(shared_row);
    const uint32_t lane = ptx_thread() % PTX_LANES, row = lane / 4, column = lane % 4 * 2;
    for (uint32_t i = 0; i < 4; i++)
        r[i] = ptx_row(rows, 8 * i + row)[column] | (uint32_t)ptx_row(rows, 8 * i + row)[column + 1] << 16;
}

PTX_INLINE void ptx_ldmatrix_x4_trans(uint32_t r[4], const void *shared_row)
{
    void *const *rows = ptx_rows(shared_row);
    const uint32_t lane = ptx_thread() % PTX_LANES, column = lane / 4, row = lane % 4 * 2;
    for (uint32_t i = 0; i < 4; i++)
        r[i] = ptx_row(rows, 8 * i + row)[column] | (uint32_t)ptx_row(rows, 8 * i + row + 1)[column] << 16;
}

struct ptx_mma_lane {
    float *d;
    const uint32_t *a, *b;
};

/* Element i of lane 4 g + t, two to a register.  A: row g or (i / 2 odd) g + 8, column 2 t + i % 2 or (i >= 4) 8 more.
 * B: row 2 t + i % 2 or (i >= 2) 8 more, column g.  D: row g or (i >= 2) g + 8, column 2 t + i % 2. */
template <float to_f32(uint16_t)> static PTX_REGISTERS void ptx_mma_all(void *const *lanes)
{
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < PTX_LANES; lane++) {
        const struct ptx_mma_lane *l = (const struct ptx_mma_lane *)lanes[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 8; i++)
            a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = to_f32((uint16_t)(l->a[i / 2] >> i % 2 * 16));
        for (int i = 0; i < 4; i++)
            b[2 * t + i % 2 + i / 2 * 8][g] = to_f32((uint16_t)(l->b[i / 2] >> i % 2 * 16));
        for (int i = 0; i < 4; i++)
            d[g + i / 2 * 8][2 * t + i % 2] = l->d[i];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                d[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < PTX_LANES; lane++)
        for (int i = 0; i < 4; i++)
            ((struct ptx_mma_lane *)lanes[lane])->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

static PTX_REGISTERS void ptx_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    struct ptx_mma_lane lane = {d, a, b};
    exec_warp("mma (f16)", &lane, ptx_mma_all<ptx_f16_to_f32>);
}

static PTX_REGISTERS void ptx_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    struct ptx_mma_lane lane = {d, a, b};
    exec_warp("mma (bf16)", &lane, ptx_mma_all<ptx_bf16_to_f32>);
}

/* ---- launching -------------------------------------------------------------------------------------------------- */

template <typename P> static void ptx_call(exec_kernel *kernel, const void *params)
{
    ((void (*)(P))kernel)(*(const P *)params);
}

template <typename P>
static inline int ptx_launch(void (*kernel)(P), uint32_t grid_x, uint32_t grid_y, uint32_t threads, size_t shared_bytes,
                             void *stream, const P &params)
{
    const struct exec_launch launch = {(exec_kernel *)kernel, ptx_call<P>, &params, grid_x, grid_y, threads,
                                       shared_bytes};
    return fake_cuda_launch(&launch, sizeof params, stream);
}

template <typename P> static inline int ptx_allow_shared(void (*kernel)(P), size_t shared_bytes)
{
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
}

template <typename P> static inline int ptx_load(void (*kernel)(P))
{
    struct cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)kernel);
}

template <typename P>
static inline int ptx_occupancy(void (*kernel)(P), uint32_t threads, size_t shared_bytes, int *n_blocks)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n_blocks, (const void *)kernel, (int)threads, shared_bytes);
}

#endif
