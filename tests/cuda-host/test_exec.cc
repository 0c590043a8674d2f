/* The executor and the host twin of ptx.h, by small kernels of their own: that right ones do what they say, and that
 * each kind of mistake is found. */
#include "ptx.h"
#include "support_c.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

#if defined(__SANITIZE_THREAD__)
const int with_tsan = 1, with_asan = 0;
#elif defined(__SANITIZE_ADDRESS__)
const int with_tsan = 0, with_asan = 1;
#elif defined(__has_feature)
const int with_tsan = __has_feature(thread_sanitizer), with_asan = __has_feature(address_sanitizer);
#else
const int with_tsan = 0, with_asan = 0;
#endif

/* What the kernels here are given.  Not all use all. */
struct params {
    int mode;
    float *out, *in;
    uint32_t *words;
    const uint16_t *a, *b;
};

/* Runs a kernel; NULL or what was wrong. */
const char *run_grid(void (*kernel)(struct params), uint32_t grid_x, uint32_t grid_y, uint32_t threads,
                     size_t shared_bytes, const struct params &p)
{
    const struct exec_launch launch = {(exec_kernel *)kernel, ptx_call<struct params>, &p, grid_x, grid_y, threads,
                                       shared_bytes};
    return exec_run(&launch);
}

const char *run(void (*kernel)(struct params), uint32_t blocks, uint32_t threads, size_t shared_bytes,
                const struct params &p)
{
    return run_grid(kernel, blocks, 1, threads, shared_bytes, p);
}

void succeeds(const char *wrong)
{
    ck_assert_msg(!wrong, "%s", wrong);
}

/* It fails, and the message has these words. */
void fails(const char *wrong, const char *words)
{
    ck_assert_msg(wrong && strstr(wrong, words), "%s does not say \"%s\"", wrong ? wrong : "(nothing)", words);
}

/* ---- threads, barriers ------------------------------------------------------------------------------------------ */

PTX_GLOBAL void tell_places(struct params p)
{
    const uint32_t block = ptx_block_y() * ptx_grid_x() + ptx_block_x();
    p.words[block * 48 + ptx_thread()] += 1000 * ptx_block_y() + 100 * ptx_block_x() + ptx_thread();
}

START_TEST(each_thread_runs_once)
{
    uint32_t words[2][3][48] = {};
    struct params p = {};
    p.words = words[0][0];
    succeeds(run_grid(tell_places, 3, 2, 48, 0, p));
    for (uint32_t y = 0; y < 2; y++)
        for (uint32_t x = 0; x < 3; x++)
            for (uint32_t t = 0; t < 48; t++)
                ck_assert_uint_eq(words[y][x][t], 1000 * y + 100 * x + t);
}
END_TEST

/* Each thread reads what its neighbours on both sides have written.  mode: whether they wait. */
PTX_GLOBAL void add_neighbours(struct params p)
{
    float *shared = (float *)ptx_shared();
    const uint32_t n = 64, t = ptx_thread();
    shared[t] = (float)t;
    if (p.mode)
        ptx_barrier();
    p.out[ptx_block_x() * n + t] = shared[(t + 1) % n] + shared[(t + n - 1) % n];
}

START_TEST(barrier_orders)
{
    float out[5 * 64];
    struct params p = {};
    p.mode = 1;
    p.out = out;
    for (int again = 0; again < 3; again++)
        succeeds(run(add_neighbours, 5, 64, 64 * sizeof(float), p));
    for (int i = 0; i < 5 * 64; i++)
        ck_assert(out[i] == (float)((i + 1) % 64 + (i + 63) % 64));
}
END_TEST

START_TEST(missing_barrier_is_found)
{
    float out[64];
    struct params p = {};
    p.out = out;
    const char *wrong = run(add_neighbours, 1, 64, 64 * sizeof(float), p);
    if (with_tsan)
        fails(wrong, "race");
    else
        ck_assert(out[0] != out[0]); /* what is not there yet is NaN */
    p.mode = 1;
    succeeds(run(add_neighbours, 1, 64, 64 * sizeof(float), p));
}
END_TEST

