#define AMX_NAME  cattn_kernel_amx
#define AMX_SPLIT 0
#include "amx_tmpl.h"
