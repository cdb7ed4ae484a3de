// The programs of the cluster that the tests run against, in one binary, because they share most of their
// code. Which one it is, the first argument or its own name says. Built by tests/cluster/build.py; it is the
// upstream code with nothing of ours but this choice. (helm is a program of its own: go.mod pins it as a tool.)
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// server makes a program of a long-running command; `command` is called only when it is chosen, since
// each of them registers flags and metrics that the others have as well.
func server(command func() *cobra.Command) func([]string) {
	return func(arguments []string) {
		os.Args = arguments
		os.Exit(cli.Run(command()))
	}
}

func main() {
	programs := map[string]func(arguments []string){
		"etcd":                    func(arguments []string) { etcdmain.Main(arguments) },
		"kube-apiserver":          server(apiserver.NewAPIServerCommand),
		"kube-controller-manager": server(controllers.NewControllerManagerCommand),
		"kube-scheduler":          server(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kube-proxy":              server(proxy.NewProxyCommand),
		"kubelet":                 server(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
		"kubectl": func(arguments []string) {
			os.Args = arguments
			if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
				util.CheckErr(err)
			}
		},
	}
	for first := 0; first < 2 && first < len(os.Args); first++ {
		if run, ok := programs[filepath.Base(os.Args[first])]; ok {
			run(os.Args[first:])
			return
		}
	}
	fmt.Fprintf(os.Stderr, "%s: say which program: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl\n", os.Args[0])
	os.Exit(2)
}