/* Lanes of one warp: mode 0 nothing, 1 a warp barrier, 2 a collective that does not order memory. */
PTX_GLOBAL void pass_in_warp(struct params p)
{
    float *shared = (float *)ptx_shared();
    const uint32_t t = ptx_thread();
    shared[t] = (float)t;
    if (p.mode == 1)
        ptx_warp_barrier();
    if (p.mode == 2)
        ptx_any(1);
    p.out[t] = shared[t ^ 1];
}

START_TEST(warp_barrier_orders)
{
    float out[64];
    struct params p = {};
    p.out = out;
    p.mode = 1;
    succeeds(run(pass_in_warp, 1, 64, sizeof out, p));
    for (int i = 0; i < 64; i++)
        ck_assert(out[i] == (float)(i ^ 1));
    for (p.mode = 0; p.mode <= 2 && with_tsan; p.mode += 2)
        fails(run(pass_in_warp, 1, 64, sizeof out, p), "race");
}
END_TEST

/* A warp barrier does not order two warps. */
PTX_GLOBAL void pass_between_warps(struct params p)
{
    float *shared = (float *)ptx_shared();
    shared[ptx_thread()] = 1;
    ptx_warp_barrier();
    p.out[ptx_thread()] = shared[ptx_thread() ^ 32];
}

/* All blocks write one place: in turn or, mode 1, each its own. */
PTX_GLOBAL void write_one_place(struct params p)
{
    if (ptx_thread() == 5)
        p.out[p.mode ? ptx_block_x() : 0] = 1;
}

START_TEST(blocks_and_warps_are_not_ordered)
{
    float out[64];
    struct params p = {};
    p.out = out;
    if (with_tsan) {
        fails(run(pass_between_warps, 1, 64, sizeof out, p), "race");
        fails(run(write_one_place, 2, 32, 0, p), "race");
    }
    p.mode = 1;
    for (int again = 0; again < 2; again++) /* launches are */
        succeeds(run(write_one_place, 7, 32, 0, p));
}
END_TEST

/* ---- deadlocks
 * ------------------------------------------------------------------------------------------------------- */

PTX_GLOBAL void never_end(struct params p)
{
    const uint32_t t = ptx_thread();
    switch (p.mode) {
    case 0: /* one thread leaves out the barrier */
        if (t != 40)
            ptx_barrier();
        break;
    case 1: /* one lane leaves out a collective, and waits elsewhere */
        if (t != 40)
            ptx_any(1);
        else
            ptx_barrier();
        break;
    case 2: /* one lane is at another collective */
        if (t == 40)
            ptx_shuffle_xor(1.0f, 1);
        else
            ptx_any(1);
        break;
    case 3: /* the upper half of the warp has ended */
        if (t % 32 < 16)
            ptx_warp_barrier();
        break;
    case 4: /* one of two barriers */
        ptx_barrier();
        if (t != 40)
            ptx_barrier();
    }
}

START_TEST(deadlocks_are_found)
{
    static const char *const words[] = {"barrier", "barrier", "a vote", "a warp barrier", "barrier"};
    struct params p = {};
    for (p.mode = 0; p.mode < 5; p.mode++) {
        fails(run(never_end, 2, 64, 0, p), words[p.mode]);
        fails(run(never_end, 2, 64, 0, p), "block (0, 0): thread ");
    }
    p.mode = 3;
    fails(run(never_end, 1, 16, 0, p), "fewer than 32");
    p.mode = 5;
    succeeds(run(never_end, 2, 64, 0, p));
}
END_TEST

/* ---- memory
 * ---------------------------------------------------------------------------------------------------------- */

