// Every primitive of ptx.h against what it must give, worked out here on the host from the definitions of the PTX ISA:
// data is tagged by lane and place, so that nothing that lands elsewhere goes unseen.  Compiled by nvcc it tests a
// device; compiled as C++ against tests/cuda-host/ptx.h, the twin that the kernels' tests run on.  One line for each
// primitive.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "chunkattention.h"
#include "ptx.h"

extern "C" {
#include "support/dtype.h"
}

enum { WARP = 32, THREADS = 128, COLUMNS = 3, ROWS = 2, BLOCKS = COLUMNS * ROWS, ALL = THREADS * BLOCKS };

struct job {
    const uint32_t *in;
    uint32_t *out;
};

// Tells neighbours apart in every bit.
static uint32_t tag(uint32_t i)
{
    i = (i ^ i >> 16) * UINT32_C(0x85ebca6b);
    i = (i ^ i >> 13) * UINT32_C(0xc2b2ae35);
    return i ^ i >> 16;
}

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t to_16(uint32_t dtype, double x)
{
    uint16_t bits;
    dtype_store(dtype, &bits, 0, x);
    return bits;
}

static void fill_tags(uint32_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        in[i] = tag((uint32_t)i + 1);
}

// ---- device side: where a thread is ---------------------------------------------------------------------------------

// Of this thread among all.
PTX_DEVICE uint32_t place()
{
    return (ptx_block_y() * ptx_grid_x() + ptx_block_x()) * THREADS + ptx_thread();
}

PTX_GLOBAL void tell_place(struct job job)
{
    job.out[place()] = ptx_thread() | ptx_block_x() << 8 | ptx_block_y() << 16 | ptx_grid_x() << 24;
}

static void expect_place(const uint32_t *in, uint32_t *expected)
{
    (void)in;
    for (uint32_t i = 0; i < ALL; i++) {
        const uint32_t block = i / THREADS;
        expected[i] = i % THREADS | (block % COLUMNS) << 8 | (block / COLUMNS) << 16 | (uint32_t)COLUMNS << 24;
    }
}

// ---- the parameter of a launch --------------------------------------------------------------------------------------

enum { LARGE = 1000 }; // 4000 bytes, of the 4096 that a kernel may be given

struct large_job {
    struct job job;
    uint32_t words[LARGE];
};

PTX_GLOBAL void copy_parameter(struct large_job large)
{
    for (uint32_t i = ptx_thread(); i < LARGE; i += THREADS)
        large.job.out[i] = large.words[i];
}

static int launch_large(struct job job)
{
    struct large_job large;

    large.job = job;
    fill_tags(large.words, LARGE);
    return ptx_launch(copy_parameter, 1, 1, THREADS, 0, NULL, large);
}

static void expect_large(const uint32_t *in, uint32_t *expected)
{
    (void)in;
    fill_tags(expected, LARGE);
}

// ---- shared memory and barriers -------------------------------------------------------------------------------------

enum { SHARED = 49152, SHARED_WORDS = SHARED / 4, ROUNDS = 5 };

// All of it is there, a block's own, and begins at a multiple of 16.
PTX_GLOBAL void fill_shared(struct job job)
{
    uint32_t *words = (uint32_t *)(void *)ptx_shared(), wrong = ((uintptr_t)ptx_shared() & 15) != 0;
    const uint32_t block = place() / THREADS;

    for (uint32_t i = ptx_thread(); i < SHARED_WORDS; i += THREADS)
        words[i] = job.in[i] + block;
    ptx_barrier();
    for (uint32_t i = ptx_thread(); i < SHARED_WORDS; i += THREADS)
        wrong += words[SHARED_WORDS - 1 - i] != job.in[SHARED_WORDS - 1 - i] + block;
    job.out[place()] = wrong;
}

static void expect_zeros(const uint32_t *in, uint32_t *expected)
{
    (void)in;
    memset(expected, 0, ALL * sizeof *expected);
}

