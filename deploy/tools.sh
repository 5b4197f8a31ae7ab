#!/usr/bin/env bash
# Fetches and builds, pinned, what operators' files are checked with; prints the folder.
# Needs the environment and Go's registry. Again and again is quick: what is there stays.
#   deploy/tools.sh score    kube-score: half a minute on two processors
#   deploy/tools.sh chart    helm, kubeconform, schemas
#   deploy/tools.sh cluster  a Kubernetes of one node: five minutes more
#   deploy/tools.sh azurite  Azurite, by npm
#   deploy/tools.sh engine   docker-compose, three minutes more; without dockerd on PATH Debian's
# Several words may be given.
set -euo pipefail
cd "$(dirname "$0")/tools"
tools="${HEADRACE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace/tools}"
mkdir -p "$tools/bin"
kubernetes=v1.34.4
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"

if ! command -v go >/dev/null; then
  if ! cmp -s go.lock "$tools/go/go.lock"; then
    ../../.venv/bin/python -m venv --clear "$tools/go"
    "$tools/go/bin/pip" install --quiet --require-hashes --requirement go.lock
    cp go.lock "$tools/go/"
  fi
  export PATH="$tools/go/bin:$PATH"
fi

# One module with go.sum, so that all share what is compiled.
have() { [ -x "$tools/bin/$1" ] && [ "$(cat "$tools/bin/$1.pin" 2>/dev/null)" = "$2" ]; }
pin="$(cat go.mod go.sum kube/main.go | sha256sum | cut -d ' ' -f 1)"
build() { # name, package, flags of the linker
  have "$1" "$pin" && return
  echo "building $1" >&2
  go build -ldflags "-s -w $3" -o "$tools/bin/$1" "$2"
  echo "$pin" >"$tools/bin/$1.pin"
}
folder() { go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

for each in "$@"; do
  case "$each" in
  score)
    score=github.com/zegl/kube-score/cmd/kube-score@v1.20.0
    if ! have kube-score "$score"; then # its own versions: they do not agree with helm's
      echo "building kube-score" >&2
      GOBIN="$tools/bin" go install -ldflags "-s -w" "$score"
      echo "$score" >"$tools/bin/kube-score.pin"
    fi
    ;;
  chart)
    build kubeconform github.com/yannh/kubeconform/cmd/kubeconform ""
    chartutil=helm.sh/helm/v3/pkg/chartutil
    build helm helm.sh/helm/v3/cmd/helm "-X $chartutil.k8sVersionMajor=1 -X $chartutil.k8sVersionMinor=34"
    # The API's own description, and the operators' definitions, come with their modules.
    operators="github.com/prometheus-operator/prometheus-operator@v0.85.0 github.com/kedacore/keda/v2@v2.21.0"
    schemas="$kubernetes $operators $(sha256sum <../schemas.py)"
    if [ "$(cat "$tools/schemas/.pin" 2>/dev/null)" != "$schemas" ]; then
      rm -rf "$tools/schemas"
      read -r prometheus keda <<<"$operators"
      ../../.venv/bin/python ../schemas.py "$tools/schemas" \
        "$(folder "k8s.io/kubernetes@$kubernetes")/api/openapi-spec/swagger.json" \
        "$(folder "$prometheus")"/example/prometheus-operator-crd/*.yaml "$(folder "$keda")"/config/crd/bases/*.yaml
      echo "$schemas" >"$tools/schemas/.pin"
    fi
    ;;
  cluster)
    flags="-X k8s.io/component-base/version.gitVersion=$kubernetes"
    build kube ./kube "$flags -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34"
    ;;
  engine)
    compose=github.com/docker/compose/v2@v2.40.3
    if ! have docker-compose "$compose"; then # in its own folder: it leaves out versions of others
      echo "building docker-compose" >&2
      mkdir -p "$tools/src"
      cp -rT "$(folder "$compose")" "$tools/src/compose"
      chmod -R u+w "$tools/src/compose"
      go build -C "$tools/src/compose" -ldflags "-s -w -X ${compose%@*}/internal.Version=${compose#*@}" \
        -o "$tools/bin/docker-compose" ./cmd
      rm -rf "$tools/src"
      echo "$compose" >"$tools/bin/docker-compose.pin"
    fi
    if ! command -v dockerd >/dev/null && [ ! -x "$tools/engine/usr/sbin/dockerd" ]; then
      rm -rf "$tools/engine" && mkdir "$tools/engine"
      (cd "$tools/engine" && apt-get download --quiet=2 'docker.io=20.10.*' && dpkg -x docker.io_*.deb . && rm docker.io_*.deb)
    fi
    ;;
  azurite)
    azurite=azurite@3.37.0
    if ! have azurite-blob "$azurite"; then
      npm install --prefix "$tools/azurite" --no-audit --no-fund --ignore-scripts --silent "$azurite"
      ln -sf ../azurite/node_modules/.bin/azurite-blob "$tools/bin/azurite-blob"
      echo "$azurite" >"$tools/bin/azurite-blob.pin"
    fi
    ;;
  *)
    echo "tools.sh knows score, chart, cluster, engine and azurite, not $each" >&2
    exit 2
    ;;
  esac
done
echo "$tools"
