/* Every kernel of kernels.def that runs here, by itself: against the answer in double, against `generic`, and, for
 * those marked exact, against itself with the rows and chunks grouped otherwise.  Run by make check on cases drawn from
 * the product of shapes, data types and variants, with CATTN_TEST_FULL=1 on all; --bench times the kernels instead. */
#define _POSIX_C_SOURCE 200809L
#include "checkkernels.h"
#include "support/fold.h"
#include "support/suite.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Multiplications for a variant; a sanitizer makes them slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#  define SAMPLED_COST UINT64_C(40000000)
#else
#  define SAMPLED_COST UINT64_C(250000000)
#endif

enum { MOST_FAILURES = 20 };

static struct {
    const char *kernel;
    uint64_t only_case, n_cases;
    bool one_case, bench;
} options;

static uint64_t n_failures;

/* ---- saying which case it was ----------------------------------------------------------------------- */

static char repeat[200];

static void set_repeat(const char *kernel, uint64_t number)
{
    snprintf(repeat, sizeof repeat, "tests/backends/checkkernels --seed %llu --kernel %s --case %llu\n", test_seed(),
             kernel, (unsigned long long)number);
}

static void complain(const struct fold_case *c, const char *kernel, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void complain(const struct fold_case *c, const char *kernel, const char *format, ...)
{
    char text[400];
    va_list args;
    fold_describe(c, text, sizeof text);
    fprintf(stderr, "FAIL: %s: ", kernel);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n    %s\n    %s", text, repeat);
    n_failures++;
}

/* A page without access, most likely: no more than the command that repeats it can be said. */
static void on_fault(int signal)
{
    static const char text[] = "FAIL: a fault in\n    ";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0 || write(STDERR_FILENO, repeat, strlen(repeat)) < 0)
        _exit(3);
    _exit(128 + signal);
}

/* ---- one kernel on one case ------------------------------------------------------------------------- */

/* Whether a kernel keeps queries in fewer bits than they have: then so it does weights. */
static bool rounds(const struct fold_data *f, const struct cattn_kernel *kernel)
{
    const float one = 1 + 0x1p-23f;
    float q[CATTN_MAX_HEAD_DIM];
    void *query = guard_alloc(kernel->query_bytes(&f->pool.layout), GUARD_END);
    for (uint32_t d = 0; d < f->c.head_dim; d++)
        q[d] = one;
    kernel->load_query(&f->pool.layout, q, CATTN_F32, 0, query);
    const bool differs = memcmp(query, &one, sizeof one) != 0;
    guard_free(query, kernel->query_bytes(&f->pool.layout), GUARD_END);
    return differs;
}

/* What may be wrong with the results of a row besides what f32 explains: bf16 weights have 8 bits and come from powers
 * of two that are good to 1e-4, those of f32 in two halves have 16, as all they meet, and whole numbers in place of the
 * weights of i8 have 13, of the largest in a block of 64. */
struct tolerance {
    double score, sum, value;
};

static struct tolerance tolerance_of(const struct fold_data *f, const struct fold_answer *answer, bool rounded)
{
    struct tolerance t = {answer->score_error, 0x1p-20 + f->c.n_tokens * 0x1p-27, 1e-30};
    if (rounded && f->c.kv_dtype == CATTN_I8) {
        t.score += answer->query_error;
        t.value += answer->largest * CATTN_BLOCK * 0x1p-14;
    } else if (rounded && f->c.kv_dtype == CATTN_F32) {
        t.score += answer->split_error;
        t.sum = 0x1p-14;
    } else if (rounded) {
        t.sum = 0x1p-8 + 1e-4;
    }
    return t;
}

/* The state of a row against what it should come to.  A value can be off by twice what the weights are: a heavy weight
 * may be too large where all others, and so most of their sum, are too small. */
