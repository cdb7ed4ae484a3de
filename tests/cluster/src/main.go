// The control plane that the cluster tests run against: etcd, kube-apiserver and kubectl in one binary,
// because they share most of their code. Which one it is, the first argument or its own name says.
// Built by tests/cluster/build.py; it is the upstream code with nothing of ours but this choice.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	programs := map[string]func(arguments []string){
		"etcd": func(arguments []string) { etcdmain.Main(arguments) },
		"kube-apiserver": func(arguments []string) {
			os.Args = arguments
			os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
		},
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
	fmt.Fprintf(os.Stderr, "%s: say which program: etcd, kube-apiserver, kubectl\n", os.Args[0])
	os.Exit(2)
}
