/* Compiled once per instruction set by simd.c, which defines VECTOR_BYTES, TARGET (the attribute of functions), NAME
 * (adds the suffix), NAME_STRING and FMA. */
#define LANES  (VECTOR_BYTES / 4)
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float NAME(floats) __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t NAME(ints) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t NAME(words) __attribute__((vector_size(VECTOR_BYTES), may_alias));

static TARGET float NAME(row_max)(const float *row, size_t n)
{
    NAME(floats) most, next;
    float lanes[LANES], max = row[0];
    size_t i = 0;

    if (n >= LANES) {
        memcpy(&most, row, sizeof most);
        for (i = LANES; i + LANES <= n; i += LANES) {
            memcpy(&next, row + i, sizeof next);
            NAME(ints) greater = next > most;
            most = (NAME(floats))((greater & (NAME(ints))next) | (~greater & (NAME(ints))most));
        }
        memcpy(lanes, &most, sizeof lanes);
        for (size_t j = 0; j < LANES; j++)
            max = lanes[j] > max ? lanes[j] : max;
    }
    for (; i < n; i++)
        max = row[i] > max ? row[i] : max;
    return max;
}

/* 2^x for -126 <= x <= 0: a polynomial of the fraction in [-1/2, 1/2], the integer added to the exponent. */
INLINE void NAME(exp2)(NAME(floats) * x)
{
    const NAME(floats) zero = {0}, magic = zero + 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    NAME(floats) shifted = *x + magic;
    NAME(floats) f = *x - (shifted - magic);
    NAME(floats) p = FMA(zero + 1.5403530e-4f, f, zero + 1.3333558e-3f);

    p = FMA(p, f, zero + 9.6181291e-3f);
    p = FMA(p, f, zero + 5.5504109e-2f);
    p = FMA(p, f, zero + 2.4022651e-1f);
    p = FMA(p, f, zero + 6.9314718e-1f);
    p = FMA(p, f, zero + 1.0f);
    *x = (NAME(floats))((NAME(ints))p + ((NAME(ints))shifted << 23));
}

INLINE void NAME(weights)(float *row, float max, float scale, NAME(floats) * sum)
{
    const NAME(floats) zero = {0}, least = zero - 126.0f;
    NAME(floats) x;

    memcpy(&x, row, sizeof x);
    x = (x - max) * scale;
    NAME(ints) small = x < least;
    x = (NAME(floats))((small & (NAME(ints))least) | (~small & (NAME(ints))x));
    NAME(exp2)(&x);
    *sum += x;
    memcpy(row, &x, sizeof x);
}

static TARGET float NAME(row_exp)(float *row, size_t n, float max, float scale)
{
    NAME(floats) sum = {0};
    float lanes[LANES], rest[LANES], total = 0.0f;
    size_t i = 0;

    scale *= 1.44269504f; /* powers of two from here on */
    for (; i + LANES <= n; i += LANES)
        NAME(weights)(row + i, max, scale, &sum);
    memcpy(lanes, &sum, sizeof lanes);
    for (size_t j = 0; j < LANES; j++)
        total += lanes[j];
    if (i < n) {
        for (size_t j = 0; j < LANES; j++)
            rest[j] = i + j < n ? row[i + j] : max;
        NAME(weights)(rest, max, scale, &sum);
        for (size_t j = 0; i + j < n; j++) {
            row[i + j] = rest[j];
            total += rest[j];
        }
    }
    return total;
}

INLINE void NAME(line)(const char *p, NAME(words) * sum)
{
    const NAME(words) *w = (const NAME(words) *)(const void *)p;
    for (size_t i = 0; i < 64 / VECTOR_BYTES; i++)
        *sum ^= w[i];
}

/* Four pages at p, in step; the lines `ahead` bytes further on are prefetched. */
INLINE void NAME(four_lines)(const char *p, size_t ahead, NAME(words) * a, NAME(words) * b)
{
    if (ahead != 0) {
        __builtin_prefetch(p + ahead, 0, 2);
        __builtin_prefetch(p + ahead + 4096, 0, 2);
        __builtin_prefetch(p + ahead + 2 * 4096, 0, 2);
        __builtin_prefetch(p + ahead + 3 * 4096, 0, 2);
    }
    NAME(line)(p, a);
    NAME(line)(p + 4096, b);
    NAME(line)(p + 2 * 4096, a);
    NAME(line)(p + 3 * 4096, b);
}

