/* What the kernels ask of the GPU: the only place with inline PTX or names of CUDA.  tests/cuda-host/ptx.h has the same
 * names for the host, where the kernels' own source runs as C++.
 *
 * Lane L of a warp is its thread L of 0 .. 31; with g = L / 4 and c = 2 * (L % 4), the fragments of mma.m16n8k16 (PTX
 * ISA, "Matrix Fragments for mma.m16n8k16 with floating point type") are, as (row, column), low half first:
 *
 * - A 16x16: a[0] is (g, c) and (g, c + 1); a[1] the same of row g + 8; a[2] of columns + 8; a[3] of both
 * - B 16x8: b[0] is (c, g) and (c + 1, g); b[1] the same of rows + 8
 * - D 16x8: d[0] is (g, c), d[1] (g, c + 1), d[2] (g + 8, c), d[3] (g + 8, c + 1)
 *
 * The operand tables of TVM's tile operation mma.sync say the same.
 *
 * ldmatrix.x4 (PTX ISA, "Warp-level matrix load instruction: ldmatrix"): lane L hands over the address of row L % 8 of
 * matrix L / 8 of four, each 8 x 8 elements of 16 bits; r[i] is of matrix i: (g, c) and (g, c + 1), low half first.
 * Transposed: (c, g) and (c + 1, g). */
#ifndef CATTN_PTX_H
#define CATTN_PTX_H

#include <cuda_runtime.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_GLOBAL                  static __global__
#define PTX_DEVICE                  static __device__ __forceinline__ /* functions, and static members of structs */
#define PTX_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define PTX_UNROLL                  _Pragma("unroll") /* the whole loop that follows */

/* ---- who and where ---- */

PTX_DEVICE uint32_t ptx_thread()
{
    return threadIdx.x;
}

PTX_DEVICE uint32_t ptx_block_x()
{
    return blockIdx.x;
}

PTX_DEVICE uint32_t ptx_block_y()
{
    return blockIdx.y;
}

PTX_DEVICE uint32_t ptx_grid_x()
{
    return gridDim.x;
}

/* The block's shared memory, as much as its launch said; begins at a multiple of 16. */
PTX_DEVICE char *ptx_shared()
{
    extern __shared__ uint4 cattn_ptx_shared[];
    return (char *)cattn_ptx_shared;
}

/* ---- waiting for each other: what was written before is seen behind ---- */

PTX_DEVICE void ptx_barrier()
{
    __syncthreads();
}

PTX_DEVICE void ptx_warp_barrier()
{
    __syncwarp();
}

/* ---- all 32 lanes of a warp at once ---- */

/* The value of lane (own ^ mask); of the lane given. */
PTX_DEVICE float ptx_shuffle_xor(float value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

PTX_DEVICE uint32_t ptx_shuffle_xor(uint32_t value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

PTX_DEVICE float ptx_shuffle(float value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

PTX_DEVICE int ptx_any(int predicate)
{
    return __any_sync(0xffffffffu, predicate);
}

PTX_DEVICE int ptx_all(int predicate)
{
    return __all_sync(0xffffffffu, predicate);
}

/* ---- copies to shared memory that go on while the thread computes ---- */

PTX_DEVICE uint32_t ptx_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* 16 bytes, of which the first `bytes` (0 .. 16) come from global memory and the rest are zeros; 0: nothing is read.
 * Both addresses are multiples of 16.  Past the L1 cache: what is read was written before the launch. */
PTX_DEVICE void ptx_copy16(void *shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(ptx_shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* Closes a group of this thread's copies; it may be empty. */
PTX_DEVICE void ptx_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the newest N groups of this thread are complete and seen by it (others see them past a barrier). */
template <int N> PTX_DEVICE void ptx_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- matrices: see above for who holds what; all 32 lanes together ---- */

PTX_DEVICE void ptx_ldmatrix_x4(uint32_t r[4], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ptx_shared_address(shared_row))
                 : "memory");
}

PTX_DEVICE void ptx_ldmatrix_x4_trans(uint32_t r[4], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(ptx_shared_address(shared_row))
                 : "memory");
}

/* d += a * b in f32.  Volatile: a compiler that sees d used under a condition must not move the whole warp's operation
 * there. */
PTX_DEVICE void ptx_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

PTX_DEVICE void ptx_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- numbers: to nearest, ties to even; 16-bit types travel as their bits ---- */

PTX_DEVICE uint16_t ptx_f32_to_f16(float x)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

PTX_DEVICE uint16_t ptx_f32_to_bf16(float x)
{
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

PTX_DEVICE float ptx_f16_to_f32(uint16_t bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

PTX_DEVICE float ptx_bf16_to_f32(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* Two in one register, `low` in the lower half. */
PTX_DEVICE uint32_t ptx_pack_f16(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

PTX_DEVICE uint32_t ptx_pack_bf16(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* 2^x to about 2^-22; results below 2^-126 are 0.  -inf gives 0. */
PTX_DEVICE float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A product that no compiler joins with a sum. */
PTX_DEVICE float ptx_mul(float a, float b)
{
    return __fmul_rn(a, b);
}

/* ---- the host's side: a cudaError_t each ---- */

/* Puts kernel(params) on a stream; `params` is one struct of at most 4 KB. */
template <class Params>
static int ptx_launch(void (*kernel)(Params), uint32_t grid_x, uint32_t grid_y, uint32_t threads, size_t shared_bytes,
                      void *stream, const Params &params)
{
    void *arguments[] = {(void *)&params};
    return (int)cudaLaunchKernel((const void *)kernel, dim3(grid_x, grid_y), dim3(threads), arguments, shared_bytes,
                                 (cudaStream_t)stream);
}

/* Lets blocks of a kernel have so much shared memory on the current device. */
template <class Params> static int ptx_allow_shared(void (*kernel)(Params), size_t shared_bytes)
{
    return (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
}

/* Loads the kernel now, which the run-time would do at its first launch: with waiting and memory, where neither may be.
 */
template <class Params> static int ptx_load(void (*kernel)(Params))
{
    struct cudaFuncAttributes attributes;
    return (int)cudaFuncGetAttributes(&attributes, (const void *)kernel);
}

/* Blocks that one multiprocessor of the current device runs at once. */
template <class Params>
static int ptx_occupancy(void (*kernel)(Params), uint32_t threads, size_t shared_bytes, int *n_blocks)
{
    return (int)cudaOccupancyMaxActiveBlocksPerMultiprocessor(n_blocks, (const void *)kernel, (int)threads,
                                                              shared_bytes);
}

#endif
