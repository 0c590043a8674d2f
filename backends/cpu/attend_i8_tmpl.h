/* The vector kernel's arithmetic on K and V of i8: sums of products of whole numbers, exact and hence the same in any
 * order and with any instructions.  Part of attend_tmpl.h.
 *
 * What multiplies the bytes is rounded to 13 bits and a sign, a query to whole multiples of max|q| / 4095, the weights
 * of a block to those of their maximum / 8191.  Four factors that lie side by side are two words, in the order that
 * the instruction set wants (`factors`). */

/* q = scale * x for whole |x| <= 4095; K is stored as its byte + 128, so that sums start at -128 times the sum of x. */
struct i8_query {
    float scale;
    int32_t start;
    uint32_t unused[14];
    uint32_t factors[]; /* two for each four of d */
};

static size_t i8_query_bytes(const struct cattn_layout *layout)
{
    return cattn_round_up((uint32_t)sizeof(struct i8_query) + 2 * cattn_round_up(layout->k_dim, 16), 64);
}

static void load_i8_query(const struct cattn_layout *layout, const void *q, uint32_t dtype, size_t first,
                          struct i8_query *query)
{
    const uint32_t n = cattn_round_up(layout->k_dim, 16);
    float x[CATTN_MAX_HEAD_DIM], lanes[16], sum = 0;
    vec largest = vec_set(0), poison = vec_set(0), sums_of_x = vec_set(0);
    cattn_load_row(x, q, dtype, first, layout->k_dim);
    memset(x + layout->k_dim, 0, (n - layout->k_dim) * sizeof *x);
    for (uint32_t i = 0; i < n; i += 16) {
        largest = vec_max(vec_magnitude(vec_load(x + i)), largest);
        poison = vec_fma(vec_load(x + i), vec_set(0), poison); /* what is not finite becomes a NaN */
    }
    const float unit = vec_has_nan(poison) ? NAN : fmaxf(vec_largest(largest), CATTN_I8_TINY);
    const vec inverse = vec_set(4095 / unit), magic = vec_set(0x1.8p23f);
    for (uint32_t i = 0; i < n; i += 16) {
        const vec whole = vec_sub(vec_add(vec_mul(vec_load(x + i), inverse), magic), magic);
        factors_store(query->factors + i / 2, whole);
        sums_of_x = vec_add(sums_of_x, whole); /* exact: less than 2^24 */
    }
    vec_store(lanes, sums_of_x);
    for (int i = 0; i < 16; i++)
        sum += lanes[i];
    query->scale = unit / 4095;
    query->start = sum == sum ? -128 * (int32_t)sum : 0;
}

/* R rows by V vectors of tokens. */
SIMD_INLINE void score_i8_tile(struct group *g, const struct block *b, const struct tile *t, uint32_t token,
                               const int fetch, const int R, const int V)
{
    const struct i8_query *q[SIMD_I8_ROWS];
    sums s[SIMD_I8_ROWS][MOST_VECTORS * SIMD_PARTS];
    UNROLL (r, R) {
        q[r] = g->q[r];
        UNROLL (v, V * SIMD_PARTS)
            s[r][v] = sums_set(q[r]->start);
    }
    for (size_t four = 0; four < b->k_steps; four++) {
        const unsigned char *k = t->at + four * 64;
        UNROLL (part, SIMD_PARTS) {
            fours x[MOST_VECTORS];
            UNROLL (v, V) {
                if (fetch && !part)
                    __builtin_prefetch(k + v * t->vector + b->ahead, 0, 2);
                x[v] = fours_of_k(k + v * t->vector + 64 / SIMD_PARTS * part);
            }
            UNROLL (r, R)
                UNROLL (v, V)
                    s[r][v * SIMD_PARTS + part] =
                        sums_add_k(s[r][v * SIMD_PARTS + part], x[v], q[r]->factors + 2 * four);
        }
    }
    UNROLL (r, R)
        UNROLL (v, V)
            vec_store(&g->s[r][token + 16 * v], sums_total(&s[r][v * SIMD_PARTS]));
}

/* The weights of a row, which have the scales of V in them, become whole numbers times a unit. */
static void quantise_weights(struct group *g, int r, const struct block *b)
{
    const float *w = g->s[r];
    vec largest = vec_set(0), sum = vec_set(0);
    for (uint32_t i = b->begin; i < b->n_tokens; i += 16) {
        largest = vec_max(vec_load(w + i), largest);
        sum = vec_add(sum, vec_load(w + i));
    }
    const float unit = vec_has_nan(sum) ? NAN : fmaxf(vec_largest(largest), CATTN_I8_TINY);
    const vec inverse = vec_set(8191 / unit);
    for (uint32_t i = b->begin; i < b->n_tokens; i += 16)
        factors_store(g->factors[r] + i / 2, vec_mul(vec_load(w + i), inverse));
    g->unit[r] = unit / 8191;
}

/* R rows by V vectors of dimensions. */
SIMD_INLINE void value_i8_tile(struct group *g, const struct block *b, const struct tile *t, uint32_t column,
                               const int fetch, const int R, const int V)
{
    sums s[SIMD_I8_ROWS][MOST_VECTORS * SIMD_PARTS];
    UNROLL (r, R)
        UNROLL (v, V * SIMD_PARTS)
            s[r][v] = sums_set(0);
    for (uint32_t first = b->begin; first < b->n_tokens; first += CATTN_GRANULE) {
        const unsigned char *values = t->at + first / CATTN_GRANULE * t->granule;
        for (uint32_t token = first; token < first + CATTN_GRANULE; token += 4, values += 64) {
            UNROLL (part, SIMD_PARTS) {
                fours x[MOST_VECTORS];
                UNROLL (v, V) {
                    if (fetch && !part)
                        __builtin_prefetch(values + v * t->vector + b->ahead, 0, 2);
                    x[v] = fours_of_v(values + v * t->vector + 64 / SIMD_PARTS * part);
                }
                UNROLL (r, R)
                    UNROLL (v, V)
                        s[r][v * SIMD_PARTS + part] =
                            sums_add_v(s[r][v * SIMD_PARTS + part], x[v], g->factors[r] + token / 2);
            }
        }
    }
    UNROLL (r, R)
        UNROLL (v, V) {
            float *o = g->state[r] + CATTN_STATE_O + 16 * (column + v);
            vec_store(o, vec_fma(sums_total(&s[r][v * SIMD_PARTS]), vec_set(g->unit[r]), vec_load(o)));
        }
}
