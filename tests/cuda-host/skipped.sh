#!/bin/sh
# Says which builds of the CUDA kernels for the CPU are not there, if some are not.
test -z "$CUDA_HOST_SKIPPED" && exit 0
echo "SKIP: $CUDA_HOST_SKIPPED"
exit 77
