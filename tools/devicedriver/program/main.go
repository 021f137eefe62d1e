// A DRA driver for tests: it publishes the devices of a file, and writes which of them each pod has.
//
// devicedriver NODE KUBECONFIG FILE FOLDER: FILE has slices as the helper of Kubernetes has them (JSON); a pod that
// mounts FOLDER finds its devices in the file of its name, one a line.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "gpu.example.com"

type driver struct{ folder string }

func (d driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		var names []string
		for _, device := range claim.Status.Allocation.Devices.Results {
			if device.Driver == driverName {
				names = append(names, device.Device)
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{device.Request}, PoolName: device.Pool, DeviceName: device.Device,
				})
			}
		}
		for _, user := range claim.Status.ReservedFor {
			text := strings.Join(names, "\n") + "\n"
			if err := os.WriteFile(filepath.Join(d.folder, user.Name), []byte(text), 0o644); err != nil {
				result.Err = err
			}
		}
		results[claim.UID] = result
	}
	return results, nil
}

func (d driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
	}
	return results, nil
}

func (d driver) HandleError(_ context.Context, err error, msg string) { log.Printf("%s: %v", msg, err) }

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func run(node, kubeconfig, file, folder string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var slices []resourceslice.Slice
	if err := json.Unmarshal(text, &slices); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	sockets := filepath.Join(kubeletplugin.KubeletPluginsDir, driverName)
	for _, needed := range []string{folder, sockets} {
		if err := os.MkdirAll(needed, 0o755); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, driver{folder},
		kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pools := map[string]resourceslice.Pool{node: {Slices: slices}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
