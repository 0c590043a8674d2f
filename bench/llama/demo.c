#include "demo.h"

#include "harness.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char system_prompt[] =
    "You are the librarian of a small town. People come in with questions, and you answer each of them in one short "
    "and friendly sentence. You never guess: if you do not know, you say where to look. Children get simple words, "
    "grown-ups get the name of a book as well. The library opens at nine, closes at six, and is shut on Sundays. "
    "Books may be kept for four weeks, films for one. Whoever brings a book back late tells a story instead of "
    "paying. The reading room is quiet, the garden is not, and the cat belongs to nobody. Maps lie in the long "
    "drawers, old newspapers in the cellar, and music on the upper floor, where one may sing. If someone is lost, "
    "you explain the way. If someone is sad, you recommend something about the sea. If two people want the same "
    "book, they read it together by the window. You speak every language that stands on your shelves, and you "
    "never mention that you are tired. Now the next visitor asks: ";

static const char *const questions[] = {
    "Why is the sky blue?",       "Where do the swallows go?",  "Who built the old bridge?",
    "How do I bake bread?",       "What do the stars look at?", "May I borrow the cat?",
    "Is there a map of the sea?", "When was the great flood?",
};

#define N_QUESTIONS (sizeof questions / sizeof questions[0])

int demo_requests(struct requests *requests, const struct request_rules *rules, struct fault *fault)
{
    char prompt[sizeof system_prompt + 64];

    for (size_t i = 0; i < N_QUESTIONS; i++) {
        const int length = snprintf(prompt, sizeof prompt, "%s%s", system_prompt, questions[i]);

        if (requests_add_text(requests, rules, prompt, (size_t)length, rules->max_tokens, fault))
            return -1;
    }
    return 0;
}

static size_t common_prefix(const struct requests *requests)
{
    const struct request *first = &requests->list[0];
    size_t n = first->n_prompt;

    for (size_t i = 1; i < requests->n; i++) {
        const struct request *other = &requests->list[i];

        for (size_t j = 0; j < n; j++) {
            if (j == other->n_prompt || other->ids[j] != first->ids[j])
                n = j;
        }
    }
    return n;
}

static int print_texts(const struct requests *requests, const struct tokenizer *tokenizer, struct fault *fault)
{
    for (size_t i = 0; i < requests->n; i++) {
        const struct request *request = &requests->list[i];
        size_t length;
        char *text =
            tokenizer_decode(tokenizer, request->ids + request->n_prompt, request->n_ids - request->n_prompt, &length);

        if (!text)
            return fault_set(fault, "out of memory");
        printf("  %s ->", questions[i]);
        fwrite(text, 1, length, stdout);
        putchar('\n');
        free(text);
    }
    return 0;
}

/* Keeps the ids of a run, each request's after the other, to compare two runs. */
static int32_t *copy_ids(const struct requests *requests, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < requests->n; i++)
        *n += requests->list[i].n_ids;
    int32_t *copy = malloc(*n * sizeof *copy), *to = copy;
    for (size_t i = 0; copy && i < requests->n; i++) {
        memcpy(to, requests->list[i].ids, requests->list[i].n_ids * sizeof *to);
        to += requests->list[i].n_ids;
    }
    return copy;
}

static int same_ids(const struct requests *requests, const int32_t *ids, size_t n)
{
    size_t n_now;
    int32_t *now = copy_ids(requests, &n_now);
    const int same = now && n_now == n && memcmp(now, ids, n * sizeof *ids) == 0;

    free(now);
    return same;
}

static double mebibytes(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_row(const char *what, const char *unit, double shared, double alone, int higher_is_better)
{
    printf("%-28s %12.1f %12.1f  %-9s", what, shared, alone, unit);
    if (shared > 0 && alone > 0)
        printf(" %5.2fx", higher_is_better ? shared / alone : alone / shared);
    putchar('\n');
}

static void print_comparison(const struct engine_report *shared, const struct engine_report *alone)
{
    printf("\n%-28s %12s %12s\n", "", "sharing", "no sharing");
    print_row("prefill", "tokens/s", report_prefill_rate(shared), report_prefill_rate(alone), 1);
    print_row("decode", "tokens/s", report_decode_rate(shared), report_decode_rate(alone), 1);
    print_row("whole run", "s", shared->prefill_seconds + shared->decode_seconds,
              alone->prefill_seconds + alone->decode_seconds, 0);
    print_row("K and V held at most", "MiB", mebibytes(shared->peak_bytes), mebibytes(alone->peak_bytes), 0);
    print_row("K and V read by attention", "MiB", mebibytes(shared->stats.read_bytes),
              mebibytes(alone->stats.read_bytes), 0);
    print_row("prefix hit rate", "%", 100 * report_hit_rate(shared), 100 * report_hit_rate(alone), 1);
}

int demo_run(const struct model *model, const struct linear *linear, const struct engine_options *options,
             struct requests *requests, const struct tokenizer *text, struct fault *fault)
{
    struct engine_options choice = *options;
    struct engine_report shared, alone;
    size_t n_ids;

    printf("%zu requests of %zu to %zu tokens, the first %zu of them common; up to %zu new tokens each\n", requests->n,
           requests->list[0].n_prompt, requests->list[requests->n - 1].n_prompt, common_prefix(requests),
           requests->list[0].max_tokens);
    fflush(stdout);
    choice.no_sharing = false;
    const int status = engine_run(model, linear, &choice, requests, &shared, fault);
    bench_progress_end();
    if (status)
        return -1;
    int32_t *ids = copy_ids(requests, &n_ids);
    if (!ids)
        return fault_set(fault, "out of memory");
    requests_rewind(requests);
    choice.no_sharing = true;
    const int rc = engine_run(model, linear, &choice, requests, &alone, fault);
    bench_progress_end();
    if (!rc) {
        report_setup(stdout, &shared, linear);
        putchar('\n');
        print_comparison(&shared, &alone);
        printf("%s\n", same_ids(requests, ids, n_ids) ? "Both ways every request got the same tokens."
                                                      : "Some tokens differ: sums of the linear layers are ordered by "
                                                        "the batch (--exact-linear fixes the order).");
    }
    free(ids);
    return rc || (text && print_texts(requests, text, fault)) ? -1 : 0;
}
