/* Who is admitted next: in what order, whether there are slots, and whether it is better to wait for a prefix. */
#include "scheduler.h"

#include "quota.h"
#include "readers.h"
#include "view.h"

#include <string.h>

/* ---- slots */

/* Of a sequence of so many tokens; the one more is held while a copy is made or a tail is replaced. */
static uint64_t slots_of(const struct cattn_sched *sched, uint64_t n_tokens)
{
    uint64_t c = sched->cache->tree.chunk_tokens;
    return (n_tokens + c - 1) / c + 1;
}

/* With so many per cent of what it may still generate.  The last token is never stored. */
static uint64_t slots_at(const struct cattn_sched *sched, const struct cattn_want *want, uint64_t percent)
{
    uint64_t left = want->max_new - (want->n_tokens - want->n_prompt);
    uint64_t expected = left / 100 * percent + (left % 100 * percent + 99) / 100;
    return slots_of(sched, want->n_tokens + (expected ? expected - 1 : 0));
}

uint64_t cattn_want_slots(const struct cattn_sched *sched, const struct cattn_want *want)
{
    return slots_at(sched, want, 100);
}

/* Asks for the slots that the running requests may come to take. */
static void ask_for_running(const struct cattn_sched *sched, uint64_t percent)
{
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct cattn_want *want = &sched->wants[sched->running[i]];
        const struct cattn_sequence *sequence = cattn_sequence_find(sched->cache, want->seq);
        uint64_t held = sequence ? sequence->n_chunks + sequence->owns : 0, slots = slots_at(sched, want, percent);
        cattn_demand_add(&sched->cache->tree, sequence ? sequence->root : CATTN_NONE, slots > held ? slots - held : 0,
                         0);
    }
}

/* Whole chunks of its prompt that are cached.  The last token is always computed. */
static void look_up(const struct cattn_sched *sched, struct cattn_want *want)
{
    const struct cattn_tree *tree = &sched->cache->tree;
    if (want->revision == tree->revision)
        return;
    struct cattn_view view = cattn_view_named(tree, want->ns.bytes, want->ns.length);
    want->n_matched = cattn_view_match(tree, view, want->ids, want->n_tokens - 1, sched->path);
    want->leaf = want->n_matched ? sched->path[want->n_matched - 1] : CATTN_NONE;
    want->revision = tree->revision;
}

/* Of what it found, the chunks that nobody uses now: all of them lie below those that are used. */
static uint32_t count_idle(const struct cattn_sched *sched, const struct cattn_want *want)
{
    const struct cattn_slot *slots = sched->cache->tree.slots;
    uint32_t n = 0;
    for (uint32_t slot = want->leaf; slot != CATTN_NONE && !slots[slot].refs; slot = slots[slot].parent)
        n++;
    return n;
}

/* The same as a demand: evictable no more. */
static void hold_idle(const struct cattn_sched *sched, const struct cattn_want *want)
{
    struct cattn_tree *tree = &sched->cache->tree;
    uint32_t slot = want->leaf;
    for (size_t n = count_idle(sched, want); n > 0; n--, slot = tree->slots[slot].parent)
        cattn_demand_add(tree, tree->slots[slot].root, 0, 1);
}

enum room { THERE_IS_ROOM, NO_SLOTS, ABOVE_LIMIT };

/* Whether the slots of all that run, and of this one, would be there, and within the limit of its namespace.  One that
 * was put back comes again only when that cannot happen another time. */
static enum room room_for(const struct cattn_sched *sched, struct cattn_want *want)
{
    struct cattn_tree *tree = &sched->cache->tree;
    uint64_t percent = want->n_preempted ? 100 : sched->output_percent;
    uint32_t root = cattn_roots_find(&tree->roots, want->ns.bytes, want->ns.length);
    look_up(sched, want);
    ask_for_running(sched, percent);
    cattn_demand_add(tree, root, slots_at(sched, want, percent) - want->n_matched, 0);
    hold_idle(sched, want);
    enum room room = cattn_demand_has_room(tree) ? THERE_IS_ROOM : NO_SLOTS;
    if (root != CATTN_NONE && cattn_demand_is_above(tree, root))
        room = ABOVE_LIMIT;
    cattn_demand_clear(tree);
    return room;
}

/* ---- prefixes to come */

