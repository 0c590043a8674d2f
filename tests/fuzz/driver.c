/* Feeds a target where libFuzzer (USE_LIBFUZZER) is not at hand.
 *
 *     TARGET [FILE | FOLDER ...]                        runs these inputs
 *     TARGET --seed N [--count N | --seconds N] [FILE | FOLDER ...]
 *                                                       runs inputs made from a seed; those given are damaged for it
 *     TARGET                                            the corpus in the source folder, and a few made from seed 1
 *
 * Input i of a seed depends on the seed, on i and on the files alone.  After a fault the input is left in a file. */
#define _DEFAULT_SOURCE 1
#include "fuzz.h"

#ifndef USE_LIBFUZZER

#  include <dirent.h>
#  include <fcntl.h>
#  include <signal.h>
#  include <stdio.h>
#  include <stdlib.h>
#  include <string.h>
#  include <sys/stat.h>
#  include <time.h>
#  include <unistd.h>

enum { MAX_FILES = 4096, MAX_SIZE = 1 << 16, HANG = 120 /* seconds */, FEW = 300 };

struct input {
    uint8_t *data;
    size_t size;
};

static struct input corpus[MAX_FILES];
static size_t n_corpus;
static struct input current;
static uint64_t seed, n_made;
static int making;

/* ---- faults: a sanitizer that finds one aborts, too */

const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void)
{
    return "abort_on_error=1:handle_segv=1:detect_leaks=1";
}

const char *__ubsan_default_options(void)
{
    return "halt_on_error=1:print_stacktrace=1";
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(1);
}

/* Nothing but what a signal handler may do. */
static void save_current(int number)
{
    static char name[64];
    snprintf(name, sizeof(name), "fault-%s-%llu-%llu", fuzz_name, (unsigned long long)seed, (unsigned long long)n_made);
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0 && write(file, current.data, current.size) >= 0)
        close(file);
    say(number == SIGALRM ? "FAULT: it hangs\n" : "");
    say("the input is in ");
    say(name);
    say("; run the program with it to repeat the fault\n");
    static char counts[128];
    snprintf(counts, sizeof(counts), "%s: %llu inputs, %llu operations, 1 fault\n", fuzz_name,
             (unsigned long long)fuzz_inputs, (unsigned long long)fuzz_operations);
    say(counts);
    _exit(1);
}

/* ---- inputs */

static void run(const uint8_t *data, size_t size)
{
    /* memory of exactly its size, so that a sanitizer sees one byte too many */
    current = (struct input){malloc(size ? size : 1), size};
    if (!current.data)
        exit(2);
    if (size)
        memcpy(current.data, data, size);
    alarm(HANG);
    LLVMFuzzerTestOneInput(current.data, size);
    alarm(0);
    free(current.data);
}

static void read_input(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || n_corpus == MAX_FILES) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    struct input *input = &corpus[n_corpus++];
    input->data = malloc(MAX_SIZE);
    input->size = input->data ? fread(input->data, 1, MAX_SIZE, file) : 0;
    fclose(file);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_folder(const char *path, DIR *folder)
{
    static char *names[MAX_FILES];
    size_t n = 0;
    for (struct dirent *entry; n < MAX_FILES && (entry = readdir(folder));) {
        if (entry->d_name[0] != '.')
            names[n++] = strdup(entry->d_name);
    }
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 0; i < n; i++) {
        char full[4096];
        snprintf(full, sizeof(full), "%s/%s", path, names[i]);
        read_input(full);
        free(names[i]);
    }
}

static void read_path(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder) {
        read_input(path);
        return;
    }
    read_folder(path, folder);
    closedir(folder);
}

/* ---- making inputs */

static uint64_t state;

