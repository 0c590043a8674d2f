/* Why something failed, as a sentence for the user. */
#ifndef LLAMA_FAULT_H
#define LLAMA_FAULT_H

struct fault {
    char text[256];
};

/* Writes the sentence.  Bytes that a terminal might obey (names in a file are anybody's) become '?'. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void fault_write(struct fault *fault, const char *format, ...);

/* The same as an expression of value -1: a function ends with `return fault_set(...)`. */
#define fault_set(...) (fault_write(__VA_ARGS__), -1)

#endif
