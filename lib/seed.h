/* Random numbers that cannot be guessed, where the system has them. */
#ifndef CATTN_SEED_H
#define CATTN_SEED_H

#include <stdint.h>

/* Another one for each address at the same time, whatever the system has. */
uint64_t cattn_seed(const void *address);

#endif
