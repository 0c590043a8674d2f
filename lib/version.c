#include "chunkattention.h"

const char *cattn_version(void)
{
    return CATTN_VERSION_STRING;
}