PTX_GLOBAL void look_at_shared(struct params p)
{
    const unsigned char *shared = (unsigned char *)ptx_shared();
    if (ptx_thread() == 0) {
        p.words[ptx_block_x()] = (uintptr_t)shared % 16 == 0;
        for (int i = 0; i < p.mode; i++)
            p.words[ptx_block_x()] &= shared[i] == 0xff;
        memset(ptx_shared(), 0, 100);
    }
}

START_TEST(shared_memory_is_new)
{
    uint32_t words[4];
    struct params p = {};
    p.words = words;
    p.mode = 100;
    succeeds(run(look_at_shared, 4, 32, 100, p));
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(words[i], 1);
}
END_TEST

/* Whether a launch ends the process: what AddressSanitizer does when it finds something. */
int kills(void (*kernel)(struct params), size_t shared_bytes, const struct params &p)
{
    int status = 0;
    const pid_t child = fork();
    ck_assert(child >= 0);
    if (child == 0) {
        fclose(stderr);
        run(kernel, 1, 32, shared_bytes, p);
        _exit(0);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    return status != 0;
}

PTX_GLOBAL void read_input(struct params p)
{
    p.out[0] = p.in[p.mode];
}

START_TEST(off_by_one_is_found)
{
    float *in = (float *)calloc(7, sizeof *in), out;
    uint32_t word;
    struct params p = {};
    p.in = in;
    p.out = &out;
    p.words = &word;
    for (p.mode = 6; p.mode <= 7 && with_asan; p.mode++)
        ck_assert_int_eq(kills(read_input, 0, p), p.mode == 7);
    for (p.mode = 100; p.mode <= 101 && with_asan; p.mode++)
        ck_assert_int_eq(kills(look_at_shared, 100, p), p.mode == 101);
    free(in);
}
END_TEST

/* Two groups of one copy each; out gets what is there at each time. */
PTX_GLOBAL void copy_in_groups(struct params p)
{
    float *shared = (float *)ptx_shared();
    if (ptx_thread() == 0) {
        shared[0] = shared[4] = 7;
        ptx_copy16(shared, p.in, 16);
        ptx_copy_commit();
        ptx_copy16(shared + 4, p.in + 4, 8);
        ptx_copy_commit();
        p.out[0] = shared[0]; /* nobody knows */
        p.in[1] = 100;        /* may still be what is copied */
        ptx_copy_wait<1>();
        for (int i = 0; i < 5; i++)
            p.out[1 + i] = shared[i];
        ptx_copy_wait<0>();
        for (int i = 4; i < 8; i++)
            p.out[2 + i] = shared[i];
        ptx_copy16(shared, nullptr, 0);
        ptx_copy_wait<0>(); /* of a group that is not closed: does not wait */
        p.out[10] = shared[0];
        ptx_copy_commit();
        ptx_copy_wait<0>();
        p.out[11] = shared[0];
    }
}

START_TEST(copies_arrive_when_waited_for)
{
    alignas(16) float in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float out[12];
    struct params p = {};
    p.in = in;
    p.out = out;
    succeeds(run(copy_in_groups, 1, 32, 32, p));
    ck_assert(out[0] != out[0]);
    ck_assert(out[1] == 1 && out[2] == 100 && out[3] == 3 && out[4] == 4);
    ck_assert(out[5] != out[5]);
    ck_assert(out[6] == 5 && out[7] == 6 && out[8] == 0 && out[9] == 0);
    ck_assert(out[10] != out[10] && out[11] == 0);
}
END_TEST

PTX_GLOBAL void copy_wrongly(struct params p)
{
    char *shared = ptx_shared();
    const char *in = (const char *)p.in;
    switch (ptx_thread() == 3 ? p.mode : -1) {
    case 0: ptx_copy16(shared + 8, in, 16); break;
    case 1: ptx_copy16(shared, in + 4, 8); break;
    case 2: ptx_copy16(shared + 16, in, 16); break;
    case 3: ptx_copy16(shared, in, 17); break;
    case 4: ptx_copy16(shared, in, 16); break;
    }
}

START_TEST(wrong_copies_are_refused)
{
    static const char *const words[] = {"not aligned", "not aligned", "offset 16 of 31", "copies 17", "has waited"};
    alignas(16) float in[8] = {};
    struct params p = {};
    p.in = in;
    for (p.mode = 0; p.mode < 5; p.mode++)
        fails(run(copy_wrongly, 1, 32, 31, p), words[p.mode]);
}
END_TEST

/* Thread 0 copies, all read.  mode 0: a barrier behind the wait; 1: one in front of it; 2: the next copy to the same
 * place starts without one; 3: with one. */
PTX_GLOBAL void copy_for_all(struct params p)
{
    float *shared = (float *)ptx_shared();
    for (int i = 0; i < 2; i++) {
        if (ptx_thread() == 0) {
            ptx_copy16(shared, p.in, 16);
            ptx_copy_commit();
        }
        if (p.mode == 1)
            ptx_barrier();
        ptx_copy_wait<0>();
        if (p.mode != 1)
            ptx_barrier();
        p.out[ptx_thread()] = shared[0];
        if (p.mode != 2)
            ptx_barrier();
    }
}

START_TEST(copies_need_a_barrier)
{
    alignas(16) float in[4] = {3, 3, 3, 3};
    float out[64];
    struct params p = {};
    p.in = in;
    p.out = out;
    succeeds(run(copy_for_all, 1, 1, 16, p));
    for (p.mode = 0; p.mode <= 3; p.mode++) {
        const char *wrong = run(copy_for_all, 1, 64, 16, p);
        if (p.mode == 0 || p.mode == 3)
            succeeds(wrong);
        else if (with_tsan)
            fails(wrong, "race");
    }
}
END_TEST

/* ---- collectives
 * ------------------------------------------------------------------------------------------------------- */

PTX_GLOBAL void shuffle(struct params p)
{
    const uint32_t t = ptx_thread(), warp = t / 32;
    p.words[t] = ptx_shuffle_xor(t, 5);
    p.out[t] = ptx_shuffle_xor((float)t, 16) + 100 * ptx_shuffle((float)t, 3 + (int)warp);
    p.words[64 + t] = (uint32_t)ptx_any(t == 40) * 2 + (uint32_t)ptx_all(t != 40);
}

START_TEST(shuffles_and_votes)
{
    uint32_t words[128];
    float out[64];
    struct params p = {};
    p.words = words;
    p.out = out;
    succeeds(run(shuffle, 1, 64, 0, p));
    for (uint32_t i = 0; i < 64; i++) {
        ck_assert_uint_eq(words[i], i ^ 5);
        ck_assert(out[i] == (float)(i ^ 16) + 100 * (float)(i < 32 ? 3 : 36));
        ck_assert_uint_eq(words[64 + i], i < 32 ? 1 : 2);
    }
}
END_TEST

/* A layout of CUTLASS's tensor algebra: coordinates, first mode fastest, times strides. */
struct layout {
    int n;
    int sizes[5], strides[5];
};

int place(const struct layout &l, int i)
{
    int sum = 0;
    for (int m = 0; m < l.n; i /= l.sizes[m], m++)
        sum += i % l.sizes[m] * l.strides[m];
    return sum;
}

/* Of MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>: (lane, value) to m + 16 k, n + 8 k and m + 16 n. */
const struct layout layout_a = {5, {4, 8, 2, 2, 2}, {32, 1, 16, 8, 128}};
const struct layout layout_b = {4, {4, 8, 2, 2}, {16, 1, 8, 64}};
const struct layout layout_d = {4, {4, 8, 2, 2}, {32, 1, 16, 8}};

/* a[16][16], b[16][8] and in and out [16][8], row-major. */
PTX_GLOBAL void multiply(struct params p)
{
    const int lane = (int)ptx_thread();
    uint32_t a[4], b[2];
    float d[4];
    for (int i = 0; i < 8; i++) {
        const int at = place(layout_a, lane + 32 * i);
        const uint32_t bits = p.a[at % 16 * 16 + at / 16];
        a[i / 2] = i % 2 ? a[i / 2] | bits << 16 : bits;
    }
    for (int i = 0; i < 4; i++) {
        const int at = place(layout_b, lane + 32 * i);
        const uint32_t bits = p.b[at / 8 * 8 + at % 8];
        b[i / 2] = i % 2 ? b[i / 2] | bits << 16 : bits;
        const int to = place(layout_d, lane + 32 * i);
        d[i] = p.in[to % 16 * 8 + to / 16];
    }
    if (p.mode)
        ptx_mma_bf16(d, a, b);
    else
        ptx_mma_f16(d, a, b);
    for (int i = 0; i < 4; i++) {
        const int at = place(layout_d, lane + 32 * i);
        p.out[at % 16 * 8 + at / 16] = d[i];
    }
}

START_TEST(products_are_right)
{
    uint16_t a[256], b[128];
    float in[128], out[128];
    struct params p = {};
    p.a = a, p.b = b, p.in = in, p.out = out;
    for (p.mode = 0; p.mode < 2; p.mode++) {
        const uint32_t dtype = p.mode ? CATTN_BF16 : CATTN_F16;
        struct rng rng;
        rng_init(&rng, (uint64_t)p.mode);
        for (int i = 0; i < 256; i++)
            dtype_store(dtype, a, (size_t)i, (double)rng_below(&rng, 64) - 32);
        for (int i = 0; i < 128; i++) {
            dtype_store(dtype, b, (size_t)i, (double)rng_below(&rng, 64) - 32);
            in[i] = (float)rng_below(&rng, 1000);
        }
        succeeds(run(multiply, 1, 32, 0, p));
        for (size_t i = 0; i < 128; i++) {
            double sum = in[i];
            for (size_t k = 0; k < 16; k++)
                sum += dtype_load(dtype, a, i / 8 * 16 + k) * dtype_load(dtype, b, k * 8 + i % 8);
            ck_assert_double_eq(out[i], sum);
        }
    }
}
END_TEST

/* Four matrices of 8 x 8, one below the other, rows 48 bytes apart; out [lane][4]. */
PTX_GLOBAL void load_matrices(struct params p)
{
    char *shared = ptx_shared();
    const uint32_t t = ptx_thread();
    for (uint32_t i = t; i < 256; i += 32)
        ((uint16_t *)(shared + i / 8 * 48))[i % 8] = (uint16_t)i;
    ptx_warp_barrier();
    uint32_t r[4];
    if (p.mode)
        ptx_ldmatrix_x4_trans(r, shared + t * 48);
    else
        ptx_ldmatrix_x4(r, shared + t * 48 + (p.in ? 8 : 0));
    for (uint32_t i = 0; i < 4; i++)
        p.words[t * 4 + i] = r[i];
}

START_TEST(matrices_are_loaded)
{
    uint32_t words[128];
    float some;
    struct params p = {};
    p.words = words;
    for (p.mode = 0; p.mode < 2; p.mode++) {
        succeeds(run(load_matrices, 1, 32, 32 * 48, p));
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t row = lane / 4, column = lane % 4 * 2 + i % 2;
                const uint32_t expected = i / 2 * 64 + (p.mode ? column * 8 + row : row * 8 + column);
                ck_assert_uint_eq(words[lane * 4 + i / 2] >> i % 2 * 16 & 0xffff, expected);
            }
    }
    p.mode = 0;
    p.in = &some;
    fails(run(load_matrices, 1, 32, 32 * 48, p), "not aligned");
}
END_TEST

