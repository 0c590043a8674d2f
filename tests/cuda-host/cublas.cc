#include "cublas_v2.h"

#include "ptx.h"

#include <stdlib.h>

struct cublasContext {
    int nothing;
};

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    *handle = (cublasHandle_t)malloc(sizeof **handle);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

struct product {
    const void *a, *b;
    void *c;
    cudaDataType_t a_type, b_type, c_type;
    uint32_t m, n, k, a_stride, b_stride, c_stride;
    float alpha, beta;
};

enum { THREADS = 32 };

static float load(const void *array, cudaDataType_t type, size_t i)
{
    switch (type) {
    case CUDA_R_32F: return ((const float *)array)[i];
    case CUDA_R_16F: return ptx_f16_to_f32(((const uint16_t *)array)[i]);
    default: return ptx_bf16_to_f32(((const uint16_t *)array)[i]);
    }
}

static void store(void *array, cudaDataType_t type, size_t i, float x)
{
    switch (type) {
    case CUDA_R_32F: ((float *)array)[i] = x; break;
    case CUDA_R_16F: ((uint16_t *)array)[i] = ptx_f32_to_f16(x); break;
    default: ((uint16_t *)array)[i] = ptx_f32_to_bf16(x); break;
    }
}

/* A block is a column of c.  What c holds is not looked at where beta is 0. */
PTX_GLOBAL void multiply(struct product p)
{
    const size_t column = ptx_block_x();

    for (size_t row = ptx_thread(); row < p.m; row += THREADS) {
        const size_t at = column * p.c_stride + row;
        float sum = 0;

        for (size_t i = 0; i < p.k; i++)
            sum += load(p.a, p.a_type, row * p.a_stride + i) * load(p.b, p.b_type, column * p.b_stride + i);
        store(p.c, p.c_type, at, p.alpha * sum + (p.beta != 0 ? p.beta * load(p.c, p.c_type, at) : 0));
    }
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t a_type, int a_stride, const void *b,
                            cudaDataType_t b_type, int b_stride, const void *beta, void *c, cudaDataType_t c_type,
                            int c_stride, cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    const struct product p = {a,
                              b,
                              c,
                              a_type,
                              b_type,
                              c_type,
                              (uint32_t)m,
                              (uint32_t)n,
                              (uint32_t)k,
                              (uint32_t)a_stride,
                              (uint32_t)b_stride,
                              (uint32_t)c_stride,
                              *(const float *)alpha,
                              *(const float *)beta};

    if (!handle || a_op != CUBLAS_OP_T || b_op != CUBLAS_OP_N || m < 1 || n < 1 || k < 1 || a_stride < k ||
        b_stride < k || c_stride < m || a_type != b_type || compute != CUBLAS_COMPUTE_32F ||
        algorithm != CUBLAS_GEMM_DEFAULT)
        return CUBLAS_STATUS_INVALID_VALUE;
    return ptx_launch(multiply, p.n, 1, THREADS, 0, NULL, p) == 0 ? CUBLAS_STATUS_SUCCESS
                                                                  : CUBLAS_STATUS_EXECUTION_FAILED;
}
