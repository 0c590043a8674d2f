/* A server that is started again: what was prefilled before is loaded, whatever kernel and chunk size wrote it, and the
 * next output has the bits that it would have had. */
#define _DEFAULT_SOURCE 1
#include "support/engine.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH = 4096, SPACE = 7, WRITTEN_IN = 64 };

static int32_t tokens[LENGTH];
static char path[] = "cattn-prefixes-XXXXXX";

static const uint64_t space = SPACE;

static struct cattn_config config_of(const char *kernel, uint32_t kv_dtype, uint32_t chunk_tokens)
{
    struct cattn_config config = engine_config(LENGTH + 2 * 256);
    config.kernel = kernel;
    config.kv_dtype = kv_dtype;
    config.chunk_tokens = chunk_tokens;
    config.n_layers = 2;
    config.n_heads = 6;
    config.n_kv_heads = 2;
    config.head_dim = 24;
    config.v_head_dim = 40;
    return config;
}

/* Prefills all but the last token, pins, saves. */
static void write_prefix(const char *kernel, uint32_t kv_dtype)
{
    struct engine e;
    struct toy toy;
    struct cattn_config config = config_of(kernel, kv_dtype, WRITTEN_IN);
    engine_init(&e, &config, 1);
    e.form = FORM_WRITE;
    engine_prefill(&e, &toy, SPACE, tokens, LENGTH, 0);
    ck_assert_int_eq(cattn_prefix_pin(e.cache, &space, sizeof space, tokens, LENGTH, NULL), CATTN_OK);
    ck_assert_int_eq(cattn_prefix_save(e.cache, path, kernel, strlen(kernel)), CATTN_OK);
    engine_close(&e, &toy);
    engine_free(&e);
}

/* The output of the last token, all others computed before or (written_by) loaded. */
static struct trace *last_output(const struct cattn_config *config, const char *written_by)
{
    struct engine e;
    struct toy toy;
    uint64_t n_tokens;
    engine_init(&e, config, 2);
    if (written_by) {
        ck_assert_int_eq(cattn_prefix_load(e.cache, path, written_by, strlen(written_by), &n_tokens), CATTN_OK);
        ck_assert_uint_eq(n_tokens, LENGTH);
        ck_assert_uint_eq(engine_open(&e, &toy, SPACE, tokens, LENGTH), LENGTH - 1);
    } else {
        e.form = FORM_WRITE;
        engine_prefill(&e, &toy, SPACE, tokens, LENGTH - 1, 0);
    }
    e.form = FORM_ATTEND; /* compared with the oracle, too */
    toy.trace = trace_new(&e, LENGTH);
    uint64_t misses = engine_stats(&e).misses;
    engine_feed(&e, &toy, tokens + LENGTH - 1, 1);
    ck_assert_uint_le(engine_stats(&e).misses - misses, 1);
    struct trace *trace = toy.trace;
    engine_check(&e, &toy, 1);
    engine_close(&e, &toy);
    engine_free(&e);
    return trace;
}

START_TEST(a_prefix_of_4096_tokens_is_loaded_and_gives_the_same_bits)
{
    struct rng rng;
    struct kernel_choice writer, reader;
    rng_init(&rng, 1);
    random_tokens(&rng, tokens, LENGTH, 1000);
    ck_assert_int_ge(mkstemp(path), 0);
    for (unsigned i = 0; kernel_choice(i, &writer); i++) {
        write_prefix(writer.kernel, writer.kv_dtype);
        for (unsigned k = 0; kernel_choice(k, &reader); k++) {
            if (reader.kv_dtype != writer.kv_dtype)
                continue;
            for (uint32_t c = 32; c <= 256; c *= 2) {
                struct cattn_config config = config_of(reader.kernel, reader.kv_dtype, c);
                struct trace *computed = last_output(&config, NULL), *loaded = last_output(&config, writer.kernel);
                ck_assert_uint_eq(trace_known(loaded), 1);
                CHECK(trace_differences(computed, loaded) == 0, "written by %s, read by %s, type %u, chunks of %u",
                      writer.kernel, reader.kernel, reader.kv_dtype, c);
                trace_free(computed);
                trace_free(loaded);
            }
        }
    }
    unlink(path);
}
END_TEST

START_TEST(another_type_or_model_is_refused)
{
    struct engine e;
    struct cattn_config config = config_of("generic", CATTN_BF16, 64);
    ck_assert_int_ge(mkstemp(path), 0);
    write_prefix("generic", CATTN_F16);
    engine_init(&e, &config, 3);
    ck_assert_int_eq(cattn_prefix_load(e.cache, path, "generic", 7, NULL), CATTN_EFORMAT);
    engine_free(&e);
    config.kv_dtype = CATTN_F16;
    engine_init(&e, &config, 3);
    ck_assert_int_eq(cattn_prefix_load(e.cache, path, "generis", 7, NULL), CATTN_EFORMAT);
    ck_assert_uint_eq(engine_stats(&e).used_slots + engine_stats(&e).evictable_slots, 0);
    ck_assert_int_eq(cattn_prefix_load(e.cache, path, "generic", 7, NULL), CATTN_OK);
    engine_free(&e);
    unlink(path);
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("save");
    tcase_add_test(tests, a_prefix_of_4096_tokens_is_loaded_and_gives_the_same_bits);
    tcase_add_test(tests, another_type_or_model_is_refused);
    return suite_run(tests);
}