static uint64_t next(void)
{
    uint64_t x = state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static size_t below(size_t n)
{
    return n ? (size_t)(next() % n) : 0;
}

static void random_bytes(struct input *input)
{
    input->size = below(4) ? below(400) : below(4000);
    for (size_t i = 0; i < input->size; i++)
        input->data[i] = (uint8_t)next();
}

/* Numbers at which readers go wrong. */
static void overwrite(struct input *input)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       0x7f,
                                       0x80,
                                       0xff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       INT64_MAX,
                                       UINT64_MAX,
                                       0x20000000,
                                       1000000,
                                       32,
                                       UINT64_C(1) << 61,
                                       UINT64_C(1) << 62,
                                       UINT64_C(0x8000000000000001)};
    static const size_t widths[] = {1, 2, 4, 8};
    size_t width = widths[below(4)];
    uint64_t number = below(3) ? numbers[below(sizeof(numbers) / sizeof(*numbers))] : next();
    if (input->size < width)
        return;
    size_t at = below(input->size - width + 1);
    for (size_t i = 0; i < width; i++)
        input->data[at + i] = (uint8_t)(number >> 8 * i);
}

static void cut_out(struct input *input)
{
    size_t at = below(input->size), n = below(below(4) ? 9 : input->size) + 1;
    if (at + n > input->size)
        n = input->size - at;
    memmove(input->data + at, input->data + at + n, input->size - at - n);
    input->size -= n;
}

/* A piece of itself or of another one. */
static void put_in(struct input *input)
{
    const struct input *from = &corpus[below(n_corpus)];
    size_t n = below(below(4) ? 17 : from->size) + 1, start = below(from->size), at = below(input->size + 1);
    if (start + n > from->size)
        n = from->size - start;
    if (input->size + n > MAX_SIZE)
        return;
    memmove(input->data + at + n, input->data + at, input->size - at);
    memcpy(input->data + at, from->data + start, n);
    input->size += n;
}

static void damage(struct input *input)
{
    const struct input *from = &corpus[below(n_corpus)];
    memcpy(input->data, from->data, from->size);
    input->size = from->size;
    for (size_t n = 1 + below(1 + below(8)); n; n--) {
        size_t how = below(10);
        if (!input->size || how == 0)
            put_in(input);
        else if (how == 1)
            cut_out(input);
        else if (how == 2)
            input->size = below(input->size + 1);
        else if (how < 6)
            overwrite(input);
        else
            input->data[below(input->size)] ^= (uint8_t)(1u << below(8));
    }
}

static void make_inputs(uint64_t count, time_t end)
{
    static uint8_t data[MAX_SIZE];
    for (making = 1; n_made < count && (!end || time(NULL) < end); n_made++) {
        struct input input = {data, 0};
        state = seed * UINT64_C(0xd1342543de82ef95) + n_made * UINT64_C(0x2545f4914f6cdd1d);
        if (n_corpus && (fuzz_needs_corpus || below(2)))
            damage(&input);
        else
            random_bytes(&input);
        run(input.data, input.size);
    }
}

/* ---- the program */

static void catch_faults(void)
{
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        signal(numbers[i], save_current);
}

static void run_corpus(void)
{
    for (size_t i = 0; i < n_corpus; i++)
        run(corpus[i].data, corpus[i].size);
}

static void read_default_corpus(void)
{
    const char *source = getenv("CATTN_SRCDIR");
    char path[4096];
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s", source ? source : ".", fuzz_name);
    read_path(path);
}

int main(int argc, char **argv)
{
    uint64_t count = UINT64_MAX;
    time_t end = 0;
    int made = argc == 1;
    catch_faults();
    for (int i = 1; i < argc; i++) {
        int has_number = i + 1 < argc;
        if (has_number && !strcmp(argv[i], "--seed"))
            seed = strtoull(argv[++i], NULL, 10), made = 1;
        else if (has_number && !strcmp(argv[i], "--count"))
            count = strtoull(argv[++i], NULL, 10);
        else if (has_number && !strcmp(argv[i], "--seconds"))
            end = time(NULL) + (time_t)strtoull(argv[++i], NULL, 10);
        else
            read_path(argv[i]);
    }
    if (argc == 1) {
        read_default_corpus();
        seed = 1;
        count = FEW;
    }
    if (!made || argc == 1)
        run_corpus();
    if (made)
        make_inputs(count, end);
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    return 0;
}

#endif
