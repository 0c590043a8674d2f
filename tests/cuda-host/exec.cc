#include "exec.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_THREAD__)
#  define WITH_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#  define WITH_ASAN 1
#elif defined(__has_feature)
#  if __has_feature(thread_sanitizer)
#    define WITH_TSAN 1
#  elif __has_feature(address_sanitizer)
#    define WITH_ASAN 1
#  endif
#endif

#ifdef WITH_TSAN
#  define UNSEEN __attribute__((no_sanitize("thread"), noinline))
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
}
#elif defined(WITH_ASAN)
#  define UNSEEN __attribute__((no_sanitize("address"), noinline))
#  include <sanitizer/asan_interface.h>
#  include <sanitizer/common_interface_defs.h>
#else
#  define UNSEEN
#endif

struct exec_now exec_now;

namespace
{

enum { MAX_THREADS = 1024, SPARE = 7, WARP = 32 };
enum { STACK_BYTES = 256 * 1024, GUARD_BYTES = 4096, MAX_COPIES = 1024 };

/* ---- stacks ----------------------------------------------------------------------------------------------------- */

/* A place where execution can go on: a stack, and what the sanitizers know of it. */
struct context {
    void *top; /* of the stack, where the registers lie */
    char *stack;
    size_t stack_bytes;
    void *fake_stack; /* of AddressSanitizer */
    void *fiber;      /* of ThreadSanitizer */
};

#if defined(__x86_64__)
/* Keeps the registers that a function must, and takes up those of another stack. */
extern "C" void exec_switch_stack(void **save, void *load);
asm(".text\n"
    ".type exec_switch_stack, @function\n"
    "exec_switch_stack:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size exec_switch_stack, .-exec_switch_stack\n");

UNSEEN void make_stack(struct context *c, void (*entry)(void))
{
    void **top = (void **)(c->stack + c->stack_bytes);
    *--top = nullptr; /* entry() is entered as if called: 8 bytes off a multiple of 16 */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    c->top = top;
}

UNSEEN void switch_stack(struct context *from, struct context *to)
{
    exec_switch_stack(&from->top, to->top);
}
#else
#  include <ucontext.h>
UNSEEN ucontext_t *ucontext_of(struct context *c)
{
    if (!c->top)
        c->top = calloc(1, sizeof(ucontext_t));
    return (ucontext_t *)c->top;
}

UNSEEN void make_stack(struct context *c, void (*entry)(void))
{
    ucontext_t *u = ucontext_of(c);
    getcontext(u);
    u->uc_stack.ss_sp = c->stack;
    u->uc_stack.ss_size = c->stack_bytes;
    makecontext(u, entry, 0);
}

UNSEEN void switch_stack(struct context *from, struct context *to)
{
    swapcontext(ucontext_of(from), ucontext_of(to));
}
#endif

struct context outside, *left; /* what is not a kernel; the context that was left last */

/* AddressSanitizer is told of the arrival on a stack, and tells where the one lies that it was not told of. */
UNSEEN void arrive(void *fake_stack)
{
#ifdef WITH_ASAN
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    if (left == &outside) {
        outside.stack = (char *)(uintptr_t)stack;
        outside.stack_bytes = bytes;
    }
#else
    (void)fake_stack;
#endif
}

UNSEEN void switch_context(struct context *from, struct context *to)
{
    left = from;
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(to->fiber, 1);
#elif defined(WITH_ASAN)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    switch_stack(from, to);
    arrive(from->fake_stack);
}

/* ---- the block that runs ---------------------------------------------------------------------------------------- */

enum state { READY, AT_BARRIER, IN_WARP, DONE };

struct copy {
    char *to;
    const char *from;
    uint32_t bytes, group;
};

struct thread {
    enum state state;
    struct copy *copies; /* a ring of those that are under way */
    uint32_t first_copy, n_copies, group, epoch, warp_epoch;
};

struct warp {
    const char *name; /* of the collective that is under way */
    uint32_t n_arrived, n_done, turn;
    void *lanes[2][WARP];
};

/* Addresses that stand for orderings, of one block. */
struct tags {
    char barrier[2], warp[MAX_THREADS / WARP][2];
};

struct context contexts[MAX_THREADS + SPARE];
struct thread threads[MAX_THREADS];
struct warp warps[MAX_THREADS / WARP];
struct tags *tags;
char launch_start, launch_end; /* more of those */
const struct exec_launch *launch;
uint32_t n_contexts, rotation, n_arrived, n_done, n_races;
uint32_t queue[MAX_THREADS], queue_begin, n_queued;
char message[600];

/* The thread of each context changes from block to block: what the same thread of two blocks does must not look as if
 * it were in order. */
UNSEEN struct context *context_of(uint32_t thread)
{
    return &contexts[(thread + rotation) % n_contexts];
}

UNSEEN void push(uint32_t thread)
{
    threads[thread].state = READY;
    queue[(queue_begin + n_queued++) % MAX_THREADS] = thread;
}

/* Goes on with the thread that is next, or outside when there is none. */
UNSEEN void run_next(struct context *from)
{
    if (n_races && !message[0])
        snprintf(message, sizeof message, "a race was reported");
    struct context *to = &outside;
    if (n_queued && !message[0]) {
        const uint32_t next = queue[queue_begin];
        queue_begin = (queue_begin + 1) % MAX_THREADS;
        n_queued--;
        exec_now.thread = next;
        to = context_of(next);
    }
    if (to != from)
        switch_context(from, to);
}

UNSEEN void wait_as(enum state state)
{
    threads[exec_now.thread].state = state;
    run_next(context_of(exec_now.thread));
}

/* A range of threads but one.  On odd blocks from the last to the first: what is right only in one order must not go
 * unnoticed. */
UNSEEN void push_all(uint32_t begin, uint32_t end, uint32_t except)
{
    const int backwards = (exec_now.block_x + exec_now.block_y) % 2;
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t thread = backwards ? begin + end - 1 - i : i;
        if (thread != except)
            push(thread);
    }
}

