#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_DEVICES = 4, ALIGNMENT = 256, MAX_PARAMS = 4096, DEFAULT_SHARED = 48 * 1024 };

/* Of AddressSanitizer, in a program that has it. */
extern void __asan_init(void) __attribute__((weak));

/* ---- what there is ---------------------------------------------------------------------------------------------- */

/* A copy or a filling of lines, a kernel, or a wait for work of another stream. */
enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_WAIT, OP_MARK };

struct op {
    struct op *next;
    uint64_t number; /* in the order of the calls */
    enum op_kind kind;
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
    int value;
    struct exec_launch launch;
    size_t param_bytes;
    struct CUstream_st *other;
    uint64_t until; /* the work of `other` up to this number */
    void *owned;    /* the kernel's parameters */
};

struct ops {
    struct op *first, **end;
    size_t n;
};

struct CUgraph_st {
    struct ops ops;
};

struct CUgraphExec_st {
    struct ops ops;
};

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    unsigned flags;
    struct ops ops;
    struct CUgraph_st *capture;
    enum cudaStreamCaptureStatus status;
};

struct CUevent_st {
    struct CUstream_st *stream; /* that it was recorded on last, or NULL */
    uint64_t number;
};

struct allocation {
    struct allocation *next;
    char *data, *base; /* of the mapping */
    size_t bytes, mapped;
    int device; /* -1: pinned */
};

struct device {
    size_t used;
    cudaError_t error; /* that it never recovers from */
    struct CUstream_st null_stream;
};

struct limit {
    const void *kernel;
    size_t shared_bytes[MAX_DEVICES];
    int loaded[MAX_DEVICES];
};

struct counter {
    const char *function;
    uint64_t n;
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static __thread int current;
static __thread cudaError_t last_error;

static struct {
    int n_devices, major, minor, n_multiprocessors;
    cudaError_t no_devices;
    size_t memory;
    struct device devices[MAX_DEVICES];
    struct CUstream_st *streams;
    struct allocation *allocations;
    struct limit limits[256];
    struct counter counters[64];
    uint64_t n_ops, n_launches, n_calls;
    size_t n_pending, n_objects;
    const char *fail_function;
    unsigned fail_in;
    cudaError_t fail_with;
    int forbidden, open;
    unsigned n_violations;
    const char *violation;
    char message[1000];
} fake;

static void init_ops(struct ops *ops)
{
    ops->first = NULL;
    ops->end = &ops->first;
    ops->n = 0;
}

static void set_up(void)
{
    memset(&fake, 0, sizeof fake);
    fake.n_devices = 2;
    fake.major = 9;
    fake.n_multiprocessors = 132;
    fake.memory = (size_t)1 << 30;
    for (int i = 0; i < MAX_DEVICES; i++) {
        fake.devices[i].null_stream.device = i;
        init_ops(&fake.devices[i].null_stream.ops);
    }
}

__attribute__((constructor)) static void start(void)
{
    set_up();
}

static int sticks(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure: return 1;
    default: return 0;
    }
}

/* ---- each call -------------------------------------------------------------------------------------------------- */

static struct counter *counter_of(const char *function)
{
    struct counter *c = fake.counters;
    while (c->function && strcmp(c->function, function))
        c++;
    c->function = function;
    return c;
}

static cudaError_t leave(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    pthread_mutex_unlock(&lock);
    return error;
}

static cudaError_t injected(const char *function)
{
    if (fake.fail_in == 0 || (fake.fail_function && strcmp(fake.fail_function, function)) || --fake.fail_in)
        return cudaSuccess;
    if (sticks(fake.fail_with))
        fake.devices[current].error = fake.fail_with;
    return fake.fail_with;
}

static cudaError_t enter(const char *function)
{
    pthread_mutex_lock(&lock);
    counter_of(function)->n++;
    fake.n_calls++;
    cudaError_t error = injected(function);
    if (!error)
        error = fake.no_devices ? fake.no_devices : fake.n_devices == 0 ? cudaErrorNoDevice : cudaSuccess;
    return error ? error : fake.devices[current].error;
}

