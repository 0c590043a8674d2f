#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_blank(const char *text, size_t length)
{
    while (length && (*text == ' ' || *text == '\t' || *text == '\r')) {
        text++;
        length--;
    }
    return length == 0;
}

int text_lines(const char *text, size_t length, text_line *take, void *context, struct fault *fault)
{
    const char *end = text + length;
    struct fault reason;

    for (size_t number = 1; text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline ? newline : end;
        const size_t n = (size_t)(stop - text);

        if (!is_blank(text, n) && take(context, text, n, &reason))
            return fault_set(fault, "line %zu: %s", number, reason.text);
        text = newline ? newline + 1 : end;
    }
    return 0;
}

char *text_read(const char *path, size_t *length, struct fault *fault)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0, n = 0;

    if (!file) {
        fault_write(fault, "%s: %s", path, strerror(errno));
        return NULL;
    }
    for (;;) {
        if (n == room) {
            char *grown = realloc(text, room = room ? 2 * room : 1 << 16);

            if (!grown)
                break;
            text = grown;
        }
        const size_t got = fread(text + n, 1, room - n, file);
        n += got;
        if (!got)
            break;
    }
    const int whole = feof(file) && !ferror(file);
    fclose(file);
    if (whole) {
        *length = n;
        return text;
    }
    free(text);
    fault_write(fault, "%s: cannot be read", path);
    return NULL;
}

int text_read_lines(const char *path, text_line *take, void *context, struct fault *fault)
{
    struct fault reason;
    size_t length;
    char *text = text_read(path, &length, fault);

    if (!text)
        return -1;
    const int rc = text_lines(text, length, take, context, &reason);
    free(text);
    return rc ? fault_set(fault, "%s: %s", path, reason.text) : 0;
}