#ifdef WITH_TSAN
UNSEEN void acquire(void *tag)
{
    __tsan_acquire(tag);
}
UNSEEN void release(void *tag)
{
    __tsan_release(tag);
}
#else
void acquire(void *) {}
void release(void *) {}
#endif

UNSEEN void end_thread()
{
    struct thread *t = &threads[exec_now.thread];
    struct warp *w = &warps[exec_now.thread / WARP];
    if (t->n_copies)
        exec_fail("ends before it has waited for a copy");
    if (n_arrived)
        exec_fail("ends while others are at the barrier");
    if (w->n_arrived)
        exec_fail("ends while others of its warp are at %s", w->name);
    w->n_done++;
    n_done++;
    release(&launch_end);
}

/* Where a stack begins; it serves one thread after another. */
UNSEEN void run_threads()
{
    arrive(nullptr);
    for (;;) {
        acquire(&launch_start);
        launch->call(launch->kernel, launch->params);
        end_thread();
        wait_as(DONE);
    }
}

/* ---- a launch --------------------------------------------------------------------------------------------------- */

UNSEEN void make_contexts(uint32_t n)
{
    for (; n_contexts < n; n_contexts++) {
        struct context *c = &contexts[n_contexts];
        /* Not all tops at the same place in a page: they would share few places in the caches. */
        c->stack_bytes = STACK_BYTES - n_contexts % 64 * 1088;
        if (!c->stack) {
            c->stack = (char *)mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (c->stack == MAP_FAILED || mprotect(c->stack, GUARD_BYTES, PROT_NONE))
                abort();
            c->stack += GUARD_BYTES;
        }
        make_stack(c, run_threads);
#ifdef WITH_TSAN
        c->fiber = __tsan_create_fiber(0);
#endif
    }
}

/* After a failure threads are left where they were.  What they have done is over, all the same. */
UNSEEN void discard_contexts()
{
    for (; n_contexts > 0; n_contexts--) {
        struct context *c = &contexts[n_contexts - 1];
#ifdef WITH_TSAN
        __tsan_switch_to_fiber(c->fiber, 1);
        __tsan_release(&launch_end);
        __tsan_switch_to_fiber(outside.fiber, 1);
        __tsan_destroy_fiber(c->fiber);
#elif defined(WITH_ASAN)
        __asan_unpoison_memory_region(c->stack, c->stack_bytes);
#endif
        (void)c;
    }
}