#define ENTER()                                                                                                        \
  do {                                                                                                                 \
    cudaError_t error_ = enter(__func__);                                                                              \
    if (error_)                                                                                                        \
      return leave(error_);                                                                                            \
  } while (0)
#define ENSURE(condition, error)                                                                                       \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      return leave(error);                                                                                             \
  } while (0)

/* This call waits or allocates. */
static void not_in_attend(const char *function)
{
    if (fake.forbidden) {
        fake.n_violations++;
        fake.violation = function;
    }
}

/* ---- memory
 * ---------------------------------------------------------------------------------------------------------- */

static struct allocation *allocation_of(const void *memory)
{
    const char *p = memory;
    struct allocation *a = fake.allocations;
    while (a && (p < a->data || p >= a->data + (a->bytes ? a->bytes : 1)))
        a = a->next;
    return a;
}

static void protect(const struct allocation *a, int access)
{
    if (a->mapped && a->device >= 0)
        mprotect(a->base, a->mapped, access);
}

/* Device memory can be touched between these. */
static void open_memory(void)
{
    if (fake.open++ == 0)
        for (struct allocation *a = fake.allocations; a; a = a->next)
            protect(a, PROT_READ | PROT_WRITE);
}

static void close_memory(void)
{
    if (--fake.open == 0)
        for (struct allocation *a = fake.allocations; a; a = a->next)
            protect(a, PROT_NONE);
}

