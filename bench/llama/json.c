#include "json.h"

#include "utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH  64
#define MAX_NUMBER 128 /* characters */

struct parser {
    const char *at, *start, *end;
    unsigned depth;
    struct fault *fault;
};

static int wrong(struct parser *p, const char *what)
{
    return fault_set(p->fault, "%s at byte %zu", what, (size_t)(p->at - p->start));
}

static void skip_space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static int next_is(const struct parser *p, char c)
{
    return p->at < p->end && *p->at == c;
}

static int take(struct parser *p, char c)
{
    if (!next_is(p, c))
        return 0;
    p->at++;
    return 1;
}

static int digits(struct parser *p)
{
    const char *first = p->at;

    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > first;
}

/* ---- numbers and words ------------------------------------------------------------------------------------------- */

static int parse_number(struct parser *p, struct json *value)
{
    char copy[MAX_NUMBER + 1];
    const char *first = p->at;

    take(p, '-');
    if (!take(p, '0') && !digits(p))
        return wrong(p, "no value");
    if (take(p, '.') && !digits(p))
        return wrong(p, "no digit after the point");
    if (take(p, 'e') || take(p, 'E')) {
        if (!take(p, '+'))
            take(p, '-');
        if (!digits(p))
            return wrong(p, "no digit in the exponent");
    }
    const size_t length = (size_t)(p->at - first);
    if (length > MAX_NUMBER)
        return wrong(p, "a number that is too long");
    memcpy(copy, first, length);
    copy[length] = 0;
    value->type = JSON_NUMBER;
    value->number = strtod(copy, NULL);
    return isfinite(value->number) ? 0 : wrong(p, "a number that is too large");
}

static int parse_word(struct parser *p, const char *word, enum json_type type, struct json *value)
{
    const size_t length = strlen(word);

    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
        return wrong(p, "no value");
    p->at += length;
    value->type = type;
    return 0;
}

/* ---- strings ------------------------------------------------------------------------------------------------------
 */

static int parse_hex4(struct parser *p, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const char c = p->at < p->end ? *p->at : 0;
        uint32_t digit;

        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            return wrong(p, "a bad \\u escape");
        *code = *code << 4 | digit;
    }
    return 0;
}

/* After "\u": one code point, of one escape or of two that are a surrogate pair. */
static int parse_unicode(struct parser *p, char **out)
{
    uint32_t code, low;

    if (parse_hex4(p, &code))
        return -1;
    if (code >= 0xdc00 && code <= 0xdfff)
        return wrong(p, "half a surrogate pair");
    if (code >= 0xd800 && code <= 0xdbff) {
        if (!take(p, '\\') || !take(p, 'u'))
            return wrong(p, "half a surrogate pair");
        if (parse_hex4(p, &low))
            return -1;
        if (low < 0xdc00 || low > 0xdfff)
            return wrong(p, "half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *out += utf8_encode(code, *out);
    return 0;
}

static int parse_escape(struct parser *p, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = p->at < p->end ? *p->at : 0;
    const char *found = c ? strchr(from, c) : NULL;

    if (!found && c != 'u')
        return wrong(p, "an unknown escape");
    p->at++;
    if (!found)
        return parse_unicode(p, out);
    *(*out)++ = to[found - from];
    return 0;
}

/* Up to and with the closing quote.  What is decoded is never longer than what is read. */
static int decode_string(struct parser *p, char **out)
{
    for (;;) {
        if (p->at >= p->end)
            return wrong(p, "a string without end");
        if (take(p, '"'))
            return 0;
        if ((unsigned char)*p->at < 0x20)
            return wrong(p, "a control character in a string");
        if (take(p, '\\')) {
            if (parse_escape(p, out))
                return -1;
            continue;
        }
        const size_t bytes = utf8_length(p->at, (size_t)(p->end - p->at));
        if (!bytes)
            return wrong(p, "a string that is not UTF-8");
        memcpy(*out, p->at, bytes);
        *out += bytes;
        p->at += bytes;
    }
}

/* The closing quote, escapes skipped: it bounds the memory by the string's own length. */
static const char *string_end(const struct parser *p)
{
    const char *c = p->at;

    while (c < p->end && *c != '"')
        c += *c == '\\' && p->end - c > 1 ? 2 : 1;
    return c;
}

static int parse_string(struct parser *p, char **text, size_t *length)
{
    if (!take(p, '"'))
        return wrong(p, "no string");
    char *buffer = malloc((size_t)(string_end(p) - p->at) + 1), *out = buffer;
    if (!buffer)
        return wrong(p, "out of memory");
    if (decode_string(p, &out)) {
        free(buffer);
        return -1;
    }
    *out = 0;
    *text = buffer;
    *length = (size_t)(out - buffer);
    return 0;
}

/* ---- values -------------------------------------------------------------------------------------------------------
 */

static int parse_value(struct parser *p, struct json *value);

static int parse_member_key(struct parser *p, struct json *member)
{
    if (parse_string(p, &member->key, &member->key_length))
        return -1;
    skip_space(p);
    return take(p, ':') ? 0 : wrong(p, "no colon after a key");
}

/* The elements of an array or the members of an object, up to and with the closing bracket. */
static int parse_children(struct parser *p, struct json *value, char close)
{
    struct json **link = &value->child;

    if (++p->depth > MAX_DEPTH)
        return wrong(p, "nested too deeply");
    p->at++;
    skip_space(p);
    while (value->child || !next_is(p, close)) {
        if (!(*link = calloc(1, sizeof **link)))
            return wrong(p, "out of memory");
        skip_space(p);
        if ((value->type == JSON_OBJECT && parse_member_key(p, *link)) || parse_value(p, *link))
            return -1;
        link = &(*link)->next;
        skip_space(p);
        if (!take(p, ','))
            break;
    }
    p->depth--;
    return take(p, close) ? 0 : wrong(p, "no comma and no closing bracket");
}

static int parse_value(struct parser *p, struct json *value)
{
    skip_space(p);
    switch (p->at < p->end ? *p->at : 0) {
    case '{': value->type = JSON_OBJECT; return parse_children(p, value, '}');
    case '[': value->type = JSON_ARRAY; return parse_children(p, value, ']');
    case '"': value->type = JSON_STRING; return parse_string(p, &value->text, &value->length);
    case 't': return parse_word(p, "true", JSON_TRUE, value);
    case 'f': return parse_word(p, "false", JSON_FALSE, value);
    case 'n': return parse_word(p, "null", JSON_NULL, value);
    default: return parse_number(p, value);
    }
}

int json_parse(const char *text, size_t length, struct json **value, struct fault *fault)
{
    struct parser p = {text, text, text + length, 0, fault};
    struct json *root = calloc(1, sizeof *root);

    *value = NULL;
    if (!root)
        return fault_set(fault, "out of memory");
    int rc = parse_value(&p, root);
    skip_space(&p);
    if (!rc && p.at < p.end)
        rc = wrong(&p, "something after the value");
    if (rc)
        json_free(root);
    else
        *value = root;
    return rc;
}

void json_free(struct json *value)
{
    while (value) {
        struct json *next = value->next;

        json_free(value->child);
        free(value->text);
        free(value->key);
        free(value);
        value = next;
    }
}