INLINE const char *NAME(read_pages)(const char *p, const char *end, unsigned pages, int ahead, NAME(words) * sum)
{
    NAME(words) a = {0}, b = {0}, c = {0}, d = {0};
    size_t group = (size_t)pages * 4096;

    for (; (size_t)(end - p) >= group; p += group)
        for (size_t i = 0; i < 4096; i += 64) {
            NAME(four_lines)(p + i, ahead ? group : 0, &a, &b);
            if (pages == 8)
                NAME(four_lines)(p + i + 4 * 4096, ahead ? group : 0, &c, &d);
        }
    *sum = a ^ b ^ c ^ d;
    return p;
}

INLINE const char *NAME(read_linear)(const char *p, const char *end, int ahead, NAME(words) * sum)
{
    NAME(words) a = {0}, b = {0};

    for (; end - p >= 128; p += 128) {
        if (ahead) {
            __builtin_prefetch(p + 1024, 0, 2);
            __builtin_prefetch(p + 1088, 0, 2);
        }
        NAME(line)(p, &a);
        NAME(line)(p + 64, &b);
    }
    if (end - p >= 64) {
        NAME(line)(p, &a);
        p += 64;
    }
    *sum ^= a ^ b;
    return p;
}

static TARGET uint64_t NAME(read)(const void *from, size_t n_bytes, unsigned pages, int ahead)
{
    const char *p = from, *end = p + n_bytes;
    NAME(words) sum = {0};
    uint64_t lanes[VECTOR_BYTES / 8], all = 0;

    if (pages == 8)
        p = ahead ? NAME(read_pages)(p, end, 8, 1, &sum) : NAME(read_pages)(p, end, 8, 0, &sum);
    else if (pages == 4)
        p = ahead ? NAME(read_pages)(p, end, 4, 1, &sum) : NAME(read_pages)(p, end, 4, 0, &sum);
    if (ahead)
        NAME(read_linear)(p, end, 1, &sum);
    else
        NAME(read_linear)(p, end, 0, &sum);
    memcpy(lanes, &sum, sizeof lanes);
    for (size_t i = 0; i < VECTOR_BYTES / 8; i++)
        all ^= lanes[i];
    return all;
}

/* Twelve sums: more than the latency of two units. */
static TARGET double NAME(multiply_add)(size_t n)
{
    const NAME(floats) zero = {0}, x = zero + 0.999f, y = zero + 0.001f;
    /* Different from each other, or the compiler keeps one. */
    NAME(floats) a = zero + 1, b = zero + 2, c = zero + 3, d = zero + 4, e = zero + 5, f = zero + 6;
    NAME(floats) g = zero + 7, h = zero + 8, i = zero + 9, j = zero + 10, k = zero + 11, l = zero + 12;
    float lanes[LANES];

    for (size_t round = 0; round < n; round++) {
        a = FMA(a, x, y), b = FMA(b, x, y), c = FMA(c, x, y), d = FMA(d, x, y);
        e = FMA(e, x, y), f = FMA(f, x, y), g = FMA(g, x, y), h = FMA(h, x, y);
        i = FMA(i, x, y), j = FMA(j, x, y), k = FMA(k, x, y), l = FMA(l, x, y);
    }
    a += b + c + d + e + f + g + h + i + j + k + l;
    memcpy(lanes, &a, sizeof lanes);
    sink = lanes[0];
    return (double)n * 12.0 * LANES * 2.0;
}

static const struct bench_simd NAME(simd) = {
    NAME_STRING, NAME(row_max), NAME(row_exp), NAME(read), NAME(multiply_add),
};

#undef LANES
#undef INLINE
#undef VECTOR_BYTES
#undef TARGET
#undef NAME
#undef NAME_STRING
#undef FMA
