/* chunkattention.h - attention over a KV cache whose shared prefixes are stored and read once.
 *
 * libchunkattention keeps the keys and values of every distinct token prefix once, in a prefix tree of
 * chunks, and computes attention so that a chunk which several sequences share is read once per step for
 * all of them (the two-phase partition of "ChunkAttention", Ye et al., ACL 2024, section 3).  The caller
 * keeps its own model: it hands over Q, K and V with positions already applied and gets the output of
 * attention.
 *
 * One decode iteration:
 *
 *     cattn_step_begin(step, items, n_items)            which tokens; says which rows exist, and where
 *     for each layer: project, cattn_step_attend(step, layer, &io)
 *     cattn_step_end(step)
 *
 * Prefill, chunked prefill, decode and the verification of drafts are the same calls with other numbers of
 * tokens; one step may mix them.
 *
 * Words: a chunk is chunk_tokens consecutive tokens at absolute positions [i*c, (i+1)*c); a slot is the
 * storage of one chunk for all layers; a row is one query token of one sequence in a step.
 *
 * Rules that hold for every call:
 * - A call that fails changes nothing.
 * - Functions that return int return CATTN_OK (0) or a negative status.
 * - A cache, with its steps and sequences, is used by one thread at a time, except for the *_part calls; with the flag
 *   CATTN_CONCURRENT by any number of threads, as is said there.  Different caches are independent.
 * - Nothing is printed, the process is never ended (but see n_threads), and the floating-point control register,
 *   the CPU affinity and the OpenMP settings of the caller are left as they were found.
 * - Structs that may grow start with their size: set it to sizeof of the struct, and zero the rest.  CATTN_EINVAL: it is
 *   smaller than in the first version, or larger than the library knows it and what is behind is not zero.  Where the
 *   library fills the struct, it zeroes what is behind.
 */
#ifndef CHUNKATTENTION_H
#define CHUNKATTENTION_H

#include <stddef.h>
#include <stdint.h>

#define CATTN_VERSION_MAJOR  0
#define CATTN_VERSION_MINOR  1
#define CATTN_VERSION_PATCH  0
#define CATTN_VERSION_STRING "0.1.0"

#if defined(CATTN_BUILD) && defined(__GNUC__)
#  define CATTN_API __attribute__((visibility("default")))
#else
#  define CATTN_API
#endif
#if defined(__GNUC__)
#  define CATTN_CHECK __attribute__((warn_unused_result))
#else
#  define CATTN_CHECK
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cattn_cache cattn_cache;
typedef struct cattn_step cattn_step;

/* Names a sequence of one cache.  Never 0.  A handle is not used again after its sequence was closed: later use is
 * found and gives CATTN_EINVAL.  So does, but for one in 2^40, a number that this cache has not given: one that was
 * made up, or a handle of another cache, even one that has been destroyed. */
typedef uint64_t cattn_seq;

/* ---- status ---------------------------------------------------------------------------------------- */

enum cattn_status {
    CATTN_OK = 0,
    CATTN_EINVAL = -1,    /* an argument is wrong, or a handle is stale or of another cache */
    CATTN_ENOMEM = -2,    /* host memory, or memory of the device, could not be had */
    CATTN_EFULL = -3,     /* too few slots are free or evictable now, in the pool or within the limit of a namespace;
                             close sequences and retry */
    CATTN_ETOOBIG = -4,   /* the items can never fit in this pool, or within the limit of their namespace */
    CATTN_EBUSY = -5,     /* the sequence is in the open step; the namespace has a sequence or a chunk */
    CATTN_ESTATE = -6,    /* not possible now: no step open, a step open already, a layer not written ... */
    CATTN_ENOTFOUND = -7, /* nothing of that name */
    CATTN_ENOTSUP = -8,   /* backend, kernel or data type not usable on this machine; not in this build */
    CATTN_EIO = -9,       /* the system refused something about a file: errno is as it left it */
    CATTN_EFORMAT = -10,  /* a file is damaged, or not of this kind, version, model or shape */
    CATTN_EDEVICE = -11   /* the device failed, at this call or at an earlier one of the same cache: see "A device" */
};

/* A sentence in English for a status; "unknown status" for any other number.  Static storage.  Any thread. */
CATTN_API const char *cattn_strerror(int status);

/* The version of the library that runs, as in CATTN_VERSION_STRING.  Static storage.  Any thread. */
CATTN_API const char *cattn_version(void);

/* ---- what this build has ---------------------------------------------------------------------------- */

/* The backends of this build ("cpu", "cuda"), for i = 0, 1, ...; NULL past the last.  A cache whose config names none
 * gets the first usable one that computes in host memory: "cuda" is had by its name alone. */
CATTN_API const char *cattn_backend_name(unsigned i);

/* Whether a backend works on this machine: 1 or 0; 0 for an unknown name or NULL.  "cuda" does if there is a driver
 * and a device of compute capability 8.0 or more. */
CATTN_API int cattn_backend_usable(const char *backend);

/* The kernels of a backend that this machine can run, best first, for i = 0, 1, ...; NULL past the last, and for a name
 * that is unknown or NULL.  Those of "cuda" are "mma", on tensor cores, for the data types and head sizes that it
 * knows, and "general" for all. */
CATTN_API const char *cattn_backend_kernel(const char *backend, unsigned i);

/* Those of "cpu" ("amx", "avx512", "avx2", "generic", "amxf32"), for i = 0, 1, ...; NULL past the last.
 * "amxf32" takes K and V of f32 and computes with q, K, V and weights as sums of two bf16, 16 bits each: a score is off
 * by up to 2^-14 |q||k|, an output by as much of |v| besides, what is beyond the largest bf16, an infinity
 * too, counts as that, and numbers below 1e-35 have 8 bits left.  It is for many
 * rows on CPUs with AMX, less exact than other kernels, and so used only where it is named.
 * The environment variable CATTN_CPU_MASK names features of the processor that are not to be used, separated by
 * commas: avx2, avx512, vnni, amx; those that need a feature which is left out are left out with it.  Empty or "none":
 * all may be used.  A name that is not one of these leaves no kernel at all, so that it cannot go unnoticed.
 * Where the processor has AMX and the mask allows it, the first look (this call, cattn_backend_usable or
 * cattn_cache_create) asks Linux for the permission to use its tiles, which holds for the whole process from then on:
 * signal stacks must be large enough for them.  Refused, the kernels "amx" and "amxf32" are not there. */
CATTN_API const char *cattn_kernel_name(unsigned i);

/* ---- a cache ---------------------------------------------------------------------------------------- */

enum cattn_dtype {
    CATTN_F32 = 0,
    CATTN_F16 = 1,  /* IEEE binary16 */
    CATTN_BF16 = 2, /* the upper half of an f32 */
    CATTN_I8 = 3    /* kv_dtype only: -127 .. 127 times an f32 scale, one scale for the key and one for the value of
                       each token and KV head, worked out when they are stored.  A stored element is off by at most
                       max|x| / 254 over its vector x, and a quarter of a percent more of that for rounding; vectors
                       with max|x| < 2^-112 by 2^-119.  On top of that kernels may round q to max|q| / 8190 and move an
                       output by max|v| / 255; errors that large need 64 tokens of equal weight rounded alike */
};

