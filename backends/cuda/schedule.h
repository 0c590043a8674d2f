/* The plan of a step in the form that the kernels read (kernels.h), and its way to the device. */
#ifndef CATTN_CUDA_SCHEDULE_H
#define CATTN_CUDA_SCHEDULE_H

#include "backend.h"
#include "kernels.h"
#include "queue.h"

/* The arrays of a plan; on the host and on the device each begins where it has room for the largest plan so far. */
enum cattn_cuda_array {
    CATTN_CUDA_RUNS,
    CATTN_CUDA_PIECES,
    CATTN_CUDA_PARTS,
    CATTN_CUDA_ITEMS,
    CATTN_CUDA_SLOTS,
    CATTN_CUDA_RUN_ROWS,
    CATTN_CUDA_ROW_ITEMS,
    CATTN_CUDA_POSITIONS, /* the lengths begin here */
    CATTN_CUDA_WRITES,
    CATTN_CUDA_ARRAYS
};

struct cattn_cuda_size {
    uint64_t n[CATTN_CUDA_ARRAYS];
    uint64_t n_states;
};

/* What plan() needs of each item while it builds. */
struct cattn_cuda_note {
    uint32_t alone;    /* it has a run of its own, over its whole path */
    uint32_t n_chunks; /* of that */
    uint32_t n_parts;
    uint32_t slots; /* where the next chunk goes */
};

/* For the order of pieces. */
struct cattn_cuda_rank {
    uint32_t run, tokens;
};

/* Everything whose addresses or sizes depend on the room there is; it grows as a whole. */
struct cattn_cuda_buffers {
    struct cattn_cuda_size room;
    size_t offsets[CATTN_CUDA_ARRAYS + 1]; /* of the arrays in each of the following */
    unsigned char *host;                   /* what the device has */
    unsigned char *device;
    unsigned char *staging[2]; /* pinned; copies read the one while the other is filled */
    float *ml, *o;             /* the workspace */
    struct cattn_cuda_note *notes;
    struct cattn_cuda_rank *ranks;
};

struct cattn_cuda_schedule {
    struct cattn_cuda_queue *queue;
    uint32_t n_kv_heads, group, chunk_tokens, v_head_dim;
    uint32_t n_blocks; /* that the device runs at once */
    struct cattn_cuda_buffers buffers;
    cudaEvent_t read[2];         /* the staging memory was read */
    unsigned turn;               /* which of the two is written next */
    struct cattn_cuda_size used; /* of the plan */
    struct cattn_cuda_size wish; /* what a plan would have used, had there been room for it */
    bool is_modest;              /* a wish could not be met: there are no more until room is made */
    uint64_t structure;          /* of the work list that the plan is of; 0: of none */
    struct cattn_cuda_plan plan; /* as launches have it */
    uint64_t number;             /* another one whenever that changes */
};

/* n_blocks: of the attention kernel, that the device runs at once.  CATTN_ENOMEM, CATTN_EDEVICE.  The current device is
 * the queue's for this and all below. */
int cattn_cuda_schedule_open(struct cattn_cuda_schedule *schedule, struct cattn_cuda_queue *queue,
                             const struct cattn_shape *shape, uint32_t n_blocks);
void cattn_cuda_schedule_close(struct cattn_cuda_schedule *schedule);

/* As of a backend (backend.h). */
int cattn_cuda_schedule_reserve(struct cattn_cuda_schedule *schedule, const struct cattn_work_bounds *bounds);
void cattn_cuda_schedule_plan(struct cattn_cuda_schedule *schedule, const struct cattn_work *work);

/* For tests: an array of the plan as the host has it. */
const void *cattn_cuda_schedule_array(const struct cattn_cuda_schedule *schedule, enum cattn_cuda_array array);

#endif
