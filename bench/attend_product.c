/* matmul: what the tensor cores give (f32: the other units), by cuBLAS. */
#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>

#include "attend.h"
#include "attend_cuda.h"
#include "number.h"

static uint64_t no_bytes(const struct bench_shape *shape)
{
    (void)shape;
    return 0;
}

enum { SIDE = 4096 };

struct product {
    cublasHandle_t handle;
    cudaDataType_t type;
    void *a, *b, *c; /* SIDE x SIDE */
    struct bench_timer timer;
};

static double run_product(struct bench_setup *setup, struct bench_instance *instance, uint32_t layer)
{
    static const float one = 1.0f, zero = 0.0f;
    struct product *p = instance->state;

    (void)setup, (void)layer;
    if (bench_timer_start(&p->timer) != cudaSuccess)
        return -1.0;
    for (uint32_t i = 0; i < BENCH_CALLS; i++)
        if (cublasGemmEx(p->handle, CUBLAS_OP_T, CUBLAS_OP_N, SIDE, SIDE, SIDE, &one, p->a, p->type, SIDE, p->b,
                         p->type, SIDE, &zero, p->c, p->type, SIDE, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
            return -1.0;
    return bench_timer_stop(&p->timer);
}

static void close_product(struct bench_setup *setup, struct bench_instance *instance)
{
    struct product *p = instance->state;

    (void)setup;
    if (p->handle != NULL)
        (void)cublasDestroy(p->handle);
    bench_timer_close(&p->timer);
    (void)cudaFree(p->a);
    (void)cudaFree(p->b);
    (void)cudaFree(p->c);
    free(p);
}

/* Numbers as attention has them: zeros would take less power, and a higher clock. */
static cudaError_t open_matrix(const struct bench_shape *shape, void **matrix)
{
    const size_t bytes = (size_t)SIDE * SIDE * bench_dtype_bytes(shape->dtype);
    struct bench_shape row = *shape;
    void *host = malloc(bytes);
    float numbers[SIDE];
    cudaError_t error = host != NULL ? cudaMalloc(matrix, bytes) : cudaErrorMemoryAllocation;

    row.head_dim = SIDE;
    for (uint32_t i = 0; host != NULL && i < SIDE; i++) {
        bench_data_row(&row, 0, BENCH_K, i, 0, 0, numbers);
        cattn_store_row(host, shape->dtype, (size_t)i * SIDE, numbers, SIDE);
    }
    if (error == cudaSuccess)
        error = cudaMemcpy(*matrix, host, bytes, cudaMemcpyHostToDevice);
    free(host);
    return error;
}

static const char *open_product(struct bench_setup *setup, uint32_t n_layers, struct bench_instance *instance)
{
    static const cudaDataType_t types[] = {
        [CATTN_F32] = CUDA_R_32F, [CATTN_F16] = CUDA_R_16F, [CATTN_BF16] = CUDA_R_16BF};
    struct product *p = calloc(1, sizeof *p);
    cudaError_t error;

    (void)n_layers;
    if (p == NULL)
        return cattn_strerror(CATTN_ENOMEM);
    p->type = types[setup->shape.dtype];
    instance->state = p;
    instance->dtype = setup->shape.dtype;
    instance->operations = 2.0 * SIDE * SIDE * SIDE;
    snprintf(instance->kernel, sizeof instance->kernel, "cuBLAS");
    error = open_matrix(&setup->shape, &p->a);
    if (error == cudaSuccess)
        error = open_matrix(&setup->shape, &p->b);
    if (error == cudaSuccess)
        error = open_matrix(&setup->shape, &p->c);
    if (error == cudaSuccess)
        error = bench_timer_open(&p->timer);
    if (error == cudaSuccess && cublasCreate(&p->handle) == CUBLAS_STATUS_SUCCESS)
        return NULL;
    close_product(setup, instance);
    return error != cudaSuccess ? cudaGetErrorString(error) : "cuBLAS does not start";
}

const struct bench_variant bench_matmul = {"matmul",      BENCH_NOTHING, no_bytes,   open_product,
                                           close_product, NULL,          run_product};
