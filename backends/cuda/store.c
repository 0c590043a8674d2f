#include "store.h"

#define MAX_PITCH INT32_MAX /* CUDA's two-dimensional copies take no larger one */

size_t cattn_cuda_element_bytes(uint32_t dtype)
{
    switch (dtype) {
    case CATTN_F32: return 4;
    case CATTN_F16:
    case CATTN_BF16: return 2;
    default: return 0;
    }
}

static size_t head_bytes(const struct cattn_cuda_pool *pool)
{
    return pool->n_slots * pool->block_bytes;
}

static size_t n_heads(const struct cattn_cuda_pool *pool)
{
    return (size_t)pool->n_layers * pool->n_kv_heads;
}

int cattn_cuda_pool_open(struct cattn_cuda_pool *pool, struct cattn_cuda_queue *queue, const struct cattn_shape *shape)
{
    const size_t element = cattn_cuda_element_bytes(shape->kv_dtype);
    *pool = (struct cattn_cuda_pool){.queue = queue,
                                     .n_slots = shape->n_slots,
                                     .n_layers = shape->n_layers,
                                     .n_kv_heads = shape->n_kv_heads,
                                     .key_bytes = element * shape->head_dim,
                                     .value_bytes = element * shape->v_head_dim};
    pool->keys_bytes = pool->key_bytes * shape->chunk_tokens;
    pool->block_bytes = pool->keys_bytes + pool->value_bytes * shape->chunk_tokens;
    return cattn_cuda_status(cudaMalloc((void **)&pool->bytes, n_heads(pool) * head_bytes(pool)));
}

void cattn_cuda_pool_close(struct cattn_cuda_pool *pool)
{
    cattn_cuda_is_ok(pool->queue, cudaFree(pool->bytes));
}

/* Bytes from one place of each block of a slot to the same place of each of another. */
static cudaError_t copy_part(const struct cattn_cuda_pool *pool, uint32_t from, uint32_t to, size_t offset, size_t n)
{
    const size_t pitch = head_bytes(pool);
    const unsigned char *source = pool->bytes + from * pool->block_bytes + offset;
    unsigned char *target = pool->bytes + to * pool->block_bytes + offset;
    const cudaStream_t stream = pool->queue->stream;
    if (pitch <= MAX_PITCH)
        return cudaMemcpy2DAsync(target, pitch, source, pitch, n, n_heads(pool), cudaMemcpyDeviceToDevice, stream);
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; !error && i < n_heads(pool); i++)
        error = cudaMemcpyAsync(target + i * pitch, source + i * pitch, n, cudaMemcpyDeviceToDevice, stream);
    return error;
}

void cattn_cuda_pool_copy(struct cattn_cuda_pool *pool, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    if (cattn_cuda_is_ok(pool->queue, copy_part(pool, from, to, 0, n_tokens * pool->key_bytes)))
        cattn_cuda_is_ok(pool->queue, copy_part(pool, from, to, pool->keys_bytes, n_tokens * pool->value_bytes));
}

void cattn_cuda_pool_clear(struct cattn_cuda_pool *pool, uint32_t slot)
{
    const size_t pitch = head_bytes(pool), n = pool->block_bytes;
    unsigned char *block = pool->bytes + slot * n;
    const cudaStream_t stream = pool->queue->stream;
    cudaError_t error = cudaSuccess;
    if (pitch <= MAX_PITCH)
        error = cudaMemset2DAsync(block, pitch, 0, n, n_heads(pool), stream);
    else
        for (size_t i = 0; !error && i < n_heads(pool); i++)
            error = cudaMemsetAsync(block + i * pitch, 0, n, stream);
    cattn_cuda_is_ok(pool->queue, error);
}

static unsigned char *block_of(const struct cattn_cuda_pool *pool, uint32_t slot, uint32_t layer, uint32_t head)
{
    return pool->bytes + ((layer * (size_t)pool->n_kv_heads + head) * pool->n_slots + slot) * pool->block_bytes;
}

void cattn_cuda_pool_get(struct cattn_cuda_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin,
                         uint32_t n, unsigned char *tokens)
{
    const size_t k = pool->key_bytes, v = pool->value_bytes;
    const unsigned char *block = block_of(pool, slot, layer, head);
    struct cattn_cuda_queue *queue = pool->queue;
    if (cattn_cuda_is_ok(queue, cudaMemcpy2DAsync(tokens, k + v, block + begin * k, k, k, n, cudaMemcpyDeviceToHost,
                                                  queue->stream)) &&
        cattn_cuda_is_ok(queue, cudaMemcpy2DAsync(tokens + k, k + v, block + pool->keys_bytes + begin * v, v, v, n,
                                                  cudaMemcpyDeviceToHost, queue->stream)))
        cattn_cuda_is_ok(queue, cudaStreamSynchronize(queue->stream));
}

void cattn_cuda_pool_put(struct cattn_cuda_pool *pool, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin,
                         uint32_t n, const unsigned char *tokens)
{
    const size_t k = pool->key_bytes, v = pool->value_bytes;
    unsigned char *block = block_of(pool, slot, layer, head);
    struct cattn_cuda_queue *queue = pool->queue;
    if (cattn_cuda_is_ok(queue, cudaMemcpy2DAsync(block + begin * k, k, tokens, k + v, k, n, cudaMemcpyHostToDevice,
                                                  queue->stream)) &&
        cattn_cuda_is_ok(queue, cudaMemcpy2DAsync(block + pool->keys_bytes + begin * v, v, tokens + k, k + v, v, n,
                                                  cudaMemcpyHostToDevice, queue->stream)))
        cattn_cuda_is_ok(queue, cudaStreamSynchronize(queue->stream)); /* the buffer is the caller's again */
}