// A word goes through all warps of the block, from one to the next.
PTX_GLOBAL void pass_on(struct job job)
{
    uint32_t *words = (uint32_t *)(void *)ptx_shared(), word = job.in[place()];

    for (int round = 0; round < ROUNDS; round++) {
        words[ptx_thread()] = word;
        ptx_barrier();
        word = words[(ptx_thread() + WARP + 1) % THREADS];
        ptx_barrier();
    }
    job.out[place()] = word;
}

static void expect_passed_on(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL; i++)
        expected[i] = in[i - i % THREADS + (i % THREADS + ROUNDS * (WARP + 1)) % THREADS];
}

// The same inside a warp, every warp as often as its number: a barrier of the block would never end.
PTX_GLOBAL void pass_on_in_warp(struct job job)
{
    const uint32_t first = ptx_thread() / WARP * WARP, lane = ptx_thread() % WARP;
    uint32_t *words = (uint32_t *)(void *)ptx_shared(), word = job.in[place()];

    for (uint32_t round = 0; round <= first / WARP; round++) {
        words[first + lane] = word;
        ptx_warp_barrier();
        word = words[first + (lane + 5) % WARP];
        ptx_warp_barrier();
    }
    job.out[place()] = word;
}

static void expect_passed_on_in_warp(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL; i++) {
        const uint32_t lane = i % WARP, rounds = i % THREADS / WARP + 1;
        expected[i] = in[i - lane + (lane + 5 * rounds) % WARP];
    }
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------

enum { COPIES = 17, COPY_WORDS = 4 * COPIES }; // of 0 .. 16 bytes each

// A thread's copies of every length, over bytes that were there before.  Nothing is read where none are wanted, not
// even at an address that is not mapped.
PTX_GLOBAL void copy_lengths(struct job job)
{
    uint32_t *words = (uint32_t *)(void *)ptx_shared() + ptx_thread() * COPY_WORDS;
    const uint32_t *from = job.in + (size_t)place() * COPY_WORDS;

    for (uint32_t i = 0; i < COPY_WORDS; i++)
        words[i] = UINT32_C(0xeeeeeeee);
    for (uint32_t n = 0; n < COPIES; n++)
        ptx_copy16(words + 4 * n, n == 0 ? NULL : from + 4 * n, n);
    ptx_copy_commit();
    ptx_copy_wait<0>();
    for (uint32_t i = 0; i < COPY_WORDS; i++)
        job.out[(size_t)place() * COPY_WORDS + i] = words[i];
}

static void expect_lengths(const uint32_t *in, uint32_t *expected)
{
    memset(expected, 0, ALL * COPY_WORDS * sizeof *expected);
    for (size_t i = 0; i < (size_t)ALL * COPIES; i++)
        memcpy(expected + 4 * i, in + 4 * i, i % COPIES);
}

// Groups in flight as the kernels have them: the oldest is there after each wait, for other threads after a barrier.
PTX_GLOBAL void copy_groups(struct job job)
{
    uint32_t *words = (uint32_t *)(void *)ptx_shared();
    const uint32_t thread = ptx_thread(), other = (thread + WARP + 3) % THREADS;
    const uint32_t *from = job.in + (size_t)place() * 16;
    uint32_t *to = job.out + (size_t)place() * 16;

    for (uint32_t group = 0; group < 3; group++) {
        ptx_copy16(words + (group * THREADS + thread) * 4, from + group * 4, 16);
        ptx_copy_commit();
    }
    ptx_copy_wait<2>();
    ptx_barrier();
    for (uint32_t i = 0; i < 4; i++)
        to[i] = words[other * 4 + i];
    ptx_barrier();
    ptx_copy16(words + thread * 4, from + 12, 16); // into the place of the first
    ptx_copy_commit();
    ptx_copy_wait<1>();
    ptx_barrier();
    for (uint32_t i = 0; i < 8; i++)
        to[4 + i] = words[((i / 4 + 1) * THREADS + other) * 4 + i % 4];
    ptx_copy_wait<0>();
    ptx_barrier();
    for (uint32_t i = 0; i < 4; i++)
        to[12 + i] = words[other * 4 + i];
}

