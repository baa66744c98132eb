#!/usr/bin/env bash
# From a checkout to a running cluster with a proof: installs what is missing, builds, starts
# gateway, router, scheduler and two workers on the loopback with the demo model, asks it a few
# questions, and proves that its answers do not depend on anything but their own input.
# Usage: deploy/quickstart.sh [--once] [--port=7100]
#   --once   stop after the proof; exit code 0 only if all of it held
#   --port   of the gateway; the cluster takes this one and the nine that follow
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,8s/^# //p' deploy/quickstart.sh; }
refuse() {
  echo "quickstart.sh: $*" >&2
  usage >&2
  exit 2
}

# Gateway, router, scheduler and two workers, each with a port for gRPC and one for metrics.
ports=10
once=false
port=7100
for argument in "$@"; do
  case "$argument" in
    --once) once=true ;;
    --port=*) port=${argument#--port=} ;;
    --help) usage; exit 0 ;;
    *) refuse "$argument: unknown" ;;
  esac
done
# All that can be wrong is said before the build, which takes minutes.
port_max=$((65536 - ports))
[[ $port =~ ^[1-9][0-9]{0,4}$ ]] && [ "$port" -le "$port_max" ] ||
  refuse "--port: '$port' is not a whole number in [1, $port_max]"
for ((used = port; used < port + ports; ++used)); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$used") 2>/dev/null; then
    refuse "--port: of $port to $((port + ports - 1)), which a cluster takes, $used is in use"
  fi
done

step() { printf '\n== %s\n' "$*"; }

step "1/5 packages"
deploy/install_packages.sh build

step "2/5 build"
# A tree that is configured already, perhaps with tests, stays as it is.
[ -f build/release/build.ninja ] ||
  cmake --preset release -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_BENCH=OFF --log-level=WARNING
cmake --build build/release --target lockstep
lockstep=$PWD/build/release/services/cli/lockstep

step "3/5 cluster"
# Where `up` keeps its files by default, so that `verify` finds them without being told.
run_dir=${TMPDIR:-/tmp}/lockstep-$port
"$lockstep" up --model=deploy/demo-model --workers=2 --port="$port" --run_dir="$run_dir" &
up=$!
stop() {
  kill -TERM "$up" 2>/dev/null || true
  wait "$up" || true
}
trap stop EXIT
trap 'exit 130' INT TERM
until [ "$(cat "$run_dir/up.pid" 2>/dev/null)" = "$up" ] && [ -s "$run_dir/gateway.address" ]; do
  kill -0 "$up" 2>/dev/null || { echo "the cluster did not start" >&2; exit 1; }
  sleep 0.1
done
target=$(cat "$run_dir/gateway.address")

step "4/5 first answers"
"$lockstep" generate --target="$target" --prompt='12+34*2=' --seed=1
# Greedy for arithmetic, drawn for the rest.
ask() {
  local answer
  answer=$("$lockstep" generate --target="$target" --prompt="$1" --seed=1 "${@:2}")
  echo "$1$(sed -n 's/^  text      //p' <<<"$answer")"
}
for prompt in '(44+81)*4=' '18+2*55=' '48+31*8='; do ask "$prompt" --temperature=0; done
for prompt in 'Say it with emoji:' 'Greet the world:' 'Count to 20:'; do ask "$prompt"; done

step "5/5 proof of determinism"
"$lockstep" verify --target="$target" --mode=all --trials=4

if $once; then
  step "all held"
  exit 0
fi
step "serving until you press Ctrl-C"
cat <<END
gRPC        $target
metrics     http://127.0.0.1:$((port + 1))/metrics (gateway; the others are listed above)
try         $lockstep generate --target=$target --prompt='7+8*9=' --stream
            $lockstep verify --target=$target --mode=all --trials=50
END
wait "$up"
