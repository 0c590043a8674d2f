"""Drives chunkllama over a real model and compares with recorded tokens, texts and logits.

The recorded runs come from an independent dense attention in double precision.  Every kernel, chunk size, way of
batching, of sharing and of cutting the prompts must give the same tokens.
"""
import array
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile

SUMS = {
    "stories260K.gguf": "270cba1bd5109f42d03350f60406024560464db173c0e387d91f0426d3bd256d",
    "stories260k_greedy.json": "52bcc87d4989c5d641f952111415140ce2e4180feb22b9014eeb1047e50c00d7",
    "stories260k_edges.json": "49a3eb5ed9b352e5092443cc7a566c35d6281c20889c344f50fadc6d2bde604e",
    "stories260k_logits.f32": "4b9b0fbb224bd97683f4ae279dba32ac2e0bc7e5ca606dc68ef948fe94ef21cd",
}
PREFILL = [None, 1, 7, 31, 32, 33, 64, 65]
LOGIT_TOLERANCE, ROUGHER = 1e-4, {"amxf32": 1e-3}  # numbers of 16 bits

program, models, *selected = sys.argv[1:]
environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # the machine may be shared
failures = []
n_checks = 0


def check(condition, what):
    global n_checks
    n_checks += 1
    if not condition:
        failures.append(what)
        print("FAIL:", what, flush=True)