static void expect_groups(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL; i++) {
        const uint32_t other = i - i % THREADS + (i % THREADS + WARP + 3) % THREADS;
        memcpy(expected + (size_t)i * 16, in + (size_t)other * 16, 16 * sizeof *in);
    }
}

// ---- matrices -------------------------------------------------------------------------------------------------------

enum { ROW_BYTES = 48, WARPS = ALL / WARP }; // rows of 8 elements lie apart

// Rows of four 8 x 8 matrices of 16 bits, each at an address of its own that is not the next one's.
PTX_DEVICE const char *matrix_row(struct job job)
{
    const uint32_t lane = ptx_thread() % WARP, row = lane * 7 % WARP;
    char *shared = ptx_shared() + ptx_thread() / WARP * WARP * ROW_BYTES;

    for (uint32_t i = 0; i < 4; i++)
        *((uint32_t *)(void *)(shared + row * ROW_BYTES) + i) = job.in[place() * 4 + i];
    ptx_warp_barrier();
    return shared + row * ROW_BYTES;
}

PTX_GLOBAL void load_matrices(struct job job)
{
    uint32_t r[4];

    ptx_ldmatrix_x4(r, matrix_row(job));
    for (uint32_t i = 0; i < 4; i++)
        job.out[place() * 4 + i] = r[i];
}

PTX_GLOBAL void load_matrices_trans(struct job job)
{
    uint32_t r[4];

    ptx_ldmatrix_x4_trans(r, matrix_row(job));
    for (uint32_t i = 0; i < 4; i++)
        job.out[place() * 4 + i] = r[i];
}

// Element (row, column) of matrix m of a warp: lane 8 m + row gave the address of the row.
static uint32_t matrix_element(const uint32_t *in, uint32_t warp, uint32_t m, uint32_t row, uint32_t column)
{
    const uint32_t word = in[(warp * WARP + 8 * m + row) * 4 + column / 2];
    return column % 2 == 0 ? word & 0xffff : word >> 16;
}

// Register m of a lane has two neighbours of row lane / 4 of matrix m, or, transposed, of its column.
static void expect_matrices(const uint32_t *in, uint32_t *expected, int transposed)
{
    for (uint32_t i = 0; i < ALL * 4; i++) {
        const uint32_t warp = i / 4 / WARP, lane = i / 4 % WARP, m = i % 4, row = lane / 4, column = lane % 4 * 2;
        const uint32_t low =
            transposed ? matrix_element(in, warp, m, column, row) : matrix_element(in, warp, m, row, column);
        const uint32_t high =
            transposed ? matrix_element(in, warp, m, column + 1, row) : matrix_element(in, warp, m, row, column + 1);
        expected[i] = low | high << 16;
    }
}

static void expect_plain_matrices(const uint32_t *in, uint32_t *expected)
{
    expect_matrices(in, expected, 0);
}

static void expect_transposed_matrices(const uint32_t *in, uint32_t *expected)
{
    expect_matrices(in, expected, 1);
}

// A warp's product: a of 16 x 16, b of 16 x 8, c of 16 x 8 that is added to, all of small whole numbers, so that every
// sum is exact in f32 (and would not be in 16 bits).
struct product {
    uint32_t a[16][8], b[8][8]; // pairs along the 16 that are summed over: a by rows, b by columns
    float c[16][8];
};

enum { PRODUCT_WORDS = sizeof(struct product) / 4 };

struct fragments {
    uint32_t a[4], b[2];
    float d[4];
};

// Where the PTX ISA has the elements of m16n8k16: a lane has rows lane / 4 and 8 more, pairs lane % 4 and 4 more of a;
// the same pairs of column lane / 4 of b; of c and d the same rows and columns 2 (lane % 4), 1 more.
PTX_DEVICE struct fragments take_fragments(const struct product *p)
{
    const uint32_t lane = ptx_thread() % WARP, group = lane / 4, pair = lane % 4;
    struct fragments f;

    for (uint32_t i = 0; i < 4; i++)
        f.a[i] = p->a[group + i % 2 * 8][pair + i / 2 * 4];
    for (uint32_t i = 0; i < 2; i++)
        f.b[i] = p->b[group][pair + i * 4];
    for (uint32_t i = 0; i < 4; i++)
        f.d[i] = p->c[group + i / 2 * 8][pair * 2 + i % 2];
    return f;
}

