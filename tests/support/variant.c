#include "variant.h"

#include <math.h>
#include <stdlib.h>

enum { SPAN = 1024 };

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct holder {
    struct cattn_variant variant; /* first: it is what callers have */
    float *slopes, *sinks;
};

struct cattn_variant *variant_new(uint32_t n_heads)
{
    struct holder *h = calloc(1, sizeof *h);
    ck_assert_ptr_nonnull(h);
    h->variant.size = sizeof h->variant;
    h->slopes = calloc(n_heads, sizeof *h->slopes);
    h->sinks = calloc(n_heads, sizeof *h->sinks);
    ck_assert(h->slopes && h->sinks);
    return &h->variant;
}

void variant_free(struct cattn_variant *variant)
{
    struct holder *h = (struct holder *)variant;
    if (h) {
        free(h->slopes);
        free(h->sinks);
    }
    free(h);
}

unsigned variant_parts(struct rng *rng)
{
    const uint64_t kind = rng_below(rng, 100);
    if (kind < 30)
        return 0;
    if (kind < 65)
        return 1u << rng_below(rng, 5);
    return kind < 85 ? (unsigned)rng_below(rng, VARIANT_ALL + 1) : VARIANT_ALL;
}

static void draw_window(struct cattn_variant *variant, struct rng *rng, uint32_t chunk, size_t length)
{
    const uint32_t n = (uint32_t)length;
    const uint32_t windows[] = {1,    2,        chunk - 1, chunk,     chunk + 1, 3 * chunk + 7, SPAN - 1,
                                SPAN, SPAN + 1, SPAN + 9,  n / 2 + 1, n,         n + 1,         UINT32_MAX};
    const uint32_t sinks[] = {0, 0, 1, 4, chunk - 1, chunk, chunk + 1, SPAN, SPAN + 1, n + 1, UINT32_MAX};
    variant->window = windows[rng_below(rng, COUNT(windows))];
    variant->n_sink_tokens = sinks[rng_below(rng, COUNT(sinks))];
}

void variant_draw(struct cattn_variant *variant, unsigned parts, uint64_t seed, uint32_t n_heads, uint32_t chunk,
                  size_t length)
{
    static const float scales[] = {0.37f, 0.01f, 1}, caps[] = {0.01f, 1, 5, 30, 50, 1e6f};
    static const float slopes[] = {0, 0x1p-1f, 0x1p-2f, 0x1p-4f, 0x1p-8f, 0.7f, -0x1p-7f, -0.01f, -1, 100};
    static const float sinks[] = {-INFINITY, -1e30f, -40, -1, 0, 0.5f, 3, 20, 1000, 1e30f};
    struct holder *h = (struct holder *)variant;
    struct rng rng;
    rng_init(&rng, seed);
    h->variant = (struct cattn_variant){.size = sizeof h->variant};
    for (uint32_t i = 0; i < n_heads; i++) {
        h->slopes[i] = slopes[rng_below(&rng, COUNT(slopes))];
        h->sinks[i] = sinks[rng_below(&rng, COUNT(sinks))];
    }
    if (parts & VARIANT_SCALE)
        h->variant.scale = scales[rng_below(&rng, COUNT(scales))];
    if (parts & VARIANT_SOFTCAP)
        h->variant.softcap = caps[rng_below(&rng, COUNT(caps))];
    if (parts & VARIANT_WINDOW)
        draw_window(&h->variant, &rng, chunk, length);
    h->variant.alibi_slopes = parts & VARIANT_ALIBI ? h->slopes : NULL;
    h->variant.sinks = parts & VARIANT_SINKS ? h->sinks : NULL;
}

const char *variant_text(const struct cattn_variant *variant)
{
    static char text[200];
    if (!variant)
        return "plain";
    snprintf(text, sizeof text, "scale %g, softcap %g, window %u, %u sink tokens, slopes %g.., sinks %g..",
             variant->scale, variant->softcap, variant->window, variant->n_sink_tokens,
             variant->alibi_slopes ? variant->alibi_slopes[0] : 0, variant->sinks ? variant->sinks[0] : -INFINITY);
    return text;
}
