#!/bin/sh
# bench/chunkllama as a program: what it prints for a random model, and what it says to bad options and bad files.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

chunkllama=$build/bench/chunkllama
[ -x "$chunkllama" ] || fail "bench/chunkllama was not built"
cd "$tmp"

run() {
    "$chunkllama" --shape 260k --threads 1 "$@"
}

# refuses STATUS WORD ARGUMENT ...: one sentence with WORD on standard error, nothing on standard output.
refuses() {
    expected=$1 word=$2
    shift 2
    status=0
    "$chunkllama" "$@" > out 2> err || status=$?
    [ "$status" = "$expected" ] || fail "$*: exit status $status, not $expected"
    grep -q -e "$word" err || fail "$*: '$(cat err)' does not say '$word'"
    [ ! -s out ] || fail "$*: $(cat out)"
}

"$chunkllama" --help > help || fail "--help"
for word in --model --prompt --requests --n-predict --ids --stats --no-sharing --chunk --kernel --kv-dtype --threads \
    --save-prefix --load-prefix --prefill-rows --max-batch --repeat --ignore-eos --exact-linear --shape --seed --demo; do
    grep -q -e "$word " help || fail "--help does not name $word"
done
"$chunkllama" --list-kernels | grep -qx generic || fail "--list-kernels"

cat > requests.jsonl <<'END'
{"prompt": "A system prompt that is common to all. One", "max_tokens": 5}
{"prompt": "A system prompt that is common to all. Two"}

{"max_tokens": 2, "ids": [1, 5, 9]}
END
run --requests requests.jsonl --prompt first --n-predict 3 --exact-linear --ids > ids 2> err || fail "$(cat err)"
grep -q random err || fail "it is not said that the model is random"
[ "$(wc -l < ids)" -eq 4 ] || fail "$(cat ids)"
[ "$(grep -cE '^\{"prompt_ids": \[[0-9]+(, [0-9]+)*\], "output_ids": \[[0-9]+(, [0-9]+)*\]\}$' ids)" -eq 4 ] ||
    fail "$(cat ids)"
sed -n 4p ids | grep -qE '"prompt_ids": \[1, 5, 9\], "output_ids": \[[0-9]+, [0-9]+\]' || fail "$(cat ids)"
sed -n 2p ids | grep -qE '"output_ids": \[[0-9]+(, [0-9]+){4}\]' || fail "$(cat ids)"

for options in --no-sharing "--max-batch 1" "--prefill-rows 7" "--chunk 32" "--seed 1"; do
    # shellcheck disable=SC2086
    run --requests requests.jsonl --prompt first --n-predict 3 --exact-linear --ids $options > more 2> err ||
        fail "$(cat err)"
    cmp ids more || fail "$options changes the tokens"
done
run --requests requests.jsonl --prompt first --n-predict 3 --exact-linear --ids --seed 2 > more 2> /dev/null
! cmp -s ids more || fail "--seed changes nothing"

run --requests requests.jsonl --stats > out 2> err || fail "$(cat err)"
for word in backend kernel "found in the cache" "without sharing" evictions tokens/s; do
    grep -q -e "$word" err || fail "--stats does not say '$word': $(cat err)"
done

# Equal requests generate equal text, and hold what they come to say once: of 27 + 160 tokens, the last of which is never
# fed, 5 whole chunks, and a tail for each.
repeat() {
    run --prompt "Once upon a time there was" --n-predict 160 --chunk 32 --exact-linear --ids --stats --repeat 8 "$@"
}
repeat > equal 2> err || fail "$(cat err)"
[ "$(sort -u equal | wc -l) $(wc -l < equal)" = "1 8" ] || fail "equal requests: $(cat equal)"
grep -q "peak 13;" err || fail "equal requests: $(cat err)"
repeat --no-sharing > more 2> err || fail "$(cat err)"
cmp equal more || fail "--repeat: --no-sharing changes the tokens"
grep -q "peak 48;" err || fail "equal requests without sharing: $(cat err)"

"$chunkllama" --shape 260k --threads 1 --demo --n-predict 4 > out 2> err || fail "$(cat err)"
for word in random "8 requests" prefill decode "K and V held" "prefix hit rate" tokens/s; do
    grep -q -e "$word" out || fail "--demo does not say '$word': $(cat out)"
done

