/* A seeded generator for tests.  The seed is fixed unless CATTN_TEST_SEED is set, and every failed check names it. */
#ifndef TEST_RANDOM_H
#define TEST_RANDOM_H

#include <check.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct rng {
    uint64_t state, seed;
};

/* The seed of case `salt` of a test: a function of salt and of CATTN_TEST_SEED (default 1). */
void rng_init(struct rng *rng, uint64_t salt);

/* The finaliser of splitmix64: a bijection that scatters its argument. */
uint64_t rng_mix(uint64_t x);

uint64_t rng_next(struct rng *rng);
uint64_t rng_below(struct rng *rng, uint64_t n);               /* 0 .. n-1 */
uint64_t rng_between(struct rng *rng, uint64_t a, uint64_t b); /* a .. b */
int rng_chance(struct rng *rng, unsigned percent);
void rng_shuffle(struct rng *rng, uint32_t *x, size_t n);

/* 1 when CATTN_TEST_FULL asks for the whole product of a test's parameters. */
int test_full(void);

/* The value of CATTN_TEST_SEED, for messages. */
unsigned long long test_seed(void);

/* Like ck_assert_msg; the message ends with how to repeat the run. */
#define CHECK(condition, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      char message_[512];                                                                                              \
      snprintf(message_, sizeof message_, __VA_ARGS__);                                                                \
      ck_abort_msg("%s: %s (CATTN_TEST_SEED=%llu)", #condition, message_, test_seed());                                \
    }                                                                                                                  \
  } while (0)

#endif