PTX_DEVICE void give_product(struct job job, const float d[4])
{
    const uint32_t warp = place() / WARP, lane = ptx_thread() % WARP;
    float *out = (float *)job.out + warp * 128;

    for (uint32_t i = 0; i < 4; i++)
        out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

PTX_GLOBAL void multiply_f16(struct job job)
{
    struct fragments f = take_fragments((const struct product *)(const void *)job.in + place() / WARP);
    ptx_mma_f16(f.d, f.a, f.b);
    give_product(job, f.d);
}

PTX_GLOBAL void multiply_bf16(struct job job)
{
    struct fragments f = take_fragments((const struct product *)(const void *)job.in + place() / WARP);
    ptx_mma_bf16(f.d, f.a, f.b);
    give_product(job, f.d);
}

static int small_number(uint32_t i)
{
    return (int)(tag(i) % 511) - 255;
}

static uint32_t pair_of(uint32_t dtype, int low, int high)
{
    return to_16(dtype, low) | (uint32_t)to_16(dtype, high) << 16;
}

static void fill_products(uint32_t *in, uint32_t dtype)
{
    struct product *products = (struct product *)(void *)in;

    for (uint32_t w = 0; w < WARPS; w++)
        for (uint32_t i = 0; i < 128; i++) {
            struct product *p = &products[w];
            const uint32_t at = (w * 128 + i) * 8;
            p->a[i / 8][i % 8] = pair_of(dtype, small_number(at), small_number(at + 1));
            if (i < 64)
                p->b[i / 8][i % 8] = pair_of(dtype, small_number(at + 2), small_number(at + 3));
            p->c[i / 8][i % 8] = (float)small_number(at + 4) + 0.5f;
        }
}

static void fill_products_f16(uint32_t *in, size_t n)
{
    (void)n;
    fill_products(in, CATTN_F16);
}

static void fill_products_bf16(uint32_t *in, size_t n)
{
    (void)n;
    fill_products(in, CATTN_BF16);
}

static void expect_products(const uint32_t *in, uint32_t *expected, uint32_t dtype)
{
    for (uint32_t w = 0; w < WARPS; w++)
        for (uint32_t i = 0; i < 128; i++) {
            const struct product *p = (const struct product *)(const void *)in + w;
            double sum = p->c[i / 8][i % 8];
            for (size_t k = 0; k < 16; k++)
                sum += dtype_load(dtype, p->a[i / 8], k) * dtype_load(dtype, p->b[i % 8], k);
            expected[w * 128 + i] = float_bits((float)sum);
        }
}

static void expect_products_f16(const uint32_t *in, uint32_t *expected)
{
    expect_products(in, expected, CATTN_F16);
}

static void expect_products_bf16(const uint32_t *in, uint32_t *expected)
{
    expect_products(in, expected, CATTN_BF16);
}

// ---- numbers of 16 bits ---------------------------------------------------------------------------------------------

enum { HALVES = 1 << 16, NARROW = 4 * HALVES };

PTX_GLOBAL void widen_f16(struct job job)
{
    for (uint32_t i = place(); i < HALVES; i += ALL)
        ((float *)job.out)[i] = ptx_f16_to_f32((uint16_t)i);
}

PTX_GLOBAL void widen_bf16(struct job job)
{
    for (uint32_t i = place(); i < HALVES; i += ALL)
        ((float *)job.out)[i] = ptx_bf16_to_f32((uint16_t)i);
}

static void expect_wide(uint32_t *expected, uint32_t dtype)
{
    for (uint32_t i = 0; i < HALVES; i++) {
        const uint16_t half = (uint16_t)i;
        expected[i] = float_bits((float)dtype_load(dtype, &half, 0));
    }
}

static void expect_wide_f16(const uint32_t *in, uint32_t *expected)
{
    (void)in;
    expect_wide(expected, CATTN_F16);
}

static void expect_wide_bf16(const uint32_t *in, uint32_t *expected)
{
    (void)in;
    expect_wide(expected, CATTN_BF16);
}

PTX_GLOBAL void narrow_f16(struct job job)
{
    for (uint32_t i = place(); i < NARROW; i += ALL)
        job.out[i] = ptx_f32_to_f16(((const float *)(const void *)job.in)[i]);
}

PTX_GLOBAL void narrow_bf16(struct job job)
{
    for (uint32_t i = place(); i < NARROW; i += ALL)
        job.out[i] = ptx_f32_to_bf16(((const float *)(const void *)job.in)[i]);
}

PTX_GLOBAL void pack_f16(struct job job)
{
    const float *in = (const float *)(const void *)job.in;
    for (uint32_t i = place(); i < NARROW; i += ALL)
        job.out[i] = ptx_pack_f16(in[i], in[NARROW - 1 - i]);
}

PTX_GLOBAL void pack_bf16(struct job job)
{
    const float *in = (const float *)(const void *)job.in;
    for (uint32_t i = place(); i < NARROW; i += ALL)
        job.out[i] = ptx_pack_bf16(in[i], in[NARROW - 1 - i]);
}

// All of the type's numbers, what lies half way between each and the next, and a little to both sides of it.  Where
// that is below the least normal f32, which may count as zero, and for NaNs, there is 1 instead.
static void fill_halfway(uint32_t *in, uint32_t dtype)
{
    const int dropped = dtype == CATTN_F16 ? 13 : 16;

    for (uint32_t i = 0; i < NARROW; i++) {
        const uint16_t half = (uint16_t)i;
        const float x = (float)dtype_load(dtype, &half, 0);
        uint32_t bits = float_bits(x);

        if (isfinite(x) && i >= HALVES)
            bits += (UINT32_C(1) << (dropped - 1)) + i / HALVES - 2;
        in[i] = (bits & 0x7f800000) == 0 || isnan(x) ? float_bits(1.0f) : bits;
    }
}

static void fill_halfway_f16(uint32_t *in, size_t n)
{
    (void)n;
    fill_halfway(in, CATTN_F16);
}

static void fill_halfway_bf16(uint32_t *in, size_t n)
{
    (void)n;
    fill_halfway(in, CATTN_BF16);
}

static void expect_narrow(const uint32_t *in, uint32_t *expected, uint32_t dtype)
{
    for (uint32_t i = 0; i < NARROW; i++)
        expected[i] = to_16(dtype, dtype_round(dtype, bits_float(in[i])));
}

static void expect_narrow_f16(const uint32_t *in, uint32_t *expected)
{
    expect_narrow(in, expected, CATTN_F16);
}

static void expect_narrow_bf16(const uint32_t *in, uint32_t *expected)
{
    expect_narrow(in, expected, CATTN_BF16);
}

static void pack(uint32_t *expected)
{
    for (uint32_t i = 0; i < NARROW / 2; i++) {
        const uint32_t low = expected[i], high = expected[NARROW - 1 - i];
        expected[i] = low | high << 16;
        expected[NARROW - 1 - i] = high | low << 16;
    }
}

static void expect_packed_f16(const uint32_t *in, uint32_t *expected)
{
    expect_narrow(in, expected, CATTN_F16);
    pack(expected);
}

static void expect_packed_bf16(const uint32_t *in, uint32_t *expected)
{
    expect_narrow(in, expected, CATTN_BF16);
    pack(expected);
}

// ---- powers of two --------------------------------------------------------------------------------------------------

PTX_GLOBAL void raise(struct job job)
{
    for (uint32_t i = place(); i < HALVES; i += ALL)
        ((float *)job.out)[i] = ptx_exp2(((const float *)(const void *)job.in)[i]);
}

// From below what f32 holds to above it, whole numbers among them, and infinities.
static void fill_exponents(uint32_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        in[i] = float_bits(i % 8 == 0 ? (float)(i / 8 % 300) - 170.0f : (float)i * (300.0f / HALVES) - 170.0f);
    in[1] = float_bits(-INFINITY);
    in[2] = float_bits(INFINITY);
    in[3] = float_bits(-1e30f);
    in[4] = float_bits(-0.0f);
}

static void expect_powers(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < HALVES; i++)
        expected[i] = float_bits((float)exp2((double)bits_float(in[i])));
}

