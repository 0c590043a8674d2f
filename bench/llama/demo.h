/* Eight requests with one system prompt, run with and without sharing. */
#ifndef LLAMA_DEMO_H
#define LLAMA_DEMO_H

#include "engine.h"

/* Fills requests with the demo's prompts. */
int demo_requests(struct requests *requests, const struct request_rules *rules, struct fault *fault);

/* Runs them both ways and prints the comparison; the texts too when the model has a vocabulary. */
int demo_run(const struct model *model, const struct linear *linear, const struct engine_options *options,
             struct requests *requests, const struct tokenizer *text, struct fault *fault);

#endif
