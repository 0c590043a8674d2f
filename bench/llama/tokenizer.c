#include "tokenizer.h"

#include "utf8.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Token types as SentencePiece numbers them. */
enum token_type { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE };

#define MAX_TOKENS       (1u << 24)
#define FIRST_BYTE_TOKEN 3 /* where the vocabulary names no byte tokens */

/* The vocabulary writes a space as U+2581. */
#define SPACE       "\xe2\x96\x81"
#define SPACE_BYTES 3

struct token {
    struct gguf_string text;
    float score;
    uint8_t type;
    uint8_t byte; /* of a byte token */
};

struct tokenizer {
    struct token *tokens;
    uint32_t n_tokens;
    uint32_t *sorted; /* the tokens that text can become, by text, then by id */
    uint32_t n_sorted;
    int32_t byte_ids[256]; /* -1: none */
    int32_t bos, eos, unknown;
    bool add_bos, add_space;
};

/* ---- the vocabulary -----------------------------------------------------------------------------------------------
 */

static int compare_text(const char *a, size_t a_length, const char *b, size_t b_length)
{
    const int order = memcmp(a, b, a_length < b_length ? a_length : b_length);

    return order ? order : (a_length > b_length) - (a_length < b_length);
}

struct entry {
    struct gguf_string text;
    uint32_t id;
};

static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    const int order = compare_text(a->text.text, a->text.length, b->text.text, b->text.length);

    return order ? order : (a->id > b->id) - (a->id < b->id);
}

/* A table that is searched by halves, not hashed: no vocabulary can make it slow. */
static int sort_tokens(struct tokenizer *t)
{
    struct entry *entries = calloc(t->n_tokens, sizeof *entries);
    uint32_t n = 0;

    t->sorted = calloc(t->n_tokens, sizeof *t->sorted);
    if (!entries || !t->sorted) {
        free(entries);
        return -1;
    }
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        const struct token *token = &t->tokens[id];

        if ((token->type == TOKEN_NORMAL || token->type == TOKEN_USER_DEFINED) && token->text.length)
            entries[n++] = (struct entry){token->text, id};
    }
    if (n)
        qsort(entries, n, sizeof *entries, compare_entries);
    for (uint32_t i = 0; i < n; i++)
        t->sorted[i] = entries[i].id;
    t->n_sorted = n;
    free(entries);
    return 0;
}