// Products are of 48 bits, and what is taken away is about as large.
static void fill_factors(uint32_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        in[i] = float_bits(1.0f + (float)(tag((uint32_t)i) >> 9) * 0x1p-23f);
}

// Rounded before anything is added to it.
PTX_GLOBAL void multiply_then_subtract(struct job job)
{
    const float *in = (const float *)(const void *)job.in;
    const uint32_t i = place();
    ((float *)job.out)[i] = ptx_mul(in[i], in[ALL - 1 - i]) - in[ALL - i];
}

static void expect_two_roundings(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL; i++) {
        volatile float product = bits_float(in[i]) * bits_float(in[ALL - 1 - i]);
        expected[i] = float_bits(product - bits_float(in[ALL - i]));
    }
}

// ---- a warp's words -------------------------------------------------------------------------------------------------

enum { MASKS = WARP - 1 };

PTX_GLOBAL void shuffle_words(struct job job)
{
    for (int mask = 1; mask <= MASKS; mask++)
        job.out[place() * MASKS + (uint32_t)mask - 1] = ptx_shuffle_xor(job.in[place()], mask);
}

PTX_GLOBAL void shuffle_floats(struct job job)
{
    const float x = ((const float *)(const void *)job.in)[place()];
    for (int mask = 1; mask <= MASKS; mask++)
        ((float *)job.out)[place() * MASKS + (uint32_t)mask - 1] = ptx_shuffle_xor(x, mask);
}

