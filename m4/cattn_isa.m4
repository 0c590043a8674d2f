# CATTN_ISA(NAME, FLAGS, BODY)
# Adds --disable-NAME and finds out whether the compiler makes a program of BODY (which may use argc and argv) with
# FLAGS.  The flags name features, never -march: the user's own -march, which comes later, would undo that.
# Sets have_NAME (for the summary), CATTN_NAME_CFLAGS, the conditional HAVE_NAME and, in config.h, HAVE_CATTN_NAME.
AC_DEFUN([CATTN_ISA],
    [m4_pushdef([CATTN_UP], m4_toupper([$1]))
     AC_ARG_ENABLE([$1],
         [AS_HELP_STRING([--disable-$1], [leave the $1 kernel out @<:@in, if the compiler can@:>@])],
         [], [enable_$1=auto])
     have_$1="no (switched off)"
     AS_IF([test "x$enable_$1" != xno],
         [AC_CACHE_CHECK([whether $CC can compile for $1], [cattn_cv_isa_$1],
              [cattn_saved_CFLAGS=$CFLAGS
               CFLAGS="$2 $CFLAGS"
               AC_LINK_IFELSE([AC_LANG_SOURCE([[
                   #include <immintrin.h>
                   int main(int argc, char **argv) { ]$3[ }]])],
                   [cattn_cv_isa_$1=yes], [cattn_cv_isa_$1=no])
               CFLAGS=$cattn_saved_CFLAGS])
          AS_IF([test "x$cattn_cv_isa_$1" = xyes],
              [have_$1=yes
               cattn_isas="$cattn_isas $1"
               CATTN_UP[]_CFLAGS="$2"
               AC_DEFINE([HAVE_CATTN_]CATTN_UP, [1], [Define to 1 if the $1 kernel is built.])],
              [have_$1="no (not with this compiler or CPU)"
               AS_IF([test "x$enable_$1" = xyes], [AC_MSG_ERROR([--enable-$1: $CC cannot compile for $1])])])])
     AC_SUBST([CATTN_]CATTN_UP[_CFLAGS], [$CATTN_UP[]_CFLAGS])
     AM_CONDITIONAL([HAVE_]CATTN_UP, [test "x$have_$1" = xyes])
     m4_popdef([CATTN_UP])])
