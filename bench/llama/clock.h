/* Seconds of a clock that only goes forward. */
#ifndef LLAMA_CLOCK_H
#define LLAMA_CLOCK_H

double seconds(void);

#endif