refuses 2 "no requests"
refuses 2 "unknown option" --nothing
refuses 2 "takes an argument" --model
refuses 2 "--n-predict takes a number" --n-predict 0 --prompt a
refuses 2 "--threads takes a number" --threads -1 --prompt a
refuses 2 "--chunk takes a number" --chunk 1e3 --prompt a
refuses 2 "--demo has its own" --demo --prompt a
refuses 2 "--demo has its own" --demo --repeat 2
refuses 2 "--shape is for random models" --shape 260k --model x --prompt a
refuses 2 "--backend takes cpu or cuda" --backend gpu --prompt a
refuses 2 "--exact-linear is for --backend cpu" --backend cuda --exact-linear --prompt a
refuses 1 "unknown name" --shape none --prompt a
(
    CUDA_VISIBLE_DEVICES=
    export CUDA_VISIBLE_DEVICES
    refuses 1 "--backend cuda: th" --shape 260k --backend cuda --prompt a # this build, or there is none
)
refuses 1 "f32, f16, bf16 or i8" --shape 260k --kv-dtype f64 --prompt a
refuses 1 "cache" --shape 260k --chunk 48 --prompt a
refuses 1 "cache" --shape 260k --kernel none --prompt a
refuses 1 "never fit" --shape 260k --kv-tokens 64 --prompt "$(cat requests.jsonl)"
refuses 1 "No such file" --model none.gguf --prompt a
refuses 1 "No such file" --shape 260k --requests none.jsonl
printf 'GGUF\003' > short.gguf
refuses 1 "short.gguf: the file ends inside the header" --model short.gguf --prompt a
echo '{"prompt": "a"' > bad.jsonl
refuses 1 "bad.jsonl: line 1" --shape 260k --requests bad.jsonl
echo '{"ids": [512]}' > bad.jsonl
refuses 1 "not in the vocabulary" --shape 260k --requests bad.jsonl
refuses 1 "cannot be written\|No such file" --shape 260k --prompt a --logits none/logits

# Workloads and their report.
"$chunkllama" --shape 260k --threads 1 --generate np=96,ns=64,nc=5,batch=3,requests=7,rate=1000 --policy prefix \
    --json report.json > out 2> err || fail "$(cat err)"
[ ! -s out ] || fail "a workload prints its tokens"
for key in requests_per_s prefill_tokens_per_s decode_tokens_per_s ms_per_token_mean ms_per_token_p50 ms_per_token_p99 \
    ttft_ms_mean ttft_ms_p50 ttft_ms_p99 peak_kv_bytes peak_batch hit_rate bytes_read bytes_read_unshared frac_attention frac_linear frac_tree; do
    grep -q "\"$key\": [0-9]" report.json || fail "--json does not have $key: $(cat report.json)"
done
grep -q '"requests": 7,' report.json || fail "$(cat report.json)"
"$chunkllama" --shape 260k --threads 1 --json - --prompt a > out 2> err || fail "$(cat err)"
[ "$(wc -l < out)" -eq 1 ] || fail "--json - prints something else: $(cat out)"
echo '{"timestamp": 0, "input_length": 2048, "output_length": 90, "hash_ids": [1, 2, 3, 4]}' > trace.jsonl
echo '{"timestamp": 9, "input_length": 2048, "output_length": 90, "hash_ids": [1, 2, 3, 5]}' >> trace.jsonl
"$chunkllama" --shape 260k --threads 1 --trace trace.jsonl --trace-scale 16 --json - > out 2> err || fail "$(cat err)"
grep -q '"hit_rate": 0.[34]' out || fail "the trace's requests share nothing: $(cat out)"
printf '%s' '{"prefix": "Q: one\nA: 1\n", "template": "{prefix}Q: {question}\nA:{", "questions": ["two", "three"]}' > tasks.json
run --tasks tasks.json --prompt 'Q: one
A: 1
Q: two
A:{' --n-predict 2 --ids > more 2> err || fail "$(cat err)"
[ "$(wc -l < more)" -eq 3 ] || fail "$(cat more)"
[ "$(sed -n 1p more)" = "$(sed -n 2p more)" ] || fail "a template is filled in wrongly: $(cat more)"
printf '{"text": "a"}\n\n{"prefix": "b"}\n{"turns": ["c", "d"]}\n' > tasks.jsonl
run --tasks tasks.jsonl --n-predict 2 --ids > more 2> err || fail "$(cat err)"
[ "$(wc -l < more)" -eq 3 ] || fail "$(cat more)"
run --tasks tasks.jsonl --limit 2 --n-predict 2 --ids > more 2> err || fail "$(cat err)"
[ "$(wc -l < more)" -eq 2 ] || fail "--limit: $(cat more)"
echo '{"name": "x"}' > bad.jsonl
refuses 1 "bad.jsonl: line 1: a task has" --shape 260k --tasks bad.jsonl
echo '{"template": "x"}' > bad.jsonl
refuses 1 "comes with" --shape 260k --tasks bad.jsonl

run --requests requests.jsonl --prompt first --n-predict 3 --exact-linear --ids --policy prefix --prefill-rows 5 \
    --kv-tokens 300 --output-percent 1 > more 2> err || fail "$(cat err)"
cmp ids more || fail "the policy changes the tokens"
refuses 2 "no requests" --policy fcfs
refuses 1 "f32 or bf16" --shape 260k --weights f16 --prompt a
refuses 1 "fcfs or prefix" --shape 260k --policy best --prompt a
refuses 1 "is none of" --shape 260k --generate np=5,x=1
refuses 1 "trace.jsonl: line 1: a prompt of 2048" --shape 260k --context 512 --trace trace.jsonl