static void expect_shuffled(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL; i++)
        for (uint32_t mask = 1; mask <= MASKS; mask++)
            expected[i * MASKS + mask - 1] = in[i ^ mask];
}

// Each lane asks for every other one, and all for the same.
PTX_GLOBAL void shuffle_lanes(struct job job)
{
    const float x = ((const float *)(const void *)job.in)[place()];
    for (int i = 0; i < WARP; i++) {
        ((float *)job.out)[(place() * WARP + (uint32_t)i) * 2] = ptx_shuffle(x, i);
        ((float *)job.out)[(place() * WARP + (uint32_t)i) * 2 + 1] = ptx_shuffle(x, ((int)ptx_thread() + i) % WARP);
    }
}

static void expect_lanes(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL * WARP; i++) {
        const uint32_t lane = i / WARP % WARP, first = i / WARP - lane;
        expected[i * 2] = in[first + i % WARP];
        expected[i * 2 + 1] = in[first + (lane + i) % WARP];
    }
}

static void fill_floats(uint32_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        in[i] = float_bits((float)(int32_t)tag((uint32_t)i));
}

// What a number of lanes think, each of which is asked once alone.
PTX_GLOBAL void vote(struct job job)
{
    const uint32_t lane = ptx_thread() % WARP;
    uint32_t any = 0, all = 0;

    for (uint32_t i = 0; i < WARP; i++) {
        any |= (uint32_t)(ptx_any(lane == i && job.in[place()] % 2 == 0) != 0) << i;
        all |= (uint32_t)(ptx_all(lane != i || job.in[place()] % 2 == 0) != 0) << i;
    }
    job.out[place() * 2] = any;
    job.out[place() * 2 + 1] = all;
}

static void expect_votes(const uint32_t *in, uint32_t *expected)
{
    for (uint32_t i = 0; i < ALL; i++) {
        uint32_t even = 0;
        for (uint32_t lane = 0; lane < WARP; lane++)
            even |= (uint32_t)(in[i - i % WARP + lane] % 2 == 0) << lane;
        expected[i * 2] = expected[i * 2 + 1] = even;
    }
}

// ---- the list -------------------------------------------------------------------------------------------------------

