/* The tests' support, which is C, for C++. */
#ifndef CUDA_HOST_SUPPORT_C_H
#define CUDA_HOST_SUPPORT_C_H

extern "C" {
#include "support/dtype.h"
#include "support/random.h"
#include "support/suite.h"

#include "chunkattention.h"
}

#endif
