// Command node is what Kubernetes runs on a node, kubelet and kube-proxy: its own name says which.
package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func command(name string) *cobra.Command {
	if name == "kube-proxy" {
		return proxy.NewProxyCommand()
	}
	return kubelet.NewKubeletCommand(context.Background())
}

func main() { os.Exit(cli.Run(command(filepath.Base(os.Args[0])))) }