def run(*arguments):
    return subprocess.run([program, "--model", os.path.join(models, "stories260K.gguf"), *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def write_requests(name, runs, as_text=False):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        for r in runs:
            prompt = {"prompt": r["prompt"]} if as_text else {"ids": r["prompt_ids"]}
            file.write(json.dumps({**prompt, "max_tokens": len(r["out_ids"])}) + "\n")
    return path


def decode(path, *arguments):
    """Prompt and output ids of each request, or None after a failure."""
    done = run("--requests", path, "--ids", *arguments)
    if done.returncode:
        check(False, f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr.decode().strip()}")
        return None
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(runs, got, what):
    check(got is not None and len(got) == len(runs), f"{what}: {len(runs)} results")
    for expected, result in zip(runs, got or []):
        check(result["prompt_ids"] == expected["prompt_ids"], f"{what}: prompt of {expected['name']}")
        check(result["output_ids"] == expected["out_ids"], f"{what}: output of {expected['name']}")


def decode_logits(path, *arguments):
    file = os.path.join(folder, "logits-" + hashlib.sha256(repr((path, arguments)).encode()).hexdigest()[:16])
    if decode(path, "--logits", file, *arguments) is None:
        return None
    with open(file, "rb") as f:
        values = array.array("f", f.read())
    os.remove(file)
    return values


def kernels_for(dtype):
    """The kernels that take this type of K and V."""
    return [k for k in kernels if run("--prompt", "A", "--n-predict", "1", "--kernel", k, "--kv-dtype", dtype).returncode == 0]


def in_parallel(jobs):
    """Runs (function, arguments ...) by two threads, each of which waits for a program of one thread."""
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for future in [pool.submit(*job) for job in jobs]:
            future.result()


# ---- the tests ------------------------------------------------------------------------------------------------------

def test_matrix():
    """Every combination gives the recorded tokens, f32."""
    every = write_requests("every.jsonl", greedy + edges)

    def one(options):
        compare(greedy + edges, decode(every, "--ignore-eos", "--threads", "1", *options), " ".join(options))

    jobs = []
    for kernel in kernels_for("f32"):
        for chunk in "32", "64":
            for batch in [], ["--max-batch", "1"]:
                for sharing in [], ["--no-sharing"]:
                    for rows in PREFILL:
                        pieces = ["--prefill-rows", str(rows)] if rows else []
                        jobs.append((one, ["--kernel", kernel, "--chunk", chunk, *batch, *sharing, *pieces]))
    in_parallel(jobs)


def test_stop():
    """The runs that stop at the end of text do so by themselves, from text; those that must not are told."""
    stopping = [r for r in greedy if not r.get("ignore_stop")]
    path = write_requests("greedy.jsonl", stopping, as_text=True)
    compare(stopping, decode(path, "--threads", "1"), "greedy runs from text")
    for expected in stopping:
        path = write_requests("one.jsonl", [expected], as_text=True)
        compare([expected], decode(path, "--threads", "1"), f"{expected['name']} alone")
    ignoring = [r for r in greedy if r.get("ignore_stop")]
    compare(ignoring, decode(write_requests("ignoring.jsonl", ignoring), "--ignore-eos", "--threads", "1"), "runs to the end")
    compare(edges, decode(write_requests("edges.jsonl", edges), "--ignore-eos"), "edges, with all threads")


def test_text():
    """The text of a run, as printed for people."""
    for expected in greedy:
        if "text" in expected:
            done = run("--prompt", expected["prompt"], "--n-predict", str(len(expected["out_ids"])), "--threads", "1")
            check(done.stdout.decode("utf-8", "replace") == expected["text"] + "\n", f"text of {expected['name']}")


def test_logits():
    """Logits after the prompts."""
    with open(os.path.join(models, "stories260k_logits.f32"), "rb") as file:
        expected = array.array("f", file.read())
    runs = sorted((r for r in greedy if "logits_row" in r), key=lambda r: r["logits_row"])
    path = write_requests("logits.jsonl", [{**r, "out_ids": [0]} for r in runs])
    for kernel in kernels_for("f32"):
        for more in [], ["--exact-linear"], ["--chunk", "32", "--prefill-rows", "7"], ["--no-sharing"], \
                ["--max-batch", "1"]:
            got = decode_logits(path, "--threads", "1", "--kernel", kernel, *more)
            error = max(abs(a - b) for a, b in zip(expected, got)) if got and len(got) == len(expected) else 1e9
            check(error <= ROUGHER.get(kernel, LOGIT_TOLERANCE), f"logits with {kernel} {' '.join(more)}: error {error:.2g}")


def test_narrow():
    """Narrow K and V: the tokens of the runs whose least gap is above what such K and V can move."""
    for dtype, gap, least in ("bf16", 0.05, 30), ("f16", 0.01, 30), ("i8", 0.15, 10):
        runs = [r for r in greedy + edges if r["min_gap"] > gap]
        check(len(runs) >= least, f"{len(runs)} runs with a gap above {gap}")
        path = write_requests(dtype + ".jsonl", runs)
        for kernel in kernels_for(dtype):
            for more in [], ["--chunk", "32", "--prefill-rows", "33"], ["--no-sharing"], ["--max-batch", "1"]:
                what = f"--kernel {kernel} --kv-dtype {dtype} {' '.join(more)}".strip()
                compare(runs, decode(path, "--ignore-eos", "--threads", "1", *what.split()), what)


def test_bits():
    """Exact kernels, linear layers in a fixed order: logits do not depend on the batch, sharing, pieces, threads."""
    runs = [{**r, "out_ids": [0]} for r in (greedy + edges)[::2]]
    path = write_requests("bits.jsonl", runs)
    for dtype in "f32", "bf16", "i8":
        for kernel in kernels_for(dtype):
            stats = run("--prompt", "A", "--n-predict", "1", "--kernel", kernel, "--kv-dtype", dtype, "--stats").stderr
            if "(exact)" not in stats.decode():
                continue
            fixed = ["--exact-linear", "--kernel", kernel, "--kv-dtype", dtype]
            first = decode_logits(path, *fixed, "--no-sharing", "--max-batch", "1", "--threads", "1")
            for more in "--threads 1", "--threads 2", "--threads 3 --prefill-rows 33", "--max-batch 1", \
                    "--max-batch 8 --prefill-rows 7", "--no-sharing --prefill-rows 64 --threads 2":
                got = decode_logits(path, *fixed, *more.split())
                check(first is not None and got == first, f"bits with {kernel} {dtype} {more}")


def test_cached_prefix():
    """Rotary positions go on after a prefix that was cached, of any length; a prompt inside a cached one works."""
    whole = next(r for r in edges if r["name"] == "prefix_257")
    for chunk in 32, 64:
        fixed = ["--exact-linear", "--chunk", str(chunk), "--max-batch", "1", "--threads", "1"]
        alone = decode_logits(write_requests("whole.jsonl", [{**whole, "out_ids": [0]}]), *fixed)
        for n in 1, 7, chunk - 1, chunk, chunk + 1:
            prefix = {"prompt_ids": whole["prompt_ids"][:n], "out_ids": [0]}
            path = write_requests("prefix.jsonl", [prefix, {**whole, "out_ids": [0]}])
            after = decode_logits(path, *fixed)
            check(alone is not None and after is not None and after[len(alone):] == alone,
                  f"logits after a cached prefix of {n}, chunk {chunk}")
    names = ["prefix_128", "prefix_65", "prefix_64", "prefix_128"]
    runs = [next(r for r in edges if r["name"] == name) for name in names]
    compare(runs, decode(write_requests("inside.jsonl", runs), "--ignore-eos", "--max-batch", "1", "--threads", "1"),
            "prompts inside")


def test_small_pool():
    """A pool that holds one request at a time: the others wait, chunks are evicted, nothing else changes."""
    path = write_requests("pool.jsonl", edges)
    compare(edges, decode(path, "--ignore-eos", "--threads", "1", "--kv-tokens", "384", "--chunk", "32"), "small pool")
    done = run("--requests", path, "--ids", "--ignore-eos", "--kv-tokens", "128")
    check(done.returncode == 1 and b"never fit" in done.stderr, "a pool that is too small")


folder_object = tempfile.TemporaryDirectory()
folder = folder_object.name
for name, expected_sum in SUMS.items():
    with open(os.path.join(models, name), "rb") as file:
        check(hashlib.sha256(file.read()).hexdigest() == expected_sum, f"sha256 of shared/models/{name}")
with open(os.path.join(models, "stories260k_greedy.json"), encoding="utf-8") as file:
    greedy = json.load(file)
with open(os.path.join(models, "stories260k_edges.json"), encoding="utf-8") as file:
    edges = json.load(file)
kernels = subprocess.run([program, "--list-kernels"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
check(bool(kernels), "a kernel that runs here")
for kernel in kernels:
    check(any(kernel in kernels_for(dtype) for dtype in ("f32", "bf16")), f"{kernel} takes a type of K and V")

for test in (test_stop, test_text, test_logits, test_narrow, test_bits, test_cached_prefix, test_small_pool, test_matrix):
    if not selected or test.__name__ in selected:
        test()
print(f"{n_checks} checks, {len(failures)} failed; kernels: {' '.join(kernels)}")
sys.exit(1 if failures else 0)
