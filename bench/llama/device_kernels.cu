/* One block of threads a row.  Nothing here is CUDA but what ptx.h says, so that it also runs as C++ on a host. */
#include "device_kernels.h"

#include "chunkattention.h"
#include "ptx.h"

enum { THREADS = 256, LANES = 32, WARPS = THREADS / LANES };

PTX_DEVICE float load(const void *array, uint32_t dtype, uint64_t i)
{
    switch (dtype) {
    case CATTN_F32: return ((const float *)array)[i];
    case CATTN_F16: return ptx_f16_to_f32(((const uint16_t *)array)[i]);
    default: return ptx_bf16_to_f32(((const uint16_t *)array)[i]);
    }
}

PTX_DEVICE void store(void *array, uint32_t dtype, uint64_t i, float x)
{
    switch (dtype) {
    case CATTN_F32: ((float *)array)[i] = x; break;
    case CATTN_F16: ((uint16_t *)array)[i] = ptx_f32_to_f16(x); break;
    default: ((uint16_t *)array)[i] = ptx_f32_to_bf16(x); break;
    }
}

/* Over the threads of the block, to each of them, always in the same order. */
PTX_DEVICE float sum_of_block(float x)
{
    float *sums = (float *)(void *)ptx_shared();

    for (int mask = LANES / 2; mask > 0; mask /= 2)
        x += ptx_shuffle_xor(x, mask);
    if (ptx_thread() % LANES == 0)
        sums[ptx_thread() / LANES] = x;
    ptx_barrier();
    x = 0;
    for (int i = 0; i < WARPS; i++)
        x += sums[i];
    return x;
}

PTX_GLOBAL void embed_rows(const struct device_embed job)
{
    const uint64_t row = ptx_block_x(), from = (uint64_t)job.tokens[row] * job.dim;

    for (uint32_t i = ptx_thread(); i < job.dim; i += THREADS)
        job.x[row * job.dim + i] = load(job.embedding, job.dtype, from + i);
}

PTX_GLOBAL void norm_rows(const struct device_norm job)
{
    const uint64_t row = job.rows ? job.rows[ptx_block_x()] : ptx_block_x(), to = (uint64_t)ptx_block_x() * job.dim;
    const float *x = job.x + row * job.dim;
    float sum = 0;

    for (uint32_t i = ptx_thread(); i < job.dim; i += THREADS)
        sum += x[i] * x[i];
    const float scale = 1 / sqrtf(sum_of_block(sum) / (float)job.dim + job.epsilon);
    for (uint32_t i = ptx_thread(); i < job.dim; i += THREADS)
        store(job.out, job.dtype, to + i, job.weights[i] * (x[i] * scale));
}

PTX_GLOBAL void rotate_rows(const struct device_rotate job)
{
    const uint64_t row = ptx_block_x();

    for (uint32_t i = ptx_thread(); i < job.n_heads * job.n_pairs; i += THREADS) {
        const uint32_t pair = i % job.n_pairs;
        const uint64_t at = row * job.width + (uint64_t)(i / job.n_pairs) * job.head_dim + 2 * pair;
        const float c = job.cosines[row * job.n_pairs + pair], s = job.sines[row * job.n_pairs + pair];
        const float a = load(job.heads, job.dtype, at), b = load(job.heads, job.dtype, at + 1);

        store(job.heads, job.dtype, at, a * c - b * s);
        store(job.heads, job.dtype, at + 1, a * s + b * c);
    }
}

PTX_GLOBAL void activate_rows(const struct device_activate job)
{
    const float log2_e = 1.44269504f;
    const uint64_t row = ptx_block_x();

    for (uint32_t i = ptx_thread(); i < job.hidden; i += THREADS) {
        const float gate = load(job.gate_up, job.dtype, row * 2 * job.hidden + i);
        const float up = load(job.gate_up, job.dtype, row * 2 * job.hidden + job.hidden + i);

        store(job.out, job.dtype, row * job.hidden + i, gate / (1 + ptx_exp2(-gate * log2_e)) * up);
    }
}

int device_embed(const struct device_embed *job, void *stream)
{
    return ptx_launch(embed_rows, job->n_rows, 1, THREADS, 0, stream, *job);
}

int device_norm(const struct device_norm *job, void *stream)
{
    return ptx_launch(norm_rows, job->n_rows, 1, THREADS, WARPS * sizeof(float), stream, *job);
}

int device_rotate(const struct device_rotate *job, void *stream)
{
    return job->n_pairs == 0 ? 0 : ptx_launch(rotate_rows, job->n_rows, 1, THREADS, 0, stream, *job);
}

int device_activate(const struct device_activate *job, void *stream)
{
    return ptx_launch(activate_rows, job->n_rows, 1, THREADS, 0, stream, *job);
}
