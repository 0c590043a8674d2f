/* What the core makes of a backend with a device: errors that stick, and graphs of the caller. */
#define _DEFAULT_SOURCE 1
#include "small.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The backend without floats, as if it were a device that fails when told to. */
static int health;
static unsigned n_syncs;
static uint64_t number;

static uint64_t free_bytes(const struct cattn_shape *shape)
{
    (void)shape;
    return 0;
}

static int status_of(const struct cattn_store *store)
{
    (void)store;
    return health;
}

static int sync_store(struct cattn_store *store)
{
    (void)store;
    n_syncs++;
    return health;
}

static uint64_t plan_number(const struct cattn_store *store)
{
    (void)store;
    return number;
}

static const struct cattn_device_backend device = {free_bytes, status_of, sync_store, plan_number};

static struct small make(void)
{
    static struct cattn_backend backend;
    struct cattn_shape shape = cells_shape(16, 4, 2);
    struct small small;
    health = CATTN_OK;
    number = 1;
    backend = cells_backend;
    backend.device = &device;
    ck_assert_int_eq(cattn_cache_make(&shape, &backend, NULL, 0, &small.cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_create(small.cache, &small.step), CATTN_OK);
    return small;
}

START_TEST(a_failed_device_is_reported_until_the_cache_goes)
{
    struct small small = make(), other = small_make(8, 4, 1, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(0, 6), 6), more;
    struct cattn_stats stats = {.size = sizeof(stats)};
    struct cattn_batch batch;
    cattn_sched *sched;
    size_t length;
    uint64_t plan;
    ck_assert_int_eq(cattn_sched_create(small.cache, NULL, &sched), CATTN_OK);
    ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_OK);
    health = CATTN_EDEVICE;
    ck_assert_int_eq(cattn_sched_next(sched, small.step, &batch), CATTN_EDEVICE);
    struct cattn_item item = small_item(seq, small_tokens(6, 1), 1);
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_seq_open(small.cache, "ns", 2, small_tokens(0, 6), 6, &more, NULL), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_seq_fork(small.cache, seq, &more), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_sync(small.cache), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_step_plan(small.step, &plan), CATTN_ESTATE);
    /* what reads the tree alone goes on */
    ck_assert_int_eq(cattn_cache_stats(small.cache, &stats), CATTN_OK);
    ck_assert_uint_eq(stats.n_sequences, 1);
    ck_assert_int_eq(cattn_seq_length(small.cache, seq, &length), CATTN_OK);
    ck_assert_uint_eq(length, 6);
    ck_assert_int_eq(cattn_cache_selfcheck(small.cache), CATTN_OK);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    /* and so does another cache */
    ck_assert_int_eq(cattn_sync(other.cache), CATTN_OK);
    small_prefill(&other, small_tokens(0, 6), 6);
    cattn_sched_destroy(sched);
    small_free(&small);
    small_free(&other);
}
END_TEST

START_TEST(a_step_whose_device_fails_can_only_be_aborted)
{
    struct small small = make();
    cattn_seq seq = small_prefill(&small, small_tokens(0, 6), 6);
    struct cattn_item item = small_item(seq, small_tokens(6, 2), 2);
    size_t length;
    uint64_t plan;
    ck_assert_int_eq(cattn_step_begin(small.step, &item, 1), CATTN_OK);
    struct cattn_io io = small_io(&small, true);
    for (uint32_t layer = 0; layer < 2; layer++)
        ck_assert_int_eq(cattn_step_attend(small.step, layer, &io), CATTN_OK);
    health = CATTN_EDEVICE;
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_step_plan(small.step, &plan), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_seq_length(small.cache, seq, &length), CATTN_OK);
    ck_assert_uint_eq(length, 6);
    small_free(&small);
}
END_TEST

START_TEST(files_are_not_written_or_read_with_a_failed_device)
{
    char path[] = "cattn-device-XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    struct small small = make();
    cattn_seq seq = small_prefill(&small, small_tokens(0, 9), 9);
    ck_assert_int_eq(cattn_prefix_pin(small.cache, "ns", 2, small_tokens(0, 9), 9, NULL), CATTN_OK);
    int status = cattn_prefix_save(small.cache, path, "m", 1);
    if (status == CATTN_ENOTSUP) { /* not in this build */
        small_free(&small);
        remove(path);
        return;
    }
    ck_assert_int_eq(status, CATTN_OK);
    health = CATTN_EDEVICE;
    ck_assert_int_eq(cattn_prefix_save(small.cache, path, "m", 1), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_prefix_load(small.cache, path, "m", 1, NULL), CATTN_EDEVICE);
    ck_assert_int_eq(cattn_seq_close(small.cache, seq), CATTN_OK);
    small_free(&small);
    struct small loaded = make();
    n_syncs = 0;
    ck_assert_int_eq(cattn_prefix_load(loaded.cache, path, "m", 1, NULL), CATTN_OK);
    ck_assert_uint_eq(n_syncs, 1); /* before anything is published */
    small_free(&loaded);
    remove(path);
}
END_TEST

static void begin(struct small *small, cattn_seq seq, int32_t token)
{
    struct cattn_item item = small_item(seq, small_tokens(token, 1), 1);
    ck_assert_int_eq(cattn_step_begin(small->step, &item, 1), CATTN_OK);
}