static void check_row(const struct fold_data *f, const struct cattn_kernel *kernel, bool rounded, uint32_t row,
                      const float *state, const float *generic_out)
{
    const struct fold_case *c = &f->c;
    const struct fold_answer *answer = &f->answers[row];
    const struct tolerance may = tolerance_of(f, answer, rounded);
    const double *expected = f->out + (size_t)row * c->v_head_dim;
    const double weight_error = 2 * (expm1(fmin(may.score, 20)) + may.sum);
    float out[CATTN_MAX_HEAD_DIM], lse;
    if (kernel->exact && rintf(state[0]) != state[0]) {
        complain(c, kernel->name, "row %u: the maximum %g is not whole", row, state[0]);
        return;
    }
    cattn_states_plain.finish(state, c->v_head_dim, out, CATTN_F32, &lse);
    if (!(fabs(lse - answer->lse) <= may.score + may.sum + 0x1p-23 * fabs(answer->lse)) && lse != answer->lse) {
        complain(c, kernel->name, "row %u: lse %.9g, not %.9g", row, lse, answer->lse);
        return;
    }
    for (uint32_t d = 0; d < c->v_head_dim; d++) {
        const double error = weight_error * answer->spread[d] + may.value;
        if (!(fabs(out[d] - expected[d]) <= error)) {
            complain(c, kernel->name, "row %u, value %u: %.9g, not %.9g", row, d, out[d], expected[d]);
            return;
        }
        if (!(fabs(out[d] - generic_out[d]) <= 2 * error)) {
            complain(c, kernel->name, "row %u, value %u: %.9g, generic has %.9g", row, d, out[d], generic_out[d]);
            return;
        }
    }
}

/* Zeros may differ in sign. */
static bool equal_states(const struct fold_data *f, const float *a, const float *b)
{
    for (uint32_t i = 0; i < CATTN_STATE_O + f->c.v_head_dim; i++)
        if ((i == 0 || i >= CATTN_STATE_L) && a[i] != b[i])
            return false;
    return true;
}

static void compare_states(const struct fold_data *f, const struct cattn_kernel *kernel, const uint32_t *rows,
                           uint32_t n, const float *states, const float *others, const char *how)
{
    const size_t stride = fold_state_floats(f);
    for (uint32_t i = 0; i < n; i++)
        if (!equal_states(f, states + rows[i] * stride, others + rows[i] * stride)) {
            complain(&f->c, kernel->name, "row %u has other bits %s", rows[i], how);
            return;
        }
}

/* The same rows alone, and in other orders and groups, through other numbers of chunks at a time. */
static void check_promise(const struct fold_data *f, const struct cattn_kernel *kernel, const uint32_t *all,
                          const float *states)
{
    const struct fold_case *c = &f->c;
    const size_t stride = fold_state_floats(f);
    float *others = calloc(c->n_rows * stride, sizeof *others);
    uint32_t *order = malloc(c->n_rows * sizeof *order);
    struct rng rng;
    rng_init(&rng, rng_mix(c->number) + 2);
    memcpy(order, all, c->n_rows * sizeof *order);
    const uint64_t failures = n_failures;
    for (int i = 0; i < 2 && n_failures == failures; i++) {
        rng_shuffle(&rng, order, c->n_rows);
        const struct fold_plan mixed = {order, c->n_rows, &rng}, alone = {order, 1, &rng};
        const char *wrong = fold_run(f, kernel, &mixed, others);
        if (wrong)
            complain(c, kernel->name, "%s", wrong);
        compare_states(f, kernel, order, c->n_rows, states, others, "in another order and other groups");
        fold_run(f, kernel, &alone, others);
        compare_states(f, kernel, order, 1, states, others, "alone");
    }
    free(order);
    free(others);
}

/* An earlier row of kernels.def that goes by the same name, and so must give the same bits; NULL: there is none. */
static const struct cattn_kernel *twin_of(const struct cattn_kernel *kernel, const struct cattn_shape *shape)
{
    const struct cattn_kernel *other;
    for (unsigned k = 0; (other = cattn_kernel_at(k)) != kernel; k++)
        if (!strcmp(other->name, kernel->name) && other->takes(shape))
            return other;
    return NULL;
}