enum cattn_flags {
    CATTN_NO_RETAIN = 1,  /* free a chunk when its last sequence goes, as the paper does; default: keep it
                             cached until its slot is needed */
    CATTN_ZERO_FREED = 2, /* overwrite K, V and token ids of a slot with zeros when it is freed (evicted, not retained,
                            dropped by truncate or abort, of an invalidated namespace): costs a write of slot_bytes each
                            time.  Tokens that truncate cuts off a slot that stays go when they are written over, or
                            with the slot; the token ids that sequences keep are not overwritten */
    /* of equal priority, what costs least to compute again is evicted first, not what is unused longest: see
       cattn_prefix_retain */
    CATTN_EVICT_BY_COST = 4,
    CATTN_CONCURRENT = 8 /* other threads may call while one runs a step.  All calls but those of layers
                            (cattn_step_write, cattn_step_attend, *_part) take a lock, one for each cache, for their own
                            duration: short but for cattn_cache_selfcheck and _dump_dot, files of prefixes, and a begin
                            that copies.  Calls of layers take none and wait for no other call.  One step is open at a
                            time, whoever asks; an object of a step, and a scheduler, belong to one thread at a time.
                            cattn_cache_destroy comes when no other thread uses the cache any more.  A process that
                            forks while other threads use the cache must not use it in the child.  CATTN_ENOTSUP where
                            the system has no POSIX threads */
};

/* What an event tells.  A prefix has a hash: FNV-1a of 64 bits over ns_len (8 bytes, lowest first), the bytes of the
 * namespace, and the tokens from the first to the last of the chunk (4 bytes each, lowest first); what comes to 0
 * counts as 1, and the hash of a longer prefix goes on from the hash of the shorter one.  A token with an extra
 * identity counts as 4 bytes of token + 2^31, then id_len (8 bytes, lowest first) and the bytes.  Where a private
 * namespace goes on behind a public prefix (cattn_namespace_set), ns_len and the bytes of the private one come between
 * the public tokens and its own; `parent` is the hash of the public prefix, as it was told of.  A hash is the same in
 * every cache with chunks of that size.  It is no secret and not made to withstand an attack: who must be sure compares
 * tokens and extra identities. */
enum cattn_event_kind {
    CATTN_EVENT_PUBLISHED = 1, /* a chunk is cached: prompts that have it can find it.  Parents come before children */
    CATTN_EVENT_REMOVED = 2,   /* it is cached no more: evicted, not retained, or reopened by a truncate.  Children go
                                  before parents */
    CATTN_EVENT_CLEARED = 3    /* nothing that was published in the namespace is cached any more: it was invalidated, or
                                  the one that it reads was (of which is told after its readers).
                                  What sequences that are still open go on with is not told of */
};

struct cattn_extra; /* see cattn_seq_open_ext */

struct cattn_event {
    size_t size;           /* sizeof(struct cattn_event), of the library that runs */
    uint32_t kind;         /* enum cattn_event_kind */
    uint32_t n_tokens;     /* chunk_tokens; CATTN_EVENT_CLEARED: 0, as are hash, parent, tokens and extras */
    uint64_t hash;         /* of the prefix that ends with this chunk */
    uint64_t parent;       /* of the prefix before it; 0: this is a first chunk */
    const int32_t *tokens; /* of the chunk */
    const void *ns;
    size_t ns_len;
    const struct cattn_extra *extras; /* extra identities of these tokens: the longest ranges with equal bytes */
    size_t n_extras;
};

struct cattn_config {
    size_t size;           /* sizeof(struct cattn_config) */
    const char *backend;   /* NULL: $CATTN_BACKEND, or else the first usable that computes in host memory, "cpu" */
    const char *kernel;    /* NULL: $CATTN_KERNEL, or else the best one usable for these data types.  A name
                              that is unknown or not usable here: CATTN_ENOTSUP */
    uint32_t n_layers;     /* 1 .. 65535 */
    uint32_t n_heads;      /* query heads, 1 .. 65535 */
    uint32_t n_kv_heads;   /* divides n_heads; query head h reads KV head h / (n_heads / n_kv_heads) */
    uint32_t head_dim;     /* of Q and K, 1 .. 4096 */
    uint32_t v_head_dim;   /* of V and the output, 1 .. 4096; 0: head_dim */
    uint32_t chunk_tokens; /* 32, 64, 128 or 256; 0: 64 */
    uint32_t io_dtype;     /* of q, k, v and out: CATTN_F32, CATTN_F16 or CATTN_BF16 */
    uint32_t kv_dtype;     /* of the stored keys and values: enum cattn_dtype */
    uint64_t max_tokens;   /* size of the pool in tokens, rounded up to chunks; 0: max_bytes decides */
    uint64_t max_bytes;    /* size of the pool in bytes, all layers; 0: max_tokens decides.  The smaller of the
                              two wins; both 0: 80% of the memory that the device has free, or CATTN_EINVAL for a
                              backend without a device */
    uint32_t n_threads;    /* threads of an attend, at most 1024; 0: as many as CPUs in the affinity mask.  They are
                              OpenMP's (one in a build without it, and in a forked child), whose run-time ends the
                              process where the system refuses a thread; the *_part calls make none.  Shares of
                              those beyond n_threads find nothing to do */
    uint32_t flags;        /* enum cattn_flags, or-ed */
    /* NULL, or what is called with each event, from the call that causes it and in its thread.  What the event points
     * at may be read until it returns.  It must not call the cache.  cattn_cache_destroy causes none */
    void (*on_event)(void *context, const struct cattn_event *event);
    void *event_context;
    /* Of backend "cuda"; zero for others, or CATTN_ENOTSUP.  Structs without these two fields are taken, too. */
    uint32_t device; /* as cudaSetDevice counts */
    void *stream;    /* a cudaStream_t of that device, on which all work is done; it outlives the cache.  NULL: the
                        default stream */
};

/* A device.  What a CUDA cache is asked to do with K and V it puts on its stream, in the order of the calls, and
 * returns without waiting for it.  So q, k, v, out and lse are device memory, may be used by what is put on the same
 * stream before and after a call without any wait, and must not be changed elsewhere before the stream is past it.
 * alibi_slopes and sinks of a variant are host memory, read by the call; a cache takes 16 + 2 * n_layers different
 * arrays in its life (then CATTN_ENOMEM), each of which it copies to the device once, at the first call that gives it.
 *
 * Calls that may wait for the stream are cattn_sync, cattn_prefix_save and _load, cattn_cache_create and _destroy, and
 * cattn_step_begin when a step is larger than all before it or the stream is two plans behind.  Calls of layers neither
 * wait nor allocate.  The *_part calls are as any others: share 0 does the whole, the others find nothing left to do.
 * The current device of the calling thread is as before when a call returns.  While another thread captures a stream in
 * CUDA's mode "global", calls that allocate fail, like any allocation.
 *
 * An error of CUDA stays with the cache at whose call it came up: from then on calls that need K and V (those of steps
 * but _abort, _destroy and what reads host memory alone, cattn_seq_open and _fork, cattn_sync, cattn_prefix_save and
 * _load, cattn_sched_next) return CATTN_EDEVICE.  A step that is open then can only be aborted; what it computed is not
 * to be used.  Since a device reports late, results are certain when a cattn_sync behind them is CATTN_OK.  Other
 * caches are not touched, unless CUDA itself has given up the device for the whole process.
 *
 * Positions are below 2^31.  kv_dtype CATTN_I8 and head sizes above 512 are CATTN_ENOTSUP. */

