/* Prompts of published tasks: examples with questions behind them, system prompts, first turns.  The file is not
 * trusted. */
#include "json.h"
#include "text.h"
#include "workload.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct tasks {
    uint64_t limit;
    size_t max_tokens;
    struct requests *requests;
    const struct request_rules *rules;
};

struct part {
    const char *text;
    size_t length;
};

static const struct json *member_of(const struct json *object, const char *key)
{
    for (const struct json *member = object->type == JSON_OBJECT ? object->child : NULL; member;
         member = member->next) {
        if (member->key_length == strlen(key) && memcmp(member->key, key, member->key_length) == 0)
            return member;
    }
    return NULL;
}

static bool is_full(const struct tasks *tasks)
{
    return tasks->limit && tasks->requests->n >= tasks->limit;
}

static int add(const struct tasks *tasks, const char *text, size_t length, struct fault *fault)
{
    return requests_add_text(tasks->requests, tasks->rules, text, length, tasks->max_tokens, fault);
}

/* ---- a template with a prefix and questions */

/* The next stretch of a template: a name in braces stands for its text, anything else for itself. */
static struct part next_part(struct part *rest, struct part prefix, struct part question)
{
    static const char names[2][12] = {"{prefix}", "{question}"};
    const struct part values[2] = {prefix, question};
    struct part part = {rest->text, 0};

    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(names[i]);

        if (rest->length >= n && memcmp(rest->text, names[i], n) == 0) {
            rest->text += n;
            rest->length -= n;
            return values[i];
        }
    }
    do {
        part.length++;
        rest->text++;
        rest->length--;
    } while (rest->length && *rest->text != '{');
    return part;
}

static int add_question(const struct tasks *tasks, struct part template, struct part prefix, struct part question,
                        struct fault *fault)
{
    size_t room = 0, length = 0;

    for (struct part rest = template; rest.length;)
        room += next_part(&rest, prefix, question).length;
    char *text = malloc(room + 1);
    if (!text)
        return fault_set(fault, "out of memory");
    for (struct part rest = template; rest.length;) {
        const struct part part = next_part(&rest, prefix, question);

        memcpy(text + length, part.text, part.length);
        length += part.length;
    }
    const int rc = add(tasks, text, length, fault);
    free(text);
    return rc;
}

static int add_questions(const struct tasks *tasks, const struct json *object, struct fault *fault)
{
    const struct json *prefix = member_of(object, "prefix"), *template = member_of(object, "template");
    const struct json *questions = member_of(object, "questions");

    if (!prefix || prefix->type != JSON_STRING || template->type != JSON_STRING || !questions ||
        questions->type != JSON_ARRAY)
        return fault_set(fault, "a template comes with \"prefix\" and \"questions\"");
    for (const struct json *q = questions->child; q && !is_full(tasks); q = q->next) {
        if (q->type != JSON_STRING)
            return fault_set(fault, "an element of \"questions\" is no string");
        if (add_question(tasks, (struct part){template->text, template->length},
                         (struct part){prefix->text, prefix->length}, (struct part){q->text, q->length}, fault))
            return -1;
    }
    return 0;
}

/* ---- a prompt a line */

static int add_line(void *context, const char *line, size_t length, struct fault *fault)
{
    const struct tasks *tasks = context;
    struct json *object;

    if (is_full(tasks))
        return 0;
    if (json_parse(line, length, &object, fault))
        return -1;
    const struct json *text = member_of(object, "text"), *turns = member_of(object, "turns");
    if (!text)
        text = member_of(object, "prefix");
    if (!text && turns && turns->type == JSON_ARRAY)
        text = turns->child;
    const int rc = text && text->type == JSON_STRING ? add(tasks, text->text, text->length, fault)
                                                     : fault_set(fault, "a task has \"text\", \"prefix\" or \"turns\"");
    json_free(object);
    return rc;
}

int tasks_read(const char *path, uint64_t limit, struct requests *requests, const struct request_rules *rules,
               struct fault *fault)
{
    struct tasks tasks = {limit, rules->max_tokens, requests, rules};
    struct json *whole = NULL;
    struct fault reason;
    size_t length;
    char *text = text_read(path, &length, fault);
    int rc;

    if (!text)
        return -1;
    if (json_parse(text, length, &whole, &reason) == 0 && member_of(whole, "template"))
        rc = add_questions(&tasks, whole, &reason);
    else
        rc = text_lines(text, length, add_line, &tasks, &reason);
    json_free(whole);
    free(text);
    return rc ? fault_set(fault, "%s: %s", path, reason.text) : 0;
}
