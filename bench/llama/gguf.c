#define _POSIX_C_SOURCE 200809L

#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_NAME          256 /* bytes of a key or of a tensor's name; the format allows 65535 and 64 */
#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT     (1u << 20)

/* The least bytes that a value and a tensor's description take in a file: they bound the counts before anything is
 * allocated by them. */
#define LEAST_VALUE_BYTES  (8 + 4 + 1)
#define LEAST_TENSOR_BYTES (8 + 4 + 8 + 4 + 8)

struct gguf {
    void *map; /* of gguf_open; else NULL */
    size_t map_size;
    struct gguf_value *values; /* both sorted by name */
    size_t n_values;
    struct gguf_tensor *tensors;
    size_t n_tensors;
};

struct reader {
    const unsigned char *data;
    size_t size, at;
    struct fault *fault;
};

/* ---- numbers in the file: little-endian, not aligned ------------------------------------------------------------ */

static uint64_t load(const unsigned char *p, unsigned n_bytes)
{
    uint64_t number = 0;

    for (unsigned i = 0; i < n_bytes; i++)
        number |= (uint64_t)p[i] << (8 * i);
    return number;
}

static float load_f32(const unsigned char *p)
{
    const uint32_t bits = (uint32_t)load(p, 4);
    float number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

static double load_f64(const unsigned char *p)
{
    const uint64_t bits = load(p, 8);
    double number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Bytes of an element of a fixed size; 0 for strings, arrays and unknown types. */
static unsigned type_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32: return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    default: return 0;
    }
}

static unsigned tensor_type_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_TENSOR_F32: return 4;
    case GGUF_TENSOR_F16:
    case GGUF_TENSOR_BF16: return 2;
    default: return 0;
    }
}

/* ---- the reader -------------------------------------------------------------------------------------------------- */

static int cut_short(struct reader *r, const char *what)
{
    return fault_set(r->fault, "the file ends inside %s, at byte %zu", what, r->at);
}

static int read_number(struct reader *r, unsigned n_bytes, const char *what, uint64_t *number)
{
    if (r->size - r->at < n_bytes)
        return cut_short(r, what);
    *number = load(r->data + r->at, n_bytes);
    r->at += n_bytes;
    return 0;
}

static int read_u32(struct reader *r, const char *what, uint32_t *number)
{
    uint64_t wide;

    if (read_number(r, 4, what, &wide))
        return -1;
    *number = (uint32_t)wide;
    return 0;
}

static int read_string(struct reader *r, const char *what, struct gguf_string *string)
{
    uint64_t length;

    if (read_number(r, 8, what, &length))
        return -1;
    if (length > r->size - r->at)
        return cut_short(r, what);
    string->text = (const char *)r->data + r->at;
    string->length = (size_t)length;
    r->at += string->length;
    return 0;
}

static int read_name(struct reader *r, const char *what, struct gguf_string *name)
{
    if (read_string(r, what, name))
        return -1;
    if (name->length == 0 || name->length > MAX_NAME)
        return fault_set(r->fault, "%s of %zu bytes before byte %zu", what, name->length, r->at);
    return 0;
}

static int skip_elements(struct reader *r, const struct gguf_value *value)
{
    const unsigned bytes = type_bytes(value->element);
    struct gguf_string string;

    if (value->element == GGUF_STRING) {
        for (uint64_t i = 0; i < value->count; i++) {
            if (read_string(r, "a string", &string))
                return -1;
        }
        return 0;
    }
    if (!bytes)
        return fault_set(r->fault, "'%.*s' has elements of type %u, which is unknown or an array",
                         (int)value->key.length, value->key.text, (unsigned)value->element);
    if (value->count > (r->size - r->at) / bytes)
        return cut_short(r, "a value");
    for (uint64_t i = 0; value->element == GGUF_BOOL && i < value->count; i++) {
        if (r->data[r->at + i] > 1)
            return fault_set(r->fault, "'%.*s' is neither true nor false", (int)value->key.length, value->key.text);
    }
    r->at += (size_t)value->count * bytes;
    return 0;
}