/* Makes an empty cache.  Its pool is reserved at once and backed by memory as it is first used.  An environment
 * variable that is empty counts as not set.
 * CATTN_EINVAL: a value is out of range, or the pool has no whole chunk, or more than 2^31 - 1.
 * CATTN_ENOTSUP: the backend, kernel or device named (in the config, or in the environment) is not usable, or does not
 * take these data types or sizes; or CATTN_CPU_MASK has an unknown name; or CATTN_CONCURRENT is not to be had.
 * CATTN_ENOMEM.  CATTN_EDEVICE.  Any thread. */
CATTN_API CATTN_CHECK int cattn_cache_create(const struct cattn_config *config, cattn_cache **cache);

/* Frees the cache with all its sequences and steps; their handles are dead.  No other thread uses it any more.  NULL is
 * allowed. */
CATTN_API void cattn_cache_destroy(cattn_cache *cache);

/* Waits until all that calls of this cache have put on the device is done; without a device all is done when a call
 * returns.  Takes no lock, so that other threads may call meanwhile.  CATTN_EINVAL.  CATTN_EDEVICE. */
CATTN_API CATTN_CHECK int cattn_sync(cattn_cache *cache);

struct cattn_info {
    size_t size;         /* in: sizeof(struct cattn_info) */
    const char *backend; /* static storage */
    const char *kernel;
    uint32_t exact; /* 1: the bits of a sequence's output depend on its own tokens, Q, K and V alone (finite
                       ones), per build, kernel, data type and chunk size: not on the batch, on what it
                       shares, on what was cached, on how it was prefilled, or on the thread count */
    uint32_t n_threads;
    uint32_t chunk_tokens;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, v_head_dim, io_dtype, kv_dtype;
    uint64_t n_slots;
    uint64_t slot_bytes; /* K and V of one chunk, all layers */
    uint32_t device;     /* 0 without one.  Structs that end before this field are taken, too */
};

/* What the cache was made with, defaults filled in. */
CATTN_API CATTN_CHECK int cattn_cache_info(const cattn_cache *cache, struct cattn_info *info);

/* Why cattn_seq_open found as much of a prompt of n tokens as it did, and no more.  The first that is true: */
enum cattn_reason {
    CATTN_WHY_ALL = 0,         /* it found n - 1 tokens, all that it looks for (none of a prompt of one or none) */
    CATTN_WHY_BELOW_CHUNK = 1, /* all whole chunks of these n - 1 tokens were cached; of the rest, less than a chunk, no
                                  cached chunk begins with more.  (What is less than a chunk is not cached.) */
    CATTN_WHY_EVICTED = 2,     /* the chunk that follows the whole chunks found was cached and has been evicted; or the
                                  namespace has nothing cached because its last chunk was evicted.  As far as the cache
                                  remembers: about as many evictions as it has slots */
    CATTN_WHY_EMPTY = 3,       /* nothing was cached in the namespace: never, or it was invalidated */
    CATTN_WHY_DIFFERS = 4, /* something else is cached: its tokens are those of the prompt up to n_cached, and another
                              one follows.  No cached chunk has more in common with the prompt, or (where more than 8
                              begin with the same token) none of the newest 8 */
    CATTN_WHY_ENDS = 5,    /* nothing is cached behind the tokens found, which end a chunk: no request has gone on
                              from there, or none has ended the step in which it filled a chunk.  What other readers
                              of a public namespace have behind its chunks does not count; chunks of one's own behind
                              any of them do (CATTN_WHY_DIFFERS) */
    CATTN_N_WHY = 6        /* how many there are */
};

struct cattn_stats {
    size_t size;          /* in: sizeof(struct cattn_stats) */
    uint64_t n_sequences; /* open now */
    uint64_t n_slots;     /* used + free + evictable */
    uint64_t used_slots;  /* referred to by a sequence, a pin or an open step */
    uint64_t free_slots;
    uint64_t evictable_slots; /* cached, without references */
    uint64_t peak_used_slots;
    uint64_t cached_tokens;       /* tokens whose K and V are stored, used and evictable: in whole chunks once, in
                                     incomplete ones once for each copy */
    uint64_t sequence_tokens;     /* sum of the lengths of the open sequences: what is held without sharing */
    uint64_t used_bytes;          /* of K and V, whole slots */
    uint64_t hits, misses;        /* tokens of successful step_begins (and of the opens before them): found in
                                     the cache; computed.  An abort does not take them back */
    uint64_t evictions;           /* slots taken from unreferenced chunks since the cache was made */
    uint64_t read_bytes;          /* K and V that attends so far had to read, each shared chunk once a step */
    uint64_t read_bytes_unshared; /* the same, had each sequence read all of its own tokens */
    uint64_t n_pins;              /* cattn_prefix_pins that no unpin or invalidate has undone */
    uint64_t pinned_slots;        /* used slots that pins hold, each counted once */
    uint64_t opens[8];            /* cattn_seq_opens by enum cattn_reason ... */
    uint64_t unfound_tokens[8]; /* ... and the tokens of their prompts, but the last of each, that open did not find */
};

CATTN_API CATTN_CHECK int cattn_cache_stats(const cattn_cache *cache, struct cattn_stats *stats);

/* Walks everything and compares: CATTN_OK, or CATTN_ESTATE when the cache is inconsistent (a bug, or memory
 * that was overwritten).  CATTN_ENOMEM: it could not look.  Slow: for tests. */
CATTN_API CATTN_CHECK int cattn_cache_selfcheck(const cattn_cache *cache);

/* Draws the tree for Graphviz: namespaces (a dashed line to the public one that each reads), chunks (their first
 * tokens; dashed: evictable, bold: pinned, dotted: not complete) and sequences (a line to the last thing that each
 * holds).  `write` gets the text in small pieces of n bytes, not terminated; it must not call the cache.  Returns
 * CATTN_OK, or the first of write's results that was not 0, after which it is not called again.  Takes no memory, and
 * time for everything there is: for looking at small caches. CATTN_EINVAL: no cache, or no write. */
CATTN_API CATTN_CHECK int cattn_cache_dump_dot(const cattn_cache *cache,
                                               int (*write)(void *context, const char *text, size_t n), void *context);