/* ---- numbers
 * ----------------------------------------------------------------------------------------------------------- */

void check_number(float x)
{
    uint16_t expected;
    dtype_store(CATTN_F16, &expected, 0, x);
    ck_assert_msg(ptx_f32_to_f16(x) == expected, "f16 of %a", x);
    ck_assert_uint_eq(ptx_pack_f16(x, 1), 0x3c000000u | expected);
    dtype_store(CATTN_BF16, &expected, 0, x);
    ck_assert_msg(ptx_f32_to_bf16(x) == expected, "bf16 of %a", x);
    ck_assert_uint_eq(ptx_pack_bf16(1, x), (uint32_t)expected << 16 | 0x3f80);
}

START_TEST(numbers_are_converted)
{
    struct rng rng;
    const uint32_t step = with_tsan || with_asan ? 31 : 1; /* the plain build does all */
    rng_init(&rng, 0);
    for (uint32_t i = 0; i < 65536; i += step) {
        const uint16_t bits = (uint16_t)i;
        const float f16 = ptx_f16_to_f32(bits), bf16 = ptx_bf16_to_f32(bits);
        const double wide = dtype_load(CATTN_F16, &bits, 0), wide_bf16 = dtype_load(CATTN_BF16, &bits, 0);
        ck_assert(wide == wide ? f16 == wide && signbit(f16) == signbit(wide) : f16 != f16);
        ck_assert(wide_bf16 == wide_bf16 ? bf16 == wide_bf16 : bf16 != bf16);
        if (wide == wide && wide_bf16 == wide_bf16) { /* itself, what is next to it, halfway to the next */
            const float halfway = ptx_float(ptx_bits(f16) + 0x1000);
            const float near[] = {f16, halfway, nextafterf(halfway, 0), nextafterf(halfway, INFINITY), bf16};
            for (float x : near)
                if (x == x)
                    check_number(x);
        }
    }
    for (uint32_t i = 0; i < 200000; i += step) {
        const float x = ptx_float((uint32_t)rng_next(&rng));
        if (x == x)
            check_number(x);
    }
    ck_assert_uint_eq(ptx_f32_to_f16(NAN), 0x7fff);
    ck_assert_uint_eq(ptx_f32_to_bf16(-NAN), 0x7fff);
}
END_TEST

