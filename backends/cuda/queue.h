/* Where the work of a cache goes: a stream of a device, and whether it still can. */
#ifndef CATTN_CUDA_QUEUE_H
#define CATTN_CUDA_QUEUE_H

#include <cuda_runtime_api.h>

#include <stdatomic.h>
#include <stdbool.h>

struct cattn_cuda_queue {
    int device;
    cudaStream_t stream;
    atomic_bool failed; /* for good: what comes later is dropped */
};

/* Makes the device the thread's current one.  Returns the one that was, for leave; -1: failed, now or before, and
 * nothing may be asked of it. */
int cattn_cuda_enter(struct cattn_cuda_queue *queue);
void cattn_cuda_leave(struct cattn_cuda_queue *queue, int previous);

/* The same for giving memory back, which is tried even if it has failed: -1 is allowed in leave. */
int cattn_cuda_enter_last(struct cattn_cuda_queue *queue);

/* Looks at the result of a call to CUDA.  False: it has failed, and so has the queue. */
bool cattn_cuda_is_ok(struct cattn_cuda_queue *queue, int error);

/* What a failure means to a caller who can be told, and forgets it: CATTN_ENOMEM, CATTN_ENOTSUP (there is no code for
 * this device), CATTN_EDEVICE.  Memory that is not to be had is no failure of the queue. */
int cattn_cuda_status(int error);

#endif
