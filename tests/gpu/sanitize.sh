#!/usr/bin/env bash
# Runs the op tests under compute-sanitizer, on the host that has the GPU, and ends with a table.
# Usage: sanitize.sh OUT.json [seconds [logs]]   (in a bundle's directory; or tests/gpu/sanitize.sh
# in a built tree). `seconds` bounds each run, 240 unless given; a few run at a time, since more
# would only take turns on the GPU. `logs` is a directory that keeps what each run printed.
# A tool that watches every access makes kernels a hundred times slower, so that each op runs the
# cases whose small and odd shapes reach all of its kernels. Last, one planted fault for each tool,
# which it must see. The status says whether all was clean and every fault seen.
set -euo pipefail
out=${1:?usage: sanitize.sh OUT.json [seconds [logs]]}
seconds_max=${2:-240}
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
[ -d "$bin" ] || bin=$here/../../build/cuda/tests/gpu
commit=$(cat "$here/COMMIT" 2>/dev/null || git -C "$here" rev-parse HEAD)
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if ! [ -x "$sanitizer" ]; then
  echo "no compute-sanitizer on the PATH or in /usr/local/cuda/bin" >&2
  exit 1
fi
logs=${3:-$(mktemp -d)}
mkdir -p "$logs"
[ -n "${3:-}" ] || trap 'rm -rf "$logs"' EXIT

# Where a slow test has cases for both paths, each path runs by itself.
tests=(gpu_sample_test/Portable gpu_sample_test/Sm90 gpu_logprobs_test/Portable
  gpu_logprobs_test/Sm90 gpu_attention_test/Portable gpu_attention_test/Sm90 gpu_linear_mma_test
  gpu_linear_test gpu_rows_test gpu_linear_audit_test)
tools=(memcheck racecheck initcheck synccheck)
filter_of() {
  case $1 in
    gpu_rows_test) echo '*.EveryRowHasTheContractsBits:*.CopiesRowsByIds' ;;
    gpu_logprobs_test/*) echo "*.SmallRows*/${1#*/}:*.NonFiniteRowsFailAlone/${1#*/}" ;;
    gpu_sample_test/Sm90) echo '*FromSmallRows/Sm90:*.FailsRowsBy*/Sm90:*.NoiseHas*' ;;
    gpu_sample_test/Portable) echo '*FromSmallRows/Portable:*.FailsRowsBy*/Portable' ;;
    gpu_attention_test/*) echo "*.SmallSteps*/${1#*/}:*.RowsOfPaddingAreZero/${1#*/}" ;;
    gpu_linear_test) echo 'LinearReferenceTest.*:OwnKernelTest.*' ;;
    gpu_linear_audit_test) echo '*.ComputesRowsOfASmallLayerAgain' ;;
    gpu_linear_mma_test) echo 'LinearMmaTest.EveryTilingGivesTheReferencesBits' ;;
  esac
}

# Leaves log, status and seconds of `binary` with these arguments under a tool.
run() {
  local tool=$1 test=$2 begin=$SECONDS status=0
  shift 2
  timeout "$seconds_max" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 3 \
    "$bin/${test%/*}" "$@" > "$logs/${test/\//-}.$tool" 2>&1 || status=$?
  echo "$status $((SECONDS - begin))" > "$logs/${test/\//-}.$tool.status"
}

jobs_max=8
running=0
queue() {
  if [ "$running" = "$jobs_max" ]; then
    wait -n
  else
    running=$((running + 1))
  fi
  run "$@" &
}
for tool in "${tools[@]}"; do queue "$tool" gpu_planted_fault "$tool"; done
# The slowest tool first.
for tool in racecheck initcheck memcheck synccheck; do
  for test in "${tests[@]}"; do
    queue "$tool" "$test" --gtest_brief=1 --gtest_filter="$(filter_of "$test")"
  done
done
wait

failed=0
runs=()
# Adds a run to the table and the record; it must have ended with status `wanted`.
report() {
  local test=$1 tool=$2 wanted=$3 log=$logs/${1/\//-}.$2 status seconds summary verdict=ok
  read -r status seconds < "$log.status"
  summary=$(grep -E 'SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//; s/"//g' || true)
  [ "$status" != 124 ] || summary="no end within $seconds_max s"
  # A filter that finds no case proves nothing.
  if [ "$status" != "$wanted" ] ||
    { [ "$wanted" = 0 ] && ! grep -qE '^\[=+\] [1-9][0-9]* tests? from .* ran' "$log"; }; then
    failed=1
    verdict=FAILED
    grep -vE 'Host Frame|=========$' "$log" | sed '40q' || true
  fi
  table+=$(printf '%-26s %-9s %-6s %4s s  %s' "$test" "$tool" "$verdict" "$seconds" "$summary")$'\n'
  runs+=("{\"test\": \"$test\", \"filter\": \"$(filter_of "$test")\", \"tool\": \"$tool\", \
\"verdict\": \"$verdict\", \"status\": $status, \"seconds\": $seconds, \
\"ran\": \"$(grep -oE '[0-9]+ tests? from .* ran' "$log" | head -n 1 || true)\", \
\"summary\": \"$summary\"}")
}
table=
for test in "${tests[@]}"; do
  for tool in "${tools[@]}"; do report "$test" "$tool" 0; done
done
for tool in "${tools[@]}"; do report gpu_planted_fault "$tool" 9; done

printf '%s' "$table"
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader --id=0)
version=$("$sanitizer" --version | tr '\n' ' ' | grep -oiE 'version [^ ]*' || true)
{
  printf '{"context": {"commit": "%s", "gpu": "%s", "compute_sanitizer": "%s", ' \
    "$commit" "$gpu" "$version"
  printf '"command": "%s"},\n' "sanitize.sh $(basename "$out")"
  printf '"runs": [\n'
  (IFS=$'\n' && printf '%s' "${runs[*]}") | sed '$!s/$/,/'
  printf '\n]}\n'
} > "$out"
exit $failed
