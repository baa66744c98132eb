#!/usr/bin/env bash
# Installs the Debian packages of the groups given (build, run, test, bench) that are missing.
# Usage: deploy/install_packages.sh build [test] [bench]
set -euo pipefail
cd "$(dirname "$0")"

missing=()
for group in "$@"; do
  while read -r package; do
    # A command that is there already (another distribution's node, say) needs no package.
    case "$package" in nodejs) command -v node >/dev/null && continue ;;
                       npm) command -v npm >/dev/null && continue ;;
                       git) command -v git >/dev/null && continue ;; esac
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
  done < <(awk -v group="$group" '$1 == group { print $2 }' packages.txt)
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "need root or sudo to install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${#missing[@]} packages: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