/* ---- sequences -------------------------------------------------------------------------------------- */

/* Tokens of a caller are numbers >= 0.  Where a number does not say all, as with the placeholders of an image, tokens
 * can have an extra identity: bytes such as the image's hash.  Two tokens are then the same, and can be shared, only if
 * number and bytes are equal; a token without extra identity is not the same as one with it.  The bytes are compared in
 * full, and copied: once, as long as anything refers to them.
 * An identity is of each token by itself: how tokens are cut into ranges, calls or steps does not count, and neither
 * does the place of a token in its range, since the k-th placeholder of an image comes behind the k-1 others, which
 * must be equal too.  So the bytes must tell whatever else decides what these tokens stand for: the content of the
 * image, how it was made smaller, and how many tokens it becomes. */
struct cattn_extra {
    uint64_t first, n; /* tokens first .. first+n-1 of those given in the same call; n >= 1 */
    const void *id;    /* any bytes, id_len >= 1 of them (none could hide that a hash was forgotten) */
    size_t id_len;
};

struct cattn_ext {
    size_t size;                      /* sizeof(struct cattn_ext) */
    const struct cattn_extra *extras; /* ascending, without overlap; read by the call only */
    size_t n_extras;
};

/* Opens a sequence and matches the start of its prompt against what is cached in the namespace ns[0..ns_len)
 * (any bytes; ns_len 0 is a namespace like others; different namespaces never share, but for what cattn_namespace_set
 * lets one read).  At most the first n-1 tokens are matched, so that at least one row is computed; the match may end
 * inside a chunk.
 * The sequence then holds *n_cached tokens (n_cached may be NULL); give the rest, tokens[*n_cached..n), to
 * cattn_step_begin.
 * Takes no slot and cannot fail for space.  The tokens are copied.  Allowed while a step is open: what the
 * step computes is not visible yet.  (Paper section 3.1.)
 * CATTN_EINVAL, also: a token is negative.  CATTN_ENOMEM, also: 2^24 sequences are open. */
CATTN_API CATTN_CHECK int cattn_seq_open(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens,
                                         size_t n, cattn_seq *seq, size_t *n_cached);

/* The same for a prompt in which tokens have extra identities; ext NULL: none.  CATTN_EINVAL, also: ranges that are
 * empty, not in order, or not inside of the tokens.  CATTN_ENOMEM. */
CATTN_API CATTN_CHECK int cattn_seq_open_ext(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens,
                                             size_t n, const struct cattn_ext *ext, cattn_seq *seq, size_t *n_cached);

/* A new sequence with the same tokens; it shares all storage, takes no slot.  CATTN_EINVAL.  CATTN_EBUSY: seq is in the
 * open step.  CATTN_ENOMEM, as for open. */
CATTN_API CATTN_CHECK int cattn_seq_fork(cattn_cache *cache, cattn_seq seq, cattn_seq *forked);

/* Keeps the first n tokens.  CATTN_EINVAL: n is more than its length.  CATTN_EBUSY: it is in the open step. */
CATTN_API CATTN_CHECK int cattn_seq_truncate(cattn_cache *cache, cattn_seq seq, size_t n);

/* Ends a sequence.  Its chunks stay cached (see CATTN_NO_RETAIN).  Of a sequence in the open step the handle
 * is dead at once; its rows are still computed and published, and its storage goes when the step ends. */
CATTN_API int cattn_seq_close(cattn_cache *cache, cattn_seq seq);

/* The number of tokens it holds; during a step the number before it. */
CATTN_API CATTN_CHECK int cattn_seq_length(const cattn_cache *cache, cattn_seq seq, size_t *length);

/* Copies its first min(length, capacity) tokens, as they were given (without extra identities); *length (if not NULL)
 * is set to all it holds. */
CATTN_API CATTN_CHECK int cattn_seq_tokens(const cattn_cache *cache, cattn_seq seq, int32_t *tokens, size_t capacity,
                                           size_t *length);

struct cattn_why {
    size_t size;           /* in: sizeof(struct cattn_why) */
    uint32_t reason;       /* enum cattn_reason */
    uint64_t n_prompt;     /* tokens given to cattn_seq_open */
    uint64_t n_cached;     /* found by it: the number of the first token that was not */
    uint64_t hits, misses; /* as in cattn_stats, of this sequence alone: steps may find what open did not */
};

/* Why a sequence was shared as far as it was when it was opened; later truncates do not change it.  A fork says what
 * its origin says, and has hits and misses of its own.  The answer was worked out by cattn_seq_open.  CATTN_EINVAL. */
CATTN_API CATTN_CHECK int cattn_seq_why(const cattn_cache *cache, cattn_seq seq, struct cattn_why *why);

/* A reason in English; "unknown reason" for any other number.  Static storage.  Any thread. */
CATTN_API const char *cattn_strwhy(uint32_t reason);

/* ---- prefixes and namespaces ------------------------------------------------------------------------ */

/* Keeps a cached prefix: its chunks are not evicted until as many unpins were given, whether a sequence uses them or
 * not.  What is pinned are the whole chunks of tokens[0..n), whose extra identities ext has (NULL: none); the
 * n % chunk_tokens tokens behind them do not count.
 * All must be cached: feed a sequence those tokens, end the step, pin, close the sequence.  A pinned chunk counts as
 * used; a pool that is pinned full cannot run a step (CATTN_EFULL, or CATTN_ETOOBIG).
 * Allowed while a step is open, which changes nothing for the step; what the step computes is not cached yet.
 * CATTN_EINVAL, also: a token is negative.  CATTN_ENOTFOUND: there is no whole chunk, or not all of them are cached, or
 * all of them are those of a public namespace that ns reads.  CATTN_ENOMEM, also: 2^32 - 1 pins are held already. */
CATTN_API CATTN_CHECK int cattn_prefix_pin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens,
                                           size_t n, const struct cattn_ext *ext);

/* Undoes one pin of the same whole chunks.  When nothing else refers to them they can be evicted, as those of a
 * sequence that was closed (see CATTN_NO_RETAIN).  CATTN_EINVAL.  CATTN_ENOTFOUND: no pin has exactly these chunks.
 * CATTN_ENOMEM: with ext only. */
CATTN_API CATTN_CHECK int cattn_prefix_unpin(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens,
                                             size_t n, const struct cattn_ext *ext);

/* How a cached prefix is kept.  What is evicted next is always a chunk to which nothing refers and below which nothing
 * is cached: of these one with the lowest priority, and of those the one unused longest.  With CATTN_EVICT_BY_COST it
 * is, instead of the last, the one with the lowest sum of two numbers: the cost of computing its tokens again, which
 * grows with their positions as attention over all earlier tokens does, and the sum that the chunk had which was
 * evicted last when it was last used (GreedyDual): so that nothing stays for ever for having been dear once. */
struct cattn_retention {
    size_t size;      /* sizeof(struct cattn_retention) */
    int32_t priority; /* a chunk of which nothing was said has 0; higher ones are evicted later */
    uint64_t ttl;     /* time to live from now on, in the unit of cattn_cache_advance; 0: no end is set */
};