/* Ends at a page that cannot be touched, but for the alignment. */
static int map(struct allocation *a)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (a->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    a->mapped = (whole + page - 1) / page * page;
    char *base = mmap(NULL, a->mapped + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return 0;
    a->base = base + page;
    a->data = a->base + a->mapped - whole;
    return mprotect(a->base, a->mapped, PROT_READ | PROT_WRITE) == 0;
}

static cudaError_t allocate(void **memory, size_t bytes, int device)
{
    struct allocation *a = calloc(1, sizeof *a);
    *memory = NULL;
    if (!a)
        return cudaErrorMemoryAllocation;
    a->bytes = bytes;
    a->device = device;
    void *data;
    if (__asan_init ? posix_memalign(&data, ALIGNMENT, bytes ? bytes : 1) : !map(a)) {
        free(a);
        return cudaErrorMemoryAllocation;
    }
    if (__asan_init)
        a->data = data;
    memset(a->data, 0xff, bytes);
    if (!fake.open)
        protect(a, PROT_NONE);
    a->next = fake.allocations;
    fake.allocations = a;
    fake.n_objects++;
    *memory = a->data;
    return cudaSuccess;
}

static cudaError_t release(void *memory, int pinned)
{
    struct allocation **at = &fake.allocations, *a;
    while (*at && (*at)->data != memory)
        at = &(*at)->next;
    a = *at;
    if (!a || (a->device < 0) != pinned)
        return cudaErrorInvalidValue;
    *at = a->next;
    fake.n_objects--;
    if (a->device >= 0)
        fake.devices[a->device].used -= a->bytes;
    if (a->mapped)
        munmap(a->base - sysconf(_SC_PAGESIZE), a->mapped + 2 * (size_t)sysconf(_SC_PAGESIZE));
    else
        free(a->data);
    free(a);
    return cudaSuccess;
}

/* ---- work
 * ------------------------------------------------------------------------------------------------------------ */

static void append(struct ops *ops, struct op *op)
{
    op->next = NULL;
    *ops->end = op;
    ops->end = &op->next;
    ops->n++;
}

static struct op *take(struct ops *ops)
{
    struct op *op = ops->first;
    ops->first = op->next;
    if (!ops->first)
        ops->end = &ops->first;
    ops->n--;
    return op;
}

static void free_op(struct op *op)
{
    free(op->owned);
    free(op);
}

static struct op *copy_of(const struct op *op)
{
    struct op *copy = malloc(sizeof *copy);
    if (!copy)
        abort();
    *copy = *op;
    if (op->owned) {
        copy->owned = malloc(op->param_bytes);
        if (!copy->owned)
            abort();
        copy->launch.params = memcpy(copy->owned, op->owned, op->param_bytes);
    }
    return copy;
}

static void run_until(struct CUstream_st *stream, uint64_t number);

static void run_launch(const struct op *op, int device)
{
    const char *wrong = exec_run(&op->launch);
    fake.n_launches++;
    if (!wrong)
        return;
    fake.devices[device].error = cudaErrorLaunchFailure;
    snprintf(fake.message, sizeof fake.message, "%s", wrong);
    fprintf(stderr, "%s\n", wrong);
}

/* After an error nothing is done any more. */
static void run(const struct op *op, int device)
{
    if (op->kind == OP_WAIT)
        run_until(op->other, op->until);
    if (fake.devices[device].error)
        return;
    for (size_t i = 0; i < op->height && op->kind == OP_COPY; i++)
        memmove(op->to + i * op->to_pitch, op->from + i * op->from_pitch, op->width);
    for (size_t i = 0; i < op->height && op->kind == OP_FILL; i++)
        memset(op->to + i * op->to_pitch, op->value, op->width);
    if (op->kind == OP_LAUNCH)
        run_launch(op, device);
}

static int blocks(const struct CUstream_st *stream)
{
    return !(stream->flags & cudaStreamNonBlocking);
}

static struct CUstream_st *null_stream(int device)
{
    return &fake.devices[device].null_stream;
}

/* The stream NULL waits for the others, and they for it, but for those that do not "block". */
static void run_first(struct CUstream_st *stream)
{
    const uint64_t number = stream->ops.first->number;
    struct CUstream_st *null = null_stream(stream->device);
    if (stream != null && blocks(stream))
        run_until(null, number - 1);
    for (struct CUstream_st *s = fake.streams; s && stream == null; s = s->next)
        if (s->device == stream->device && blocks(s))
            run_until(s, number - 1);
    struct op *op = take(&stream->ops);
    fake.n_pending--;
    open_memory();
    run(op, stream->device);
    close_memory();
    free_op(op);
}

static void run_until(struct CUstream_st *stream, uint64_t number)
{
    if (!stream->ops.first || stream->ops.first->number > number)
        return;
    open_memory();
    while (stream->ops.first && stream->ops.first->number <= number)
        run_first(stream);
    close_memory();
}

static void run_device(int device)
{
    run_until(null_stream(device), UINT64_MAX);
    for (struct CUstream_st *s = fake.streams; s; s = s->next)
        if (s->device == device)
            run_until(s, UINT64_MAX);
}

static struct CUstream_st *stream_of(cudaStream_t stream)
{
    struct CUstream_st *s = fake.streams;
    if (!stream)
        return null_stream(current);
    while (s && s != stream)
        s = s->next;
    return s;
}

/* Some stream is being captured: what would wait for everything is refused. */
static int captures(void)
{
    int n = 0;
    for (struct CUstream_st *s = fake.streams; s; s = s->next)
        if (s->status == cudaStreamCaptureStatusActive) {
            s->status = cudaStreamCaptureStatusInvalidated;
            n++;
        }
    return n;
}

/* Puts work on a stream or into the graph that is made of it. */
static cudaError_t put(struct CUstream_st *stream, const struct op *what)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (stream->status == cudaStreamCaptureStatusInvalidated)
        return cudaErrorStreamCaptureInvalidated;
    struct op *op = copy_of(what);
    op->number = ++fake.n_ops;
    if (stream->capture) {
        append(&stream->capture->ops, op);
        return cudaSuccess;
    }
    append(&stream->ops, op);
    fake.n_pending++;
    return cudaSuccess;
}

/* ---- settings
 * -------------------------------------------------------------------------------------------------------- */

static void drop_ops(struct ops *ops)
{
    while (ops->first)
        free_op(take(ops));
}

size_t fake_cuda_reset(void)
{
    pthread_mutex_lock(&lock);
    const size_t n = fake.n_objects;
    while (fake.allocations)
        release(fake.allocations->data, fake.allocations->device < 0);
    for (int i = 0; i < MAX_DEVICES; i++)
        drop_ops(&fake.devices[i].null_stream.ops);
    while (fake.streams) {
        struct CUstream_st *next = fake.streams->next;
        drop_ops(&fake.streams->ops);
        free(fake.streams);
        fake.streams = next;
    }
    set_up();
    current = 0;
    last_error = cudaSuccess;
    pthread_mutex_unlock(&lock);
    return n;
}

