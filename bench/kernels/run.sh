#!/bin/sh
# Runs the kernel bench and keeps its own JSON: machine, commit, command and every sample.
# Usage: bench/kernels/run.sh [build folder] [benchmark flags]
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build/release}
[ $# -gt 0 ] && shift
out=bench/results/kernels_cpu.json
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
# The library splits a context value at "=".
command=$(echo "bench/kernels/run.sh $build $*" | tr '=' ' ')
OMP_NUM_THREADS=$(nproc) exec "$build/bench/kernels/kernels_bench" \
  --benchmark_repetitions=5 --benchmark_min_time=0.05 --benchmark_enable_random_interleaving=true \
  --benchmark_out="$out" --benchmark_out_format=json \
  --benchmark_context=commit="$(git rev-parse HEAD)" --benchmark_context=cpu="$cpu" \
  --benchmark_context=command="$command" "$@"