/* Gives the cached whole chunks of tokens[0..n) a priority and a time to live.  A chunk keeps the highest priority and
 * the latest end (none is later than any) that was given to it, be it through this prefix or through others that begin
 * alike: to give the same again renews its time.  When its time is over a chunk is evicted, at once if nothing refers
 * to it and nothing is cached below it, else as soon as that is so; until then it is found like any other, and has
 * priority 0.  Given again before that, it goes on living.  retention NULL takes back what was given to these chunks.
 * An evicted chunk loses all that was given to it, and so does a namespace that is invalidated; files of saved prefixes
 * do not have it.  Where a private namespace goes on behind public chunks (cattn_namespace_set), only its own ones get
 * it.  Eviction takes O(log n) each once this call or cattn_namespace_set has succeeded on a cache; the first one takes
 * host memory and time for all slots.  Allowed while a step is open.  CATTN_EINVAL, also: a token is negative.
 * CATTN_ENOTFOUND: there is no whole chunk, or not all of them are cached, or all of them are public.  CATTN_ENOMEM. */
CATTN_API CATTN_CHECK int cattn_prefix_retain(cattn_cache *cache, const void *ns, size_t ns_len, const int32_t *tokens,
                                              size_t n, const struct cattn_ext *ext,
                                              const struct cattn_retention *retention);

/* Sets the caller's clock, which starts at 0, in any unit: chunks whose time is over by now are evicted, as said above.
 * Costs O(log n) for each of them.  Allowed while a step is open.  CATTN_EINVAL, also: now is before an earlier one. */
CATTN_API CATTN_CHECK int cattn_cache_advance(cattn_cache *cache, uint64_t now);

/* Writes all pinned prefixes of all namespaces to a file: their tokens, pins, and K and V of all layers, each chunk
 * once (public chunks before private ones, too, as what they are).  model[0..model_len) names what made these K and V:
 * the weights and their revision, the adapter, the rotary settings and whatever else changes them (any bytes; which
 * ones is the engine's choice; model_len 0 is a name too). The file is written beside path, as path.tmpXXXXXX (six
 * characters that the system picks), brought to the disk and then renamed.  A call that fails removes it, and path is
 * as it was; only where the system fails to bring that change of name to the disk (CATTN_EIO) is path the new file
 * already.  A crash leaves what was at path, or the new file, and perhaps the one beside it, which can be removed.  A
 * symbolic link is replaced, not followed. The file is readable for its owner alone (mode 0600): it is as good as the
 * text of the prompts.  Allowed while a step is open.  CATTN_EINVAL, also: something that is no regular file is at
 * path.  CATTN_ENOTSUP: this build cannot save (it was made without zlib, or for a system without POSIX files or with
 * big-endian numbers).  CATTN_ENOMEM, CATTN_EIO.
 */
CATTN_API CATTN_CHECK int cattn_prefix_save(const cattn_cache *cache, const char *path, const void *model,
                                            size_t model_len);

/* Reads what cattn_prefix_save wrote: its prefixes are cached and pinned as they were, besides what was before.  Chunks
 * that are cached already stay as they are; for the others as many are evicted as needed, as by a step.
 * The bits of K and V are those saved, whatever kernel this cache has; layers, KV heads, head sizes, kv_dtype and model
 * must be equal.  chunk_tokens may differ: a prefix keeps its whole chunks, and tokens behind them are dropped, as is a
 * pin that has no whole chunk (of a private namespace: none of its own).  *n_tokens (if not NULL): tokens that the
 * file's pins hold now, shared ones counted once.  All or nothing: the whole file is checked before anything changes.
 * Only a file that changes while it is read, or a disk that fails then, may cost unreferenced chunks (and still nothing
 * is published).  A checksum is no signature: what anyone else could write to is not to be loaded.  CATTN_EINVAL, also:
 * path is no regular file.  CATTN_ESTATE: a step is open; after CATTN_EFORMAT also: a private namespace of the file
 * goes on behind a public one that it does not read in this cache (cattn_namespace_set).  CATTN_EFORMAT. CATTN_ETOOBIG:
 * the pool, or the limit of a namespace, has not so many slots.  CATTN_EFULL: not so many free and evictable ones.
 * CATTN_ENOMEM, also: pins as in cattn_prefix_pin.  CATTN_EIO, CATTN_ENOTSUP. */
CATTN_API CATTN_CHECK int cattn_prefix_load(cattn_cache *cache, const char *path, const void *model, size_t model_len,
                                            uint64_t *n_tokens);

/* Forgets all that is cached in a namespace, as one does when the weights behind it have changed: sequences opened from
 * now on find nothing of it.  Its pins are undone, its unreferenced chunks freed.  Sequences that are open (or in the
 * open step) go on with what they have, and share among themselves alone; their chunks are freed as they close.
 * Namespaces that read this one are invalidated with it: what they have was made by the same weights.
 * A namespace of which nothing is known: CATTN_OK.  Walks the list of unreferenced chunks, and all chunks if anything
 * is pinned.  What cattn_namespace_set said of the name stays.  CATTN_EINVAL.  CATTN_ENOMEM, only if it, or one
 * that reads it, has a reserve or a limit. */
CATTN_API int cattn_namespace_invalidate(cattn_cache *cache, const void *ns, size_t ns_len);

struct cattn_usage {
    size_t size;                         /* in: sizeof(struct cattn_usage) */
    uint64_t n_sequences;                /* open now */
    uint64_t n_slots;                    /* that its chunks take, complete or not, referred to or not */
    uint64_t evictable_slots;            /* of them: cached, without references */
    uint64_t pinned_slots;               /* of them: held by pins */
    uint64_t hits, misses;               /* as in cattn_stats ... */
    uint64_t evictions;                  /* ... likewise */
    uint64_t reserve_slots, limit_slots; /* its settings */
};

/* What one namespace has, and has had since it was first opened or last invalidated (what sequences older than that go
 * on with is not counted).  Public chunks count in the public namespace, what a private one's steps found there in the
 * private one.  CATTN_EINVAL.  CATTN_ENOTFOUND: it has neither a sequence nor a chunk, nor a reserve or a limit, nor is
 * there a namespace with a sequence or a chunk that reads it; its counts are forgotten. */
CATTN_API CATTN_CHECK int cattn_namespace_stats(const cattn_cache *cache, const void *ns, size_t ns_len,
                                                struct cattn_usage *stats);

struct cattn_namespace_config {
    size_t size;            /* sizeof(struct cattn_namespace_config) */
    uint64_t reserve_slots; /* as long as the namespace has no more slots than this, others get none of its chunks */
    uint64_t limit_slots;   /* that it may have, at least reserve_slots; 0: the pool */
    const void *public_ns;  /* a namespace that this one reads; NULL: none.  The one with an empty name: any other
                               pointer, and public_ns_len 0 */
    size_t public_ns_len;
};

