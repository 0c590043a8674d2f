#include "device.h"

int device_open(const struct model *model, uint32_t dtype, struct device **device, struct fault *fault)
{
    (void)model, (void)dtype;
    *device = NULL;
    return fault_set(fault, "--backend cuda: this build has no CUDA backend, or no cuBLAS");
}

void device_close(struct device *device)
{
    (void)device;
}

const char *device_name(const struct device *device)
{
    (void)device;
    return "none";
}

uint32_t device_dtype(const struct device *device)
{
    (void)device;
    return CATTN_F32;
}

double device_attention_seconds(const struct device *device)
{
    (void)device;
    return 0;
}

double device_other_seconds(const struct device *device)
{
    (void)device;
    return 0;
}

int device_step(struct device *device, cattn_step *step, size_t n_rows, const int32_t *tokens,
                const uint64_t *positions, size_t n_logits, const size_t *logit_rows, float *logits,
                struct fault *fault)
{
    (void)device, (void)step, (void)n_rows, (void)tokens, (void)positions, (void)n_logits, (void)logit_rows;
    (void)logits;
    return fault_set(fault, "no device");
}
