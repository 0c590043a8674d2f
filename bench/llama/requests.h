/* The requests of a run, from the command line or from a file of JSON lines. */
#ifndef LLAMA_REQUESTS_H
#define LLAMA_REQUESTS_H

#include "fault.h"
#include "tokenizer.h"

#include <stddef.h>
#include <stdint.h>

struct request {
    int32_t *ids; /* the prompt, then what is generated */
    size_t n_prompt, n_ids;
    size_t max_tokens;            /* to generate, >= 1 */
    uint32_t tenant;              /* requests of different ones share nothing */
    double arrival;               /* in seconds since the start of the run */
    double first_token, finished; /* likewise; set by the run */
};

struct requests {
    struct request *list;
    size_t n, room;
};

/* What requests are checked against and default to. */
struct request_rules {
    const struct tokenizer *tokenizer; /* NULL: prompts must be ids */
    uint32_t vocabulary, context;
    size_t max_tokens;
};

int requests_add_text(struct requests *requests, const struct request_rules *rules, const char *text, size_t length,
                      size_t max_tokens, struct fault *fault);
int requests_add_ids(struct requests *requests, const struct request_rules *rules, const int32_t *ids, size_t n,
                     size_t max_tokens, struct fault *fault);

/* A line each: {"prompt": text} or {"ids": [...]}, and "max_tokens", "arrival" (seconds) and "tenant" (a number) if it
 * likes.  Empty lines are skipped.  The bytes are not trusted. */
int requests_parse(struct requests *requests, const struct request_rules *rules, const char *text, size_t length,
                   struct fault *fault);
int requests_read(struct requests *requests, const struct request_rules *rules, const char *path, struct fault *fault);

/* Takes back what was generated, so that the same requests can run again. */
void requests_rewind(struct requests *requests);

void requests_release(struct requests *requests);

#endif
