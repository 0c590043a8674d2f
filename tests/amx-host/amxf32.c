/* backends/cpu/amxf32.c, as it is, on the host twins of its instructions. */
#include "twins.h"

#include "backends/cpu/amxf32.c"
