/* A step: what it does for each item (a plan), the chunks and ends of chunks it stores (pieces), and what has become of
 * each layer. */
#ifndef CATTN_STEP_H
#define CATTN_STEP_H

#include "pass.h"
#include "sequence.h"
#include "work.h"

/* How the first piece of an item gets its slot. */
enum cattn_placing {
    CATTN_TAKE,     /* a new slot */
    CATTN_IN_PLACE, /* the own tail */
    CATTN_TAKEOVER, /* the slot of the borrow, to which nobody else refers */
    CATTN_COPY      /* a new slot, and a copy of what is borrowed */
};

/* A chunk, or the last part of one, that the step stores.  The full ones are pending: later items match them. */
struct cattn_piece {
    const int32_t *tokens; /* of the chunk, in the text of the sequence */
    uint32_t start, end;   /* tokens[start .. end) are stored */
    uint32_t slot;
    uint32_t parent, root; /* of a full one: slot, CATTN_PENDING + piece, or CATTN_NONE */
    uint64_t hash;         /* of a full one */
};

/* In a path that is being planned: the piece that has no slot yet. */
#define CATTN_PENDING UINT32_C(0x80000000)

struct cattn_plan {
    struct cattn_sequence *sequence;
    cattn_seq handle;
    uint64_t n_cuts; /* of the sequence, when the step had ended */
    uint32_t n_tokens;
    uint32_t first_row, n_rows;
    uint64_t position;
    enum cattn_placing how;
    size_t first_hash; /* of the chunks that are full once the step ends and were not before */
    size_t n_matched;  /* chunks that join the path as they are */
    size_t first_piece, n_pieces;
    size_t n_path;     /* whole chunks after the step: sequence->chunks[0 .. n_path) */
    uint32_t tail;     /* after the step, at sequence->chunks[n_path]; or CATTN_NONE */
    uint32_t replaced; /* slot that the sequence gives up at the end, or CATTN_NONE */
};

struct cattn_step {
    struct cattn_cache *cache;
    struct cattn_step *next, *prev; /* in the list of the cache's steps */
    struct cattn_plan *plans;
    size_t n_plans, plans_capacity;
    struct cattn_work_path *paths; /* one per plan */
    size_t paths_capacity;
    struct cattn_piece *pieces;
    size_t n_pieces, pieces_capacity;
    uint64_t *hashes; /* of the chunks that the items fill or match */
    size_t n_hashes, hashes_capacity;
    uint32_t *pending; /* open addressing over the full pieces: piece + 1, or 0 */
    size_t pending_mask, pending_capacity;
    bool pending_possible;     /* an item might fill a chunk */
    uint32_t refused;          /* after CATTN_EFULL or CATTN_ETOOBIG: root whose limit is in the way, or CATTN_NONE */
    struct cattn_pass *passes; /* one per layer */
    _Atomic uint32_t n_passes; /* since it was opened, of all layers; numbers them */
    uint64_t read_tokens, read_tokens_unshared; /* by one attend */
    uint64_t plan;                              /* the backend's number of what is launched; 0: it has none */
    uint64_t ended_plan;                        /* of the last step that ended with calls of layers */
    bool replayed;                              /* not called, but launched by the caller */
};

/* The slots that a plan holds for the step, root first: all it adds to the path, but a slot extended in place. */
size_t cattn_plan_holds(const struct cattn_plan *plan, const uint32_t **slots);

#endif
