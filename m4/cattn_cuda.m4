# CATTN_CUDA
# Adds --with-cuda[=DIR] and the variables CUDA_ARCHS and NVCCFLAGS.  The backend is never built unasked.
# After LT_INIT.  Sets have_cuda (for the summary), NVCC, CUDA_CPPFLAGS, CUDA_GENCODE, CUDA_LIBS, CUDA_LIBTOOLFLAGS, the
# conditional HAVE_CUDA and, in config.h, HAVE_CATTN_CUDA.
AC_DEFUN([CATTN_CUDA],
    [AC_ARG_WITH([cuda],
         [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
              [build the CUDA backend with the toolkit (11.8 to 13) below DIR; without DIR: that of $CUDA_HOME, of the
               nvcc in $PATH, or /usr/local/cuda @<:@without@:>@])],
         [], [with_cuda=no])
     AC_ARG_VAR([CUDA_ARCHS], [compute capabilities to compile for, those that the toolkit knows of @<:@80 86 89 90@:>@;
         the last one also as PTX, for what is newer])
     AC_ARG_VAR([NVCCFLAGS], [flags for nvcc])
     have_cuda="no (not asked for)" CUDA_LIBS=
     AS_IF([test "x$with_cuda" != xno],
         [_CATTN_CUDA_FIND
          _CATTN_CUDA_ARCHS
          _CATTN_CUDA_LINK
          have_cuda="yes ($cattn_cuda_version; compute capability$cattn_cuda_archs)"
          AC_DEFINE([HAVE_CATTN_CUDA], [1], [Define to 1 if the CUDA backend is built.])])
     AC_SUBST([NVCC])
     AC_SUBST([CUDA_CPPFLAGS])
     AC_SUBST([CUDA_GENCODE])
     AC_SUBST([CUDA_LIBS])
     AC_SUBST([CUDA_LIBTOOLFLAGS])
     AM_CONDITIONAL([HAVE_CUDA], [test "x$with_cuda" != xno])])

# The toolkit.
AC_DEFUN([_CATTN_CUDA_FIND],
    [AS_CASE([$with_cuda],
         [yes], [AC_PATH_PROGS([NVCC], [nvcc], [], [${CUDA_HOME:+$CUDA_HOME/bin:}$PATH:/usr/local/cuda/bin])],
         [NVCC=$with_cuda/bin/nvcc])
     AS_IF([test ! -x "$NVCC"], [AC_MSG_ERROR([--with-cuda: no nvcc (${NVCC:-give a directory})])])
     cattn_cuda_dir=`AS_DIRNAME(["$NVCC"])`
     cattn_cuda_dir=`AS_DIRNAME(["$cattn_cuda_dir"])`
     cattn_cuda_version=`"$NVCC" --version | sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p'`
     AC_MSG_CHECKING([for the version of $NVCC])
     AC_MSG_RESULT([$cattn_cuda_version])
     AS_CASE([$cattn_cuda_version],
         [11.[[89]] | 12.* | 13.*], [],
         [11.* | 10.* | ?.*], [AC_MSG_ERROR([--with-cuda: CUDA $cattn_cuda_version is too old, 11.8 is needed])],
         [AC_MSG_WARN([CUDA $cattn_cuda_version is not one that was tried])])
     dnl Debian's own packages have no directory of CUDA.
     CUDA_CPPFLAGS=
     AS_IF([test -f "$cattn_cuda_dir/include/cuda_runtime_api.h" && test "$cattn_cuda_dir" != /usr],
         [CUDA_CPPFLAGS="-isystem $cattn_cuda_dir/include"])
     dnl One compilation serves both libraries.
     AS_IF([test "x$enable_shared" != xno], [CUDA_LIBTOOLFLAGS=-shared])])

# The capabilities that this nvcc compiles for.
AC_DEFUN([_CATTN_CUDA_ARCHS],
    [CUDA_GENCODE= cattn_cuda_archs= cattn_cuda_newest=
     echo '__global__ void kernel(void) { }' > conftest.cu
     for cattn_arch in ${CUDA_ARCHS-80 86 89 90}; do
         AC_MSG_CHECKING([whether $NVCC compiles for compute capability $cattn_arch])
         cattn_gencode="-gencode arch=compute_$cattn_arch,code=sm_$cattn_arch"
         AS_IF(["$NVCC" $NVCCFLAGS $cattn_gencode -c -o conftest.o conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
             [AC_MSG_RESULT([yes])
              CUDA_GENCODE="$CUDA_GENCODE $cattn_gencode"
              cattn_cuda_archs="$cattn_cuda_archs $cattn_arch" cattn_cuda_newest=$cattn_arch],
             [AC_MSG_RESULT([no])])
     done
     rm -f conftest.cu conftest.o
     AS_IF([test -z "$cattn_cuda_newest"], [AC_MSG_ERROR([--with-cuda: $NVCC compiles nothing; see config.log])])
     CUDA_GENCODE="$CUDA_GENCODE -gencode arch=compute_$cattn_cuda_newest,code=compute_$cattn_cuda_newest"])

# The run-time, static, so that the library can be loaded where there is no driver.  nvcc's objects want libstdc++.
AC_DEFUN([_CATTN_CUDA_LINK],
    [AC_MSG_CHECKING([for the static CUDA run-time])
     cattn_saved_CPPFLAGS=$CPPFLAGS cattn_saved_LIBS=$LIBS cattn_found=no
     CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
     for cattn_dir in "$cattn_cuda_dir/lib64" "$cattn_cuda_dir/lib" ''; do
         AS_IF([test -z "$cattn_dir" || test -f "$cattn_dir/libcudart_static.a"],
             [CUDA_LIBS="${cattn_dir:+-L$cattn_dir }-lcudart_static -lstdc++ -lrt -lpthread -ldl"
              LIBS="$CUDA_LIBS $cattn_saved_LIBS"
              AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cuda_runtime_api.h>]],
                  [[int n; return cudaGetDeviceCount(&n) != cudaSuccess;]])], [cattn_found=yes; break])])
     done
     AC_MSG_RESULT([$cattn_found])
     CPPFLAGS=$cattn_saved_CPPFLAGS LIBS=$cattn_saved_LIBS
     AS_IF([test "x$cattn_found" = xno], [AC_MSG_ERROR([--with-cuda: cannot link with -lcudart_static; see config.log])])])
