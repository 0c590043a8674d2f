/* What a target shares with whoever feeds it: libFuzzer, or driver.c. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* The target: runs one input, whatever bytes it has.  Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Its name, and what of its inputs is random: everything, or damage to good ones. */
extern const char *const fuzz_name;
extern const int fuzz_needs_corpus;

/* To be called at the start of each input.  The counts are printed when the program ends. */
void fuzz_begin(void);
extern uint64_t fuzz_inputs, fuzz_operations;

/* Says what is wrong and aborts. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2), noreturn))
#endif
void fuzz_fault(const char *format, ...);

#define FUZZ_CHECK(condition, ...)                                                                                     \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      fuzz_fault(__VA_ARGS__);                                                                                         \
  } while (0)

#endif
