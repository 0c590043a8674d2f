#include "queue.h"

#include "chunkattention.h"

int cattn_cuda_enter(struct cattn_cuda_queue *queue)
{
    return atomic_load(&queue->failed) ? -1 : cattn_cuda_enter_last(queue);
}

int cattn_cuda_enter_last(struct cattn_cuda_queue *queue)
{
    int previous;
    if (!cattn_cuda_is_ok(queue, cudaGetDevice(&previous)))
        return -1;
    if (previous != queue->device && !cattn_cuda_is_ok(queue, cudaSetDevice(queue->device)))
        return -1;
    return previous;
}

void cattn_cuda_leave(struct cattn_cuda_queue *queue, int previous)
{
    if (previous >= 0 && previous != queue->device)
        cattn_cuda_is_ok(queue, cudaSetDevice(previous));
}

bool cattn_cuda_is_ok(struct cattn_cuda_queue *queue, int error)
{
    if (error == cudaSuccess)
        return true;
    (void)cudaGetLastError(); /* it is not the caller's to find */
    atomic_store(&queue->failed, true);
    return false;
}

int cattn_cuda_status(int error)
{
    if (error == cudaSuccess)
        return CATTN_OK;
    (void)cudaGetLastError();
    switch (error) {
    case cudaErrorMemoryAllocation: return CATTN_ENOMEM;
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice: return CATTN_ENOTSUP;
    default: return CATTN_EDEVICE;
    }
}
