/* A CUDA run-time whose devices are made of host memory.  It is as lazy as the interface allows: what is put on a
 * stream is done when somebody waits for it, and not before, so that a wait that was forgotten, or pinned memory that
 * is used again too early, gives a wrong result.  Device memory is full of 0xff when it is new, has exactly the size
 * asked for, and in a build without AddressSanitizer cannot be touched by the host but through the interface.
 *
 * What tests can set and ask: */
#ifndef CUDA_HOST_RUNTIME_H
#define CUDA_HOST_RUNTIME_H

#include "cuda_runtime_api.h"
#include "exec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Back to two devices of compute capability 9.0 with plenty of memory, no errors, nothing forbidden.  Streams, memory
 * and so on that are still there are lost.  Returns how many of them there were. */
size_t fake_cuda_reset(void);

/* As on a machine with n devices (at most 4), or, error not 0, on one where each call fails so (no driver ...). */
void fake_cuda_devices(int n, cudaError_t error);

/* Of all devices.  The shared memory that a block can ask for follows from the capability (8.0, 8.6, 8.9, 9.0 ...). */
void fake_cuda_capability(int major, int minor, int n_multiprocessors);

/* Memory of each device; what is in use of it. */
void fake_cuda_memory(size_t bytes);
size_t fake_cuda_used(int device);

/* The n-th call from now (1: the next) of the function named, or of any (NULL), does nothing but return the error.  One
 * that CUDA never recovers from is returned by every later call on that device.  n = 0: none, and what an error left is
 * forgotten. */
void fake_cuda_fail(const char *function, unsigned n, cudaError_t error);

/* Calls of the function named so far, or of any. */
uint64_t fake_cuda_calls(const char *function);

/* While this is set, a call that waits for the device or allocates or frees memory is a violation, one more each.  A
 * "asynchronous" copy to or from memory that is not pinned is one that waits. */
void fake_cuda_forbid_waiting(int forbid);
unsigned fake_cuda_violations(void);
const char *fake_cuda_last_violation(void);

/* Pieces of work that are on streams and not done; that have been done. */
size_t fake_cuda_pending(void);
uint64_t fake_cuda_launches(void);

/* What was wrong with the last kernel that failed: see exec_run. */
const char *fake_cuda_message(void);

/* ptx_launch: the parameters are copied.  A cudaError_t. */
int fake_cuda_launch(const struct exec_launch *launch, size_t param_bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif
