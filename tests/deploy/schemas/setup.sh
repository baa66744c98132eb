#!/usr/bin/env bash
# Installs the two sets of Kubernetes models that manifests are checked against into OUT. Where they
# cannot be installed it says why in OUT/skipped and exits 0; the check is then skipped with that
# reason. Usage: setup.sh [OUT]     (default: build/schemas of this repository)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../../build/schemas}

packages=(kubernetes-models@5.1.0 @kubernetes/client-node@1.4.0)
mkdir -p "$out"
cd "$out"
skip() {
  echo "$1" | tee skipped
  exit 0
}
for tool in node npm; do
  command -v "$tool" >/dev/null || skip "$tool is not installed, so schemas are not checked"
done
if [ -f ready ] && [ "$(cat ready)" = "${packages[*]}" ]; then exit 0; fi
rm -f ready skipped
echo '{"private": true}' >package.json
npm install --no-audit --no-fund --no-package-lock --ignore-scripts "${packages[@]}" ||
  skip "npm could not install ${packages[*]}, so schemas are not checked"
echo "${packages[*]}" >ready
