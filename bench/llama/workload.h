/* Requests of ids that mean nothing, whose lengths and common prefixes are what counts. */
#ifndef LLAMA_WORKLOAD_H
#define LLAMA_WORKLOAD_H

#include "fault.h"
#include "requests.h"

#include <stddef.h>
#include <stdint.h>

/* The load of the paper: prompts of np tokens, of which the first ns are common, and nc tokens to generate. */
struct workload {
    uint64_t np, ns, nc, batch, requests; /* requests 0: batch */
    uint64_t tenants;                     /* that share nothing among each other, in turn */
    uint64_t prompts;                     /* different common prefixes of each tenant ... */
    double zipf;                          /* ... chosen with weights 1 / n^zipf */
    double rate;                          /* Poisson arrivals a second; 0: all at once */
};

/* "np=2048,ns=1024,nc=128,batch=32,rate=2.5,...": a number for each name, in any order. */
int workload_parse(struct workload *workload, const char *text, struct fault *fault);

int workload_generate(const struct workload *workload, uint64_t seed, struct requests *requests,
                      const struct request_rules *rules, struct fault *fault);

/* Token i of a text that has a number: the same for all who have the text. */
int32_t workload_token(uint64_t text, uint64_t i, uint32_t vocabulary);

struct trace_options {
    uint64_t limit; /* requests; 0: all */
    uint64_t scale; /* lengths are divided by it */
    double speed;   /* times between arrivals are divided by it */
};

/* A recorded trace of JSON lines: requests as {"timestamp": ms, "input_length", "output_length", "hash_ids": one for
 * each 512 tokens}, or conversations as {"block_size", "requests": [{"t": s, "in", "out", "runs": [[first, count]
 * ...]}]} with ids of their own.  Equal ids stand for equal tokens with an equal prefix. */
int trace_read(const char *path, const struct trace_options *options, struct requests *requests,
               const struct request_rules *rules, struct fault *fault);

/* Published tasks: {"prefix", "template", "questions": [...]}, where the template holds {prefix} and {question}; or a
 * line each with "text", "prefix" or "turns", whose first one is taken.  At most `limit` of them; 0: all. */
int tasks_read(const char *path, uint64_t limit, struct requests *requests, const struct request_rules *rules,
               struct fault *fault);

#endif
