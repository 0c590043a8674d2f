/* What differs between oneDNN 2.x, where descriptors are structs, and 3.x, where they are handles. */
#ifndef BENCH_ONEDNN_H
#define BENCH_ONEDNN_H

#include <dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t any_desc;
#  define DESC(d) (d)
#else
typedef const dnnl_memory_desc_t *any_desc;
#  define DESC(d) (&(d))
#endif

/* Softmax from f32 to a smaller type came with 2.6. */
#define ONEDNN_HAS_SOFTMAX (DNNL_VERSION_MAJOR >= 3 || DNNL_VERSION_MINOR >= 6)

static inline void drop_desc(dnnl_memory_desc_t *desc)
{
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_destroy(*desc);
#else
    (void)desc;
#endif
}

#endif
