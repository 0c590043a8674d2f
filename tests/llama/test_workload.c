#define _DEFAULT_SOURCE 1 /* mkstemp */
/* Requests that are made, and those of recorded traces: how much they have in common is what counts. */
#include "llama/workload.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct request_rules rules = {NULL, 32000, 100000, 0};
static struct requests requests;
static struct fault fault;

static void set_up(void)
{
    memset(&requests, 0, sizeof requests);
}

static void tear_down(void)
{
    requests_release(&requests);
}

static size_t common(size_t a, size_t b)
{
    const struct request *x = &requests.list[a], *y = &requests.list[b];
    size_t n = 0;

    while (n < x->n_prompt && n < y->n_prompt && x->ids[n] == y->ids[n])
        n++;
    return n;
}

static void generate(const char *text, uint64_t seed)
{
    struct workload workload;

    ck_assert_msg(workload_parse(&workload, text, &fault) == 0, "%s", fault.text);
    ck_assert_int_eq(workload_generate(&workload, seed, &requests, &rules, &fault), 0);
}

START_TEST(generated_prompts_share_their_beginning)
{
    generate("np=100,ns=60,nc=7,batch=5", 1);
    ck_assert_uint_eq(requests.n, 5);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(requests.list[i].n_prompt, 100);
        ck_assert_uint_eq(requests.list[i].max_tokens, 7);
        ck_assert(requests.list[i].arrival == 0);
        ck_assert_uint_eq(requests.list[i].tenant, 0);
        for (size_t k = 0; k < i; k++) {
            ck_assert_uint_ge(common(i, k), 60);
            ck_assert_uint_le(common(i, k), 62);
        }
    }
}
END_TEST

START_TEST(tenants_prompts_and_arrivals)
{
    size_t n_equal = 0;

    generate("requests=400,np=20,ns=20,nc=1,batch=2,tenants=3,prompts=50,zipf=1.5,rate=10", 3);
    ck_assert_uint_eq(requests.n, 400);
    for (size_t i = 1; i < 400; i++) {
        ck_assert_uint_eq(requests.list[i].tenant, i % 3);
        ck_assert(requests.list[i].arrival > requests.list[i - 1].arrival);
        n_equal += common(0, i) == 20;
    }
    ck_assert_uint_gt(n_equal, 2);
    ck_assert_uint_lt(n_equal, 350);
    ck_assert(requests.list[399].arrival > 25 && requests.list[399].arrival < 60); /* 40 s but for chance */
}
END_TEST

START_TEST(the_seed_decides)
{
    generate("np=9,ns=5,nc=1,batch=2", 1);
    generate("np=9,ns=5,nc=1,batch=2", 1);
    generate("np=9,ns=5,nc=1,batch=2", 2);
    ck_assert_uint_eq(common(0, 2), 9);
    ck_assert_uint_eq(common(1, 3), 9);
    ck_assert_uint_lt(common(0, 4), 3);
}
END_TEST

START_TEST(bad_descriptions_are_refused)
{
    static const char *const bad[] = {"",         "np",        "np=",  "np=x",       "np=0",    "np=1.5",
                                      "np=5,",    "np=5;nc=1", "xx=1", "np=5,ns=6",  "nc=1e99", "rate=-1",
                                      "zipf=nan", "np=-3",     "n=1",  "np=5,,nc=1", "=1",      "batch=0"};
    struct workload workload;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(workload_parse(&workload, bad[i], &fault) == -1, "'%s'", bad[i]);
}
END_TEST

/* ---- traces */

static int read_text(const char *text, uint64_t scale, uint64_t limit)
{
    const struct trace_options options = {limit, scale, 2};
    char path[] = "trace-XXXXXX";
    const int file = mkstemp(path);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    const int rc = trace_read(path, &options, &requests, &rules, &fault);
    unlink(path);
    return rc;
}

START_TEST(hash_blocks_become_tokens)
{
    ck_assert_int_eq(
        read_text("{\"timestamp\": 1000, \"input_length\": 1100, \"output_length\": 9, \"hash_ids\": [7, 8, 9]}\n\n"
                  "{\"timestamp\": 4000, \"input_length\": 1600, \"output_length\": 0, \"hash_ids\": [7, 8, 3, 4]}\n"
                  "{\"timestamp\": 4000, \"input_length\": 600, \"output_length\": 40, \"hash_ids\": [1, 8]}\n",
                  2, 0),
        0);
    ck_assert_uint_eq(requests.n, 3);
    ck_assert_uint_eq(requests.list[0].n_prompt, 550);
    ck_assert_uint_eq(requests.list[1].max_tokens, 1);
    ck_assert_uint_eq(requests.list[2].max_tokens, 20);
    ck_assert(requests.list[0].arrival == 0.5 && requests.list[1].arrival == 2);
    ck_assert_uint_ge(common(0, 1), 512);
    ck_assert_uint_lt(common(0, 1), 514);
    ck_assert_uint_lt(common(0, 2), 2);
}
END_TEST

START_TEST(conversations_have_ids_of_their_own)
{
    static const char lines[] =
        "{\"id\": \"a\", \"block_size\": 4, \"requests\": [{\"t\": 0, \"in\": 10, \"out\": 3, \"runs\": [[1, 2]]}, "
        "{\"t\": 6, \"in\": 17, \"out\": 3, \"runs\": [[1, 2], [9, 2]]}]}\n"
        "{\"id\": \"b\", \"block_size\": 4, \"requests\": [{\"t\": 0, \"in\": 8, \"out\": 3, \"runs\": [[1, 2]]}]}\n";

    ck_assert_int_eq(read_text(lines, 1, 0), 0);
    ck_assert_uint_eq(requests.n, 3);
    ck_assert_uint_eq(common(0, 1), 8);
    ck_assert_uint_lt(common(0, 2), 2);
    ck_assert(requests.list[1].arrival == 3);
    ck_assert_int_eq(read_text(lines, 1, 4), 0);
    ck_assert_uint_eq(requests.n, 4);
}
END_TEST

START_TEST(bad_traces_are_refused)
{
    static const char *const bad[] = {
        "x",
        "[]",
        "{}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}",
        "{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1e300, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [-1]}",
        "{\"requests\": []}",
        "{\"block_size\": 0, \"requests\": []}",
        "{\"block_size\": 4, \"requests\": [{}]}",
        "{\"block_size\": 4, \"requests\": [{\"t\": 0, \"in\": 8, \"out\": 3, \"runs\": [[1]]}]}",
        "{\"block_size\": 4, \"requests\": [{\"t\": 0, \"in\": 8, \"out\": 3, \"runs\": [1]}]}",
        "{\"block_size\": 4, \"requests\": [{\"t\": 0, \"in\": 8, \"out\": 3, \"runs\": [[1, 1e300]]}]}",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(read_text(bad[i], 1, 0) == -1, "'%s'", bad[i]);
    ck_assert_uint_eq(requests.n, 0);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_case("workload");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, generated_prompts_share_their_beginning);
    tcase_add_test(tcase, tenants_prompts_and_arrivals);
    tcase_add_test(tcase, the_seed_decides);
    tcase_add_test(tcase, bad_descriptions_are_refused);
    tcase_add_test(tcase, hash_blocks_become_tokens);
    tcase_add_test(tcase, conversations_have_ids_of_their_own);
    tcase_add_test(tcase, bad_traces_are_refused);
    return suite_run(tcase);
}
