/* The forward pass on a GPU: weights, activations, keys and values are in its memory, linear layers are cuBLAS', the
 * rest is device_kernels.cu and the library's backend "cuda".  A build without them has nodevice.c instead, where no
 * device can be opened. */
#ifndef LLAMA_DEVICE_H
#define LLAMA_DEVICE_H

#include "chunkattention.h"

#include "fault.h"
#include "model.h"

#include <stddef.h>
#include <stdint.h>

struct device;

/* Copies the weights of a model that outlives it.  Failing, *device is to be closed, too.  dtype: of weights, and of
 * what goes into linear layers and attention: CATTN_F32, CATTN_F16 or CATTN_BF16. */
int device_open(const struct model *model, uint32_t dtype, struct device **device, struct fault *fault);

/* NULL is allowed. */
void device_close(struct device *device);

/* What computes the linear layers, for people; the data type of q, k, v and the output of attention. */
const char *device_name(const struct device *device);
uint32_t device_dtype(const struct device *device);

/* Seconds that the device has spent so far on attention, and on all else, which is linear layers but for little. */
double device_attention_seconds(const struct device *device);
double device_other_seconds(const struct device *device);

/* As forward_step.  Waits for the logits. */
int device_step(struct device *device, cattn_step *step, size_t n_rows, const int32_t *tokens,
                const uint64_t *positions, size_t n_logits, const size_t *logit_rows, float *logits,
                struct fault *fault);

#endif