/* Sets what a namespace keeps, what it may have and what it reads, for as long as the cache lives, whatever is opened,
 * closed, evicted or invalidated there.  The config is all of it: a field that is zero asks for nothing, whatever was
 * set before.  All zero: forgets it, which is how every namespace starts.
 *
 * Slots of a namespace are those that cattn_namespace_stats counts.
 * Its reserve is not kept free for it: it holds what it has come to have.  A step, or a load, evicts chunks of another
 * namespace only as long as that one is left with its reserve; cattn_cache_evict takes those last, and the end of their
 * time (cattn_prefix_retain) ends that, too.
 * At its limit a namespace gets a slot by giving up one: a step, or a load, evicts as many unreferenced chunks of its
 * own as it takes, and is refused with CATTN_EFULL if there are not enough, or CATTN_ETOOBIG if what its items need is
 * more than the limit.  A limit below what it has now takes effect when it next takes slots.
 *
 * A private namespace may read a public one, such as the operator's, whose system prompts are prefilled and pinned once
 * under the public name.  The private one's sequences find the longest cached prefix that begins with public chunks (or
 * none) and goes on with chunks of their own namespace (or none); of equal length the one with most public chunks.
 * What they compute, whole chunks below public ones included, belongs to their own namespace: nothing that a private
 * sequence does publishes, removes or writes a public chunk, and private namespaces that read the same public one find
 * nothing of each other.  A step reads a public chunk once for all of them.
 * Public is whatever others read: sequences of that name are opened, pinned and saved as those of any other, and do not
 * see what is private.  A namespace that is read cannot read another one.
 * What is cached in a private namespace counts, is kept, pinned and invalidated under its own name.  A pin of a private
 * prefix holds the public chunks before it; where all chunks of a prefix are public there is nothing to pin or retain
 * but under the public name.  Who invalidates the public one invalidates all that read it.
 * One that reads another has no reserve, and one that is read no limit: each would hold up chunks of the other.
 *
 * Allowed while a step is open, which goes on as it is.
 * CATTN_EINVAL, also: reserve_slots above limit_slots, or all reserves together above the pool; ns is public_ns, or is
 * read by others, or public_ns reads another one; both public_ns and a reserve, or a limit of one that is read.
 * CATTN_EBUSY: what ns reads would change, and ns has a sequence or a chunk (cattn_namespace_invalidate, after which
 * the name has neither: what is open goes on as before).  CATTN_ENOMEM. */
CATTN_API CATTN_CHECK int cattn_namespace_set(cattn_cache *cache, const void *ns, size_t ns_len,
                                              const struct cattn_namespace_config *config);

/* Frees up to n_slots cached chunks to which nothing refers, in the order of eviction; UINT64_MAX: all of them.  With
 * them go those above them whose time is over.  *n_evicted (if not NULL): how many.  Never needed: a step evicts what
 * it has no room for.  CATTN_EINVAL. */
CATTN_API int cattn_cache_evict(cattn_cache *cache, uint64_t n_slots, uint64_t *n_evicted);

/* ---- steps ------------------------------------------------------------------------------------------ */

struct cattn_item {
    cattn_seq seq;
    const int32_t *tokens; /* in: the tokens that follow what the sequence holds; read by step_begin only */
    uint32_t n_tokens;     /* in: >= 1 */
    uint32_t min_rows;     /* in: rows wanted at least, capped at n_tokens; 0: one.  n_tokens to get an output for each
                              token (verification of drafts, log-probabilities of a prompt) */
    uint32_t first_row;    /* out: rows first_row .. first_row+n_rows-1 of the step are this item's */
    uint32_t n_rows;       /* out: row j of the item is tokens[n_tokens - n_rows + j] ... */
    uint64_t position;     /* out: ... at position + j of its sequence */
    const struct cattn_ext *ext; /* in: extra identities, whose ranges count from tokens[0]; NULL: none.  Read by
                                    step_begin only */
};

/* The scratch of steps; a cache has one step open at a time. */
CATTN_API CATTN_CHECK int cattn_step_create(cattn_cache *cache, cattn_step **step);

/* An open step is aborted.  NULL is allowed. */
CATTN_API void cattn_step_destroy(cattn_step *step);

/* Opens a step: reserves slots, matches the new tokens against the cache and against earlier items of this
 * step, builds the list of work.  Rows are numbered in the order of the items.  The rows of an item are the
 * last ones of its tokens: those not found in the cache, at least one, at least min_rows.  Fills the out
 * fields of the items (only when it succeeds).  n_items = 0 is an empty step.
 * In this order: CATTN_ESTATE: a step of this cache is open.  CATTN_EDEVICE.  CATTN_EINVAL: a bad handle, a sequence
 * twice, n_tokens = 0, bad ext, a negative token (tokens of an item whose number alone exceeds the pool are not read).
 * CATTN_ETOOBIG, CATTN_EFULL, CATTN_ENOMEM.  (Paper section 3.1 and 3.3.) */
CATTN_API CATTN_CHECK int cattn_step_begin(cattn_step *step, struct cattn_item *items, size_t n_items);

/* What attention is computed; all zero: the plain one.  The score of a row at position p for a token at position t
 * of its sequence is, in this order,
 *
 *     x = scale * q.k                        x = softcap * tanh(x / softcap)       if softcap > 0
 *     x = x + alibi_slopes[head] * (t - p)   if alibi_slopes
 *
 * for t <= p, and with a window only for t > p - window or t < n_sink_tokens: tokens further back are not seen, and
 * chunks that no row of the batch sees are not read.  The weight of a token is exp(x) over the sum of exp(x) of all
 * tokens seen, plus exp(sinks[head]) once if sinks.  Positions are those of the sequence, so all of it is the same
 * whether a prefix is shared or not.  Sums are f32: scores hold from -1e30 to 1e30, and outputs over n tokens for
 * |v| < 2^120 / n; beyond that a sequence may get infinities and NaNs from finite numbers.  Numbers below 2^-126,
 * whether given or worked out, may count as zero. */
struct cattn_variant {
    size_t size;               /* sizeof(struct cattn_variant) */
    float scale;               /* finite and > 0; 0: 1/sqrt(head_dim) */
    float softcap;             /* finite and > 0; 0: none */
    uint32_t window;           /* tokens that a row sees, its own included; 0: all */
    uint32_t n_sink_tokens;    /* leading tokens of the sequence that every row sees whatever the window */
    const float *alibi_slopes; /* [n_heads], finite, for a bias that falls with the distance if > 0; NULL: none */
    const float *sinks;        /* [n_heads], learned logits, finite or -inf (none for that head); NULL: none */
};

/* The buffers of one layer.  Row r, head h of q starts at q + r*q_row + h*q_head elements; k, v and out
 * likewise with KV heads for k and v.  A stride of 0 is the packed one: [row][head][dim].  Data type: io_dtype
 * of the cache, with its natural alignment.  The buffers are the caller's and are not used after the call. */