static int read_value(struct reader *r, struct gguf_value *value)
{
    if (read_name(r, "a key", &value->key) || read_u32(r, "a type", &value->type))
        return -1;
    value->element = value->type;
    value->count = 1;
    if (value->type == GGUF_ARRAY &&
        (read_u32(r, "a type", &value->element) || read_number(r, 8, "a count", &value->count)))
        return -1;
    value->data = r->data + r->at;
    return skip_elements(r, value);
}

/* Reads a tensor's description; its data is an offset that place_tensor checks when the start of the data is known. */
static int read_tensor(struct reader *r, struct gguf_tensor *tensor, uint64_t *offset)
{
    if (read_name(r, "a tensor's name", &tensor->name) || read_u32(r, "a tensor's shape", &tensor->n_dims))
        return -1;
    const int length = (int)tensor->name.length;
    const char *name = tensor->name.text;

    if (tensor->n_dims == 0 || tensor->n_dims > GGUF_MAX_DIMS)
        return fault_set(r->fault, "tensor '%.*s' has %u dimensions", length, name, (unsigned)tensor->n_dims);
    tensor->n_elements = 1;
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
        tensor->dims[i] = 1;
        if (i < tensor->n_dims && read_number(r, 8, "a tensor's shape", &tensor->dims[i]))
            return -1;
        if (tensor->dims[i] == 0 || tensor->dims[i] > UINT64_MAX / 8 / tensor->n_elements)
            return fault_set(r->fault, "tensor '%.*s' has an impossible shape", length, name);
        tensor->n_elements *= tensor->dims[i];
    }
    if (read_u32(r, "a tensor's type", &tensor->type) || read_number(r, 8, "a tensor's offset", offset))
        return -1;
    if (!tensor_type_bytes(tensor->type))
        return fault_set(r->fault, "tensor '%.*s' has type %u; only F32 (0), F16 (1) and BF16 (30) are read", length,
                         name, (unsigned)tensor->type);
    return 0;
}

