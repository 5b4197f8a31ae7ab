#!/usr/bin/env bash
# Builds the image with buildah, and writes it and a pod's pause beside the tools, for deploy/node.sh.
# It comes on Python's image from Docker's registry, or, where that is not reached, on a Debian that
# is made here. Needs root, buildah, podman and Go, and there debootstrap.
#   deploy/image.sh          for deploy/node.sh
#   deploy/image.sh compose  and the images of docker-compose.yml, for deploy/engine.sh
set -euo pipefail
cd "$(dirname "$0")/.."
refuse() {
  echo "no image can be built here: $1" >&2
  exit 2
}
[ "$(id -u)" = 0 ] || refuse "it needs root"
for each in buildah podman go; do
  command -v "$each" >/dev/null || refuse "there is no $each (Debian: buildah podman golang)"
done
tools="${HEADRACE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace/tools}"
store="$tools/images"
mkdir -p "$store"
# Neither raised limits nor a cgroup manager: where the capabilities for them are missing, no build would start.
printf '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]\n[engine]\ncgroup_manager = "cgroupfs"\n' \
  >"$store/containers.conf"
export CONTAINERS_CONF="$store/containers.conf"
podman() { command podman --root "$store/root" --runroot "$store/run" "$@"; }
buildah() { command buildah --root "$store/root" --runroot "$store/run" "$@"; }

base=(--build-arg BASE=docker.io/library/python:3.11-slim-bookworm)
if ! buildah pull --quiet docker.io/library/python:3.11-slim-bookworm >/dev/null 2>&1; then
  command -v debootstrap >/dev/null || refuse "neither Docker's registry nor debootstrap is here"
  echo "Docker's registry is not reached: building on a Debian that is made here" >&2
  base=(--pull-never --build-arg BASE=localhost/python:3.11-slim-bookworm)
  if ! podman image exists localhost/python:3.11-slim-bookworm; then
    debian="$(mktemp -d)"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$debian"
    # This machine's authorities, for pip and for Java: a proxy may have one of its own.
    awk -v folder="$debian/usr/local/share/ca-certificates" \
      '/BEGIN CERT/ {file = folder "/host-" ++n ".crt"} file {print > file} /END CERT/ {close(file); file = ""}' \
      /etc/ssl/certs/ca-certificates.crt
    chroot "$debian" update-ca-certificates >/dev/null
    chroot "$debian" apt-get clean
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$debian/etc/pip.conf"
    tar -C "$debian" -c . | podman import - localhost/python:3.11-slim-bookworm
    rm -rf "$debian"
  fi
fi
build() { buildah bud --isolation chroot --network host --format docker --layers "${base[@]}" "$@"; }
build --tag localhost/headrace:dev .

pause="$(mktemp -d)"
CGO_ENABLED=0 go build -C deploy/tools -buildvcs=false -ldflags "-s -w" -o "$pause/pause" ./pause
tar -C "$pause" -c pause | podman import --change 'ENTRYPOINT ["/pause"]' - localhost/pause:dev
rm -rf "$pause"
save() { # archive, images...
  rm -f "$1.new" # podman adds to what is there
  podman save -m --format docker-archive --output "$1.new" "${@:2}"
  mv "$1.new" "$1"
  echo "$1"
}
save "$tools/images.tar" localhost/headrace:dev localhost/pause:dev

# And those that docker-compose.yml names, for the tests of it: ours, and what stands in for others.
[ "${1:-}" = compose ] || exit 0
names=()
for target in flights flights-spark; do
  build --target "$target" --tag "docker.io/library/headrace-$target:dev" .
  names+=("docker.io/library/headrace-$target:dev")
done
for each in apache/kafka:4.1.1 library/zookeeper:3.9 library/postgres:17 prom/prometheus:v3.5.0; do
  target="${each#*/}"
  build --target "${target%%:*}" --tag "docker.io/$each" tests/deploy/stand_ins
  names+=("docker.io/$each")
done
save "$tools/compose.tar" "${names[@]}"