static size_t common_chunks(const struct cattn_want *a, size_t n_a, const struct cattn_want *b, size_t n_b, size_t c)
{
    size_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i + c <= n && !memcmp(a->ids + i, b->ids + i, c * sizeof(*a->ids)))
        i += c;
    return i / c;
}

static bool is_in(const struct cattn_want *want, const void *name, size_t length)
{
    return want->ns.length == length && (!length || !memcmp(want->ns.bytes, name, length));
}

/* Whether a running request has yet to store chunks that this one, which was looked up, would find if it waited: of the
 * same namespace or of the public one that it reads (NULL: none). */
static bool stores_for(const struct cattn_sched *sched, const struct cattn_want *other, const struct cattn_want *want,
                       const struct cattn_root *public)
{
    size_t c = sched->cache->tree.chunk_tokens;
    if (other->n_tokens < other->n_held + 2 || (!is_in(other, want->ns.bytes, want->ns.length) &&
                                                !(public && is_in(other, public->name, public->name_length))))
        return false;
    size_t common = common_chunks(want, want->n_tokens - 1, other, other->n_tokens, c);
    return common > want->n_matched && common > other->n_held / c;
}

/* Whether anybody does.  The answer is kept, for many choices are made before a step. */
static bool is_coming(const struct cattn_sched *sched, struct cattn_want *want)
{
    const struct cattn_want *awaited = cattn_sched_find(sched, want->awaited);
    if (awaited && awaited->seq && awaited->n_held == want->awaited_held)
        return true;
    const struct cattn_root *public = cattn_readers_public(&sched->cache->tree, want->ns.bytes, want->ns.length);
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct cattn_want *other = &sched->wants[sched->running[i]];
        if (stores_for(sched, other, want, public)) {
            want->awaited = other->id;
            want->awaited_held = other->n_held;
            return true;
        }
    }
    return false;
}

/* ---- order */

static bool is_overdue(const struct cattn_want *want)
{
    return want->n_passed >= want->most_passed;
}

/* Whether a, which came later, is to go before b. */
static bool goes_before(const struct cattn_sched *sched, const struct cattn_want *a, const struct cattn_want *b)
{
    size_t shared_a = a->n_matched - count_idle(sched, a), shared_b = b->n_matched - count_idle(sched, b);
    if (shared_a != shared_b)
        return shared_a > shared_b;
    return a->n_matched > b->n_matched;
}

/* Those that may be admitted are the ones from the first to arrive to the first that nobody passes any more. */
static int32_t highest_priority(const struct cattn_sched *sched)
{
    int32_t highest = INT32_MIN;
    for (uint32_t i = sched->first; i != CATTN_NONE; i = sched->wants[i].next) {
        if (highest < sched->wants[i].priority)
            highest = sched->wants[i].priority;
        if (is_overdue(&sched->wants[i]))
            break;
    }
    return highest;
}

/* Under CATTN_FCFS the first that has nothing to wait for, if it fits; else the best of those that fit.  Nobody waits
 * for the limit of a namespace that is not his own, as long as the ageing allows it. */
uint32_t cattn_sched_choose(struct cattn_sched *sched)
{
    int32_t priority = highest_priority(sched);
    uint32_t best = CATTN_NONE;
    bool last = false;
    for (uint32_t i = sched->first, n = 0; i != CATTN_NONE && n < CATTN_CANDIDATES && !last; i = sched->wants[i].next) {
        struct cattn_want *want = &sched->wants[i];
        last = is_overdue(want);
        if (want->priority < priority)
            continue;
        n++;
        look_up(sched, want);
        if (!last && is_coming(sched, want))
            sched->stats.n_deferred++;
        else if (best == CATTN_NONE || goes_before(sched, want, &sched->wants[best])) {
            enum room room = room_for(sched, want);
            if (sched->policy == CATTN_FCFS && (room != ABOVE_LIMIT || last))
                return room == THERE_IS_ROOM ? i : CATTN_NONE;
            if (room == THERE_IS_ROOM)
                best = i;
        }
    }
    return best;
}

void cattn_sched_note_passed(struct cattn_sched *sched, const struct cattn_want *want)
{
    for (uint32_t i = sched->first; i != CATTN_NONE; i = sched->wants[i].next) {
        struct cattn_want *other = &sched->wants[i];
        if (!cattn_want_before(other, want))
            break;
        other->n_passed++;
        if (sched->stats.most_passed < other->n_passed)
            sched->stats.most_passed = other->n_passed;
    }
}
