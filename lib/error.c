#include "chunkattention.h"

const char *cattn_strerror(int status)
{
    switch (status) {
    case CATTN_OK: return "success";
    case CATTN_EINVAL: return "an argument is wrong or a handle is stale";
    case CATTN_ENOMEM: return "out of memory";
    case CATTN_EFULL: return "too few slots are free or evictable now";
    case CATTN_ETOOBIG: return "the items can never fit in the pool";
    case CATTN_EBUSY: return "the sequence is in the open step";
    case CATTN_ESTATE: return "not possible in the present state";
    case CATTN_ENOTFOUND: return "nothing of that name";
    case CATTN_ENOTSUP: return "not usable on this machine or not in this build";
    case CATTN_EIO: return "a file could not be read or written";
    case CATTN_EFORMAT: return "a file is damaged or was not written for this";
    case CATTN_EDEVICE: return "the device failed";
    default: return "unknown status";
    }
}