/* The first token of this text; -1: none. */
static int32_t find_token(const struct tokenizer *t, const char *text, size_t length)
{
    uint32_t low = 0, high = t->n_sorted;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct gguf_string *found = &t->tokens[t->sorted[middle]].text;

        if (compare_text(found->text, found->length, text, length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == t->n_sorted)
        return -1;
    const struct gguf_string *found = &t->tokens[t->sorted[low]].text;
    return compare_text(found->text, found->length, text, length) == 0 ? (int32_t)t->sorted[low] : -1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0x0A>" stands for; -1: not of this form. */
static int byte_of_text(const struct gguf_string *text)
{
    if (text->length != 6 || memcmp(text->text, "<0x", 3) != 0 || text->text[5] != '>')
        return -1;
    const int high = hex_digit(text->text[3]), low = hex_digit(text->text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static int find_bytes(struct tokenizer *t, struct fault *fault)
{
    bool any = false;

    for (int i = 0; i < 256; i++)
        t->byte_ids[i] = -1;
    for (uint32_t id = t->n_tokens; id-- > 0;) {
        struct token *token = &t->tokens[id];
        const int byte = token->type == TOKEN_BYTE ? byte_of_text(&token->text) : -1;

        if (token->type != TOKEN_BYTE)
            continue;
        if (byte < 0)
            return fault_set(fault, "token %u is a byte, but its text names none", (unsigned)id);
        token->byte = (uint8_t)byte;
        t->byte_ids[byte] = (int32_t)id;
        any = true;
    }
    for (uint32_t byte = 0; !any && byte < 256; byte++) {
        const uint32_t id = FIRST_BYTE_TOKEN + byte;

        if (id < t->n_tokens && byte_of_text(&t->tokens[id].text) == (int)byte) {
            t->tokens[id].type = TOKEN_BYTE;
            t->tokens[id].byte = (uint8_t)byte;
            t->byte_ids[byte] = (int32_t)id;
        }
    }
    return 0;
}

static int read_tokens(struct tokenizer *t, const struct gguf *gguf, struct fault *fault)
{
    const struct gguf_value *texts = gguf_find(gguf, "tokenizer.ggml.tokens");
    const struct gguf_value *scores = gguf_find(gguf, "tokenizer.ggml.scores");
    const struct gguf_value *types = gguf_find(gguf, "tokenizer.ggml.token_type");

    if (!texts || texts->type != GGUF_ARRAY || texts->element != GGUF_STRING || !texts->count ||
        texts->count > MAX_TOKENS)
        return fault_set(fault, "tokenizer.ggml.tokens is not a list of 1 to %u strings", MAX_TOKENS);
    if (!scores || scores->type != GGUF_ARRAY || scores->element != GGUF_F32 || scores->count != texts->count)
        return fault_set(fault, "tokenizer.ggml.scores is not one f32 for each token");
    if (types && (types->type != GGUF_ARRAY || types->count != texts->count ||
                  (types->element != GGUF_I32 && types->element != GGUF_U32)))
        return fault_set(fault, "tokenizer.ggml.token_type is not one i32 for each token");

    t->n_tokens = (uint32_t)texts->count;
    t->tokens = calloc(t->n_tokens, sizeof *t->tokens);
    if (!t->tokens)
        return fault_set(fault, "out of memory");
    const unsigned char *cursor = texts->data;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        struct token *token = &t->tokens[id];
        const uint32_t type = types ? gguf_u32_at(types, id) : TOKEN_NORMAL;

        token->text = gguf_next_string(&cursor);
        token->score = gguf_f32_at(scores, id);
        token->type = (uint8_t)type;
        if (!isfinite(token->score) || type < TOKEN_NORMAL || type > TOKEN_BYTE)
            return fault_set(fault, "token %u has a bad score or type", (unsigned)id);
    }
    return 0;
}

/* Id -1 where the file says nothing or all ones, which writers use for "none". */
static int read_special(const struct tokenizer *t, const struct gguf *gguf, const char *key, int32_t fallback,
                        int32_t *id, struct fault *fault)
{
    const struct gguf_value *value = gguf_find(gguf, key);
    uint64_t number;

    *id = (uint32_t)fallback < t->n_tokens ? fallback : -1;
    if (!value)
        return 0;
    if (gguf_uint(value, &number) || (number >= t->n_tokens && number != UINT32_MAX))
        return fault_set(fault, "%s is no token", key);
    *id = number == UINT32_MAX ? -1 : (int32_t)number;
    return 0;
}

static bool read_bool(const struct gguf *gguf, const char *key, bool fallback)
{
    const struct gguf_value *value = gguf_find(gguf, key);

    return value && value->type == GGUF_BOOL ? value->data[0] : fallback;
}

static int open_tokenizer(struct tokenizer *t, const struct gguf *gguf, struct fault *fault)
{
    if (read_tokens(t, gguf, fault) || find_bytes(t, fault) ||
        read_special(t, gguf, "tokenizer.ggml.bos_token_id", 1, &t->bos, fault) ||
        read_special(t, gguf, "tokenizer.ggml.eos_token_id", 2, &t->eos, fault) ||
        read_special(t, gguf, "tokenizer.ggml.unknown_token_id", 0, &t->unknown, fault))
        return -1;
    t->add_bos = t->bos >= 0 && read_bool(gguf, "tokenizer.ggml.add_bos_token", true);
    t->add_space = read_bool(gguf, "tokenizer.ggml.add_space_prefix", true);
    return sort_tokens(t) ? fault_set(fault, "out of memory") : 0;
}

int tokenizer_open(const struct gguf *gguf, struct tokenizer **tokenizer, struct fault *fault)
{
    const struct gguf_value *model = gguf_find(gguf, "tokenizer.ggml.model");
    struct gguf_string name;

    *tokenizer = NULL;
    if (!model || gguf_text(model, &name) || compare_text(name.text, name.length, "llama", 5) != 0)
        return 0;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return fault_set(fault, "out of memory");
    if (open_tokenizer(t, gguf, fault)) {
        tokenizer_close(t);
        return -1;
    }
    *tokenizer = t;
    return 0;
}

struct tokenizer *tokenizer_bytes(void)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    struct token *tokens = calloc(FIRST_BYTE_TOKEN + 256, sizeof *tokens);

    if (!t || !tokens) {
        free(t);
        free(tokens);
        return NULL;
    }
    t->tokens = tokens;
    t->n_tokens = FIRST_BYTE_TOKEN + 256;
    t->bos = 1;
    t->eos = 2;
    t->unknown = 0;
    t->add_bos = true;
    for (uint32_t id = 0; id < t->n_tokens; id++)
        tokens[id] = (struct token){.text = {"", 0}, .type = TOKEN_CONTROL};
    for (uint32_t byte = 0; byte < 256; byte++) {
        t->byte_ids[byte] = (int32_t)(FIRST_BYTE_TOKEN + byte);
        tokens[FIRST_BYTE_TOKEN + byte].type = TOKEN_BYTE;
        tokens[FIRST_BYTE_TOKEN + byte].byte = (uint8_t)byte;
    }
    return t;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    free(tokenizer->tokens);
    free(tokenizer->sorted);
    free(tokenizer);
}

uint32_t tokenizer_size(const struct tokenizer *tokenizer)
{
    return tokenizer->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

/* ---- encode -------------------------------------------------------------------------------------------------------
 */

#define NONE SIZE_MAX

/* A piece of the text: a token, or one byte that has fallen back.  Pieces are linked in their order; one that was
 * merged into its left neighbour has length 0. */
struct piece {
    size_t start, length, previous, next;
    int32_t id;
    bool fallback; /* a byte, which never merges */
};

/* Two neighbours that make a token; out of date once either has changed. */
struct merge {
    size_t left, right, length;
    float score;
    int32_t id;
};

struct encoder {
    const struct tokenizer *tokenizer;
    char *text; /* with spaces as the vocabulary has them */
    size_t length;
    struct piece *pieces;
    size_t n_pieces;
    struct merge *heap; /* the best first: the higher score, then the one further left */
    size_t n_heap;
};

static bool better(const struct merge *a, const struct merge *b)
{
    return a->score != b->score ? a->score > b->score : a->left < b->left;
}

static void push(struct encoder *e, struct merge merge)
{
    size_t i = e->n_heap++;

    for (; i > 0 && better(&merge, &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = merge;
}

static struct merge pop(struct encoder *e)
{
    const struct merge best = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < e->n_heap; i = child) {
        if (child + 1 < e->n_heap && better(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (!better(&e->heap[child], &last))
            break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = last;
    return best;
}

static void push_pair(struct encoder *e, size_t left, size_t right)
{
    if (left == NONE || right == NONE || e->pieces[left].fallback || e->pieces[right].fallback)
        return;
    const size_t length = e->pieces[left].length + e->pieces[right].length;
    const int32_t id = find_token(e->tokenizer, e->text + e->pieces[left].start, length);
    if (id >= 0)
        push(e, (struct merge){left, right, length, e->tokenizer->tokens[id].score, id});
}

static void merge_pieces(struct encoder *e)
{
    for (size_t i = 1; i < e->n_pieces; i++)
        push_pair(e, i - 1, i);
    while (e->n_heap) {
        const struct merge merge = pop(e);
        struct piece *left = &e->pieces[merge.left], *right = &e->pieces[merge.right];

        if (!left->length || !right->length || left->length + right->length != merge.length ||
            left->next != merge.right)
            continue;
        left->length = merge.length;
        left->id = merge.id;
        left->next = right->next;
        right->length = 0;
        if (left->next != NONE)
            e->pieces[left->next].previous = merge.left;
        push_pair(e, left->previous, merge.left);
        push_pair(e, merge.left, left->next);
    }
}

static void add_piece(struct encoder *e, size_t start, size_t length, int32_t id, bool fallback)
{
    const size_t i = e->n_pieces++;

    e->pieces[i] = (struct piece){start, length, i ? i - 1 : NONE, NONE, id, fallback};
    if (i)
        e->pieces[i - 1].next = i;
}

static void cut_pieces(struct encoder *e)
{
    const struct tokenizer *t = e->tokenizer;

    for (size_t at = 0; at < e->length;) {
        size_t bytes = utf8_length(e->text + at, e->length - at);
        bytes = bytes ? bytes : 1;
        const int32_t id = find_token(t, e->text + at, bytes);

        if (id >= 0)
            add_piece(e, at, bytes, id, false);
        for (size_t i = 0; id < 0 && i < bytes; i++) {
            const int32_t byte_id = t->byte_ids[(unsigned char)e->text[at + i]];

            add_piece(e, at + i, 1, byte_id >= 0 ? byte_id : t->unknown, true);
        }
        at += bytes;
    }
}

/* The text with a space in front, as the vocabulary writes spaces. */
static int prepare(struct encoder *e, const char *text, size_t length)
{
    const bool words = e->tokenizer->n_sorted > 0;
    size_t at = 0;

    if (length > SIZE_MAX / 512)
        return -1;
    e->text = malloc(SPACE_BYTES * (length + 1));
    e->pieces = malloc((SPACE_BYTES * (length + 1)) * sizeof *e->pieces);
    e->heap = malloc(3 * SPACE_BYTES * (length + 1) * sizeof *e->heap);
    if (!e->text || !e->pieces || !e->heap)
        return -1;
    if (length && e->tokenizer->add_space) {
        memcpy(e->text, SPACE, SPACE_BYTES);
        at = SPACE_BYTES;
    }
    for (size_t i = 0; i < length; i++) {
        if (words && text[i] == ' ') {
            memcpy(e->text + at, SPACE, SPACE_BYTES);
            at += SPACE_BYTES;
        } else {
            e->text[at++] = text[i];
        }
    }
    e->length = at;
    return 0;
}

static int collect(const struct encoder *e, int32_t **ids, size_t *n)
{
    const struct tokenizer *t = e->tokenizer;
    size_t count = 0;
    int32_t *out = malloc((e->n_pieces + 1) * sizeof *out);

    if (!out)
        return -1;
    if (t->add_bos)
        out[count++] = t->bos;
    for (size_t i = e->n_pieces ? 0 : NONE; i != NONE; i = e->pieces[i].next)
        out[count++] = e->pieces[i].id;
    *ids = out;
    *n = count;
    return 0;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length, int32_t **ids, size_t *n,
                     struct fault *fault)
{
    struct encoder e = {.tokenizer = tokenizer};
    int rc = prepare(&e, text, length);

    if (!rc) {
        cut_pieces(&e);
        merge_pieces(&e);
        rc = collect(&e, ids, n);
    }
    free(e.text);
    free(e.pieces);
    free(e.heap);
    if (rc)
        return fault_set(fault, "out of memory");
    for (size_t i = 0; i < *n; i++) {
        if ((*ids)[i] < 0) {
            free(*ids);
            return fault_set(fault, "the text holds a byte that the vocabulary has no token for");
        }
    }
    return 0;
}

/* ---- decode -------------------------------------------------------------------------------------------------------
 */

/* Appends a token's text, at most its length, with spaces as spaces. */
static size_t put_text(char *out, const struct gguf_string *text)
{
    size_t n = 0;

    for (size_t i = 0; i < text->length;) {
        if (text->length - i >= SPACE_BYTES && memcmp(text->text + i, SPACE, SPACE_BYTES) == 0) {
            out[n++] = ' ';
            i += SPACE_BYTES;
        } else {
            out[n++] = text->text[i++];
        }
    }
    return n;
}

char *tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, size_t *length)
{
    size_t room = 1, at = 0;

    for (size_t i = 0; i < n; i++)
        room += tokenizer->tokens[ids[i]].text.length + 1;
    char *out = malloc(room);
    if (!out)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const struct token *token = &tokenizer->tokens[ids[i]];
        const size_t start = at;

        if (token->type == TOKEN_CONTROL)
            continue;
        if (token->type == TOKEN_BYTE)
            out[at++] = (char)token->byte;
        else
            at += put_text(out + at, &token->text);
        if (i > 0 && ids[i - 1] == tokenizer->bos && at > start && out[start] == ' ')
            memmove(out + start, out + start + 1, --at - start);
    }
    out[at] = 0;
    *length = at;
    return out;
}
