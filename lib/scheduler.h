/* Requests that wait and requests that run.  The queue keeps them, the policy (admit.h) chooses among those that wait,
 * scheduler.c makes steps of those that run. */
#ifndef CATTN_SCHEDULER_H
#define CATTN_SCHEDULER_H

#include "cache.h"

struct cattn_want {
    cattn_request id;      /* 0: the record is free ... */
    cattn_request next_id; /* ... and then comes this one; 0: none */
    uint32_t next, prev;   /* in the list of those that wait, or (next) of free records */
    struct cattn_name {    /* of the namespace */
        void *bytes;
        size_t length;
    } ns;
    int32_t *tokens; /* prompt, and what was generated; room for all there may be */
    int32_t *ids;    /* the same with numbers for those that have extras, which it holds; tokens, if none has */
    struct cattn_want_extras *extras; /* NULL: none */
    size_t n_tokens, n_prompt;
    uint64_t max_new;
    int32_t priority;
    uint64_t arrival, order; /* order: of the submit */
    uint64_t tag;
    cattn_seq seq;  /* 0: it waits */
    bool cancelled; /* in the open step, whose batch points at its tokens; it is forgotten with the batch */
    size_t n_held;  /* tokens that its sequence holds */
    size_t n_cached;
    uint32_t n_preempted, n_passed;
    uint64_t most_passed; /* from there on nobody passes it */
    /* what the policy found, for as long as the tree has this revision */
    uint64_t revision;
    size_t n_matched; /* whole chunks */
    uint32_t leaf;    /* the last of them, or CATTN_NONE */
    /* whom it waits for, as long as that one has not stored more */
    cattn_request awaited;
    size_t awaited_held;
};

/* The extra identities in a prompt, whose bytes follow. */
struct cattn_want_extras {
    struct cattn_ext all, part; /* part: of the tokens in its item, whose ranges are the second half */
    struct cattn_extra ranges[];
};

struct cattn_sched {
    struct cattn_cache *cache;
    uint32_t policy, max_batch, max_rows, ageing, output_percent;
    struct cattn_want *wants; /* all records */
    size_t wants_capacity;
    uint32_t n_wants, free;
    uint64_t seed;        /* of their ids */
    uint32_t first, last; /* of those that wait, by arrival, then by submit */
    uint32_t *running;    /* in the order of their admission; [max_batch] */
    uint32_t n_running;
    uint32_t *path; /* scratch of the policy, with room for the pool */
    struct cattn_item *items;
    struct cattn_turn *turns;
    uint32_t *item_wants;
    size_t n_items;
    bool out; /* a batch is with the caller */
    uint64_t last_order;
    struct cattn_sched_counts stats;
};

/* ---- queue.c */

/* NULL: it has ended. */
struct cattn_want *cattn_sched_find(const struct cattn_sched *sched, cattn_request request);

/* Whether a arrived before b. */
bool cattn_want_before(const struct cattn_want *a, const struct cattn_want *b);

/* CATTN_ENOMEM: nothing changed.  The record joins those that wait. */
int cattn_sched_add(struct cattn_sched *sched, const struct cattn_request_config *config, uint32_t *want);

void cattn_sched_link(struct cattn_sched *sched, uint32_t want);
void cattn_sched_unlink(struct cattn_sched *sched, uint32_t want);

/* The extra identities of n tokens of its text from `first` on, counted from there, or NULL.  They stay until the next
 * call. */
const struct cattn_ext *cattn_want_part(const struct cattn_want *want, size_t first, size_t n);

/* Frees the record, which is in no list. */
void cattn_sched_forget(struct cattn_sched *sched, uint32_t want);

/* ---- admit.c */

enum { CATTN_CANDIDATES = 256 }; /* that a policy looks at, the longest waiting */

/* Slots that a request may come to refer to, all in all. */
uint64_t cattn_want_slots(const struct cattn_sched *sched, const struct cattn_want *want);

/* The one that is to be admitted now, or CATTN_NONE. */
uint32_t cattn_sched_choose(struct cattn_sched *sched);

/* Notes that it was admitted: those that came before it were passed. */
void cattn_sched_note_passed(struct cattn_sched *sched, const struct cattn_want *want);

#endif