struct cattn_io {
    size_t size;                         /* sizeof(struct cattn_io) */
    const struct cattn_variant *variant; /* NULL: the default */
    const void *q;                       /* [rows][n_heads][head_dim] */
    const void *k;                       /* [rows][n_kv_heads][head_dim]; k and v NULL: this layer's were stored */
    const void *v;                       /* [rows][n_kv_heads][v_head_dim]         by earlier calls of this step */
    void *out;                           /* [rows][n_heads][v_head_dim]; not q, k or v */
    float *lse;                          /* [rows][n_heads], packed: natural log of the sum of the exponentials of
                                            the scores, sinks included; NULL: not wanted */
    size_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head; /* strides in elements */
};

/* Stores K and V of the step's rows for one layer (io->k and io->v; the rest is not looked at).  K and V of
 * rows whose tokens are stored already are dropped.  A layer may be written again before the step ends.
 * CATTN_ESTATE: no step open.  CATTN_EINVAL. */
CATTN_API CATTN_CHECK int cattn_step_write(cattn_step *step, uint32_t layer, const struct cattn_io *io);

/* Attention of all rows of the step over one layer: row i of a sequence sees its tokens at positions up to its
 * own.  With k and v given they are stored first.  One parallel region of the cache's threads.
 * CATTN_ESTATE: no step open, or k and v are NULL and the layer is not written.  CATTN_EINVAL.
 * (Paper section 3.2, algorithms 1 and 2, fused: a chunk is folded into the states of all rows that share it.) */
CATTN_API CATTN_CHECK int cattn_step_attend(cattn_step *step, uint32_t layer, const struct cattn_io *io);

/* The same two calls, cut into nth shares (1 .. 1024) for the caller's own threads: each share 0 <= ith < nth is
 * called once with equal arguments, from any thread, in any order, even one after another.  A share opens no
 * parallel region and waits for no other.  The layer counts as written when all nth shares have returned;
 * calls for the next layer, or the end of the step, come after that (the caller's barrier).  A share that returned and
 * is called again before the others have returned does nothing; after that it begins a new pass.  A pass that is not
 * finished is given up by a whole-layer call and by the end of the step.
 * attend_part with k and v given: a share is whole KV heads, whose K and V it stores before it attends.  With k
 * and v NULL, after cattn_step_write or all shares of write_part and the caller's barrier, work is split freely.
 * CATTN_EINVAL also: ith or nth out of range, or nth or the kind of call differs among the shares of one pass. */
CATTN_API CATTN_CHECK int cattn_step_write_part(cattn_step *step, uint32_t layer, const struct cattn_io *io,
                                                uint32_t ith, uint32_t nth);
CATTN_API CATTN_CHECK int cattn_step_attend_part(cattn_step *step, uint32_t layer, const struct cattn_io *io,
                                                 uint32_t ith, uint32_t nth);

/* Attention of some rows over a part of their tokens. */
struct cattn_partial {
    size_t size;              /* sizeof(struct cattn_partial) */
    void *out;                /* [rows][n_heads][v_head_dim] */
    float *lse;               /* [rows][n_heads], packed: natural logarithms, as cattn_step_attend gives them */
    size_t out_row, out_head; /* strides in elements; 0: packed */
};

/* Attention of the same rows over two sets of tokens that have none in common becomes attention over both: for
 * engines that compute a part of it elsewhere (FlashAttention's log-sum-exp rule; paper section 3.2, equation 2).
 * `into` is read and overwritten, `other` is read; both have the data type given (CATTN_F32, CATTN_F16, CATTN_BF16) and
 * must not overlap; all of it is host memory.  lse = -inf stands for no tokens: that side is not looked at, and the
 * other comes through bit by
 * bit (where both have none `into` is left as it is).  Sinks, if any, belong on one side only.  Associative within
 * rounding.  CATTN_EINVAL.  Any thread. */
CATTN_API CATTN_CHECK int cattn_merge_states(struct cattn_partial *into, const struct cattn_partial *other,
                                             size_t n_rows, uint32_t n_heads, uint32_t v_head_dim, uint32_t dtype);

/* Steps as CUDA graphs.  The launches of one step may be captured and launched again in later ones, which spares the
 * calls of layers:
 *
 *     cattn_step_begin(step, items, n_items);
 *     cattn_step_plan(step, &plan);
 *     if (graph && plan == captured)
 *         launch the graph on the cache's stream, then cattn_step_replayed(step);
 *     else
 *         begin a capture of the cache's stream; for each layer: cattn_step_attend(step, layer, &io);
 *         end it, make and launch the graph; captured = plan;
 *     cattn_step_end(step);
 *
 * Only calls of layers may be captured, and not on the default stream; others are made while nothing captures the
 * stream. cattn_step_plan numbers what the calls of layers of the open step launch.  Two steps of a cache with equal
 * numbers make the same launches with the same arguments, if they are given equal buffers and variants (host memory of
 * variants with equal contents); which tokens, slots and positions these work on lies in device memory, which
 * cattn_step_begin brings up to date.  Decoding on keeps the number until about a sequence joins or leaves, or has
 * grown by some hundreds of tokens; the number is never 0.  CATTN_ESTATE: no step open.  CATTN_ENOTSUP: the backend has
 * nothing to capture. CATTN_EINVAL. CATTN_EDEVICE. */
CATTN_API CATTN_CHECK int cattn_step_plan(const cattn_step *step, uint64_t *number);

/* The caller has put such a graph on the stream in place of the calls of layers: all layers of the open step count as
 * written and attended.  The graph is one captured with the same object in a step with the same number, all layers of
 * it; the library cannot see that.  Called where the calls of layers are: by one thread, without the lock.
 * CATTN_ESTATE: no step open, or the last step of this object that ended with calls of layers had another number, so
 * that there can be no such graph.  CATTN_ENOTSUP, CATTN_EINVAL and CATTN_EDEVICE as above. */
CATTN_API CATTN_CHECK int cattn_step_replayed(cattn_step *step);

/* Closes the step: its tokens become part of their sequences, full chunks become visible to others.
 * CATTN_ESTATE: no step open, or a layer was not written (the step stays open).  CATTN_EDEVICE: likewise. */
CATTN_API CATTN_CHECK int cattn_step_end(cattn_step *step);

/* Takes the step back: each sequence has what it had before.  CATTN_ESTATE: no step open. */
CATTN_API int cattn_step_abort(cattn_step *step);

/* ---- a scheduler ------------------------------------------------------------------------------------ */

/* Optional: continuous batching on top of one cache (paper section 3.3, and the iteration-level batching of Orca).  It
 * queues requests and says at each step which of them run and with how many tokens: requests join and leave between
 * steps, long prompts are cut into pieces, a prefix that a running request is about to store is waited for instead of
 * being computed twice, and when the pool is full the youngest request is put back, to be computed again later.
 *
 *     cattn_sched_submit(sched, &request, &id)          at any time between other calls
 *     cattn_sched_next(sched, step, &batch)             chooses, and opens the step
 *     for each layer: project, cattn_step_attend(step, layer, &io)
 *     cattn_step_end(step)
 *     cattn_sched_commit(sched, tokens, stops)          the tokens that were sampled
 *
 * It computes with whole numbers alone, has no thread and no clock, and decides alike whenever the same calls are made.
 * It is used by the thread that runs the steps.  Other sequences and pins of the same cache are allowed; the slots that
 * they take are not there for requests. */
