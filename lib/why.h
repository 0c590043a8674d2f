/* Why a prompt was shared as far as it was, and no further. */
#ifndef CATTN_WHY_H
#define CATTN_WHY_H

#include "view.h"

struct cattn_cache;
struct cattn_sequence;

/* Of a sequence that has just been matched with the n tokens of its prompt, in what its namespace sees, and holds
 * nothing else yet.  Notes the reason in the sequence. */
void cattn_why_note(const struct cattn_cache *cache, struct cattn_sequence *sequence, struct cattn_view view,
                    const void *ns, size_t ns_len, const int32_t *tokens, size_t n);

/* Adds what was noted to the statistics. */
void cattn_why_count(struct cattn_cache *cache, const struct cattn_sequence *sequence);

#endif