/* Memory that no thread has touched as yet, whatever the sanitizer knows of its former use. */
UNSEEN void *fresh(size_t bytes)
{
    void *memory;
#ifdef WITH_TSAN
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
    if (posix_memalign(&memory, 16, bytes ? bytes : 1))
        abort();
    memset(memory, 0xff, bytes);
#ifdef WITH_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
    return memory;
}

UNSEEN void give_back(void *memory)
{
#ifdef WITH_TSAN
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
    free(memory);
#ifdef WITH_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
}

UNSEEN void find_deadlock()
{
    for (uint32_t t = 0; t < launch->n_threads && !message[0]; t++)
        if (threads[t].state != DONE)
            snprintf(message, sizeof message, "thread %u waits for ever at %s", t,
                     threads[t].state == AT_BARRIER ? "the barrier" : warps[t / WARP].name);
}

UNSEEN void run_block()
{
    exec_now.shared_bytes = launch->shared_bytes;
    exec_now.shared = (char *)fresh(launch->shared_bytes);
    tags = (struct tags *)fresh(sizeof *tags);
    memset(warps, 0, sizeof warps);
    n_arrived = n_done = queue_begin = n_queued = 0;
    for (uint32_t t = 0; t < launch->n_threads; t++) {
        struct copy *copies = threads[t].copies;
        threads[t] = thread();
        threads[t].copies = copies;
    }
    push_all(0, launch->n_threads, MAX_THREADS);
    run_next(&outside);
    if (n_done < launch->n_threads)
        find_deadlock();
    give_back(tags);
    give_back(exec_now.shared);
}

/* Puts where it happened in front of what happened. */
UNSEEN const char *describe()
{
    static char text[1000];
    Dl_info info;
    const char *name = dladdr((void *)launch->kernel, &info) && info.dli_sname ? info.dli_sname : "a kernel";
    snprintf(text, sizeof text, "%s, block (%u, %u): %s", name, exec_now.block_x, exec_now.block_y, message);
    return text;
}

} // namespace

UNSEEN const char *exec_run(const struct exec_launch *which)
{
    launch = which;
    message[0] = '\0';
    n_races = 0;
    make_contexts(launch->n_threads + SPARE);
#ifdef WITH_TSAN
    outside.fiber = __tsan_get_current_fiber();
#endif
    release(&launch_start);
    exec_now.grid_x = launch->grid_x;
    for (uint32_t y = 0; y < launch->grid_y && !message[0]; y++)
        for (uint32_t x = 0; x < launch->grid_x && !message[0]; x++) {
            exec_now.block_x = x;
            exec_now.block_y = y;
            rotation = (rotation + 1) % n_contexts;
            run_block();
        }
    if (n_races && !message[0])
        snprintf(message, sizeof message, "a race was reported");
    if (message[0])
        discard_contexts();
    acquire(&launch_end);
    return message[0] ? describe() : nullptr;
}

UNSEEN void exec_fail(const char *format, ...)
{
    va_list arguments;
    char what[400];
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(message, sizeof message, "thread %u %s", exec_now.thread, what);
    switch_context(context_of(exec_now.thread), &outside);
    abort();
}

UNSEEN void exec_barrier(void)
{
    struct thread *t = &threads[exec_now.thread];
    char *tag = &tags->barrier[t->epoch++ % 2];
    if (n_done)
        exec_fail("is at a barrier that %u threads will never reach", n_done);
    release(tag);
    if (++n_arrived == launch->n_threads) {
        n_arrived = 0;
        push_all(0, launch->n_threads, exec_now.thread);
    } else {
        wait_as(AT_BARRIER);
    }
    acquire(tag);
}

UNSEEN void *const *exec_warp(const char *name, void *mine, void (*combine)(void *const *lanes))
{
    const uint32_t number = exec_now.thread / WARP, first = number * WARP;
    struct warp *w = &warps[number];
    if (first + WARP > launch->n_threads || w->n_done)
        exec_fail("is at %s in a warp of fewer than 32 threads", name);
    if (w->n_arrived && w->name != name && strcmp(w->name, name))
        exec_fail("is at %s while others of its warp are at %s", name, w->name);
    w->name = name;
    void **lanes = w->lanes[w->turn];
    lanes[exec_now.thread % WARP] = mine;
    if (++w->n_arrived < WARP) {
        wait_as(IN_WARP);
        return lanes;
    }
    w->n_arrived = 0;
    w->turn ^= 1;
    if (combine)
        combine(lanes);
    push_all(first, first + WARP, exec_now.thread);
    return lanes;
}