START_TEST(powers_flush)
{
    ck_assert(ptx_exp2(3) == 8 && ptx_exp2(0.5f) > 1.414213f && ptx_exp2(0.5f) < 1.414214f);
    ck_assert(ptx_exp2(-126) == 0x1p-126f && ptx_exp2(-126.5f) == 0);
    ck_assert(ptx_exp2(-INFINITY) == 0 && ptx_exp2(INFINITY) == INFINITY && ptx_exp2(0x1p-140f) == 1);
    ck_assert(ptx_exp2(NAN) != ptx_exp2(NAN));
}
END_TEST

} // namespace

int main()
{
    TCase *tcase = suite_case("the CUDA executor");
    tcase_add_test(tcase, each_thread_runs_once);
    tcase_add_test(tcase, barrier_orders);
    tcase_add_test(tcase, missing_barrier_is_found);
    tcase_add_test(tcase, warp_barrier_orders);
    tcase_add_test(tcase, blocks_and_warps_are_not_ordered);
    tcase_add_test(tcase, deadlocks_are_found);
    tcase_add_test(tcase, shared_memory_is_new);
    tcase_add_test(tcase, off_by_one_is_found);
    tcase_add_test(tcase, copies_arrive_when_waited_for);
    tcase_add_test(tcase, wrong_copies_are_refused);
    tcase_add_test(tcase, copies_need_a_barrier);
    tcase_add_test(tcase, shuffles_and_votes);
    tcase_add_test(tcase, products_are_right);
    tcase_add_test(tcase, matrices_are_loaded);
    tcase_add_test(tcase, numbers_are_converted);
    tcase_add_test(tcase, powers_flush);
    return suite_run(tcase);
}
