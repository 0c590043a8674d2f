#!/bin/sh
# A server that is started again: with --load-prefix a system prompt of 4096 tokens is not computed again, whatever
# kernel and chunk size saved it, and what is generated is the same, bit for bit where the kernel is; files of another
# model and damaged ones are refused.
. "${CATTN_SRCDIR:?}/tests/api/common.sh"

chunkllama=$build/bench/chunkllama
[ -x "$chunkllama" ] || fail "bench/chunkllama was not built"
cd "$tmp"

# request FIRST N: the system prompt, and N tokens from FIRST on.
request() {
    awk -v first="$1" -v n="$2" 'BEGIN {
        printf "{\"ids\": [1"
        for (i = 1; i < 4096; i++) printf ", %d", (i * 37 + int(i / 50)) % 509
        for (i = 0; i < n; i++) printf ", %d", (first + i * 11) % 509
        print "]}"
    }'
}
request 3 20 > morning.jsonl
request 100 32 > evening.jsonl

# serve REQUESTS KERNEL CHUNK ARGUMENT ...
serve() {
    requests=$1 kernel=$2 chunk=$3
    shift 3
    "$chunkllama" --shape 260k --context 8192 --exact-linear --requests "$requests" --n-predict 8 --ids --stats \
        --kernel "$kernel" --chunk "$chunk" "$@"
}

# refuses STATUS WORD COMMAND ...: one sentence with WORD on standard error, nothing on standard output.
refuses() {
    expected=$1 word=$2
    shift 2
    status=0
    "$@" > out 2> err || status=$?
    [ "$status" = "$expected" ] || fail "$*: exit status $status, not $expected: $(cat err)"
    grep -q -e "$word" err || fail "$*: '$(cat err)' does not say '$word'"
    [ ! -s out ] || fail "$*: $(cat out)"
}

best=$("$chunkllama" --list-kernels | grep -vx amx | sed -n 1p) # that takes K and V of f32

# What follows the system prompt is less than a chunk.
serve morning.jsonl "$best" 32 --save-prefix saved > out 2> err || {
    grep -q "cannot be made" err || ! grep -q "not in this build" err || skip "this build cannot save prefixes"
    fail "$(cat err)"
}

# restart KERNEL CHUNK: what it generates with the file is what it generates without.  Of 4096 + 32 tokens the system
# prompt is found; the rest is computed, and with it 7 of the 8 tokens that are generated.
restart() {
    serve evening.jsonl "$1" "$2" --logits computed.logits > computed 2> err || fail "$(cat err)"
    grep -q "all tokens: *0 hits, 4135 misses" err || fail "$(cat err)"
    serve evening.jsonl "$1" "$2" --load-prefix saved --logits loaded.logits > loaded 2> err || fail "$(cat err)"
    grep -q "prompt tokens: *4128, 4096 found in the cache" err || fail "$1, $2: $(cat err)"
    grep -q "loaded tokens: *4096$" err || fail "$1, $2: $(cat err)"
    grep -q "all tokens: *4096 hits, 39 misses" err || fail "$1, $2: $(cat err)"
    cmp computed loaded || fail "kernel $1, chunks of $2: other tokens are generated"
}
restart "$best" 32
cmp computed.logits loaded.logits || fail "the logits differ under the kernel that saved"
restart "$best" 64
[ "$best" = generic ] || restart generic 64

# What was loaded is saved with what is new; once for each prompt, however often.
serve evening.jsonl "$best" 32 --load-prefix saved --save-prefix more > out 2> err || fail "$(cat err)"
serve evening.jsonl "$best" 32 --load-prefix more --save-prefix again > out 2> err || fail "$(cat err)"
grep -q "loaded tokens: *4128$" err || fail "$(cat err)"
cmp more again || fail "what is saved grows without need"

refuses 1 "saved: .*not saved by the model that runs.* seed 2," serve evening.jsonl "$best" 32 --load-prefix saved \
    --seed 2
refuses 1 "saved: damaged, or of another K and V type" serve evening.jsonl "$best" 32 --load-prefix saved \
    --kv-dtype bf16
printf 'x' | dd of=saved bs=1 seek=100000 conv=notrunc 2> dd.err || fail "$(cat dd.err)"
refuses 1 "saved: damaged" serve evening.jsonl "$best" 32 --load-prefix saved
dd if=more of=short bs=100000 count=1 2> dd.err || fail "$(cat dd.err)"
refuses 1 "short: damaged" serve evening.jsonl "$best" 32 --load-prefix short
refuses 1 "none: No such file" serve evening.jsonl "$best" 32 --load-prefix none
refuses 1 "no-folder/saved: No such file" "$chunkllama" --shape 260k --prompt a --save-prefix no-folder/saved
refuses 2 "not for --demo" "$chunkllama" --demo --load-prefix more
refuses 2 "not for --demo" "$chunkllama" --no-sharing --prompt a --save-prefix more

# A model in a file is known by all of its bytes, not by its name.
model=$src/tests/fuzz/corpus/gguf/plain
echo '{"ids": [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1]}' > ids.jsonl
cp "$model" copy
"$chunkllama" --model "$model" --requests ids.jsonl --chunk 32 --n-predict 1 --save-prefix tiny > out 2> err ||
    fail "$(cat err)"
"$chunkllama" --model copy --requests ids.jsonl --chunk 32 --n-predict 1 --load-prefix tiny --stats > out 2> err ||
    fail "$(cat err)"
grep -q "loaded tokens: *32$" err || fail "$(cat err)"
printf '\001' | dd of=copy bs=1 seek=$(($(wc -c < copy) - 5)) conv=notrunc 2> dd.err || fail "$(cat dd.err)"
refuses 1 "tiny: .* which is a file with hash" "$chunkllama" --model copy --requests ids.jsonl --chunk 32 \
    --load-prefix tiny
