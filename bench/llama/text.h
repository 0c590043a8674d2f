/* Files of lines. */
#ifndef LLAMA_TEXT_H
#define LLAMA_TEXT_H

#include "fault.h"

#include <stddef.h>

/* The bytes of a file, the caller's to free.  NULL: with the reason. */
char *text_read(const char *path, size_t *length, struct fault *fault);

typedef int text_line(void *context, const char *line, size_t length, struct fault *fault);

/* Calls `take` with each line that is not blank, without its end.  The first that is refused ends it: -1, and the fault
 * says which line. */
int text_lines(const char *text, size_t length, text_line *take, void *context, struct fault *fault);

/* The same for a file. */
int text_read_lines(const char *path, text_line *take, void *context, struct fault *fault);

#endif
