# CATTN_ONEDNN
# Adds --with-onednn / --without-onednn; benchmarks use it, the library does not.  Versions 2 and 3 will do.
# Sets have_onednn (for the summary), ONEDNN_CFLAGS, ONEDNN_LIBS and, in config.h, HAVE_ONEDNN.
AC_DEFUN([CATTN_ONEDNN],
    [AC_ARG_WITH([onednn],
         [AS_HELP_STRING([--without-onednn], [benchmarks without oneDNN @<:@with, if found@:>@])],
         [], [with_onednn=auto])
     have_onednn="no (switched off)"
     AS_IF([test "x$with_onednn" != xno],
         [PKG_CHECK_MODULES([ONEDNN], [dnnl], [], [ONEDNN_LIBS=-ldnnl])
          cattn_saved_CPPFLAGS=$CPPFLAGS cattn_saved_LIBS=$LIBS
          CPPFLAGS="$CPPFLAGS $ONEDNN_CFLAGS" LIBS="$ONEDNN_LIBS $LIBS"
          AC_MSG_CHECKING([for oneDNN 2 or 3])
          AC_LINK_IFELSE([AC_LANG_PROGRAM([[
              #include <dnnl.h>
              #if DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3
              #error neither 2 nor 3
              #endif]],
              [[return dnnl_version() == 0;]])],
              [have_onednn=yes
               AC_DEFINE([HAVE_ONEDNN], [1], [Define to 1 if benchmarks can use oneDNN.])],
              [have_onednn=no ONEDNN_CFLAGS= ONEDNN_LIBS=])
          AC_MSG_RESULT([$have_onednn])
          CPPFLAGS=$cattn_saved_CPPFLAGS LIBS=$cattn_saved_LIBS
          AS_IF([test "x$with_onednn$have_onednn" = xyesno], [AC_MSG_ERROR([--with-onednn: not found])])])
     AC_SUBST([ONEDNN_CFLAGS])
     AC_SUBST([ONEDNN_LIBS])])