static int place_tensor(struct reader *r, struct gguf_tensor *tensor, uint64_t offset, size_t start, size_t alignment)
{
    const size_t room = r->size - start;
    const unsigned bytes = tensor_type_bytes(tensor->type);

    if (offset % alignment != 0)
        return fault_set(r->fault, "tensor '%.*s' is not aligned to %zu bytes", (int)tensor->name.length,
                         tensor->name.text, alignment);
    if (offset > room || tensor->n_elements > (room - (size_t)offset) / bytes)
        return fault_set(r->fault, "tensor '%.*s' lies beyond the end of the file", (int)tensor->name.length,
                         tensor->name.text);
    tensor->data = r->data + start + (size_t)offset;
    return 0;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static int compare_strings(const struct gguf_string *a, const struct gguf_string *b)
{
    const size_t common = a->length < b->length ? a->length : b->length;
    const int order = memcmp(a->text, b->text, common);

    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static int compare_values(const void *a, const void *b)
{
    return compare_strings(&((const struct gguf_value *)a)->key, &((const struct gguf_value *)b)->key);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare_strings(&((const struct gguf_tensor *)a)->name, &((const struct gguf_tensor *)b)->name);
}

static int twice(struct reader *r, const struct gguf_string *name)
{
    return fault_set(r->fault, "'%.*s' occurs twice", (int)name->length, name->text);
}

static int sort_values(struct reader *r, struct gguf *gguf)
{
    if (gguf->n_values)
        qsort(gguf->values, gguf->n_values, sizeof *gguf->values, compare_values);
    for (size_t i = 1; i < gguf->n_values; i++) {
        if (compare_values(&gguf->values[i - 1], &gguf->values[i]) == 0)
            return twice(r, &gguf->values[i].key);
    }
    return 0;
}

static int sort_tensors(struct reader *r, struct gguf *gguf)
{
    if (gguf->n_tensors)
        qsort(gguf->tensors, gguf->n_tensors, sizeof *gguf->tensors, compare_tensors);
    for (size_t i = 1; i < gguf->n_tensors; i++) {
        if (compare_tensors(&gguf->tensors[i - 1], &gguf->tensors[i]) == 0)
            return twice(r, &gguf->tensors[i].name);
    }
    return 0;
}

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key)
{
    const struct gguf_value wanted = {.key = {key, strlen(key)}};

    if (!gguf->n_values)
        return NULL;
    return bsearch(&wanted, gguf->values, gguf->n_values, sizeof wanted, compare_values);
}

const struct gguf_tensor *gguf_tensor(const struct gguf *gguf, const char *name)
{
    const struct gguf_tensor wanted = {.name = {name, strlen(name)}};

    if (!gguf->n_tensors)
        return NULL;
    return bsearch(&wanted, gguf->tensors, gguf->n_tensors, sizeof wanted, compare_tensors);
}

size_t gguf_n_tensors(const struct gguf *gguf)
{
    return gguf->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i)
{
    return &gguf->tensors[i];
}

/* ---- the parts of a file ------------------------------------------------------------------------------------------
 */

static int read_header(struct reader *r, uint64_t *n_tensors, uint64_t *n_values)
{
    uint32_t version;

    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return fault_set(r->fault, "not a GGUF file");
    r->at = 4;
    if (read_u32(r, "the header", &version) || read_number(r, 8, "the header", n_tensors) ||
        read_number(r, 8, "the header", n_values))
        return -1;
    if (version != 2 && version != 3)
        return fault_set(r->fault, "GGUF version %u; versions 2 and 3 are read, little-endian", (unsigned)version);
    if (*n_values > r->size / LEAST_VALUE_BYTES || *n_tensors > r->size / LEAST_TENSOR_BYTES)
        return fault_set(r->fault, "the header promises more than the file can hold");
    return 0;
}

static int read_values(struct reader *r, struct gguf *gguf, size_t n)
{
    gguf->values = calloc(n ? n : 1, sizeof *gguf->values);
    if (!gguf->values)
        return fault_set(r->fault, "out of memory");
    for (size_t i = 0; i < n; i++) {
        if (read_value(r, &gguf->values[i]))
            return -1;
    }
    gguf->n_values = n;
    return sort_values(r, gguf);
}

static int read_alignment(struct reader *r, const struct gguf *gguf, size_t *alignment)
{
    const struct gguf_value *value = gguf_find(gguf, "general.alignment");
    uint64_t number = DEFAULT_ALIGNMENT;

    if (value && (gguf_uint(value, &number) || number < 8 || number > MAX_ALIGNMENT || (number & (number - 1))))
        return fault_set(r->fault, "general.alignment is not a power of two from 8 to %u", MAX_ALIGNMENT);
    *alignment = (size_t)number;
    return 0;
}

static int read_tensors(struct reader *r, struct gguf *gguf, size_t n)
{
    size_t alignment;
    uint64_t *offsets = calloc(n ? n : 1, sizeof *offsets);

    gguf->tensors = calloc(n ? n : 1, sizeof *gguf->tensors);
    int rc = offsets && gguf->tensors ? 0 : fault_set(r->fault, "out of memory");
    for (size_t i = 0; !rc && i < n; i++)
        rc = read_tensor(r, &gguf->tensors[i], &offsets[i]);
    if (!rc)
        rc = read_alignment(r, gguf, &alignment);
    if (!rc && n) {
        const size_t padding = (alignment - r->at % alignment) % alignment;

        if (padding > r->size - r->at)
            rc = cut_short(r, "the padding before the tensors");
        for (size_t i = 0; !rc && i < n; i++)
            rc = place_tensor(r, &gguf->tensors[i], offsets[i], r->at + padding, alignment);
    }
    free(offsets);
    if (rc)
        return rc;
    gguf->n_tensors = n;
    return sort_tensors(r, gguf);
}

static int read_all(struct reader *r, struct gguf *gguf)
{
    uint64_t n_tensors, n_values;

    if (read_header(r, &n_tensors, &n_values) || read_values(r, gguf, (size_t)n_values))
        return -1;
    return read_tensors(r, gguf, (size_t)n_tensors);
}

static bool little_endian(void)
{
    const uint16_t one = 1;

    return *(const unsigned char *)&one == 1;
}

int gguf_parse(const void *data, size_t size, struct gguf **result, struct fault *fault)
{
    struct reader r = {data, size, 0, fault};

    *result = NULL;
    if ((uintptr_t)data % 8 != 0)
        return fault_set(fault, "the bytes of a GGUF file must be aligned to 8");
    if (!little_endian())
        return fault_set(fault, "GGUF files are read on little-endian machines only");
    struct gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf)
        return fault_set(fault, "out of memory");
    if (read_all(&r, gguf)) {
        gguf_close(gguf);
        return -1;
    }
    *result = gguf;
    return 0;
}