void fake_cuda_devices(int n, cudaError_t error)
{
    fake.n_devices = n < MAX_DEVICES ? n : MAX_DEVICES;
    fake.no_devices = error;
}

void fake_cuda_capability(int major, int minor, int n_multiprocessors)
{
    fake.major = major;
    fake.minor = minor;
    fake.n_multiprocessors = n_multiprocessors;
}

void fake_cuda_memory(size_t bytes)
{
    fake.memory = bytes;
}

size_t fake_cuda_used(int device)
{
    return fake.devices[device].used;
}

void fake_cuda_fail(const char *function, unsigned n, cudaError_t error)
{
    fake.fail_function = function;
    fake.fail_in = n;
    fake.fail_with = error;
    for (int i = 0; i < MAX_DEVICES && n == 0; i++)
        fake.devices[i].error = cudaSuccess;
    last_error = cudaSuccess;
}

uint64_t fake_cuda_calls(const char *function)
{
    return function ? counter_of(function)->n : fake.n_calls;
}

void fake_cuda_forbid_waiting(int forbid)
{
    fake.forbidden = forbid;
}

unsigned fake_cuda_violations(void)
{
    return fake.n_violations;
}

const char *fake_cuda_last_violation(void)
{
    return fake.violation;
}

size_t fake_cuda_pending(void)
{
    return fake.n_pending;
}

uint64_t fake_cuda_launches(void)
{
    return fake.n_launches;
}

const char *fake_cuda_message(void)
{
    return fake.message;
}

/* ---- errors
 * ---------------------------------------------------------------------------------------------------------- */

#define NAME(error)                                                                                                    \
  case error: return #error
