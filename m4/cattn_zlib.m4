# CATTN_ZLIB
# Adds --with-zlib / --without-zlib; the checksums of saved prefixes come from it.
# Sets have_zlib (for the summary), ZLIB_CFLAGS, ZLIB_LIBS and, in config.h, HAVE_ZLIB.
AC_DEFUN([CATTN_ZLIB],
    [AC_ARG_WITH([zlib],
         [AS_HELP_STRING([--without-zlib], [prefixes cannot be saved and loaded @<:@with, if found@:>@])],
         [], [with_zlib=auto])
     have_zlib="no (switched off)"
     AS_IF([test "x$with_zlib" != xno],
         [PKG_CHECK_MODULES([ZLIB], [zlib], [], [ZLIB_LIBS=-lz])
          cattn_saved_CPPFLAGS=$CPPFLAGS cattn_saved_LIBS=$LIBS
          CPPFLAGS="$CPPFLAGS $ZLIB_CFLAGS" LIBS="$ZLIB_LIBS $LIBS"
          AC_MSG_CHECKING([for zlib])
          AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <zlib.h>]], [[return crc32(0, Z_NULL, 0) != 0;]])],
              [have_zlib=yes
               AC_DEFINE([HAVE_ZLIB], [1], [Define to 1 if prefixes can be saved.])],
              [have_zlib=no ZLIB_CFLAGS= ZLIB_LIBS=])
          AC_MSG_RESULT([$have_zlib])
          CPPFLAGS=$cattn_saved_CPPFLAGS LIBS=$cattn_saved_LIBS
          AS_IF([test "x$with_zlib$have_zlib" = xyesno], [AC_MSG_ERROR([--with-zlib: not found])])])
     AC_SUBST([ZLIB_CFLAGS])
     AC_SUBST([ZLIB_LIBS])])
