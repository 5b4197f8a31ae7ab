#!/usr/bin/env bash
# Runs a command beside a Docker engine of its own: engine.sh IMAGES COMMAND...
#
# IMAGES is an archive of images (deploy/image.sh compose writes one). As with deploy/node.sh all is in
# namespaces of its own and ends with the command, which gets DOCKER_HOST. Needs root, containerd, runc,
# iptables, and dockerd: on PATH, or in the tools' folder, where deploy/tools.sh engine puts Debian's.
set -euo pipefail

tools="${HEADRACE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace/tools}"
PATH="$PATH:$tools/engine/usr/sbin:$tools/engine/usr/bin"
if [ "${1:-}" != --inside ]; then
  refuse() {
    echo "no engine can be started here: $1" >&2
    exit 2
  }
  [ "$#" -ge 2 ] || refuse "say engine.sh IMAGES COMMAND..."
  [ "$(id -u)" = 0 ] || refuse "it needs root, for network, mount and process namespaces of its own"
  for each in dockerd containerd runc iptables ip unshare; do
    command -v "$each" >/dev/null || refuse "there is no $each: run deploy/tools.sh engine (Debian: docker.io)"
  done
  [ -f "$1" ] || refuse "there is no $1: run deploy/image.sh compose"
  unshare --net --mount --pid --mount-proc --fork true 2>/dev/null ||
    refuse "this root may make no namespaces (a container needs to be privileged, with CAP_SYS_ADMIN)"
  state="$(mktemp -d /tmp/engine.XXXXXX)" # short: a socket's path has at most 107 characters
  ended() { # however it ends, nothing stays
    status=$?
    kill -9 "$inside" 2>/dev/null || true # and with it everything inside
    wait "$inside" 2>/dev/null || true
    for _ in {1..300}; do # for what is killed with it ends a moment after it
      find /sys/fs/cgroup/*/"${state##*/}" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -n "$(find /sys/fs/cgroup -maxdepth 2 -name "${state##*/}")" ] || break
      sleep 0.1
    done
    [ "$status" = 0 ] || [ -z "${NODE_LOGS:-}" ] || cp "$state"/*.log "$NODE_LOGS" || true
    rm -rf "$state"
    exit "$status"
  }
  unshare --net --mount --pid --mount-proc --fork --kill-child "$0" --inside "$state" "$@" <&0 &
  inside=$!
  trap ended EXIT
  trap 'exit 143' TERM INT
  wait "$inside"
  exit 0
fi

state="$2" images="$3"
shift 3
# What these programs would leave on the machine they leave in memory.
for folder in /run/docker /run/containerd /run/netns; do
  mkdir -p "$folder" && mount -t tmpfs none "$folder"
done
ip link set lo up
ip link add uplink type veth peer name nowhere # nothing leaves by it, but bridges want a default route
ip link set nowhere up
ip address add 10.98.0.1/24 dev uplink
ip link set uplink up
ip route add default via 10.98.0.254
export DOCKER_HOST="unix://$state/docker.sock"
dockerd --host "$DOCKER_HOST" --data-root "$state/data" --exec-root "$state/exec" --pidfile "$state/pid" \
  --storage-driver overlay2 --cgroup-parent "/${state##*/}" --oom-score-adjust 0 >"$state/dockerd.log" 2>&1 &
end=$((SECONDS + 120))
until docker version >/dev/null 2>&1; do
  [ "$SECONDS" -lt "$end" ] || { echo "not within two minutes: the engine" >&2; tail -n 20 "$state/dockerd.log" >&2; exit 1; }
  sleep 0.25
done
docker load --quiet --input "$images" >"$state/load.log"
"$@"