static int launch_all(void (*kernel)(struct job), uint32_t shared, struct job job)
{
    return ptx_launch(kernel, COLUMNS, ROWS, THREADS, shared, NULL, job);
}

struct check {
    const char *name;
    size_t n_in, n_out; // words
    void (*fill)(uint32_t *in, size_t n);
    void (*expect)(const uint32_t *in, uint32_t *expected);
    void (*kernel)(struct job); // NULL: launch starts it
    uint32_t shared;            // bytes
    int (*launch)(struct job job);
    double tolerance; // of floats, relative; 0: the same bits
};

static const struct check checks[] = {
    {"thread, block and grid", 1, ALL, fill_tags, expect_place, tell_place, 0, NULL, 0},
    {"launch, parameter of 4000 bytes", 1, LARGE, fill_tags, expect_large, NULL, 0, launch_large, 0},
    {"shared, 48 KB", SHARED_WORDS, ALL, fill_tags, expect_zeros, fill_shared, SHARED, NULL, 0},
    {"barrier", ALL, ALL, fill_tags, expect_passed_on, pass_on, THREADS * 4, NULL, 0},
    {"warp_barrier", ALL, ALL, fill_tags, expect_passed_on_in_warp, pass_on_in_warp, THREADS * 4, NULL, 0},
    {"copy16, 0 to 16 bytes", ALL *COPY_WORDS, ALL *COPY_WORDS, fill_tags, expect_lengths, copy_lengths,
     THREADS *COPY_WORDS * 4, NULL, 0},
    {"copy_commit and copy_wait", ALL * 16, ALL * 16, fill_tags, expect_groups, copy_groups, 3 * THREADS * 16, NULL, 0},
    {"ldmatrix_x4", ALL * 4, ALL * 4, fill_tags, expect_plain_matrices, load_matrices, THREADS *ROW_BYTES, NULL, 0},
    {"ldmatrix_x4_trans", ALL * 4, ALL * 4, fill_tags, expect_transposed_matrices, load_matrices_trans,
     THREADS *ROW_BYTES, NULL, 0},
    {"mma_f16", WARPS *PRODUCT_WORDS, WARPS * 128, fill_products_f16, expect_products_f16, multiply_f16, 0, NULL, 0},
    {"mma_bf16", WARPS *PRODUCT_WORDS, WARPS * 128, fill_products_bf16, expect_products_bf16, multiply_bf16, 0, NULL,
     0},
    {"f16_to_f32", 1, HALVES, fill_tags, expect_wide_f16, widen_f16, 0, NULL, 0},
    {"bf16_to_f32", 1, HALVES, fill_tags, expect_wide_bf16, widen_bf16, 0, NULL, 0},
    {"f32_to_f16", NARROW, NARROW, fill_halfway_f16, expect_narrow_f16, narrow_f16, 0, NULL, 0},
    {"f32_to_bf16", NARROW, NARROW, fill_halfway_bf16, expect_narrow_bf16, narrow_bf16, 0, NULL, 0},
    {"pack_f16", NARROW, NARROW, fill_halfway_f16, expect_packed_f16, pack_f16, 0, NULL, 0},
    {"pack_bf16", NARROW, NARROW, fill_halfway_bf16, expect_packed_bf16, pack_bf16, 0, NULL, 0},
    {"exp2", HALVES, HALVES, fill_exponents, expect_powers, raise, 0, NULL, 0x1p-21},
    {"mul", ALL + 1, ALL, fill_factors, expect_two_roundings, multiply_then_subtract, 0, NULL, 0},
    {"shuffle_xor of words", ALL, ALL *MASKS, fill_tags, expect_shuffled, shuffle_words, 0, NULL, 0},
    {"shuffle_xor of floats", ALL, ALL *MASKS, fill_floats, expect_shuffled, shuffle_floats, 0, NULL, 0},
    {"shuffle", ALL, ALL *WARP * 2, fill_floats, expect_lanes, shuffle_lanes, 0, NULL, 0},
    {"any and all", ALL, ALL * 2, fill_tags, expect_votes, vote, 0, NULL, 0},
};
enum { N_CHECKS = sizeof checks / sizeof checks[0] };

