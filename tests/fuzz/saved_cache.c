#include "saved_cache.h"

#include "fuzz.h"
#include "lib/cells.h"

#include <string.h>

struct saved_choice saved_choice(const unsigned char bytes[SAVED_CHOICES])
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 6, 8, 12, 16};
    unsigned kind = bytes[0], state = bytes[1], slots = bytes[2], how = bytes[3], more = bytes[4];
    bool cells = kind & 1;
    return (struct saved_choice){.cells = cells,
                                 .n_layers = 1 + (kind >> 1 & 1),
                                 .kv_dtype = kind >> 2 & 3,
                                 .n_kv_heads = 1 + (kind >> 4 & 1),
                                 .kernel = kind >> 5,
                                 .chunk_tokens = cells ? sizes[state & 7] : 32u << (state & 3),
                                 .before = state >> 3 & 3,
                                 .flags = (state & 32 ? CATTN_ZERO_FREED : 0) | (state & 64 ? CATTN_NO_RETAIN : 0),
                                 .constant_hash = state & 128,
                                 .n_slots = slots < 200 ? 1 + slots % 40 : 8 * slots,
                                 .images = more & 3,
                                 .rival = more & 4,
                                 .repair = how & 15,
                                 .failing = how & 128 ? 1 + (how >> 4 & 7) * 2 + (slots & 1) : 0};
}

static cattn_cache *make_cells(const struct saved_choice *choice)
{
    struct cattn_shape shape = cells_shape(choice->n_slots, choice->chunk_tokens, choice->n_layers);
    cattn_cache *cache;
    FUZZ_CHECK(!cattn_cache_make(&shape, &cells_backend, NULL, choice->flags, &cache), "no cache");
    cache->tree.constant_hash = choice->constant_hash;
    return cache;
}

static const char *some_kernel(unsigned number)
{
    unsigned n = 0;
    while (cattn_kernel_name(n))
        n++;
    return cattn_kernel_name(number % n);
}

cattn_cache *saved_make(const struct saved_choice *choice)
{
    if (choice->cells)
        return make_cells(choice);
    cattn_cache *cache;
    struct cattn_config config = {.size = sizeof(config),
                                  .kernel = some_kernel(choice->kernel),
                                  .n_layers = choice->n_layers,
                                  .n_heads = 2,
                                  .n_kv_heads = choice->n_kv_heads,
                                  .head_dim = 3,
                                  .v_head_dim = 2,
                                  .chunk_tokens = choice->chunk_tokens,
                                  .kv_dtype = choice->kv_dtype,
                                  .max_tokens = (uint64_t)choice->n_slots * choice->chunk_tokens,
                                  .n_threads = 1,
                                  .flags = choice->flags};
    int status = cattn_cache_create(&config, &cache);
    if (status == CATTN_ENOTSUP) { /* not every kernel has every type */
        config.kernel = NULL;
        status = cattn_cache_create(&config, &cache);
    }
    FUZZ_CHECK(!status, "no cache: %s", cattn_strerror(status));
    return cache;
}

const char *saved_namespace(unsigned i)
{
    static const char *const names[SAVED_NAMES] = {"", "a", "b"};
    return names[i];
}

/* The tokens [first, first + n) of which there are some. */
static void add_extra(struct saved_prompt *prompt, size_t first, size_t n, const char *id)
{
    if (first >= prompt->n)
        return;
    prompt->extras[prompt->ext.n_extras++] =
        (struct cattn_extra){first, n < prompt->n - first ? n : prompt->n - first, id, strlen(id)};
}

void saved_prompt(struct saved_prompt *prompt, size_t n, unsigned number, unsigned images)
{
    prompt->n = n;
    prompt->ext = (struct cattn_ext){.size = sizeof(prompt->ext), .extras = prompt->extras};
    for (size_t i = 0; i < n; i++)
        prompt->tokens[i] = (int32_t)(i / 7) - (i >= 40 ? (int32_t)number : 0);
    if (images == 3)
        add_extra(prompt, 0, n, "image");
    if (images != 1 && images != 2)
        return;
    add_extra(prompt, 3, 6, "x");
    add_extra(prompt, 9, 3, "image");
    add_extra(prompt, 30, 1, images == 1 ? "y" : "x");
    add_extra(prompt, 41, 3, "image");
}

/* What of the extra identities is behind n tokens. */
static void skip_extras(struct saved_prompt *prompt, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < prompt->ext.n_extras; i++) {
        struct cattn_extra x = prompt->extras[i];
        uint64_t end = x.first + x.n, first = x.first < n ? n : x.first;
        if (end > n)
            prompt->extras[kept++] = (struct cattn_extra){first - n, end - first, x.id, x.id_len};
    }
    prompt->ext.n_extras = kept;
}

/* K and V that tell positions apart; cells take them as they are. */
static void store(cattn_cache *cache, cattn_step *step, size_t n_rows)
{
    static union {
        float floats[SAVED_LONGEST * 2 * 3];
        uint64_t cells[SAVED_LONGEST];
    } numbers;
    for (size_t i = 0; i < sizeof(numbers.floats) / sizeof(float); i++)
        numbers.floats[i] = (float)(i % 29) / 8 - 1;
    FUZZ_CHECK(n_rows <= SAVED_LONGEST, "a prompt is too long");
    for (uint32_t layer = 0; layer < cache->shape.n_layers; layer++) {
        struct cattn_io io = {.size = sizeof(io), .k = numbers.floats, .v = numbers.floats};
        FUZZ_CHECK(!cattn_step_write(step, layer, &io), "K and V are not taken");
    }
}

int saved_feed(cattn_cache *cache, unsigned space, const struct saved_prompt *prompt, cattn_seq *seq)
{
    cattn_step *step;
    cattn_seq made;
    size_t cached;
    const char *name = saved_namespace(space);
    struct saved_prompt rest = *prompt;
    rest.ext.extras = rest.extras;
    FUZZ_CHECK(!cattn_step_create(cache, &step), "no step");
    FUZZ_CHECK(!cattn_seq_open_ext(cache, name, strlen(name), prompt->tokens, prompt->n, &prompt->ext, &made, &cached),
               "no sequence");
    skip_extras(&rest, cached);
    struct cattn_item item = {
        .seq = made, .tokens = prompt->tokens + cached, .n_tokens = (uint32_t)(prompt->n - cached), .ext = &rest.ext};
    int status = cattn_step_begin(step, &item, 1);
    FUZZ_CHECK(!status || status == CATTN_EFULL || status == CATTN_ETOOBIG, "begin: %s", cattn_strerror(status));
    if (!status) {
        store(cache, step, item.n_rows);
        FUZZ_CHECK(!cattn_step_end(step), "a step does not end");
    }
    cattn_step_destroy(step);
    if (seq && !status)
        *seq = made;
    else
        FUZZ_CHECK(!cattn_seq_close(cache, made), "a sequence does not close");
    return status;
}
