#!/usr/bin/env bash
# Runs the op tests under compute-sanitizer, on the host that has the GPU, and keeps the summaries.
# Usage: sanitize.sh OUT.json   (in a bundle's directory; or tests/gpu/sanitize.sh in a built tree)
# Every op runs small shapes that reach all of its kernels: a tool that watches every access makes
# them a hundred times slower. The status says whether all was clean.
set -euo pipefail
out=${1:?usage: sanitize.sh OUT.json}
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/bin
[ -d "$bin" ] || bin=$here/../../build/cuda/tests/gpu
commit=$(cat "$here/COMMIT" 2>/dev/null || git -C "$here" rev-parse HEAD)
seconds_max=120

filter_of() {
  case $1 in
    gpu_attention_test) echo 'AttentionTest.EveryShapeOfHeads*:*.RowsOfPaddingAreZero' ;;
    gpu_linear_test) echo 'LinearReferenceTest.*:OwnKernelTest.*' ;;
    gpu_logprobs_test) echo '*.NonFiniteRowsFailAlone' ;;
    gpu_rows_test) echo '*.EveryRowHasTheContractsBits:*.CopiesRowsByIds' ;;
    gpu_sample_test) echo '*.FailsRowsByTheirOwnNumbersAlone:*.TopPLeavesOut*' ;;
  esac
}

failed=0
runs=()
for test in gpu_rows_test gpu_logprobs_test gpu_sample_test gpu_attention_test gpu_linear_test; do
  for tool in memcheck racecheck initcheck synccheck; do
    filter=$(filter_of "$test")
    begin=$SECONDS
    log=$(timeout "$seconds_max" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      --print-limit 3 "$bin/$test" --gtest_brief=1 --gtest_filter="$filter" 2>&1) && status=0 ||
      status=$?
    summary=$(grep -E 'SUMMARY' <<<"$log" | tail -n 1 | sed 's/^=* *//; s/"//g' || true)
    [ "$status" = 124 ] && summary="no end within $seconds_max s"
    tests=$(grep -oE '[0-9]+ tests? from .* ran' <<<"$log" | head -n 1 || true)
    if [ "$status" != 0 ]; then
      failed=1
      grep -vE 'Host Frame|=========$' <<<"$log" | head -n 30
    fi
    echo "$test $tool: status $status, $summary, $((SECONDS - begin)) s"
    runs+=("{\"test\": \"$test\", \"filter\": \"$filter\", \"tool\": \"$tool\", \
\"status\": $status, \"ran\": \"$tests\", \"summary\": \"$summary\", \
\"seconds\": $((SECONDS - begin))}")
  done
done

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader --id=0)
version=$(compute-sanitizer --version | grep -oE 'version .*' | head -n 1)
{
  printf '{"context": {"commit": "%s", "gpu": "%s", "compute_sanitizer": "%s", ' \
    "$commit" "$gpu" "$version"
  printf '"command": "%s"},\n' "sanitize.sh $(basename "$out")"
  printf '"runs": [\n'
  (IFS=$'\n' && printf '%s' "${runs[*]}") | sed '$!s/$/,/'
  printf '\n]}\n'
} > "$out"
exit $failed
