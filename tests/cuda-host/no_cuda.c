/* The list of backends without the real CUDA backend, whichever this build has. */
#if HAVE_CONFIG_H
#  include "config.h"
#endif
#undef HAVE_CATTN_CUDA
#undef HAVE_CONFIG_H
#include "lib/registry.c"
