#!/usr/bin/env bash
# Runs all GPU tests of a bundle (see bundle.sh), on the host that has the GPU.
# Usage: run.sh [gtest flags]   (in the bundle's directory; or tests/gpu/run.sh in a built tree)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
[ -d "$bin" ] || bin=$here/../../build/cuda/tests/gpu
if ! nvidia-smi -L; then
  echo "no GPU here: every test would skip itself" >&2
  exit 1
fi
# Where ranks share a device, loading a kernel would wait for another rank's, which waits for it.
export CUDA_MODULE_LOADING=EAGER
failed=0
for test in "$bin"/*_test; do
  echo "$(basename "$test")"
  "$test" "$@" || failed=1
done
exit $failed
