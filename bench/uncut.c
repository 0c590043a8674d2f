/* The library's backend once more, without the cut of states at span ends: nothing but its attend is used, on the
 * stores of the real one.  What the two files export has another name here. */
#define CATTN_NO_SPAN_CUT      1
#define cattn_backend_cpu      bench_backend_uncut
#define cattn_schedule_open    bench_uncut_open
#define cattn_schedule_close   bench_uncut_close
#define cattn_schedule_reserve bench_uncut_reserve
#define cattn_schedule_plan    bench_uncut_plan
#define cattn_schedule_write   bench_uncut_write
#define cattn_schedule_attend  bench_uncut_attend
#define cattn_store_pool       bench_uncut_pool
#define cattn_store_fill_nan   bench_uncut_fill_nan
/* clang-format off */
#include "backends/cpu/schedule.c"
#include "backends/cpu/backend.c"
