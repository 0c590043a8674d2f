#include "arrays.h"

#include "chunkattention.h"
#include "memory.h"

#include <string.h>

int cattn_cuda_arrays_open(struct cattn_cuda_arrays *arrays, struct cattn_cuda_queue *queue, uint32_t length,
                           uint32_t capacity)
{
    const size_t bytes = (size_t)length * capacity * sizeof(float);
    *arrays = (struct cattn_cuda_arrays){.queue = queue, .length = length, .capacity = capacity};
    arrays->is_there = cattn_calloc(capacity, 1);
    int status = arrays->is_there ? CATTN_OK : CATTN_ENOMEM;
    if (!status)
        status = cattn_cuda_status(cudaHostAlloc((void **)&arrays->host, bytes, cudaHostAllocDefault));
    if (!status)
        status = cattn_cuda_status(cudaMalloc((void **)&arrays->device, bytes));
    return status;
}

void cattn_cuda_arrays_close(struct cattn_cuda_arrays *arrays)
{
    cattn_free(arrays->is_there);
    if (arrays->device)
        cattn_cuda_is_ok(arrays->queue, cudaFree(arrays->device));
    if (arrays->host)
        cattn_cuda_is_ok(arrays->queue, cudaFreeHost(arrays->host));
}

static float *host_of(const struct cattn_cuda_arrays *arrays, uint32_t i)
{
    return arrays->host + (size_t)i * arrays->length;
}

/* A capture copies whenever it is launched, and perhaps never. */
static bool is_capturing(struct cattn_cuda_queue *queue)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (queue->stream) /* the default stream is never captured */
        cattn_cuda_is_ok(queue, cudaStreamIsCapturing(queue->stream, &status));
    return status != cudaStreamCaptureStatusNone;
}

static int copy_array(struct cattn_cuda_arrays *arrays, uint32_t i)
{
    const size_t offset = (size_t)i * arrays->length;
    arrays->is_there[i] = !is_capturing(arrays->queue);
    const cudaError_t error =
        cudaMemcpyAsync(arrays->device + offset, arrays->host + offset, arrays->length * sizeof(float),
                        cudaMemcpyHostToDevice, arrays->queue->stream);
    return cattn_cuda_is_ok(arrays->queue, error) ? CATTN_OK : CATTN_EDEVICE;
}

int cattn_cuda_arrays_find(struct cattn_cuda_arrays *arrays, const float *array, const float **found)
{
    const size_t bytes = arrays->length * sizeof(float);
    uint32_t i = 0;
    *found = NULL;
    if (!array)
        return CATTN_OK;
    while (i < arrays->n && memcmp(host_of(arrays, i), array, bytes))
        i++;
    if (i == arrays->capacity)
        return CATTN_ENOMEM;
    if (i == arrays->n) {
        memcpy(host_of(arrays, i), array, bytes);
        arrays->n++;
    }
    *found = arrays->device + (size_t)i * arrays->length;
    return arrays->is_there[i] ? CATTN_OK : copy_array(arrays, i);
}
