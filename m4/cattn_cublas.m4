# CATTN_CUBLAS
# cuBLAS of the toolkit that CATTN_CUDA has found, for benchmarks: a large product to compare with, the linear layers of
# the decoder.  Not required.  Sets have_cublas (for the summary), CUBLAS_LIBS, the conditional HAVE_CUBLAS and, in
# config.h, HAVE_CUBLAS.
AC_DEFUN([CATTN_CUBLAS],
    [CUBLAS_LIBS= have_cublas=no
     AS_IF([test "x$with_cuda" != xno],
         [cattn_saved_CPPFLAGS=$CPPFLAGS cattn_saved_LIBS=$LIBS
          CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
          AC_MSG_CHECKING([for cuBLAS])
          for cattn_dir in "$cattn_cuda_dir/lib64" "$cattn_cuda_dir/lib" ''; do
              AS_IF([test "$have_cublas" = no],
                  [cattn_cublas="${cattn_dir:+-L$cattn_dir -Wl,-rpath,$cattn_dir }-lcublas"
                   LIBS="$cattn_cublas $CUDA_LIBS $cattn_saved_LIBS"
                   AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cublas_v2.h>]],
                       [[cublasHandle_t h; return cublasCreate(&h) != CUBLAS_STATUS_SUCCESS;]])],
                       [have_cublas=yes CUBLAS_LIBS=$cattn_cublas])])
          done
          AC_MSG_RESULT([$have_cublas])
          CPPFLAGS=$cattn_saved_CPPFLAGS LIBS=$cattn_saved_LIBS])
     AS_IF([test "$have_cublas" = yes], [AC_DEFINE([HAVE_CUBLAS], [1], [Define to 1 if benchmarks can use cuBLAS.])])
     AC_SUBST([CUBLAS_LIBS])
     AM_CONDITIONAL([HAVE_CUBLAS], [test "$have_cublas" = yes])])