static void check_twin(const struct fold_data *f, const struct cattn_kernel *twin, const uint32_t *all,
                       const float *states)
{
    const uint32_t n = f->c.n_rows;
    const struct fold_plan plan = {all, n, NULL};
    float *others = calloc(n * fold_state_floats(f), sizeof *others);
    fold_run(f, twin, &plan, others);
    compare_states(f, twin, all, n, states, others, "in the other kernel of this name");
    free(others);
}

static void finish_all(const struct fold_data *f, const float *states, float *out)
{
    for (uint32_t r = 0; r < f->c.n_rows; r++)
        cattn_states_plain.finish(states + r * fold_state_floats(f), f->c.v_head_dim, out + (size_t)r * f->c.v_head_dim,
                                  CATTN_F32, NULL);
}

static void check_kernel(const struct fold_data *f, const struct cattn_kernel *kernel, const uint32_t *all,
                         const float *generic_out)
{
    const struct fold_case *c = &f->c;
    const size_t stride = fold_state_floats(f);
    const struct fold_plan plan = {all, c->n_rows, NULL};
    const uint64_t failures = n_failures;
    const bool rounded = rounds(f, kernel);
    float *states = calloc(c->n_rows * stride, sizeof *states);
    set_repeat(kernel->name, c->number);
    const char *wrong = fold_run(f, kernel, &plan, states);
    if (wrong)
        complain(c, kernel->name, "%s", wrong);
    for (uint32_t r = 0; r < c->n_rows && n_failures == failures; r++)
        check_row(f, kernel, rounded, r, states + r * stride, generic_out + (size_t)r * c->v_head_dim);
    if (kernel->exact && n_failures == failures)
        check_promise(f, kernel, all, states);
    const struct cattn_kernel *twin = twin_of(kernel, &f->shape);
    if (twin && n_failures == failures)
        check_twin(f, twin, all, states);
    free(states);
}

/* ---- cases ------------------------------------------------------------------------------------------ */

static bool is_wanted(const struct cattn_kernel *kernel)
{
    return !options.kernel || !strcmp(options.kernel, kernel->name);
}

static void check_case(const struct fold_case *c)
{
    const struct cattn_kernel *kernel;
    struct fold_data f;
    set_repeat("generic", c->number);
    fold_open(&f, c);
    uint32_t *all = malloc(c->n_rows * sizeof *all);
    for (uint32_t r = 0; r < c->n_rows; r++)
        all[r] = r;
    const struct fold_plan plan = {all, c->n_rows, NULL};
    float *states = calloc(c->n_rows * fold_state_floats(&f), sizeof *states);
    float *out = calloc((size_t)c->n_rows * c->v_head_dim, sizeof *out);
    fold_run(&f, cattn_kernel_find("generic", &f.shape), &plan, states);
    finish_all(&f, states, out);
    for (unsigned k = 0; (kernel = cattn_kernel_at(k)); k++)
        if (is_wanted(kernel) && kernel->takes(&f.shape))
            check_kernel(&f, kernel, all, out);
    free(out);
    free(states);
    free(all);
    fold_close(&f);
}

/* Whether there is a kernel to check on it. */
static bool is_of_use(const struct fold_case *c)
{
    const struct cattn_shape shape = fold_shape(c);
    const struct cattn_kernel *kernel;
    for (unsigned k = 0; (kernel = cattn_kernel_at(k)); k++)
        if (is_wanted(kernel) && kernel->takes(&shape))
            return true;
    return false;
}

/* Long ones less often, so that there are many. */
static struct fold_case some_case(struct rng *rng, enum fold_variant variant)
{
    const uint64_t most = rng_chance(rng, 3) ? 100000000 : 4000000;
    struct fold_case c;
    do
        c = fold_case_at(rng_below(rng, fold_n_cases()));
    while (c.variant != variant || fold_cost(&c) > most || !is_of_use(&c));
    return c;
}

