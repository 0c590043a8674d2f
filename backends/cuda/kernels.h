/* What the host part asks of the kernels.  Plain data that C and CUDA C++ read alike; every pointer is one to device
 * memory.
 *
 * The plan is the work list in the form that the kernels read.  A run's rows are packed: query times group, so that the
 * packed row r of KV head h is the query head h * group + r % group of the run's query number r / group.  A run is cut
 * into splits of its tokens and tiles of its packed rows; a piece is one tile over one split, and one block of threads
 * computes it for one KV head.  What it comes to is a state in the workspace, and the fold kernel makes the output of a
 * row from its states, in ascending order of their tokens.  (Paper section 3.2: pieces of runs that several sequences
 * share are its chunk-first phase, the others and the fold its sequence-first phase.) */
#ifndef CATTN_CUDA_KERNELS_H
#define CATTN_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum {
    CATTN_CUDA_MAX_HEAD_DIM = 512, /* of the general kernel */
    CATTN_CUDA_TILE = 64           /* tokens that a block holds at once at most; splits are whole tiles */
};

/* All tokens of n_chunks consecutive chunks, and the queries that see them (or some of them). */
struct cattn_cuda_run {
    uint32_t first_token; /* absolute */
    uint32_t n_tokens;    /* whole chunks; the last may be incomplete: a row sees what is at or before its position */
    uint32_t slots;       /* index into plan.slots */
    uint32_t rows;        /* index into plan.run_rows, of n_rows rows of the step, in the order of the items */
    uint32_t n_rows;      /* queries; times group: packed rows */
    uint32_t tile_rows;   /* packed rows of a tile: 16, 32 or 64 */
    uint32_t split_tokens, n_splits; /* a multiple of CATTN_CUDA_TILE; n_splits * split_tokens >= n_tokens */
    uint32_t direct; /* 1: each of its rows has this one state alone: the kernel writes the output itself */
    uint64_t states; /* of split s, KV head h, packed row r: states + (s * n_kv_heads + h) * packed rows + r */
};

struct cattn_cuda_piece {
    uint32_t run, split, tile;
    uint32_t tile_rows; /* that of the run; 0: nothing to do (what fills plans up, so that the number of their pieces
                           seldom changes) */
};

/* One run on the path of an item, and where the item's queries begin in the run's. */
struct cattn_cuda_part {
    uint32_t run, first;
};

struct cattn_cuda_item {
    uint32_t first_row;
    uint32_t parts, n_parts; /* in plan.parts, ascending by tokens */
    uint32_t direct;         /* its rows have their output when the pieces are done */
};

/* One token of a slot that this step stores. */
struct cattn_cuda_write {
    uint32_t slot, token, row;
};

/* A state is (m, l) and v_head_dim values o: sums of exp2(x - m), x in log2 units, and of these times V.  Nothing seen:
 * m = -inf, l = 0, and o is not looked at. */
struct cattn_cuda_plan {
    const struct cattn_cuda_run *runs;
    const struct cattn_cuda_piece *pieces; /* longest first */
    const struct cattn_cuda_part *parts;
    const struct cattn_cuda_item *items;
    const uint32_t *slots, *run_rows;
    const uint32_t *row_items;       /* of each row of the step */
    uint32_t *row_positions;         /* advanced on the device */
    struct cattn_cuda_write *writes; /* their tokens likewise */
    uint32_t n_pieces, n_rows, n_writes;
    uint32_t n_folds; /* 0: all rows are direct, and no fold is needed */
};

/* One layer's call. */
struct cattn_cuda_call {
    struct cattn_cuda_plan plan;
    /* The layer's pool: block (head, slot) begins (head * n_slots + slot) * block_elements elements from `pool`:
     * keys [chunk_tokens][head_dim], then values [chunk_tokens][v_head_dim], all of kv_dtype. */
    void *pool;
    uint64_t n_slots, block_elements;
    uint32_t chunk_tokens, n_heads, n_kv_heads, head_dim, v_head_dim;
    uint32_t io_dtype, kv_dtype; /* enum cattn_dtype */
    /* The variant.  x = scale * q.k and so on, in natural units; softcap 0: none; window 0: all. */
    float scale, softcap;
    uint32_t window, n_sink_tokens;
    const float *alibi_slopes, *sinks; /* [n_heads] or NULL */
    const void *q, *k, *v;
    void *out;
    float *lse;
    size_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head; /* strides in elements */
    /* The workspace: (m, l) and o of each state. */
    float *ml, *o; /* [states][2], [states][v_head_dim] */
};

#ifdef __cplusplus
extern "C" {
#endif

/* All of these put work on a stream (a cudaStream_t) and return a cudaError_t: that of the launch. */

/* Stores K and V of plan.writes. */
int cattn_cuda_store(const struct cattn_cuda_call *call, void *stream);

/* Attention of all pieces, then the fold.  fast: by tensor cores, where cattn_cuda_is_fast says so. */
int cattn_cuda_attend(const struct cattn_cuda_call *call, int fast, void *stream);

/* Positions of rows and tokens of writes move on by delta. */
int cattn_cuda_advance(const struct cattn_cuda_plan *plan, uint32_t delta, void *stream);

/* Whether the tensor-core kernel takes these data types and sizes. */
int cattn_cuda_is_fast(uint32_t io_dtype, uint32_t kv_dtype, uint32_t head_dim, uint32_t v_head_dim);

/* Once for each device, before the first launch on it: loads the kernels, and gets shared memory beyond the default for
 * those that want it. */
int cattn_cuda_prepare(void);

/* Blocks of the fast kernel that one multiprocessor runs at once, for these sizes: what the plan aims to keep busy. */
int cattn_cuda_occupancy(uint32_t kv_dtype, uint32_t head_dim, int *n_blocks);

#ifdef __cplusplus
}
#endif

#endif