static int map_file(const char *path, void **map, size_t *size, struct fault *fault)
{
    struct stat status;
    const int file = open(path, O_RDONLY);
    int rc = 0;

    if (file < 0)
        return fault_set(fault, "%s: %s", path, strerror(errno));
    if (fstat(file, &status))
        rc = fault_set(fault, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(status.st_mode) || status.st_size <= 0 || (uintmax_t)status.st_size > SIZE_MAX)
        rc = fault_set(fault, "%s: empty, or not a file", path);
    if (!rc) {
        *size = (size_t)status.st_size;
        *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, file, 0);
        if (*map == MAP_FAILED)
            rc = fault_set(fault, "%s: %s", path, strerror(errno));
    }
    close(file);
    return rc;
}

int gguf_open(const char *path, struct gguf **result, struct fault *fault)
{
    struct fault reason;
    void *map;
    size_t size;

    *result = NULL;
    if (map_file(path, &map, &size, fault))
        return -1;
    if (gguf_parse(map, size, result, &reason)) {
        munmap(map, size);
        return fault_set(fault, "%s: %s", path, reason.text);
    }
    (*result)->map = map;
    (*result)->map_size = size;
    return 0;
}

/* FNV-1a, but of whole words: files are large. */
uint64_t gguf_hash(const struct gguf *gguf)
{
    const unsigned char *bytes = gguf->map;
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ gguf->map_size;

    for (size_t at = 0; at < gguf->map_size; at += sizeof(uint64_t)) {
        const size_t rest = gguf->map_size - at;
        uint64_t word = 0;

        memcpy(&word, bytes + at, rest < sizeof word ? rest : sizeof word);
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
        hash ^= hash >> 32;
    }
    return hash;
}

void gguf_close(struct gguf *gguf)
{
    if (!gguf)
        return;
    if (gguf->map)
        munmap(gguf->map, gguf->map_size);
    free(gguf->values);
    free(gguf->tensors);
    free(gguf);
}

/* ---- values -------------------------------------------------------------------------------------------------------
 */

static bool is_signed(uint32_t type)
{
    return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
}

int gguf_uint(const struct gguf_value *value, uint64_t *number)
{
    const unsigned bytes = type_bytes(value->type);

    if (!bytes || value->type == GGUF_F32 || value->type == GGUF_F64)
        return -1;
    if (is_signed(value->type) && value->data[bytes - 1] & 0x80)
        return -1;
    *number = load(value->data, bytes);
    return 0;
}

int gguf_float(const struct gguf_value *value, double *number)
{
    if (value->type == GGUF_F32)
        *number = load_f32(value->data);
    else if (value->type == GGUF_F64)
        *number = load_f64(value->data);
    else
        return -1;
    return isfinite(*number) ? 0 : -1;
}

int gguf_text(const struct gguf_value *value, struct gguf_string *string)
{
    const unsigned char *cursor = value->data;

    if (value->type != GGUF_STRING)
        return -1;
    *string = gguf_next_string(&cursor);
    return 0;
}

uint32_t gguf_u32_at(const struct gguf_value *value, uint64_t i)
{
    return (uint32_t)load(value->data + 4 * i, 4);
}

float gguf_f32_at(const struct gguf_value *value, uint64_t i)
{
    return load_f32(value->data + 4 * i);
}

struct gguf_string gguf_next_string(const unsigned char **cursor)
{
    const struct gguf_string string = {(const char *)*cursor + 8, (size_t)load(*cursor, 8)};

    *cursor += 8 + string.length;
    return string;
}
