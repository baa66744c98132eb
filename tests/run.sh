#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU.
# Usage: tests/run.sh [preset] [ctest arguments]
# Presets: release (the default), dev, asan, tsan.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
[ $# -gt 0 ] && shift

deploy/install_packages.sh build test bench
tests/unit/text/real_tokenizers/setup.sh build/tokenizers
tests/deploy/schemas/setup.sh build/schemas
echo "configuring and building preset $preset"
cmake --preset "$preset" -DLOCKSTEP_BUILD_TESTS=ON --log-level=WARNING
cmake --build --preset "$preset"

# The CUDA rooms must compile wherever CUDA is; their tests skip themselves where no GPU is. Before
# the other tests, so that the last summary is theirs.
if [ "$preset" = release ] && { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } >/dev/null
then
  echo "compiling the CUDA rooms"
  cmake --preset cuda -DLOCKSTEP_BUILD_TESTS=ON --log-level=WARNING
  cmake --build --preset cuda --target lockstep_gpu
  ctest --preset cuda -L '^gpu$'
fi
# Two at a time, but for those that are marked to run alone.
ctest --preset "$preset" --parallel 2 "$@"