START_TEST(a_graph_stands_for_the_layers_of_a_step_with_its_number)
{
    struct small small = make();
    uint64_t plan = 0;
    cattn_seq seq = small_prefill(&small, small_tokens(0, 5), 5);
    number = 7;
    begin(&small, seq, 5);
    ck_assert_int_eq(cattn_step_plan(small.step, &plan), CATTN_OK);
    ck_assert_uint_eq(plan, 7);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_ESTATE); /* no step has made these launches */
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_ESTATE);
    small_finish(&small);
    struct cattn_stats before = {.size = sizeof(before)}, after = before;
    ck_assert_int_eq(cattn_cache_stats(small.cache, &before), CATTN_OK);
    begin(&small, seq, 6);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_cache_stats(small.cache, &after), CATTN_OK);
    ck_assert_uint_eq(after.read_bytes - before.read_bytes, 7 * 2 * cells_backend.block_bytes(&small.cache->shape) / 4);
    number = 8;
    begin(&small, seq, 7);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    /* the replayed step was not one that captured */
    number = 7;
    begin(&small, seq, 7);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_step_end(small.step), CATTN_OK);
    ck_assert_int_eq(cattn_step_plan(small.step, &plan), CATTN_ESTATE);
    small_free(&small);
}
END_TEST

START_TEST(an_aborted_step_leaves_no_graph)
{
    struct small small = make();
    cattn_seq seq = small_prefill(&small, small_tokens(0, 5), 5);
    number = 9;
    begin(&small, seq, 5);
    struct cattn_io io = small_io(&small, true);
    ck_assert_int_eq(cattn_step_attend(small.step, 0, &io), CATTN_OK);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    begin(&small, seq, 5);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_ESTATE);
    ck_assert_int_eq(cattn_step_abort(small.step), CATTN_OK);
    small_free(&small);
}
END_TEST

START_TEST(without_a_device_there_is_nothing_to_wait_for_or_to_capture)
{
    struct small small = small_make(8, 4, 1, 0);
    cattn_seq seq = small_prefill(&small, small_tokens(0, 5), 5);
    uint64_t plan = 3;
    ck_assert_int_eq(cattn_sync(NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_sync(small.cache), CATTN_OK);
    ck_assert_int_eq(cattn_step_plan(NULL, &plan), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_plan(small.step, NULL), CATTN_EINVAL);
    ck_assert_int_eq(cattn_step_replayed(NULL), CATTN_EINVAL);
    begin(&small, seq, 5);
    ck_assert_int_eq(cattn_step_plan(small.step, &plan), CATTN_ENOTSUP);
    ck_assert_int_eq(cattn_step_replayed(small.step), CATTN_ENOTSUP);
    ck_assert_uint_eq(plan, 3);
    small_finish(&small);
    small_free(&small);
}
END_TEST

static struct cattn_config config_of(size_t size)
{
    return (struct cattn_config){
        .size = size, .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .max_tokens = 64};
}

START_TEST(structs_without_a_device_are_taken)
{
    struct cattn_config config = config_of(offsetof(struct cattn_config, device));
    config.device = 5; /* behind the end: not looked at */
    cattn_cache *cache;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_OK);
    struct cattn_info info = {.size = offsetof(struct cattn_info, device), .device = 5};
    ck_assert_int_eq(cattn_cache_info(cache, &info), CATTN_OK);
    ck_assert_uint_eq(info.n_slots, 1);
    ck_assert_uint_eq(info.device, 5);
    info.size = sizeof(info);
    ck_assert_int_eq(cattn_cache_info(cache, &info), CATTN_OK);
    ck_assert_uint_eq(info.device, 0);
    info.size = offsetof(struct cattn_info, device) - 1;
    ck_assert_int_eq(cattn_cache_info(cache, &info), CATTN_EINVAL);
    cattn_cache_destroy(cache);
}
END_TEST

START_TEST(a_backend_without_devices_takes_none)
{
    struct cattn_config config = config_of(sizeof(config));
    cattn_cache *cache = NULL;
    config.device = 1;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_ENOTSUP);
    config.device = 0;
    config.stream = &config;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_ENOTSUP);
    config.stream = NULL;
    config.max_tokens = 0;
    ck_assert_int_eq(cattn_cache_create(&config, &cache), CATTN_EINVAL);
    ck_assert_ptr_null(cache);
}
END_TEST

START_TEST(kernels_are_listed_by_backend)
{
    for (unsigned i = 0; i < 8; i++)
        ck_assert_pstr_eq(cattn_backend_kernel("cpu", i), cattn_kernel_name(i));
    ck_assert_ptr_null(cattn_backend_kernel("abacus", 0));
    ck_assert_ptr_null(cattn_backend_kernel(NULL, 0));
}
END_TEST

int main(void)
{
    TCase *tests = suite_case("device");
    tcase_add_test(tests, a_failed_device_is_reported_until_the_cache_goes);
    tcase_add_test(tests, a_step_whose_device_fails_can_only_be_aborted);
    tcase_add_test(tests, files_are_not_written_or_read_with_a_failed_device);
    tcase_add_test(tests, a_graph_stands_for_the_layers_of_a_step_with_its_number);
    tcase_add_test(tests, an_aborted_step_leaves_no_graph);
    tcase_add_test(tests, without_a_device_there_is_nothing_to_wait_for_or_to_capture);
    tcase_add_test(tests, structs_without_a_device_are_taken);
    tcase_add_test(tests, a_backend_without_devices_takes_none);
    tcase_add_test(tests, kernels_are_listed_by_backend);
    return suite_run(tests);
}