const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInsufficientDriver);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorIllegalAddress);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorStreamCaptureUnsupported);
        NAME(cudaErrorStreamCaptureInvalidated);
    default: return "another CUDA error";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaPeekAtLastError(void)
{
    return fake.devices[current].error ? fake.devices[current].error : last_error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

/* ---- devices
 * --------------------------------------------------------------------------------------------------------- */

/* Shared memory of a multiprocessor; 1 KB less of it is for one block. */
static size_t multiprocessor_shared(void)
{
    const int capability = fake.major * 10 + fake.minor;
    return (size_t)1024 * (capability == 80 || capability == 87   ? 164
                           : capability >= 90 && capability < 120 ? 228
                                                                  : 100);
}

static int multiprocessor_threads(void)
{
    return fake.minor && fake.major == 8 ? 1536 : fake.major == 12 ? 1536 : 2048;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    ENTER();
    *count = fake.n_devices;
    return leave(cudaSuccess);
}

/* These two work while the device that is current does not: they only turn to another. */
cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t error = enter(__func__);
    ENSURE(!error || error == fake.devices[current].error, error);
    *device = current;
    return leave(cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = enter(__func__);
    ENSURE(!error || error == fake.devices[current].error, error);
    ENSURE(device >= 0 && device < fake.n_devices, cudaErrorInvalidDevice);
    current = device;
    return leave(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    ENTER();
    ENSURE(device >= 0 && device < fake.n_devices, cudaErrorInvalidDevice);
    *prop = (struct cudaDeviceProp){.name = "A pretended device",
                                    .totalGlobalMem = fake.memory,
                                    .sharedMemPerBlock = DEFAULT_SHARED,
                                    .sharedMemPerBlockOptin = multiprocessor_shared() - 1024,
                                    .sharedMemPerMultiprocessor = multiprocessor_shared(),
                                    .major = fake.major,
                                    .minor = fake.minor,
                                    .multiProcessorCount = fake.n_multiprocessors,
                                    .maxThreadsPerBlock = 1024,
                                    .warpSize = 32,
                                    .maxThreadsPerMultiProcessor = multiprocessor_threads()};
    return leave(cudaSuccess);
}

static int attribute_value(enum cudaDeviceAttr attribute)
{
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxSharedMemoryPerBlock: return DEFAULT_SHARED;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMultiProcessorCount: return fake.n_multiprocessors;
    case cudaDevAttrIntegrated: return 0;
    case cudaDevAttrL2CacheSize: return 4096;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return multiprocessor_threads();
    case cudaDevAttrComputeCapabilityMajor: return fake.major;
    case cudaDevAttrComputeCapabilityMinor: return fake.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)multiprocessor_shared();
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)multiprocessor_shared() - 1024;
    }
    return -1;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER();
    ENSURE(device >= 0 && device < fake.n_devices, cudaErrorInvalidDevice);
    ENSURE(attribute_value(attribute) >= 0, cudaErrorInvalidValue);
    *value = attribute_value(attribute);
    return leave(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER();
    not_in_attend(__func__);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    run_device(current);
    return leave(fake.devices[current].error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER();
    *total = fake.memory;
    *free_bytes = fake.memory - fake.devices[current].used;
    return leave(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    ENTER();
    *version = 13000;
    return leave(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    ENTER();
    *version = 13000;
    return leave(cudaSuccess);
}

/* ---- memory of both kinds
 * -------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    ENTER();
    not_in_attend(__func__);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    *memory = NULL;
    if (bytes == 0)
        return leave(cudaSuccess);
    ENSURE(bytes <= fake.memory && fake.devices[current].used <= fake.memory - bytes, cudaErrorMemoryAllocation);
    const cudaError_t error = allocate(memory, bytes, current);
    if (!error)
        fake.devices[current].used += bytes;
    return leave(error);
}

cudaError_t cudaFree(void *memory)
{
    ENTER();
    not_in_attend(__func__);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    if (!memory)
        return leave(cudaSuccess);
    const struct allocation *a = allocation_of(memory);
    if (a && a->device >= 0)
        run_device(a->device);
    return leave(release(memory, 0));
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    ENTER();
    not_in_attend(__func__);
    (void)flags;
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    return leave(allocate(memory, bytes, -1));
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    ENTER();
    not_in_attend(__func__);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    return leave(allocate(memory, bytes, -1));
}

cudaError_t cudaFreeHost(void *memory)
{
    ENTER();
    not_in_attend(__func__);
    if (!memory)
        return leave(cudaSuccess);
    for (int i = 0; i < fake.n_devices; i++)
        run_device(i);
    return leave(release(memory, 1));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
    ENTER();
    const struct allocation *a = allocation_of(memory);
    *attributes = (struct cudaPointerAttributes){.type = !a              ? cudaMemoryTypeUnregistered
                                                         : a->device < 0 ? cudaMemoryTypeHost
                                                                         : cudaMemoryTypeDevice,
                                                 .device = a && a->device >= 0 ? a->device : current};
    return leave(cudaSuccess);
}

enum place { PAGEABLE, PINNED, ON_DEVICE, NOWHERE };

static enum place place_of(const char *p, size_t pitch, size_t width, size_t height)
{
    const struct allocation *a = allocation_of(p);
    const size_t bytes = width && height ? (height - 1) * pitch + width : 0;
    if (!a)
        return PAGEABLE;
    if (bytes > (size_t)(a->data + a->bytes - p))
        return NOWHERE;
    return a->device < 0 ? PINNED : ON_DEVICE;
}

/* Whether the kind says what is so. */
static int is_kind(enum cudaMemcpyKind kind, enum place to, enum place from)
{
    if (to == NOWHERE || from == NOWHERE)
        return 0;
    switch (kind) {
    case cudaMemcpyHostToHost: return to != ON_DEVICE && from != ON_DEVICE;
    case cudaMemcpyHostToDevice: return to == ON_DEVICE && from != ON_DEVICE;
    case cudaMemcpyDeviceToHost: return to != ON_DEVICE && from == ON_DEVICE;
    case cudaMemcpyDeviceToDevice: return to == ON_DEVICE && from == ON_DEVICE;
    case cudaMemcpyDefault: return 1;
    }
    return 0;
}

/* A copy to or from memory that is not pinned waits, whatever it is called. */
static cudaError_t copy(const struct op *op, enum cudaMemcpyKind kind, cudaStream_t stream, int wait)
{
    struct CUstream_st *s = stream_of(stream);
    const enum place to = place_of(op->to, op->to_pitch, op->width, op->height);
    const enum place from = place_of(op->from, op->from_pitch, op->width, op->height);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (op->width == 0 || op->height == 0)
        return cudaSuccess;
    if (op->width > op->to_pitch || op->width > op->from_pitch || !is_kind(kind, to, from))
        return cudaErrorInvalidValue;
    wait |= to == PAGEABLE || from == PAGEABLE;
    if (wait) {
        not_in_attend("a copy that waits");
        if (captures())
            return cudaErrorStreamCaptureUnsupported;
    }
    const cudaError_t error = put(s, op);
    if (!error && wait)
        run_until(s, UINT64_MAX);
    return error ? error : fake.devices[current].error;
}

static struct op copy_op(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height)
{
    return (struct op){.kind = OP_COPY,
                       .to = to,
                       .from = from,
                       .to_pitch = to_pitch,
                       .from_pitch = from_pitch,
                       .width = width,
                       .height = height};
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    ENTER();
    const struct op op = copy_op(to, bytes, from, bytes, bytes, 1);
    return leave(copy(&op, kind, NULL, 1));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER();
    const struct op op = copy_op(to, bytes, from, bytes, bytes, 1);
    return leave(copy(&op, kind, stream, 0));
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    ENTER();
    const struct op op = copy_op(to, to_pitch, from, from_pitch, width, height);
    return leave(copy(&op, kind, NULL, 1));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ENTER();
    const struct op op = copy_op(to, to_pitch, from, from_pitch, width, height);
    return leave(copy(&op, kind, stream, 0));
}

static cudaError_t fill(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream, int wait)
{
    struct CUstream_st *s = stream_of(stream);
    const struct op op = {
        .kind = OP_FILL, .to = to, .to_pitch = pitch, .width = width, .height = height, .value = value};
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (width == 0 || height == 0)
        return cudaSuccess;
    if (width > pitch || place_of(to, pitch, width, height) != ON_DEVICE)
        return cudaErrorInvalidValue;
    if (wait)
        not_in_attend("a fill that waits");
    const cudaError_t error = put(s, &op);
    if (!error && wait)
        run_until(s, UINT64_MAX);
    return error ? error : fake.devices[current].error;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    ENTER();
    return leave(fill(to, bytes, value, bytes, 1, NULL, 1));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    ENTER();
    return leave(fill(to, bytes, value, bytes, 1, stream, 0));
}

cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height)
{
    ENTER();
    return leave(fill(to, pitch, value, width, height, NULL, 1));
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
    ENTER();
    return leave(fill(to, pitch, value, width, height, stream, 0));
}

/* ---- streams
 * --------------------------------------------------------------------------------------------------------- */

static cudaError_t create_stream(cudaStream_t *stream, unsigned flags)
{
    struct CUstream_st *s = calloc(1, sizeof *s);
    if (!s)
        return cudaErrorMemoryAllocation;
    s->device = current;
    s->flags = flags;
    init_ops(&s->ops);
    s->next = fake.streams;
    fake.streams = s;
    fake.n_objects++;
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    ENTER();
    return leave(create_stream(stream, cudaStreamDefault));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    ENTER();
    return leave(create_stream(stream, flags));
}

/* Nobody waits for a stream any more. */
static void forget_stream(const struct CUstream_st *gone)
{
    for (struct CUstream_st *s = fake.streams; s; s = s->next)
        for (struct op *op = s->ops.first; op; op = op->next)
            if (op->kind == OP_WAIT && op->other == gone)
                op->kind = OP_MARK;
}

/* What is still on it is done first. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream), **at = &fake.streams;
    ENSURE(stream && s, cudaErrorInvalidResourceHandle);
    run_until(s, UINT64_MAX);
    forget_stream(s);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    fake.n_objects--;
    free(s);
    return leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    not_in_attend(__func__);
    ENSURE(s, cudaErrorInvalidResourceHandle);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    run_until(s, UINT64_MAX);
    return leave(fake.devices[s->device].error);
}

/* One piece of work each time that somebody asks. */
static cudaError_t query(struct CUstream_st *s, uint64_t number)
{
    if (s->ops.first && s->ops.first->number <= number)
        run_first(s);
    if (fake.devices[s->device].error)
        return fake.devices[s->device].error;
    return s->ops.first && s->ops.first->number <= number ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    ENSURE(s, cudaErrorInvalidResourceHandle);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    return leave(query(s, UINT64_MAX));
}

/* ---- events
 * ---------------------------------------------------------------------------------------------------------- */

static cudaError_t create_event(cudaEvent_t *event)
{
    *event = calloc(1, sizeof **event);
    fake.n_objects += *event != NULL;
    return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    ENTER();
    return leave(create_event(event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    ENTER();
    (void)flags;
    return leave(create_event(event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER();
    ENSURE(event, cudaErrorInvalidResourceHandle);
    fake.n_objects--;
    free(event);
    return leave(cudaSuccess);
}

/* The stream of an event, as long as there is one: what was on it has been done when it was destroyed. */
static struct CUstream_st *stream_of_event(cudaEvent_t event)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        if (event->stream == null_stream(i))
            return event->stream;
    return event->stream ? stream_of(event->stream) : NULL;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    const struct op op = {.kind = OP_MARK};
    ENSURE(event && s, cudaErrorInvalidResourceHandle);
    ENSURE(!s->capture, cudaErrorNotSupported); /* in CUDA it joins streams; nobody here asks for it */
    const cudaError_t error = put(s, &op);
    event->stream = s;
    event->number = fake.n_ops;
    return leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ENTER();
    not_in_attend(__func__);
    ENSURE(event, cudaErrorInvalidResourceHandle);
    ENSURE(!captures(), cudaErrorStreamCaptureUnsupported);
    struct CUstream_st *s = stream_of_event(event);
    if (s)
        run_until(s, event->number);
    return leave(fake.devices[s ? s->device : current].error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER();
    ENSURE(event, cudaErrorInvalidResourceHandle);
    struct CUstream_st *s = stream_of_event(event);
    return leave(s ? query(s, event->number) : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start_event, cudaEvent_t end_event)
{
    ENTER();
    ENSURE(start_event && end_event && start_event->stream && end_event->stream, cudaErrorInvalidResourceHandle);
    *milliseconds = (float)(end_event->number - start_event->number); /* there is no time here */
    return leave(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    ENTER();
    (void)flags;
    struct CUstream_st *s = stream_of(stream);
    ENSURE(event && s, cudaErrorInvalidResourceHandle);
    ENSURE(!s->capture, cudaErrorNotSupported);
    const struct op op = {.kind = OP_WAIT, .other = stream_of_event(event), .until = event->number};
    return leave(op.other && op.other != s ? put(s, &op) : cudaSuccess);
}

/* ---- graphs
 * ---------------------------------------------------------------------------------------------------------- */

static void *new_ops(size_t size)
{
    struct ops *ops = calloc(1, size);
    if (!ops)
        abort();
    init_ops(ops);
    fake.n_objects++;
    return ops;
}

static void free_ops(struct ops *ops)
{
    drop_ops(ops);
    free(ops);
    fake.n_objects--;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER();
    (void)mode;
    struct CUstream_st *s = stream_of(stream);
    ENSURE(stream && s, cudaErrorStreamCaptureUnsupported);
    ENSURE(!s->capture, cudaErrorStreamCaptureInvalidated);
    s->capture = new_ops(sizeof *s->capture);
    s->status = cudaStreamCaptureStatusActive;
    return leave(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    *graph = NULL;
    ENSURE(s && s->capture, cudaErrorInvalidValue);
    const int whole = s->status == cudaStreamCaptureStatusActive;
    if (whole)
        *graph = s->capture;
    else
        free_ops(&s->capture->ops);
    s->capture = NULL;
    s->status = cudaStreamCaptureStatusNone;
    return leave(whole ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    ENSURE(s, cudaErrorInvalidResourceHandle);
    *status = s->status;
    return leave(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    ENTER();
    (void)flags;
    ENSURE(graph, cudaErrorInvalidValue);
    *exec = new_ops(sizeof **exec);
    for (const struct op *op = graph->ops.first; op; op = op->next)
        append(&(*exec)->ops, copy_of(op));
    return leave(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    ENSURE(exec && s, cudaErrorInvalidValue);
    cudaError_t error = cudaSuccess;
    for (const struct op *op = exec->ops.first; op && !error; op = op->next)
        error = put(s, op);
    return leave(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ENTER();
    ENSURE(graph, cudaErrorInvalidValue);
    free_ops(&graph->ops);
    return leave(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    ENTER();
    ENSURE(exec, cudaErrorInvalidValue);
    free_ops(&exec->ops);
    return leave(cudaSuccess);
}

/* ---- kernels
 * --------------------------------------------------------------------------------------------------------- */

static struct limit *limit_of(const void *kernel)
{
    struct limit *l = fake.limits;
    while (l->kernel && l->kernel != kernel)
        l++;
    l->kernel = kernel;
    return l;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    ENTER();
    ENSURE(fake.major >= 8, cudaErrorNoKernelImageForDevice);
    not_in_attend("cudaFuncGetAttributes");
    *attributes = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024};
    limit_of(kernel)->loaded[current] = 1;
    return leave(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    ENTER();
    ENSURE(fake.major >= 8, cudaErrorNoKernelImageForDevice);
    ENSURE(attribute == cudaFuncAttributeMaxDynamicSharedMemorySize, cudaErrorInvalidValue);
    ENSURE(value >= 0 && (size_t)value <= multiprocessor_shared() - 1024, cudaErrorInvalidValue);
    limit_of(kernel)->shared_bytes[current] = (size_t)value;
    return leave(cudaSuccess);
}

/* The dynamic shared memory that a kernel may have on the current device. */
static size_t shared_limit(const void *kernel)
{
    const size_t asked = limit_of(kernel)->shared_bytes[current];
    return asked > DEFAULT_SHARED ? asked : DEFAULT_SHARED;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n_blocks, const void *kernel, int n_threads,
                                                          size_t shared_bytes)
{
    ENTER();
    ENSURE(n_threads > 0 && n_threads <= 1024, cudaErrorInvalidValue);
    const int by_threads = multiprocessor_threads() / n_threads;
    const int by_shared = (int)(multiprocessor_shared() / (shared_bytes + 1024));
    *n_blocks = shared_bytes > shared_limit(kernel) ? 0 : by_threads < by_shared ? by_threads : by_shared;
    return leave(cudaSuccess);
}

static cudaError_t check_launch(const struct exec_launch *l, size_t param_bytes)
{
    if (fake.major < 8)
        return cudaErrorNoKernelImageForDevice;
    if (l->n_threads < 1 || l->n_threads > 1024 || l->grid_x < 1 || l->grid_x > 0x7fffffff || l->grid_y < 1 ||
        l->grid_y > 65535)
        return cudaErrorInvalidConfiguration;
    if (l->shared_bytes > shared_limit((const void *)l->kernel) || param_bytes > MAX_PARAMS)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

int fake_cuda_launch(const struct exec_launch *launch, size_t param_bytes, void *stream)
{
    cudaError_t error = enter("cudaLaunchKernel");
    struct CUstream_st *s = stream_of(stream);
    if (!error && (!s || s->device != current))
        error = cudaErrorInvalidResourceHandle;
    if (!error)
        error = check_launch(launch, param_bytes);
    struct limit *limit = limit_of((const void *)launch->kernel);
    if (!limit->loaded[current])
        not_in_attend("the first launch of a kernel, which loads it");
    limit->loaded[current] = 1;
    /* put() makes the copy that the parameters live in. */
    struct op op = {.kind = OP_LAUNCH, .launch = *launch, .param_bytes = param_bytes};
    op.owned = (void *)(uintptr_t)launch->params;
    return leave(error ? error : put(s, &op));
}
