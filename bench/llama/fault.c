#include "fault.h"

#include <stdarg.h>
#include <stdio.h>

void fault_write(struct fault *fault, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
    for (char *c = fault->text; *c; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
}
