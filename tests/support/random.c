#include "random.h"

#include <stdlib.h>

unsigned long long test_seed(void)
{
    const char *s = getenv("CATTN_TEST_SEED");
    return s && *s ? strtoull(s, NULL, 0) : 1;
}

int test_full(void)
{
    const char *s = getenv("CATTN_TEST_FULL");
    return s && *s && *s != '0';
}

uint64_t rng_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void rng_init(struct rng *rng, uint64_t salt)
{
    rng->seed = test_seed();
    rng->state = rng_mix(rng_mix(rng->seed) + salt);
}

uint64_t rng_next(struct rng *rng)
{
    rng->state += 0x9e3779b97f4a7c15u;
    return rng_mix(rng->state);
}

uint64_t rng_below(struct rng *rng, uint64_t n)
{
    return rng_next(rng) % n;
}

uint64_t rng_between(struct rng *rng, uint64_t a, uint64_t b)
{
    return a + rng_below(rng, b - a + 1);
}

int rng_chance(struct rng *rng, unsigned percent)
{
    return rng_below(rng, 100) < percent;
}

void rng_shuffle(struct rng *rng, uint32_t *x, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = rng_below(rng, i);
        uint32_t t = x[i - 1];
        x[i - 1] = x[j];
        x[j] = t;
    }
}
