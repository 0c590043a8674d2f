# CATTN_CUDA_HOST
# Whether the CUDA kernels can be run on this CPU for the tests: C++ objects of $CXX linked by $CC, and the same with the
# run-times of the sanitizers.  Substitutes CUDA_HOST_SKIPPED, what cannot be had and why.
AC_DEFUN([CATTN_CUDA_HOST],
    [CUDA_HOST_SKIPPED=
     have_cuda_host=no have_cuda_host_thread=no have_cuda_host_address=no
     AC_MSG_CHECKING([what CUDA kernels on the CPU can be run with])
     AS_CASE(["$CFLAGS $CC"],
         [*-fsanitize=*], [CUDA_HOST_SKIPPED="it is for builds without sanitizers: it has its own"],
         [CATTN_CUDA_HOST_TRY([], [have_cuda_host=yes])
          AS_IF([test "$have_cuda_host" = no],
              [CUDA_HOST_SKIPPED="no C++ compiler that goes with $CC"],
              [CATTN_CUDA_HOST_TRY([-fsanitize=thread], [have_cuda_host_thread=yes],
                   [CUDA_HOST_SKIPPED="no ThreadSanitizer that works here"])
               CATTN_CUDA_HOST_TRY([-fsanitize=address], [have_cuda_host_address=yes],
                   [CUDA_HOST_SKIPPED="${CUDA_HOST_SKIPPED:+$CUDA_HOST_SKIPPED, }no AddressSanitizer that works here"])])])
     AS_IF([test "$have_cuda_host" = yes],
         [have_cuda_kernels_on_cpu="yes${CUDA_HOST_SKIPPED:+ ($CUDA_HOST_SKIPPED)}"],
         [have_cuda_kernels_on_cpu="no ($CUDA_HOST_SKIPPED)"])
     AC_MSG_RESULT([$have_cuda_kernels_on_cpu])
     AC_SUBST([CUDA_HOST_SKIPPED])
     AM_CONDITIONAL([CUDA_HOST], [test "$have_cuda_host" = yes])
     AM_CONDITIONAL([CUDA_HOST_THREAD], [test "$have_cuda_host_thread" = yes])
     AM_CONDITIONAL([CUDA_HOST_ADDRESS], [test "$have_cuda_host_address" = yes])])

# CATTN_CUDA_HOST_TRY(SANITIZER FLAG, IF IT WORKS, [IF NOT])
AC_DEFUN([CATTN_CUDA_HOST_TRY],
    [AS_IF([test -n "$CXX" &&
            echo 'template <typename T> T twice(T x) { return x + x; } extern "C" int f(int x) { return twice(x); }' \
                > conftest_host.cc &&
            echo 'int f(int); int main(int argc, char **argv) { (void)argv; return f(argc - 1); }' > conftest_main.c &&
            $CXX -std=c++17 $1 -c -o conftest_host.o conftest_host.cc >&AS_MESSAGE_LOG_FD 2>&1 &&
            $CC $CFLAGS $1 $LDFLAGS -o conftest_host conftest_main.c conftest_host.o $LIBS \
                >&AS_MESSAGE_LOG_FD 2>&1 &&
            ./conftest_host >&AS_MESSAGE_LOG_FD 2>&1], [$2], [$3])
     rm -f conftest_host* conftest_main*])
