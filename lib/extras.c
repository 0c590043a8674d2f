#include "extras.h"

#include "cache.h"
#include "hash.h"
#include "memory.h"

#include <string.h>

void cattn_extras_release(struct cattn_extras *extras)
{
    cattn_intern_release(&extras->tokens);
    cattn_intern_release(&extras->ids);
}

/* ---- what callers give */

static uint64_t two_of(const int32_t *tokens)
{
    uint64_t two;
    memcpy(&two, tokens, sizeof(two));
    return two;
}

bool cattn_tokens_negative(const int32_t *tokens, size_t n)
{
    uint64_t some = 0, others = 0;
    uint32_t rest = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        some |= two_of(tokens + i) | two_of(tokens + i + 2);
        others |= two_of(tokens + i + 4) | two_of(tokens + i + 6);
    }
    for (; i < n; i++)
        rest |= (uint32_t)tokens[i];
    some |= others;
    return ((uint32_t)(some >> 32) | (uint32_t)some | rest) >> 31;
}

bool cattn_ext_is_good(const struct cattn_ext *ext, uint64_t n)
{
    uint64_t end = 0; /* of the ranges so far */
    if (!cattn_struct_readable(ext, sizeof(*ext)) || (!ext->extras && ext->n_extras))
        return false;
    for (size_t i = 0; i < ext->n_extras; i++) {
        const struct cattn_extra *x = &ext->extras[i];
        if (x->first < end || x->first > n || !x->n || x->n > n - x->first || !x->id || !x->id_len)
            return false;
        end = x->first + x->n;
    }
    return true;
}

/* ---- the tables */

static uint64_t hash_bytes(const struct cattn_extras *extras, const void *bytes, size_t length)
{
    uint64_t hash = cattn_hash_mix(extras->seed, length);
    for (size_t i = 0; i < length; i++)
        hash = cattn_hash_mix(hash, ((const unsigned char *)bytes)[i]);
    return extras->constant_hash ? 0 : hash;
}

static uint64_t hash_token(const struct cattn_extras *extras, struct cattn_extra_token token)
{
    uint64_t hash = cattn_hash_mix(extras->ids.records[token.id].hash, (uint32_t)token.token);
    return extras->constant_hash ? 0 : hash;
}

static struct cattn_extra_token get(const struct cattn_extras *extras, int32_t token)
{
    struct cattn_extra_token found;
    memcpy(&found, extras->tokens.records[-1 - token].bytes, sizeof(found));
    return found;
}

int cattn_extras_add_id(struct cattn_extras *extras, const void *bytes, size_t length, uint32_t *id)
{
    bool made;
    return cattn_intern_add(&extras->ids, bytes, length, hash_bytes(extras, bytes, length), id, &made);
}

void cattn_extras_drop_id(struct cattn_extras *extras, uint32_t id)
{
    cattn_intern_drop(&extras->ids, id, 1);
}

/* A token that is new is a reference to the bytes. */
int cattn_extras_add(struct cattn_extras *extras, int32_t token, uint32_t id, int32_t *number)
{
    struct cattn_extra_token key = {token, id};
    uint32_t found;
    bool made;
    if (cattn_intern_add(&extras->tokens, &key, sizeof(key), hash_token(extras, key), &found, &made))
        return CATTN_ENOMEM;
    extras->ids.records[id].refs += made;
    *number = -1 - (int32_t)found;
    return CATTN_OK;
}

/* The tokens of a range, in place.  *n_done: how many have got a number; all, unless it fails. */
static int translate_range(struct cattn_extras *extras, const struct cattn_extra *range, int32_t *tokens,
                           size_t *n_done)
{
    uint32_t id;
    *n_done = 0;
    if (cattn_extras_add_id(extras, range->id, range->id_len, &id))
        return CATTN_ENOMEM;
    while (*n_done < range->n && !cattn_extras_add(extras, tokens[*n_done], id, &tokens[*n_done]))
        ++*n_done;
    cattn_extras_drop_id(extras, id);
    return *n_done < range->n ? CATTN_ENOMEM : CATTN_OK;
}

