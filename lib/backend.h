/* What the core asks of a backend.  The core knows tokens and slots; a backend owns the bytes of K and V, their
 * layout and the arithmetic.  One work list (work.h) crosses. */
#ifndef CATTN_BACKEND_H
#define CATTN_BACKEND_H

#include "chunkattention.h"
#include "work.h"

enum { CATTN_MAX_HEAD_DIM = 4096 }; /* the public limit; a multiple of what a backend may pad to */

/* A cache's shape with all defaults filled in and all values checked. */
struct cattn_shape {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, v_head_dim, chunk_tokens;
    uint32_t io_dtype, kv_dtype;
    uint32_t n_slots;
    uint32_t n_threads;
    uint32_t device; /* of a backend with devices */
    void *stream;
};

/* One layer's call with defaults filled in: no stride is 0.  k and v are both NULL or both set. */
struct cattn_call {
    uint32_t layer;
    uint32_t pass;                /* another number for each call of a step, the same for all shares of one */
    struct cattn_variant variant; /* checked, every field set; scale 0: 1/sqrt(head_dim), worked out in the backend's
                                     own arithmetic, not in the caller's */
    const void *q, *k, *v;
    void *out;
    float *lse;
    size_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;
};

struct cattn_store; /* a backend's memory for one cache */

/* What only a backend has that computes on a device, after a call has returned.  Its copy, clear, get, put and plan
 * cannot say that they have failed: the store remembers it. */
struct cattn_device_backend {
    /* Bytes of memory that a pool may take; 0: none, or no such device. */
    uint64_t (*free_bytes)(const struct cattn_shape *shape);

    /* CATTN_OK; CATTN_EDEVICE: something has failed since the store was made. */
    int (*status)(const struct cattn_store *store);

    /* Waits for all that was asked for; then the status. */
    int (*sync)(struct cattn_store *store);

    /* Of the plan: equal ones make equal launches.  Never 0. */
    uint64_t (*plan_number)(const struct cattn_store *store);
};

struct cattn_backend {
    const char *name;

    /* NULL: it computes in host memory, and what it was asked for is done when it returns. */
    const struct cattn_device_backend *device;

    /* Whether this machine can run it. */
    int (*usable)(void);

    /* Usable kernels, best first; NULL past the last. */
    const char *(*kernel_name)(unsigned i);

    /* Threads that n_threads = 0 stands for. */
    uint32_t (*default_threads)(void);

    /* Bytes of K and V of one chunk, one layer, one KV head; 0: a data type or a size that it does not store.  n_slots
     * and n_threads of the shape are not looked at. */
    uint64_t (*block_bytes)(const struct cattn_shape *shape);

    /* Makes the store.  kernel NULL: the best.  CATTN_ENOTSUP: no such kernel, not usable here, or not for this
     * shape.  CATTN_ENOMEM, CATTN_EDEVICE. */
    int (*open)(const struct cattn_shape *shape, const char *kernel, struct cattn_store **store);
    void (*close)(struct cattn_store *store);

    /* The kernel chosen, and whether it keeps the Bit rule. */
    const char *(*kernel)(const struct cattn_store *store, int *exact);

    /* Makes sure that plan() cannot fail for a work list within these bounds.  CATTN_ENOMEM, CATTN_EDEVICE: nothing
     * changed. */
    int (*reserve)(struct cattn_store *store, const struct cattn_work_bounds *bounds);

    /* Copies the first n_tokens of a slot to another, all layers, and clears the rest of the last granule. */
    void (*copy)(struct cattn_store *store, uint32_t from, uint32_t to, uint32_t n_tokens);

    /* Overwrites a slot with zeros, all layers. */
    void (*clear)(struct cattn_store *store, uint32_t slot);

    /* K and V in a form that does not depend on the kernel or the layout, for files.  A token is its key (head_dim
     * elements of kv_dtype), its value (v_head_dim elements) and, for i8, the f32 scales of both; of one layer and KV
     * head it has token_bytes.  get() gives tokens begin .. begin + n - 1 of a full slot.  put() stores such tokens,
     * bit by bit the same, where a slot just taken is filled with whole granules; the buffer is the caller's again when
     * it returns. */
    uint64_t (*token_bytes)(const struct cattn_shape *shape);
    void (*get)(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                unsigned char *tokens);
    void (*put)(struct cattn_store *store, uint32_t slot, uint32_t layer, uint32_t head, uint32_t begin, uint32_t n,
                const unsigned char *tokens);

    /* The work list changed: its lengths (work->revision alone), or its structure too (work->structure). */
    void (*plan)(struct cattn_store *store, const struct cattn_work *work);

    /* Share ith of nth of a layer; nth = 0: the whole, on the backend's own threads. */
    int (*write)(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call, uint32_t ith,
                 uint32_t nth);
    int (*attend)(struct cattn_store *store, const struct cattn_work *work, const struct cattn_call *call, uint32_t ith,
                  uint32_t nth);
};

/* The status of a store, whatever the backend; likewise sync. */
static inline int cattn_store_status(const struct cattn_backend *backend, const struct cattn_store *store)
{
    return backend->device ? backend->device->status(store) : CATTN_OK;
}

static inline int cattn_store_sync(const struct cattn_backend *backend, struct cattn_store *store)
{
    return backend->device ? backend->device->sync(store) : CATTN_OK;
}

/* registry.c: the list of backends.def.  NULL: past the last; unknown. */
const struct cattn_backend *cattn_backend_at(unsigned i);
const struct cattn_backend *cattn_backend_find(const char *name);

#endif
