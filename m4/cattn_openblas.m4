# CATTN_OPENBLAS
# Adds --with-openblas / --without-openblas; benchmarks use it, the library does not.
# Sets have_openblas (for the summary), OPENBLAS_CFLAGS, OPENBLAS_LIBS and, in config.h, HAVE_OPENBLAS.
AC_DEFUN([CATTN_OPENBLAS],
    [AC_ARG_WITH([openblas],
         [AS_HELP_STRING([--without-openblas], [benchmarks without OpenBLAS @<:@with, if found@:>@])],
         [], [with_openblas=auto])
     have_openblas="no (switched off)"
     AS_IF([test "x$with_openblas" != xno],
         [PKG_CHECK_MODULES([OPENBLAS], [openblas], [], [OPENBLAS_LIBS=-lopenblas])
          cattn_saved_CPPFLAGS=$CPPFLAGS cattn_saved_LIBS=$LIBS
          CPPFLAGS="$CPPFLAGS $OPENBLAS_CFLAGS" LIBS="$OPENBLAS_LIBS $LIBS"
          AC_MSG_CHECKING([for OpenBLAS])
          AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cblas.h>]],
              [[float x = 1;
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, x, &x, 1, &x, 1, x, &x, 1);
                return openblas_get_corename() == 0;]])],
              [have_openblas=yes
               AC_DEFINE([HAVE_OPENBLAS], [1], [Define to 1 if benchmarks can use OpenBLAS.])],
              [have_openblas=no OPENBLAS_CFLAGS= OPENBLAS_LIBS=])
          AC_MSG_RESULT([$have_openblas])
          CPPFLAGS=$cattn_saved_CPPFLAGS LIBS=$cattn_saved_LIBS
          AS_IF([test "x$with_openblas$have_openblas" = xyesno], [AC_MSG_ERROR([--with-openblas: not found])])])
     AC_SUBST([OPENBLAS_CFLAGS])
     AC_SUBST([OPENBLAS_LIBS])])