UNSEEN void exec_warp_barrier(void)
{
    char *tag = &tags->warp[exec_now.thread / WARP][threads[exec_now.thread].warp_epoch++ % 2];
    release(tag);
    exec_warp("a warp barrier", nullptr, nullptr);
    acquire(tag);
}

/* ---- cp.async --------------------------------------------------------------------------------------------------- */

/* The accesses of a copy, as the sanitizers see them: whole words, or bytes up to the last that is copied. */
static void fill(char *to, unsigned char byte, uint32_t n)
{
    if (n == 16)
        ((volatile uint64_t *)to)[0] = ((volatile uint64_t *)to)[1] = byte * 0x0101010101010101u;
    else
        for (uint32_t i = 0; i < n; i++)
            ((volatile char *)to)[i] = (char)byte;
}

static void read(const char *from, uint32_t n, char *bytes)
{
    if (n == 16)
        for (uint32_t i = 0; i < 2; i++)
            ((uint64_t *)bytes)[i] = ((const volatile uint64_t *)from)[i];
    else
        for (uint32_t i = 0; i < n; i++)
            bytes[i] = ((const volatile char *)from)[i];
}

static void perform(const struct copy *c)
{
    alignas(16) char bytes[16] = {0};
    read(c->from, c->bytes, bytes);
    for (uint32_t i = 0; i < 2; i++)
        ((volatile uint64_t *)c->to)[i] = ((uint64_t *)bytes)[i];
}

UNSEEN static struct copy *add_copy(void *shared, const void *source, uint32_t bytes)
{
    struct thread *t = &threads[exec_now.thread];
    const size_t offset = (size_t)((char *)shared - exec_now.shared);
    if (bytes > 16 || (uintptr_t)shared % 16 || (uintptr_t)source % 16)
        exec_fail("copies %u bytes from %p to %p: more than 16, or not aligned", bytes, source, shared);
    if (offset > exec_now.shared_bytes || exec_now.shared_bytes - offset < 16)
        exec_fail("copies to offset %td of %zu bytes of shared memory", (ptrdiff_t)offset, exec_now.shared_bytes);
    if (!t->copies)
        t->copies = (struct copy *)malloc(MAX_COPIES * sizeof *t->copies);
    if (!t->copies || t->n_copies == MAX_COPIES)
        exec_fail("has more than %d copies under way", MAX_COPIES);
    struct copy *c = &t->copies[(t->first_copy + t->n_copies++) % MAX_COPIES];
    c->to = (char *)shared;
    c->from = (const char *)source;
    c->bytes = bytes;
    c->group = t->group;
    return c;
}

void exec_copy16(void *shared, const void *source, uint32_t bytes)
{
    alignas(16) char unused[16];
    add_copy(shared, source, bytes);
    read((const char *)source, bytes, unused);
    fill((char *)shared, 0xff, 16);
}

UNSEEN void exec_copy_commit(void)
{
    threads[exec_now.thread].group++;
}

/* Takes the oldest copy out of the ring, if its group is to be waited for. */
UNSEEN static int take_copy(uint32_t n_groups, struct copy *copy)
{
    struct thread *t = &threads[exec_now.thread];
    if (t->n_copies == 0 || t->copies[t->first_copy].group + n_groups >= t->group)
        return 0;
    *copy = t->copies[t->first_copy];
    t->first_copy = (t->first_copy + 1) % MAX_COPIES;
    t->n_copies--;
    return 1;
}

void exec_copy_wait(uint32_t n_groups)
{
    struct copy copy;
    while (take_copy(n_groups, &copy))
        perform(&copy);
}

/* ---- ThreadSanitizer -------------------------------------------------------------------------------------------- */

#ifdef WITH_TSAN
extern "C" UNSEEN void __tsan_on_report(void *)
{
    n_races++;
}

/* A race fails the launch, not the process; each is told, the same one again too. */
extern "C" UNSEEN const char *__tsan_default_options(void)
{
    return "exitcode=0:suppress_equal_stacks=0:suppress_equal_addresses=0:report_signal_unsafe=0:detect_deadlocks=0";
}
#endif
