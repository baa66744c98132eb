#!/usr/bin/env bash
# Builds what runs on a GPU, and puts it into a directory that any host with the driver and CUDA 13
# can run from: no compiler, no package and no source is needed there.
# Usage: tests/gpu/bundle.sh [directory]   (default: build/gpu-bundle)
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=${1:-build/gpu-bundle}
build=build/cuda

cmake --preset cuda --log-level=WARNING
cmake --build --preset cuda --target lockstep_gpu

rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
for binary in "$build"/tests/gpu/*_test "$build"/bench/kernels/cuda/*_bench; do
  cp "$binary" "$bundle/bin/"
done
# The host's own C and C++ libraries, driver and CUDA libraries fit it better than ours.
hosts='ld-linux|libc|libm|libpthread|libdl|librt|libstdc\+\+|libgcc_s'
hosts+='|libcuda|libcublas|libcublasLt|libnccl|libcudart|libnvidia'
ldd "$bundle"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -Ev "/($hosts)[-.]" |
  xargs -r -I{} cp -L {} "$bundle/lib/"
strip "$bundle"/bin/*
for binary in "$bundle"/bin/*; do
  patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$binary"
done
for library in "$bundle"/lib/*; do
  [ -e "$library" ] && patchelf --force-rpath --set-rpath "\$ORIGIN" "$library"
done
cp tests/gpu/run.sh bench/kernels/cuda/run.py bench/kernels/cuda/linear_run.py "$bundle/"
commit=$(git rev-parse HEAD)
# Anything else in the tree is not what the commit says.
changed=$(git status --porcelain -- kernels tests/gpu bench/kernels common)
[ -z "$changed" ] || commit="$commit-dirty"
echo "$commit" > "$bundle/COMMIT"
du -sh "$bundle"
