#include "requests.h"

#include "json.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

/* Takes ids over, also when it fails. */
static int add(struct requests *requests, const struct request_rules *rules, int32_t *ids, size_t n, size_t max_tokens,
               struct fault *fault)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= rules->vocabulary)
            rc = fault_set(fault, "id %ld is not in the vocabulary of %lu", (long)ids[i],
                           (unsigned long)rules->vocabulary);
    }
    if (!rc && n == 0)
        rc = fault_set(fault, "a prompt without tokens");
    if (!rc && n > rules->context)
        rc = fault_set(fault, "a prompt of %zu tokens in a context of %lu", n, (unsigned long)rules->context);
    if (!rc && requests->n == requests->room) {
        const size_t room = requests->room ? 2 * requests->room : 16;
        struct request *grown = realloc(requests->list, room * sizeof *grown);

        if (grown) {
            requests->list = grown;
            requests->room = room;
        } else {
            rc = fault_set(fault, "out of memory");
        }
    }
    if (rc)
        free(ids);
    else
        requests->list[requests->n++] =
            (struct request){.ids = ids, .n_prompt = n, .n_ids = n, .max_tokens = max_tokens};
    return rc;
}

int requests_add_text(struct requests *requests, const struct request_rules *rules, const char *text, size_t length,
                      size_t max_tokens, struct fault *fault)
{
    int32_t *ids;
    size_t n;

    if (!rules->tokenizer)
        return fault_set(fault, "the model has no vocabulary that is read here: give ids");
    if (tokenizer_encode(rules->tokenizer, text, length, &ids, &n, fault))
        return -1;
    return add(requests, rules, ids, n, max_tokens, fault);
}

int requests_add_ids(struct requests *requests, const struct request_rules *rules, const int32_t *ids, size_t n,
                     size_t max_tokens, struct fault *fault)
{
    int32_t *copy = malloc((n + 1) * sizeof *copy);

    if (!copy)
        return fault_set(fault, "out of memory");
    if (n)
        memcpy(copy, ids, n * sizeof *copy);
    return add(requests, rules, copy, n, max_tokens, fault);
}

/* ---- JSON lines ---------------------------------------------------------------------------------------------------
 */

static int to_integer(const struct json *value, double least, double most, int64_t *number)
{
    if (value->type != JSON_NUMBER || value->number < least || value->number > most ||
        value->number != (double)(int64_t)value->number)
        return -1;
    *number = (int64_t)value->number;
    return 0;
}

static int add_json_ids(struct requests *requests, const struct request_rules *rules, const struct json *list,
                        size_t max_tokens, struct fault *fault)
{
    size_t n = 0;
    int64_t number;

    for (const struct json *id = list->child; id; id = id->next)
        n++;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids)
        return fault_set(fault, "out of memory");
    n = 0;
    for (const struct json *id = list->child; id; id = id->next) {
        if (to_integer(id, 0, INT32_MAX, &number)) {
            free(ids);
            return fault_set(fault, "an element of \"ids\" is no token id");
        }
        ids[n++] = (int32_t)number;
    }
    return add(requests, rules, ids, n, max_tokens, fault);
}

static int is_key(const struct json *member, const char *key)
{
    return member->key_length == strlen(key) && memcmp(member->key, key, member->key_length) == 0;
}

static int add_object(struct requests *requests, const struct request_rules *rules, const struct json *object,
                      struct fault *fault)
{
    const struct json *prompt = NULL, *ids = NULL, *limit = NULL, *arrival = NULL, *tenant = NULL;
    int64_t max_tokens = (int64_t)rules->max_tokens, number = 0;

    if (object->type != JSON_OBJECT)
        return fault_set(fault, "no object");
    for (const struct json *member = object->child; member; member = member->next) {
        const struct json **place = is_key(member, "prompt")       ? &prompt
                                    : is_key(member, "ids")        ? &ids
                                    : is_key(member, "max_tokens") ? &limit
                                    : is_key(member, "arrival")    ? &arrival
                                    : is_key(member, "tenant")     ? &tenant
                                                                   : NULL;
        if (!place)
            return fault_set(fault, "\"%.40s\" is not a key of a request", member->key);
        if (*place)
            return fault_set(fault, "\"%s\" occurs twice", member->key);
        *place = member;
    }
    if (limit && to_integer(limit, 1, INT32_MAX, &max_tokens))
        return fault_set(fault, "\"max_tokens\" is no number from 1");
    if (arrival && (arrival->type != JSON_NUMBER || !(arrival->number >= 0 && arrival->number < 1e9)))
        return fault_set(fault, "\"arrival\" is no time in seconds");
    if (tenant && to_integer(tenant, 0, UINT32_MAX, &number))
        return fault_set(fault, "\"tenant\" is no number from 0");
    if (!prompt == !ids)
        return fault_set(fault, "a request has either \"prompt\" or \"ids\"");
    if (prompt && prompt->type != JSON_STRING)
        return fault_set(fault, "\"prompt\" is no string");
    if (ids && ids->type != JSON_ARRAY)
        return fault_set(fault, "\"ids\" is no array");
    if (prompt ? requests_add_text(requests, rules, prompt->text, prompt->length, (size_t)max_tokens, fault)
               : add_json_ids(requests, rules, ids, (size_t)max_tokens, fault))
        return -1;
    requests->list[requests->n - 1].arrival = arrival ? arrival->number : 0;
    requests->list[requests->n - 1].tenant = (uint32_t)number;
    return 0;
}

struct target {
    struct requests *requests;
    const struct request_rules *rules;
};

static int parse_line(void *context, const char *line, size_t length, struct fault *fault)
{
    const struct target *target = context;
    struct json *object;

    if (json_parse(line, length, &object, fault))
        return -1;
    const int rc = add_object(target->requests, target->rules, object, fault);
    json_free(object);
    return rc;
}

int requests_parse(struct requests *requests, const struct request_rules *rules, const char *text, size_t length,
                   struct fault *fault)
{
    struct target target = {requests, rules};

    return text_lines(text, length, parse_line, &target, fault);
}

int requests_read(struct requests *requests, const struct request_rules *rules, const char *path, struct fault *fault)
{
    struct target target = {requests, rules};

    return text_read_lines(path, parse_line, &target, fault);
}

void requests_rewind(struct requests *requests)
{
    for (size_t i = 0; i < requests->n; i++)
        requests->list[i].n_ids = requests->list[i].n_prompt;
}

void requests_release(struct requests *requests)
{
    for (size_t i = 0; i < requests->n; i++)
        free(requests->list[i].ids);
    free(requests->list);
    memset(requests, 0, sizeof *requests);
}
