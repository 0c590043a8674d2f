#define _POSIX_C_SOURCE 200809L /* popen */
#include "small.h"
#include "support/suite.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct small small;
static char text[1 << 16];
static size_t length, n_writes;

static int collect(void *context, const char *piece, size_t n)
{
    ck_assert_ptr_eq(context, text);
    ck_assert_uint_lt(length + n, sizeof text);
    memcpy(text + length, piece, n);
    length += n;
    text[length] = 0;
    n_writes++;
    return 0;
}

static void dump(void)
{
    length = n_writes = 0;
    ck_assert_int_eq(cattn_cache_dump_dot(small.cache, collect, text), CATTN_OK);
}

/* ---- as much of the language as is used */

static char defined[1000][32];
static size_t n_defined, n_edges;

static const char *skip_blanks(const char *p)
{
    while (*p == ' ' || *p == '\n')
        p++;
    return p;
}

static const char *read_word(const char *p, char *word)
{
    size_t n = 0;
    while ((isalnum((unsigned char)p[n]) || p[n] == '_') && n < 31) {
        word[n] = p[n];
        n++;
    }
    ck_assert_uint_gt(n, 0);
    word[n] = 0;
    return skip_blanks(p + n);
}

static const char *read_string(const char *p)
{
    for (p++; *p != '"'; p++) {
        ck_assert(*p >= ' ' && *p < 127);
        if (*p == '\\')
            p++;
    }
    return p + 1;
}

static const char *read_attributes(const char *p)
{
    char word[32];
    if (*p != '[')
        return p;
    do {
        p = read_word(skip_blanks(p + 1), word);
        ck_assert_int_eq(*p++, '=');
        p = *p == '"' ? read_string(p) : read_word(p, word);
    } while (*p == ',');
    ck_assert_int_eq(*p, ']');
    return skip_blanks(p + 1);
}

static int is_defined(const char *word)
{
    for (size_t i = 0; i < n_defined; i++)
        if (!strcmp(defined[i], word))
            return 1;
    return 0;
}

/* The ends of all lines, to be looked up when everything is defined. */
static char ends[2000][32];

static const char *read_statement(const char *p)
{
    char word[32];
    p = read_word(p, word);
    if (*p == '=') { /* rankdir=LR */
        p = read_word(p + 1, word);
    } else if (p[0] == '-' && p[1] == '>') {
        strcpy(ends[2 * n_edges], word);
        p = read_word(skip_blanks(p + 2), ends[2 * n_edges + 1]);
        n_edges++;
        p = read_attributes(p);
    } else {
        ck_assert(!is_defined(word));
        strcpy(defined[n_defined++], word);
        p = read_attributes(p);
    }
    ck_assert_int_eq(*p, ';');
    return skip_blanks(p + 1);
}

static void parse(void)
{
    static const char head[] = "digraph chunks {";
    n_defined = n_edges = 0;
    ck_assert(!strncmp(text, head, sizeof head - 1));
    const char *p = skip_blanks(text + sizeof head - 1);
    while (*p != '}')
        p = read_statement(p);
    ck_assert_str_eq(p, "}\n");
    for (size_t i = 0; i < 2 * n_edges; i++)
        ck_assert_msg(is_defined(ends[i]), "%s is not defined", ends[i]);
}

static size_t count(char kind)
{
    size_t n = 0;
    for (size_t i = 0; i < n_defined; i++)
        n += defined[i][0] == kind && isdigit((unsigned char)defined[i][1]);
    return n;
}

static void run_dot(void)
{
    if (system("command -v dot >/dev/null 2>&1"))
        return;
    FILE *dot = popen("dot -Tsvg >/dev/null", "w");
    ck_assert_ptr_nonnull(dot);
    ck_assert_uint_eq(fwrite(text, 1, length, dot), length);
    ck_assert_int_eq(pclose(dot), 0);
}

static void expect(size_t roots, size_t chunks, size_t sequences)
{
    dump();
    parse();
    ck_assert_uint_eq(count('r'), roots);
    ck_assert_uint_eq(count('c'), chunks);
    ck_assert_uint_eq(count('s'), sequences);
    ck_assert_uint_eq(n_edges, chunks + sequences);
    run_dot();
}

/* ---- tests */

START_TEST(what_is_there_is_drawn)
{
    small = small_make(16, 4, 1, 0);
    expect(0, 0, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(0, 9), 9), other = small_open(&small, NULL, 0, NULL), fork;
    expect(1, 3, 2);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &fork), CATTN_OK);
    ck_assert_int_eq(cattn_seq_truncate(small.cache, seq, 8), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "ns", 2, small_tokens(0, 4), 4, NULL), CATTN_OK);
    expect(1, 3, 3);
    ck_assert_ptr_nonnull(strstr(text, "0 1 2 ...\\n4 tokens"));
    ck_assert_ptr_nonnull(strstr(text, "style=bold"));
    ck_assert_ptr_nonnull(strstr(text, "borrows 1"));
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, fork), CATTN_OK);
    expect(1, 2, 1);
    ck_assert_ptr_nonnull(strstr(text, "style=dashed"));
    struct cattn_item item = small_item(other, small_tokens(0, 14), 14);
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    expect(1, 4, 1);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_namespace_invalidate(small.cache, "ns", 2), CATTN_OK);
    expect(1, 0, 1);
    ck_assert_ptr_nonnull(strstr(text, "(invalidated)"));
    small_free(&small);
}
END_TEST

START_TEST(no_name_breaks_out)
{
    small = small_make(4, 4, 1, 0);
    char name[256];
    for (int i = 0; i < 256; i++)
        name[i] = (char)i;
    for (size_t first = 0; first < 256; first += 32) {
        cattn_seq seq;
        ck_assert_int_eq(cattn_seq_open(small.cache, name + first, 32, NULL, 0, &seq, NULL), CATTN_OK);
    }
    cattn_seq seq;
    ck_assert_int_eq(cattn_seq_open(small.cache, "\"];\n} \\", 7, NULL, 0, &seq, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_seq_open(small.cache, name + 40, 33, NULL, 0, &seq, NULL), CATTN_OK);
    expect(10, 0, 10);
    ck_assert_ptr_nonnull(strstr(text, "label=\"\\\\x22];\\\\x0a} \\\\x5c\""));
    ck_assert_ptr_nonnull(strstr(text, "EFG...\""));
    small_free(&small);
}
END_TEST

static int refuse(void *context, const char *piece, size_t n)
{
    size_t *left = context;
    (void)piece;
    (void)n;
    ck_assert_uint_gt(*left, 0);
    return --*left ? 0 : 42;
}

START_TEST(a_write_that_fails_is_the_last)
{
    small = small_make(8, 4, 1, 0);
    small_prefill(&small, small_tokens(1, 9), 9);
    dump();
    for (size_t n = 1; n <= n_writes; n++) {
        size_t left = n;
        ck_assert_int_eq(cattn_cache_dump_dot(small.cache, refuse, &left), 42);
        ck_assert_uint_eq(left, 0);
    }
    ck_assert_int_eq(cattn_cache_dump_dot(NULL, collect, text), CATTN_EINVAL);
    ck_assert_int_eq(cattn_cache_dump_dot(small.cache, NULL, text), CATTN_EINVAL);
    small_free(&small);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("dot");
    tcase_add_test(tests, what_is_there_is_drawn);
    tcase_add_test(tests, no_name_breaks_out);
    tcase_add_test(tests, a_write_that_fails_is_the_last);
    return suite_run(tests);
}
