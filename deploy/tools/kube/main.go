// kube is a Kubernetes of one node in one program: `kube etcd …`, `kube kubelet …`, `kube kubectl …`.
//
// One binary shares what its parts have in common; built apart they take five times the disk.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "kube etcd|kubectl|kubelet|kube-apiserver|kube-controller-manager|kube-proxy|kube-scheduler FLAGS")
		os.Exit(2)
	}
	os.Args = os.Args[1:] // each part takes its own name for the program's
	if os.Args[0] == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	part, known := parts[os.Args[0]]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: no part is called %q\n", os.Args[0])
		os.Exit(2)
	}
	os.Exit(cli.Run(part()))
}
