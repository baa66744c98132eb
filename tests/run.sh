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
echo "configuring and building preset $preset"
cmake --preset "$preset" -DLOCKSTEP_BUILD_TESTS=ON --log-level=WARNING
cmake --build --preset "$preset"
ctest --preset "$preset" "$@"
