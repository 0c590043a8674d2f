/* Runs CUDA kernels that were compiled as C++: the blocks of a launch in turn, each thread of a block on a stack of its
 * own, switched by hand at barriers and warp collectives.  Nothing runs at the same time as anything else; what could
 * on a GPU, ThreadSanitizer finds out, to which each thread is a fiber whose switches order nothing.  Only the start
 * and the end of a launch and the two barriers do; blocks of one launch are not ordered.  (The warp collectives are not
 * said to order memory by the CUDA C++ Programming Guide, and do not here.) */
#ifndef CUDA_HOST_EXEC_H
#define CUDA_HOST_EXEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void exec_kernel(void);

struct exec_launch {
    exec_kernel *kernel;
    void (*call)(exec_kernel *kernel, const void *params); /* the kernel with its one parameter, by value */
    const void *params;
    uint32_t grid_x, grid_y, n_threads;
    size_t shared_bytes;
};

/* 0: all blocks have run.  Else what was wrong, with kernel, block and thread; static storage.  What a sanitizer finds
 * counts, if it lets the process live. */
const char *exec_run(const struct exec_launch *launch);

/* The thread that runs. */
struct exec_now {
    uint32_t thread, block_x, block_y, grid_x;
    char *shared; /* exactly shared_bytes, full of 0xff when the block starts */
    size_t shared_bytes;
};
extern struct exec_now exec_now;

/* Ends the launch with this message. */
#ifdef __GNUC__
__attribute__((noreturn, format(printf, 1, 2)))
#endif
void exec_fail(const char *format, ...);

/* All threads of the block; all of the warp: they wait for each other, and what each did before all see after. */
void exec_barrier(void);
void exec_warp_barrier(void);

/* A collective of the 32 lanes of a warp, which must all call it with the same name.  The last to come calls `combine`,
 * if there is one, on what the lanes have brought.  Returns that, which stays until the lane's next collective. */
void *const *exec_warp(const char *name, void *mine, void (*combine)(void *const *lanes));

/* cp.async: a copy of 16 bytes to shared memory, of which the first `bytes` come from `source` and the rest are zeros.
 * It happens when the thread waits for it; from here on the destination is full of 0xff. */
void exec_copy16(void *shared, const void *source, uint32_t bytes);
void exec_copy_commit(void);
void exec_copy_wait(uint32_t n_groups); /* for all but the newest n groups */

#ifdef __cplusplus
}
#endif

#endif
