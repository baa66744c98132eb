#!/usr/bin/env bash
# Builds what runs on a GPU, and puts it into a directory that any host with the driver, CUDA 13
# and NCCL can run from: no compiler, no package and no source is needed there.
# Usage: tests/gpu/bundle.sh [--cluster] [--parity] [directory]   (default: build/gpu-bundle)
#   --cluster   only the binary `lockstep`, its demo model and the script that proves a cluster
#   --parity    only the comparison with Hugging Face's models
# Both together are both; without either there are the tests and benches too.
set -euo pipefail
cd "$(dirname "$0")/../.."
parts=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --cluster | --parity) parts+=" ${1#--}" ;;
    *) echo "bundle.sh: $1 is no flag of it" >&2 && exit 2 ;;
  esac
  shift
done
parts=${parts:- tests cluster parity}
has() { [[ " $parts " == *" $1 "* ]]; }
bundle=${1:-build/gpu-bundle}
build=build/cuda

targets=()
has tests && targets+=(lockstep_gpu)
has cluster && targets+=(lockstep gpu_faulty_worker engine_bench)
has parity && targets+=(parity_engine parity_ops)
cmake --preset cuda --log-level=WARNING
cmake --build --preset cuda --target "${targets[@]}"

rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
cp bench/gpu_host.py "$bundle/"
if has tests; then
  for binary in "$build"/tests/gpu/*_test "$build"/tests/gpu/gpu_planted_fault \
                "$build"/bench/kernels/cuda/*_bench "$build"/bench/engine/engine_bench; do
    cp "$binary" "$bundle/bin/"
  done
  cp tests/gpu/run.sh tests/gpu/ops_run.py tests/gpu/sanitize.sh bench/kernels/cuda/run.py \
    bench/kernels/cuda/linear_run.py bench/kernels/cuda/collective_run.py \
    bench/engine/engine_run.py bench/engine/mode_ratios.py "$bundle/"
fi
if has cluster; then
  cp "$build/services/cli/lockstep" "$build/tests/gpu/gpu_faulty_worker" \
    "$build/bench/engine/engine_bench" "$bundle/bin/"
  cp -r deploy/demo-model "$bundle/"
  cp tests/gpu/cluster*.py bench/demo_model/task.py "$bundle/"
fi
if has parity; then
  mkdir "$bundle/parity"
  cp "$build"/bench/parity/parity_engine "$build"/bench/parity/libparity_ops.so "$bundle/bin/"
  cp -r bench/parity/*.py services/client/python/lockstep_ops "$bundle/parity/"
fi
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
commit=$(git rev-parse HEAD)
# Anything else in the tree is not what the commit says.
changed=$(git status --porcelain -- common deploy/demo-model kernels proto services tests/faults \
  tests/gpu bench/engine bench/gpu_host.py bench/kernels bench/parity)
[ -z "$changed" ] || commit="$commit-dirty"
echo "$commit" > "$bundle/COMMIT"
du -sh "$bundle"
