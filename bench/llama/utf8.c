#include "utf8.h"

/* The least code point of each length: a smaller one is written in too many bytes. */
static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};

static size_t length_by_first(unsigned char c)
{
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c < 0xe0)
        return 2;
    if (c >= 0xe0 && c < 0xf0)
        return 3;
    return c >= 0xf0 && c < 0xf5 ? 4 : 0;
}

size_t utf8_length(const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    const size_t n = length ? length_by_first(bytes[0]) : 0;

    if (n <= 1)
        return n;
    if (n > length)
        return 0;
    uint32_t code = bytes[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (bytes[i] & 0x3f);
    }
    return code < least[n] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? 0 : n;
}

size_t utf8_encode(uint32_t code, char *out)
{
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t n = 1;

    while (n < 4 && code >= least[n + 1])
        n++;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(n == 1 ? code : first[n] | code);
    return n;
}