static uint64_t check_sample(enum fold_variant variant)
{
    struct rng rng;
    uint64_t n = 0, cost = 0;
    rng_init(&rng, variant);
    while ((options.n_cases ? n < options.n_cases : cost < SAMPLED_COST) && n_failures < MOST_FAILURES) {
        const struct fold_case c = some_case(&rng, variant);
        check_case(&c);
        cost += fold_cost(&c) + 100000;
        n++;
    }
    return n;
}

static uint64_t check_all(enum fold_variant variant)
{
    uint64_t n = 0;
    for (uint64_t number = 0; number < fold_n_cases() && n_failures < MOST_FAILURES; number++) {
        const struct fold_case c = fold_case_at(number);
        if (c.variant != variant || !is_of_use(&c))
            continue;
        check_case(&c);
        n++;
    }
    return n;
}

static uint64_t check_one(enum fold_variant variant)
{
    const struct fold_case c = fold_case_at(options.only_case);
    char text[400];
    if (c.variant != variant)
        return 0;
    fold_describe(&c, text, sizeof text);
    printf("%s\n", text);
    check_case(&c);
    return 1;
}

START_TEST(a_variant)
{
    const enum fold_variant variant = (enum fold_variant)_i;
    n_failures = 0;
    const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        signal(faults[i], on_fault);
    const uint64_t n = options.one_case ? check_one(variant) : test_full() ? check_all(variant) : check_sample(variant);
    if (n)
        printf("%s: %llu cases, %llu failures\n", fold_variant_name(variant), (unsigned long long)n,
               (unsigned long long)n_failures);
    fflush(stdout);
    CHECK(n_failures == 0, "%llu of %llu", (unsigned long long)n_failures, (unsigned long long)n);
}
END_TEST

/* ---- the program ------------------------------------------------------------------------------------ */

static const char usage[] = "usage: checkkernels [--seed N] [--kernel NAME] [--case N | --cases N]\n"
                            "       checkkernels --bench [--kernel NAME]\n";

static uint64_t number_of(const char *text)
{
    char *end;
    const uint64_t n = text ? strtoull(text, &end, 0) : 0;
    if (!text || !*text || *end) {
        fputs(usage, stderr);
        exit(2);
    }
    return n;
}

static bool is_known(const char *name)
{
    const struct cattn_kernel *kernel;
    for (unsigned k = 0; (kernel = cattn_kernel_at(k)); k++)
        if (!strcmp(kernel->name, name))
            return true;
    return false;
}

static void parse(char **argv)
{
    for (char **a = argv + 1; *a; a++) {
        if (!strcmp(*a, "--bench")) {
            options.bench = true;
        } else if (!strcmp(*a, "--kernel") && a[1]) {
            options.kernel = *++a;
        } else if (!strcmp(*a, "--seed")) {
            number_of(a[1]);
            setenv("CATTN_TEST_SEED", *++a, 1);
        } else if (!strcmp(*a, "--case")) {
            options.one_case = true;
            options.only_case = number_of(*++a);
        } else if (!strcmp(*a, "--cases")) {
            options.n_cases = number_of(*++a);
        } else {
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (options.kernel && !is_known(options.kernel)) {
        fprintf(stderr, "checkkernels: no kernel %s on this machine\n", options.kernel);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    parse(argv);
    if (options.bench)
        return bench_kernels(options.kernel);
    printf("seed %llu, %llu cases in all, kernels:", test_seed(), (unsigned long long)fold_n_cases());
    for (unsigned k = 0; cattn_kernel_at(k); k++)
        if (is_wanted(cattn_kernel_at(k)) && (!k || strcmp(cattn_kernel_at(k)->name, cattn_kernel_at(k - 1)->name)))
            printf(" %s", cattn_kernel_at(k)->name);
    printf("\n");
    fflush(stdout);
    TCase *tcase = suite_case("checkkernels");
    tcase_add_loop_test(tcase, a_variant, 0, N_VARIANTS);
    return suite_run(tcase);
}