typedef struct cattn_sched cattn_sched;

/* Names a request of one scheduler.  Never 0, and not used again when the request has ended.  Numbers that the
 * scheduler has not given are found as those of sequences are. */
typedef uint64_t cattn_request;

enum cattn_policy {
    CATTN_FCFS = 0,  /* first come, first served: by arrival, nobody passes a request that does not fit yet, unless only
                        the limit of its own namespace keeps it */
    CATTN_PREFIX = 1 /* first those that share most chunks with requests that run, so that the rows of a step read them
                        together; then those that find most of their prompt cached, before it is evicted.  Looks at the
                        256 that have waited longest; one that does not fit yet is passed */
};

struct cattn_sched_config {
    size_t size;        /* sizeof(struct cattn_sched_config) */
    uint32_t policy;    /* enum cattn_policy */
    uint32_t max_batch; /* requests that run at once; 0: 256 */
    uint32_t max_rows;  /* tokens of a step, at least max_batch: bounds its time.  Requests that generate get theirs
                           first, prompts share what is left; 0: max_batch + 512 */
    uint32_t ageing;    /* A request lets at most (ageing - 1) * max(w, 1) pass that came after it, where w had been
                           waiting when it came; then nobody passes it any more, whatever the policy and the priorities.
                           So in admissions it waits at most ageing times as long as under CATTN_FCFS.  0: 4 */
    uint32_t output_percent; /* how much of the tokens that it may generate a request is expected to, 1 .. 100; 0: 100.
                                A request is admitted when the slots that it and the running ones are expected to need
                                are there.  100: none is ever put back for want of slots (unless others use the cache);
                                less: more run at once, and some are */
};

/* config NULL: all zero.  CATTN_EINVAL, CATTN_ENOMEM.  The scheduler is destroyed before its cache. */
CATTN_API CATTN_CHECK int cattn_sched_create(cattn_cache *cache, const struct cattn_sched_config *config,
                                             cattn_sched **sched);

/* Closes the sequences of the requests that run.  NULL is allowed. */
CATTN_API void cattn_sched_destroy(cattn_sched *sched);

struct cattn_request_config {
    size_t size; /* sizeof(struct cattn_request_config) */
    const void *ns;
    size_t ns_len;
    const int32_t *tokens; /* the prompt, copied */
    size_t n_tokens;       /* >= 1 */
    uint64_t max_new;      /* tokens to generate at most, >= 1 */
    int32_t priority;      /* as long as one of higher priority waits none of lower is admitted (but see ageing) */
    uint64_t arrival;      /* in any unit; among equals, and without arrivals, the order of the submits */
    uint64_t tag;          /* the caller's, comes back with its turns */
    const struct cattn_ext *ext; /* extra identities in the prompt, copied; NULL: none.  Items have their part of it */
};

/* Queues a request.  CATTN_ETOOBIG: prompt and max_new may not fit in the pool, even alone, or within the limit that
 * its namespace has now: a request counts as one slot more than its tokens fill, since a step may have to copy one (so
 * in a pool, or a limit, of one slot there is room for none).  CATTN_EINVAL.  CATTN_ENOMEM, also: 2^24 requests have
 * not ended. */
CATTN_API CATTN_CHECK int cattn_sched_submit(cattn_sched *sched, const struct cattn_request_config *config,
                                             cattn_request *request);

/* Ends a request, whether it waits, runs or is in the step that is open (whose rows of it are still computed, and
 * stored; its turn is void).  CATTN_EINVAL: it has ended. */
CATTN_API int cattn_sched_cancel(cattn_sched *sched, cattn_request request);

struct cattn_turn {
    cattn_request request;
    uint64_t tag;
    uint32_t needs_token; /* 1: the last row of its item decides the next token */
    uint32_t is_last;     /* 1: that token is the last that it may generate; it ends with the commit */
};

struct cattn_batch {
    size_t n_items;
    const struct cattn_item *items; /* as cattn_step_begin has filled them */
    const struct cattn_turn *turns; /* of the same requests */
    uint32_t n_rows;                /* of the step */
};

/* Chooses what runs next and opens the step with it; n_items = 0: nothing to do, and no step was opened.  What the
 * batch points at stays until the commit.
 * CATTN_ESTATE: a batch is not committed yet, or a step is open.  CATTN_EFULL: not even the oldest request gets the
 * slots that it needs, since others than the scheduler hold them, or reserves, or a limit that was lowered.
 * CATTN_ENOMEM.  CATTN_EINVAL: also a step of another cache.  When it fails no step is open; requests may have been
 * admitted or put back, but none has lost a token. */
CATTN_API CATTN_CHECK int cattn_sched_next(cattn_sched *sched, cattn_step *step, struct cattn_batch *batch);

/* After cattn_step_end: tokens[i] is what was sampled for item i, for those that need one; stops[i] (stops may be NULL)
 * other than 0 ends the request.  After cattn_step_abort: cattn_sched_revert, and all is as if they had not run.
 * CATTN_ESTATE: no batch, or its step is still open.  CATTN_EINVAL.  Committing cannot fail for memory. */
CATTN_API CATTN_CHECK int cattn_sched_commit(cattn_sched *sched, const int32_t *tokens, const unsigned char *stops);
CATTN_API CATTN_CHECK int cattn_sched_revert(cattn_sched *sched);

struct cattn_request_info {
    size_t size;          /* in: sizeof(struct cattn_request_info) */
    uint32_t running;     /* 1: admitted; 0: it waits */
    uint32_t n_preempted; /* times that it was put back */
    uint32_t n_passed;    /* requests that came later and were admitted before it */
    uint64_t n_tokens;    /* prompt and generated */
    uint64_t n_generated;
    uint64_t n_cached; /* tokens of the prompt that were found when it was admitted */
};

/* Of a request that has not ended.  CATTN_EINVAL. */
CATTN_API CATTN_CHECK int cattn_sched_request_info(const cattn_sched *sched, cattn_request request,
                                                   struct cattn_request_info *info);

struct cattn_sched_counts {
    size_t size; /* in: sizeof(struct cattn_sched_counts) */
    uint64_t n_waiting, n_running;
    uint64_t n_submitted, n_finished, n_cancelled;
    uint64_t n_admitted;  /* each time counts */
    uint64_t n_preempted; /* put back for want of slots */
    uint64_t n_deferred;  /* times that one was passed over because another was about to store a prefix of it */
    uint64_t peak_running;
    uint64_t most_passed; /* the largest n_passed of any request */
};

CATTN_API CATTN_CHECK int cattn_sched_stats(const cattn_sched *sched, struct cattn_sched_counts *stats);

#ifdef __cplusplus
}
#endif

#endif
