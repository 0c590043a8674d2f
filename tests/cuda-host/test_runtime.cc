/* The pretended CUDA run-time: lazy where CUDA may be, strict where CUDA is, and failing when told to. */
#include "ptx.h"
#include "support_c.h"

#include <sys/wait.h>
#include <unistd.h>

namespace
{

/* to[0] = from[0] + add, in the order of launches. */
struct params {
    float *to;
    const float *from;
    float add;
};

PTX_GLOBAL void add(struct params p)
{
    if (ptx_thread() == 0)
        p.to[0] = p.from[0] + p.add;
}

PTX_GLOBAL void add_in_large_memory(struct params p)
{
    add(p);
}

struct large_params {
    char bytes[4100];
};

PTX_GLOBAL void take_much(struct large_params p)
{
    (void)p;
}

PTX_GLOBAL void lose_a_thread(struct params p)
{
    (void)p;
    if (ptx_thread())
        ptx_barrier();
}

void is(cudaError_t error, cudaError_t expected)
{
    ck_assert_msg(error == expected, "%s, not %s", cudaGetErrorName(error), cudaGetErrorName(expected));
}

void ok(int error)
{
    is((cudaError_t)error, cudaSuccess);
}

float *device_memory(size_t bytes)
{
    void *memory;
    ok(cudaMalloc(&memory, bytes));
    return (float *)memory;
}

float *pinned_memory(size_t bytes)
{
    void *memory;
    ok(cudaMallocHost(&memory, bytes));
    return (float *)memory;
}

cudaStream_t new_stream()
{
    cudaStream_t stream;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

int launch_add(float *memory, float what, cudaStream_t stream)
{
    return ptx_launch(add, 1, 1, 32, 0, stream, params{memory, memory, what});
}

float read_back(const float *memory)
{
    float x;
    ok(cudaMemcpy(&x, memory, sizeof x, cudaMemcpyDeviceToHost));
    return x;
}

START_TEST(work_is_done_when_waited_for)
{
    float *memory = device_memory(4), *pinned = pinned_memory(4);
    cudaStream_t stream = new_stream();
    ck_assert(read_back(memory) != read_back(memory));
    pinned[0] = 1;
    ok(cudaMemcpyAsync(memory, pinned, 4, cudaMemcpyHostToDevice, stream));
    pinned[0] = 2; /* too early: it has not been read */
    ok(launch_add(memory, 10, stream));
    ck_assert(read_back(memory) != read_back(memory)); /* that stream does not wait for this one */
    ok(cudaStreamSynchronize(stream));
    ck_assert(read_back(memory) == 12);
    ok(launch_add(memory, 1, stream));
    ok(launch_add(memory, 1, stream));
    is(cudaStreamQuery(stream), cudaErrorNotReady);
    is(cudaStreamQuery(stream), cudaSuccess);
    ck_assert(read_back(memory) == 14);
    ck_assert_uint_eq(fake_cuda_launches(), 3);
    ok(cudaMemsetAsync(memory, 0, 4, stream));
    ok(cudaMemcpyAsync(pinned, memory, 4, cudaMemcpyDeviceToHost, stream));
    ck_assert(pinned[0] == 2);
    ok(cudaDeviceSynchronize());
    ck_assert(pinned[0] == 0);
}
END_TEST

START_TEST(streams_wait_by_events)
{
    float *memory = device_memory(4);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event;
    ok(cudaMemset(memory, 0, 4));
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    is(cudaEventQuery(event), cudaSuccess);
    ok(launch_add(memory, 1, a));
    ok(cudaEventRecord(event, a));
    ok(launch_add(memory, 10, a));
    ok(cudaStreamWaitEvent(b, event, 0));
    ok(launch_add(memory, 100, b));
    ok(cudaStreamSynchronize(b));
    ck_assert(read_back(memory) == 101);
    ok(cudaEventRecord(event, a));
    is(cudaEventQuery(event), cudaErrorNotReady);
    ok(cudaEventSynchronize(event));
    is(cudaEventQuery(event), cudaSuccess);
    ck_assert(read_back(memory) == 111);
    ok(cudaEventDestroy(event));
}
END_TEST

START_TEST(default_stream_waits)
{
    float *memory = device_memory(4);
    cudaStream_t stream;
    ok(cudaStreamCreate(&stream));
    ok(cudaMemset(memory, 0, 4));
    ok(launch_add(memory, 1, stream));
    ck_assert(read_back(memory) == 1);
    ok(launch_add(memory, 1, nullptr));
    ok(launch_add(memory, 1, stream));
    ok(cudaStreamSynchronize(stream));
    ck_assert(read_back(memory) == 3);
    ok(cudaStreamDestroy(stream));
}
END_TEST

START_TEST(graphs_are_replayed)
{
    float *memory = device_memory(4), *pinned = pinned_memory(4), pageable = 0;
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ok(cudaMemcpyAsync(memory, pinned, 4, cudaMemcpyHostToDevice, stream));
    ok(launch_add(memory, 1, stream));
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    ok(cudaDeviceSynchronize());
    ck_assert_uint_eq(fake_cuda_launches(), 0);
    for (int i = 0; i < 3; i++) {
        pinned[0] = (float)i;
        ok(cudaGraphLaunch(exec, stream));
        ok(cudaStreamSynchronize(stream));
        ck_assert(read_back(memory) == (float)(i + 1));
    }
    ok(cudaGraphExecDestroy(exec));
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    is(cudaMemcpyAsync(memory, &pageable, 4, cudaMemcpyHostToDevice, stream), cudaErrorStreamCaptureUnsupported);
    is(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    is(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    is((cudaError_t)launch_add(memory, 1, stream), cudaErrorStreamCaptureInvalidated);
    is(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ok(launch_add(memory, 1, stream));
}
END_TEST

START_TEST(memory_is_counted)
{
    void *memory;
    size_t free_bytes, total;
    fake_cuda_memory(1000);
    float *first = device_memory(900);
    is(cudaMalloc(&memory, 101), cudaErrorMemoryAllocation);
    is(cudaGetLastError(), cudaErrorMemoryAllocation);
    is(cudaGetLastError(), cudaSuccess);
    ok(cudaMemGetInfo(&free_bytes, &total));
    ck_assert(free_bytes == 100 && total == 1000 && fake_cuda_used(0) == 900 && fake_cuda_used(1) == 0);
    ok(cudaSetDevice(1));
    ok(cudaMalloc(&memory, 1000));
    ok(cudaFree(first));
    ck_assert(fake_cuda_used(0) == 0 && fake_cuda_used(1) == 1000);
    is(cudaFree(first), cudaErrorInvalidValue);
    ok(cudaFree(memory));
    ok(cudaFree(nullptr));
    ck_assert_uint_eq(fake_cuda_reset(), 0);
}
END_TEST

START_TEST(copies_are_checked)
{
    float *memory = device_memory(64), *pinned = pinned_memory(64), host[16] = {};
    is(cudaMemcpy(memory, host, 65, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    is(cudaMemcpy(memory + 8, host, 33, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    is(cudaMemcpy(host, memory, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    is(cudaMemcpy(pinned, host, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    is(cudaMemset(pinned, 0, 4), cudaErrorInvalidValue);
    is(cudaMemset(memory, 0, 65), cudaErrorInvalidValue);
    for (int i = 0; i < 16; i++)
        host[i] = (float)i;
    ok(cudaMemset(memory, 0, 64));
    ok(cudaMemcpy2D(memory, 16, host, 8, 8, 4, cudaMemcpyHostToDevice));
    ok(cudaMemset2D(memory + 1, 32, 0xff, 4, 2));
    ok(cudaMemcpy(host, memory, 64, cudaMemcpyDeviceToHost));
    ck_assert(host[0] == 0 && host[1] != host[1] && host[2] == 0 && host[4] == 2 && host[5] == 3 && host[9] != host[9]);
    ck_assert(host[12] == 6 && host[13] == 7 && host[15] == 0);
    is(cudaMemcpy2D(memory, 16, host, 8, 12, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    is(cudaMemcpy2D(memory, 20, host, 8, 8, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
}
END_TEST

START_TEST(host_cannot_touch_device_memory)
{
    float *memory = device_memory(64);
    int status;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        memory[0] = 1;
        _exit(0);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    ck_assert(WIFSIGNALED(status));
}
END_TEST

START_TEST(launches_are_checked)
{
    float *memory = device_memory(4);
    const struct params p = {memory, memory, 0};
    const struct large_params much = {};
    cudaStream_t stream = new_stream();
    is((cudaError_t)ptx_launch(add, 1, 1, 1025, 0, stream, p), cudaErrorInvalidConfiguration);
    is((cudaError_t)ptx_launch(add, 0, 1, 32, 0, stream, p), cudaErrorInvalidConfiguration);
    is((cudaError_t)ptx_launch(add, 1, 65536, 32, 0, stream, p), cudaErrorInvalidConfiguration);
    is((cudaError_t)ptx_launch(add_in_large_memory, 1, 1, 32, 48 * 1024 + 1, stream, p), cudaErrorInvalidValue);
    is((cudaError_t)ptx_launch(take_much, 1, 1, 32, 0, stream, much), cudaErrorInvalidValue);
    ok(ptx_launch(add_in_large_memory, 1, 1, 32, 48 * 1024, stream, p));
    is((cudaError_t)ptx_allow_shared(add_in_large_memory, 227 * 1024 + 1), cudaErrorInvalidValue);
    ok(ptx_allow_shared(add_in_large_memory, 227 * 1024));
    ok(ptx_launch(add_in_large_memory, 1, 1, 32, 227 * 1024, stream, p));
    ok(cudaSetDevice(1)); /* that is of device 0 */
    is((cudaError_t)ptx_launch(add, 1, 1, 32, 0, stream, p), cudaErrorInvalidResourceHandle);
    is((cudaError_t)ptx_launch(add_in_large_memory, 1, 1, 32, 227 * 1024, nullptr, p), cudaErrorInvalidValue);
    fake_cuda_capability(8, 9, 128);
    is((cudaError_t)ptx_allow_shared(add_in_large_memory, 99 * 1024 + 1), cudaErrorInvalidValue);
    int n_blocks;
    ok(ptx_occupancy(add, 128, 32 * 1024, &n_blocks));
    ck_assert_int_eq(n_blocks, 3);
    fake_cuda_capability(7, 5, 40);
    is((cudaError_t)ptx_launch(add, 1, 1, 32, 0, nullptr, p), cudaErrorNoKernelImageForDevice);
}
END_TEST

START_TEST(errors_are_injected)
{
    float *memory = device_memory(4);
    void *more;
    fake_cuda_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    ok(cudaMemset(memory, 0, 4));
    ok(cudaMalloc(&more, 4));
    is(cudaMalloc(&more, 4), cudaErrorMemoryAllocation);
    ok(cudaMalloc(&more, 4));
    fake_cuda_fail(nullptr, 1, cudaErrorIllegalAddress); /* never recovers */
    is(cudaMemset(memory, 0, 4), cudaErrorIllegalAddress);
    is(cudaFree(more), cudaErrorIllegalAddress);
    is(cudaGetLastError(), cudaErrorIllegalAddress);
    is(cudaGetLastError(), cudaErrorIllegalAddress);
    ok(cudaSetDevice(1));
    ok(cudaMalloc(&more, 4));
    fake_cuda_fail(nullptr, 0, cudaSuccess);
    ok(cudaSetDevice(0));
    ok(cudaMemset(memory, 0, 4));
    /* What a kernel does wrong shows at the next wait, and from then on. */
    ok(ptx_launch(lose_a_thread, 1, 1, 32, 0, nullptr, params{memory, memory, 0}));
    is(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    ck_assert_ptr_nonnull(strstr(fake_cuda_message(), "at a barrier"));
    is((cudaError_t)launch_add(memory, 1, nullptr), cudaErrorLaunchFailure);
}
END_TEST

START_TEST(devices_are_as_set)
{
    int n = 7;
    struct cudaDeviceProp prop;
    ok(cudaGetDeviceCount(&n));
    ck_assert_int_eq(n, 2);
    ok(cudaGetDeviceProperties(&prop, 1));
    ck_assert(prop.major == 9 && prop.minor == 0 && prop.sharedMemPerBlockOptin == 227 * 1024);
    is(cudaSetDevice(2), cudaErrorInvalidDevice);
    fake_cuda_devices(0, cudaSuccess);
    is(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    ck_assert_int_eq(n, 0);
    fake_cuda_devices(2, cudaErrorInsufficientDriver);
    is(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    is(cudaSetDevice(0), cudaErrorInsufficientDriver);
}
END_TEST

START_TEST(waiting_can_be_forbidden)
{
    float *memory = device_memory(4), *pinned = pinned_memory(4), pageable;
    void *more;
    fake_cuda_forbid_waiting(1);
    ok(launch_add(memory, 1, nullptr)); /* the first, which loads the kernel */
    ck_assert_uint_eq(fake_cuda_violations(), 1);
    ok(launch_add(memory, 1, nullptr));
    ok(cudaMemcpyAsync(memory, pinned, 4, cudaMemcpyHostToDevice, nullptr));
    ck_assert_uint_eq(fake_cuda_violations(), 1);
    ok(cudaMalloc(&more, 4));
    ok(cudaMemcpyAsync(memory, &pageable, 4, cudaMemcpyHostToDevice, nullptr));
    ok(cudaDeviceSynchronize());
    ok(cudaFree(more));
    ck_assert_uint_eq(fake_cuda_violations(), 5);
    ck_assert_str_eq(fake_cuda_last_violation(), "cudaFree");
    fake_cuda_forbid_waiting(0);
    ok(cudaDeviceSynchronize());
    ck_assert_uint_eq(fake_cuda_violations(), 5);
}
END_TEST

} // namespace

int main()
{
    TCase *tcase = suite_case("the pretended CUDA run-time");
    tcase_add_test(tcase, work_is_done_when_waited_for);
    tcase_add_test(tcase, streams_wait_by_events);
    tcase_add_test(tcase, default_stream_waits);
    tcase_add_test(tcase, graphs_are_replayed);
    tcase_add_test(tcase, memory_is_counted);
    tcase_add_test(tcase, copies_are_checked);
    tcase_add_test(tcase, host_cannot_touch_device_memory);
    tcase_add_test(tcase, launches_are_checked);
    tcase_add_test(tcase, errors_are_injected);
    tcase_add_test(tcase, devices_are_as_set);
    tcase_add_test(tcase, waiting_can_be_forbidden);
    return suite_run(tcase);
}
