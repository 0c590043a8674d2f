/* Cuts a step's attention into tasks and runs them on threads.  The only place with OpenMP. */
#ifndef CATTN_SCHEDULE_H
#define CATTN_SCHEDULE_H

#include "kernels.h"
#include "store.h"

/* Rows [first, first + n) of a KV head, over the spans first_span, first_span + span_step and so on. */
struct cattn_task {
    uint32_t first, n; /* rows are (query row) * group + (query head of the group) */
    uint32_t first_span, span_step;
    uint32_t piece; /* which block of rows it belongs to */
    uint64_t cost;  /* tokens times rows, or so */
};

struct cattn_scratch; /* one thread's */

struct cattn_schedule {
    const struct cattn_kernel *kernel;
    const struct cattn_states *states;
    struct cattn_pool *pool;
    uint32_t n_heads, group; /* KV heads; query heads per KV head */
    uint32_t n_threads;
    uint32_t block_rows;            /* most rows of a task */
    size_t q_bytes;                 /* of a row's query as the kernel has it */
    struct cattn_scratch **scratch; /* [n_threads] */

    /* The plan of the current work list. */
    uint32_t n_tasks, n_pieces; /* of each head */
    uint32_t n_spans;           /* 0: no row's spans are divided among tasks */
    uint64_t total_cost;        /* of the tasks of one head */
    struct cattn_task *tasks;
    uint32_t tasks_room;
    void *claims;  /* [n_heads * n_tasks]: the pass in which a share last took the task */
    void *arrived; /* [n_heads * n_pieces]: how many tasks of the piece are done in this pass; 0 between passes */
    size_t arrived_room;
    float *parts; /* [head][row][span] states, where spans are divided */
    size_t parts_room;
};

int cattn_schedule_open(struct cattn_schedule *schedule, const struct cattn_kernel *kernel, struct cattn_pool *pool,
                        const struct cattn_shape *shape);
void cattn_schedule_close(struct cattn_schedule *schedule);

int cattn_schedule_reserve(struct cattn_schedule *schedule, const struct cattn_work_bounds *bounds);
void cattn_schedule_plan(struct cattn_schedule *schedule, const struct cattn_work *work);

/* Share ith of nth; nth = 0: all, in one parallel region. */
void cattn_schedule_write(struct cattn_schedule *schedule, const struct cattn_work *work, const struct cattn_call *call,
                          uint32_t ith, uint32_t nth);
void cattn_schedule_attend(struct cattn_schedule *schedule, const struct cattn_work *work,
                           const struct cattn_call *call, uint32_t ith, uint32_t nth);

#endif
