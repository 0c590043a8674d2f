#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention on the shapes of bench/attend's grid table3: what a user has today, each
sequence over keys and values of its own.  Rows of the CSV of bench/attend on standard output.

Usage: sdpa.py f16|bf16 KV_HEADS
"""
import sys

import torch
import torch.nn.functional as F

BATCH, HEADS, DIM, PRIVATE, CHUNK = 32, 32, 128, 64, 64
PASSES, CALLS = 3, 20


def make(n_tokens, kv_heads, dtype):
    """Query, keys and values of one layer."""
    shapes = (BATCH, HEADS, 1, DIM), (BATCH, kv_heads, n_tokens, DIM), (BATCH, kv_heads, n_tokens, DIM)
    return [torch.rand(shape, device="cuda", dtype=dtype) * 4 - 2 for shape in shapes]


def attend(q, k, v):
    """Query heads in groups become rows of one KV head, which every version of PyTorch can do without copies."""
    rows = q.view(BATCH, k.shape[1], -1, DIM)
    return F.scaled_dot_product_attention(rows, k, v).reshape(BATCH, HEADS, 1, DIM)


def relative_error(q, k, v):
    group = HEADS // k.shape[1]
    scores = q.double() @ k.double().repeat_interleave(group, 1).transpose(-1, -2) / DIM**0.5
    right = scores.softmax(-1) @ v.double().repeat_interleave(group, 1)
    return ((attend(q, k, v).double() - right).norm() / right.norm()).item()


def measure(layers):
    """Microseconds of a call, one sample a pass of CALLS calls that rotate over the layers."""
    samples = []
    for _ in range(PASSES + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(CALLS):
            attend(*layers[i % len(layers)])
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1000 / CALLS)
    return sorted(samples[1:])  # the first warms up


def main():
    name, kv_heads = sys.argv[1], int(sys.argv[2])
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[name]
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    print("variant,kernel,dtype,batch,heads,kv_heads,head_dim,chunk,shared,private,threads,us,us_min,unique_bytes,gbps,"
          "frac_read,gflops,intensity,bound,rel_err,frac_compute")
    for shared in 0, 1024, 2048, 4096:
        n = shared + PRIVATE
        bytes_read = BATCH * n * kv_heads * DIM * 2 * 2
        layers = [make(n, kv_heads, dtype) for _ in range(1 + 4 * cache // bytes_read)]
        samples = measure(layers)
        us, us_min, work = samples[len(samples) // 2], samples[0], 4 * DIM * HEADS * BATCH * n
        print(f"sdpa,torch-{torch.__version__},{name},{BATCH},{HEADS},{kv_heads},{DIM},{CHUNK},{shared},{PRIVATE},1,"
              f"{us:.1f},{us_min:.1f},{bytes_read},{bytes_read / us / 1e3:.2f},0,{work / us / 1e3:.2f},"
              f"{work / bytes_read:.2f},memory,{relative_error(*layers[0]):.2e},0")
        del layers


if __name__ == "__main__":
    main()
