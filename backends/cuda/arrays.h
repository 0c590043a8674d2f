/* Arrays of one number for each query head (slopes, sinks), from host memory to the device: each once, by what is in
 * it.  They stay as they are, so that a captured launch finds them again. */
#ifndef CATTN_CUDA_ARRAYS_H
#define CATTN_CUDA_ARRAYS_H

#include "queue.h"

#include <stdint.h>

struct cattn_cuda_arrays {
    struct cattn_cuda_queue *queue;
    uint32_t length, n, capacity;
    float *host; /* pinned, for a copy may be done later, or again */
    float *device;
    unsigned char *is_there; /* by array: it was copied, and not only captured */
};

/* CATTN_ENOMEM, CATTN_EDEVICE. */
int cattn_cuda_arrays_open(struct cattn_cuda_arrays *arrays, struct cattn_cuda_queue *queue, uint32_t length,
                           uint32_t capacity);
void cattn_cuda_arrays_close(struct cattn_cuda_arrays *arrays);

/* *found: where it lies on the device; NULL for NULL.  CATTN_ENOMEM: too many different ones.  CATTN_EDEVICE. */
int cattn_cuda_arrays_find(struct cattn_cuda_arrays *arrays, const float *array, const float **found);

#endif
