# CATTN_CUDA
# --with-cuda is refused with the reason, so that nobody takes a CPU build for a GPU build.
AC_DEFUN([CATTN_CUDA],
    [AC_ARG_WITH([cuda],
         [AS_HELP_STRING([--without-cuda], [without a CUDA backend; this version has none @<:@without@:>@])],
         [], [with_cuda=no])
     AS_IF([test "x$with_cuda" != xno],
         [AC_MSG_ERROR([--with-cuda: this version has no CUDA backend])])])
