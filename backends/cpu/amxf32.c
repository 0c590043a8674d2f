#define AMX_NAME  cattn_kernel_amxf32
#define AMX_SPLIT 1
#include "amx_tmpl.h"