int cattn_extras_translate(struct cattn_extras *extras, const struct cattn_ext *ext, const int32_t *tokens, size_t n,
                           int32_t *copy)
{
    if (n)
        memcpy(copy, tokens, n * sizeof(*copy));
    for (size_t i = 0; ext && i < ext->n_extras; i++) {
        size_t first = (size_t)ext->extras[i].first, n_done;
        if (translate_range(extras, &ext->extras[i], copy + first, &n_done)) {
            cattn_extras_drop(extras, copy, first + n_done);
            return CATTN_ENOMEM;
        }
    }
    return CATTN_OK;
}

/* ---- prompts */

bool cattn_prompt_is_good(const int32_t *tokens, size_t n, const struct cattn_ext *ext)
{
    return (tokens || !n) && (!ext || cattn_ext_is_good(ext, n)) && !cattn_tokens_negative(tokens, n);
}

int cattn_prompt_enter(struct cattn_extras *extras, const int32_t *tokens, size_t n, const struct cattn_ext *ext,
                       int32_t **copy)
{
    *copy = NULL;
    if (!ext || !ext->n_extras)
        return CATTN_OK;
    int32_t *made = cattn_malloc(n, sizeof(*made));
    if (!made || cattn_extras_translate(extras, ext, tokens, n, made)) {
        cattn_free(made);
        return CATTN_ENOMEM;
    }
    *copy = made;
    return CATTN_OK;
}

void cattn_prompt_leave(struct cattn_extras *extras, int32_t *copy, size_t n)
{
    if (copy)
        cattn_extras_drop(extras, copy, n);
    cattn_free(copy);
}

/* ---- references */

/* Equal ones that follow one another are counted together. */
static size_t length_of_run(const int32_t *tokens, size_t n)
{
    size_t i = 1;
    while (i < n && tokens[i] == tokens[0])
        i++;
    return i;
}

size_t cattn_extras_acquire(struct cattn_extras *extras, const int32_t *tokens, size_t n)
{
    size_t count = 0;
    for (size_t i = 0, run; i < n; i += run) {
        run = tokens[i] < 0 ? length_of_run(tokens + i, n - i) : 1;
        if (tokens[i] < 0) {
            extras->tokens.records[-1 - tokens[i]].refs += run;
            count += run;
        }
    }
    return count;
}

static void drop_token(struct cattn_extras *extras, int32_t token, uint64_t n)
{
    uint32_t id = cattn_extras_id(extras, token), n_before = extras->tokens.n_used;
    cattn_intern_drop(&extras->tokens, (uint32_t)(-1 - token), n);
    if (extras->tokens.n_used < n_before)
        cattn_intern_drop(&extras->ids, id, 1);
}

size_t cattn_extras_drop(struct cattn_extras *extras, const int32_t *tokens, size_t n)
{
    size_t count = 0;
    for (size_t i = 0, run; i < n; i += run) {
        run = tokens[i] < 0 ? length_of_run(tokens + i, n - i) : 1;
        if (tokens[i] < 0) {
            drop_token(extras, tokens[i], run);
            count += run;
        }
    }
    return count;
}

void cattn_extras_hold(struct cattn_extras *extras, const int32_t *tokens, size_t n)
{
    cattn_extras_acquire(extras, tokens, n);
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0)
            extras->tokens.records[-1 - tokens[i]].held++;
    }
}

void cattn_extras_unhold(struct cattn_extras *extras, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0)
            extras->tokens.records[-1 - tokens[i]].held--;
    }
    cattn_extras_drop(extras, tokens, n);
}

/* ---- what a number stands for */

int32_t cattn_extras_token(const struct cattn_extras *extras, int32_t token)
{
    return token < 0 ? get(extras, token).token : token;
}

uint32_t cattn_extras_id(const struct cattn_extras *extras, int32_t token)
{
    return get(extras, token).id;
}

uint32_t cattn_extras_hash(const struct cattn_extras *extras, int32_t token)
{
    return (uint32_t)(extras->tokens.records[-1 - token].hash >> 16);
}
