#!/usr/bin/env bash
# Runs a command beside a real Kubernetes of one node: node.sh IMAGES COMMAND...
#
# IMAGES is an archive of images, `localhost/pause:dev` among them (deploy/image.sh writes one).
# Everything is in namespaces of its own, processes, network and mounts, so all of it ends with the command:
# nobody else's servers, rules or addresses are touched. The command gets KUBECONFIG, and NODE_ADDRESS, by
# which pods reach what it listens to on 127.0.0.1. Needs root, containerd, runc, CNI plugins, iptables.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  refuse() {
    echo "no node can be started here: $1" >&2
    exit 2
  }
  [ "$#" -ge 2 ] || refuse "say node.sh IMAGES COMMAND..."
  [ "$(id -u)" = 0 ] || refuse "it needs root, for network, mount and process namespaces of its own"
  tools="${HEADRACE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace/tools}"
  for each in containerd ctr runc iptables ip openssl sysctl unshare; do
    command -v "$each" >/dev/null || refuse "there is no $each (Debian: containerd runc iptables iproute2 openssl procps util-linux)"
  done
  [ -x /usr/lib/cni/bridge ] || refuse "there is no /usr/lib/cni/bridge (Debian: containernetworking-plugins)"
  [ -x "$tools/bin/kube" ] || refuse "there is no $tools/bin/kube: run deploy/tools.sh cluster"
  [ -f "$1" ] || refuse "there is no $1: run deploy/image.sh"
  unshare --net --mount --pid --mount-proc --fork true 2>/dev/null ||
    refuse "this root may make no namespaces (a container needs to be privileged, with CAP_SYS_ADMIN)"
  state="$(mktemp -d /tmp/node.XXXXXX)" # short: a socket's path has at most 107 characters
  ended() { # however it ends, nothing stays
    status=$?
    kill -9 "$inside" 2>/dev/null || true # and with it everything inside
    wait "$inside" 2>/dev/null || true
    for _ in {1..50}; do # for what is killed with it ends a moment after it; another node has groups there, too
      find /sys/fs/cgroup/*/kubepods -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -n "$(find /sys/fs/cgroup -maxdepth 2 -name kubepods)" ] || break
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

state="$2" images="$(realpath "$3")"
shift 3
tools="${HEADRACE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace/tools}"
kube="$tools/bin/kube"
address=10.99.0.1
secret="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"

# What these programs would leave on the machine they leave in memory.
for folder in /run/netns /run/containerd /var/lib/cni /var/log/pods /var/log/containers; do
  mkdir -p "$folder" && mount -t tmpfs none "$folder"
done
ip link set lo up
ip link add uplink type veth peer name nowhere # an address for the node; nothing leaves by it
ip link set nowhere up
ip address add "$address/24" dev uplink
ip link set uplink up
ip route add default via "${address%.1}.254"
# Servers for pods listen on 127.0.0.1, as they do for every test; here pods reach them, too.
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
for chain in PREROUTING OUTPUT; do
  iptables -t nat -A "$chain" -d "$address" -p tcp -j DNAT --to-destination 127.0.0.1
done

cd "$state"
openssl genrsa -out accounts.key 2048 2>/dev/null
echo "$secret,admin,admin,system:masters" >tokens.csv
cat >kubeconfig <<END
{apiVersion: v1, kind: Config, current-context: node,
 clusters: [{name: node, cluster: {server: "https://$address:16443", insecure-skip-tls-verify: true}}],
 users: [{name: admin, user: {token: "$secret"}}],
 contexts: [{name: node, context: {cluster: node, user: admin}}]}
END
# Without CAP_SYS_RESOURCE no process may be made less likely to be killed than it is.
cat >containerd.toml <<END
version = 2
root = "$state/images"
state = "$state/containers"
oom_score = 0
[grpc]
  address = "$state/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  cni = { bin_dir = "/usr/lib/cni", conf_dir = "$state/network" }
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
END
mkdir network
cat >network/10-pods.conflist <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
cat >kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: "unix://$state/containerd.sock"
healthzPort: 0
syncFrequency: 5s
END
cat >proxy.yaml <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: node
clientConnection: {kubeconfig: "$state/kubeconfig"}
clusterCIDR: 10.244.0.0/16
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END

start() { # name, command...
  local name="$1"
  shift
  "$@" >"$state/$name.log" 2>&1 &
}
wait_for() { # what, command...
  local what="$1" end=$((SECONDS + 120))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "not within two minutes: $what" >&2; tail -n 3 "$state"/*.log >&2; exit 1; }
    sleep 0.25
  done
}
export KUBECONFIG="$state/kubeconfig" NODE_ADDRESS="$address"
kubectl() { "$kube" kubectl "$@"; }

start etcd "$kube" etcd --data-dir etcd --unsafe-no-fsync --listen-peer-urls http://127.0.0.1:23800 \
  --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790
start containerd containerd --config containerd.toml
start api "$kube" kube-apiserver --etcd-servers=http://127.0.0.1:23790 --secure-port=16443 --cert-dir=certificates \
  --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file=accounts.key --service-account-signing-key-file=accounts.key \
  --authorization-mode=Node,RBAC --token-auth-file=tokens.csv --kubelet-preferred-address-types=InternalIP
wait_for "the API server" kubectl get --raw /readyz
start controllers "$kube" kube-controller-manager --kubeconfig=kubeconfig --leader-elect=false \
  --service-account-private-key-file=accounts.key --root-ca-file=certificates/apiserver.crt \
  --use-service-account-credentials=true --controllers='*,-node-ipam-controller'
start scheduler "$kube" kube-scheduler --kubeconfig=kubeconfig --leader-elect=false
ctr --address containerd.sock --namespace k8s.io images import "$images" >"$state/import.log"
# A kubelet that has to make its node itself, on a busy machine, takes minutes to look for it again.
kubectl create --filename - >/dev/null <<END
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node", "labels": {"kubernetes.io/hostname": "node"}}}
END
start kubelet "$kube" kubelet --config=kubelet.yaml --kubeconfig=kubeconfig --hostname-override=node \
  --root-dir="$state/kubelet" --cert-dir="$state/kubelet-certificates"
start proxy "$kube" kube-proxy --config=proxy.yaml
wait_for "the node" kubectl wait --for=condition=Ready node/node --timeout=1s
# Without isolation of local storage no kubelet says how much there is, and no pod that asks for some is placed.
disk='{"ephemeral-storage": "100Gi"}'
kubectl patch node node --subresource=status --type=merge \
  --patch "{\"status\": {\"capacity\": $disk, \"allocatable\": $disk}}" >/dev/null
wait_for "the default account" kubectl get serviceaccount default
cd "$OLDPWD"
"$@"