// ---- running it -----------------------------------------------------------------------------------------------------

// NaNs are alike, and results below the least normal f32 may be zero.
static int agrees(const struct check *check, uint32_t found, uint32_t expected)
{
    const float x = bits_float(found), y = bits_float(expected);

    if (found == expected)
        return 1;
    if (strstr(check->name, "to_f32") != NULL)
        return (isnan(x) && isnan(y)) || (fabsf(y) < 0x1p-126f && x == 0.0f);
    if (check->tolerance == 0)
        return 0;
    return fabsf(y) < 0x1p-126f ? x >= 0.0f && x <= 0x1p-126f : fabs((double)x / (double)y - 1) <= check->tolerance;
}

static int report(const struct check *check, const uint32_t *found, const uint32_t *expected)
{
    size_t n_wrong = 0, first = 0;

    for (size_t i = 0; i < check->n_out; i++)
        if (!agrees(check, found[i], expected[i]) && n_wrong++ == 0)
            first = i;
    if (n_wrong == 0)
        printf("ok    %s\n", check->name);
    else
        printf("FAIL  %s: %zu of %zu words, the first at %zu: %08x, expected %08x\n", check->name, n_wrong,
               check->n_out, first, found[first], expected[first]);
    return n_wrong != 0;
}

// What a kernel does not write stays as it was, which no check expects.
static cudaError_t run(const struct check *check, const uint32_t *in, uint32_t *out)
{
    const size_t in_bytes = check->n_in * sizeof *in, out_bytes = check->n_out * sizeof *out;
    void *device_in = NULL, *device_out = NULL;
    cudaError_t error = cudaMalloc(&device_in, in_bytes);

    if (error == cudaSuccess)
        error = cudaMalloc(&device_out, out_bytes);
    if (error == cudaSuccess)
        error = cudaMemcpy(device_in, in, in_bytes, cudaMemcpyHostToDevice);
    if (error == cudaSuccess)
        error = cudaMemcpy(device_out, out, out_bytes, cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
        const struct job job = {(const uint32_t *)device_in, (uint32_t *)device_out};
        error =
            (cudaError_t)(check->kernel != NULL ? launch_all(check->kernel, check->shared, job) : check->launch(job));
    }
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    if (error == cudaSuccess)
        error = cudaMemcpy(out, device_out, out_bytes, cudaMemcpyDeviceToHost);
    (void)cudaFree(device_in);
    (void)cudaFree(device_out);
    return error;
}

// 1 if it failed; -1: and the device is of no use any more.
static int run_check(const struct check *check)
{
    uint32_t *in = (uint32_t *)calloc(check->n_in, sizeof *in);
    uint32_t *out = (uint32_t *)malloc(check->n_out * sizeof *out);
    uint32_t *expected = (uint32_t *)calloc(check->n_out, sizeof *expected);
    cudaError_t error = cudaErrorMemoryAllocation;
    int failed = -1;

    if (in != NULL && out != NULL && expected != NULL) {
        check->fill(in, check->n_in);
        check->expect(in, expected);
        for (size_t i = 0; i < check->n_out; i++)
            out[i] = ~expected[i];
        error = run(check, in, out);
    }
    if (error == cudaSuccess)
        failed = report(check, out, expected);
    else
        printf("FAIL  %s: %s\n", check->name, cudaGetErrorString(error));
    free(in);
    free(out);
    free(expected);
    return failed;
}

int main()
{
    int n_devices = 0, n_failed = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess || n_devices == 0) {
        printf("SKIP: no CUDA device: %s\n", cudaGetErrorString(error));
        return 77;
    }
    for (const struct check *check = checks; check < checks + N_CHECKS; check++) {
        const int failed = run_check(check);
        n_failed += failed != 0;
        if (failed < 0)
            break;
    }
    printf("%d primitive%s wrong\n", n_failed, n_failed == 1 ? "" : "s");
    return n_failed != 0;
}
