"""A real node: a machine of its own made of namespaces, with containerd and a kubelet in it.

Its /run, /var/lib and /var/log are folders of the cluster, its links and routes are in a network namespace, its
processes in a PID namespace whose first one takes all of them with it, and its control groups are below one of the
machine's. Of the machine itself nothing is changed but a bridge, and one veth and one control group per node. Tried
with cgroup v1, where this machine's processes and the node's may be in one group.
"""

import json
import subprocess
from pathlib import Path

from tools.testcluster import processes
from tools.testcluster.control_plane.certificates import Authority
from tools.testcluster.programs.binaries import program, system_program
from tools.testcluster.programs.images import PAUSE_IMAGE, images
from tools.testcluster.programs.requirements import CNI_PLUGINS
from tools.testcluster.shape import Shape
from tools.testcluster.waiting import until

# The first process joins the node's control groups, leaves the machine's namespaces, and waits: a shell, because that
# takes the exit of every orphan. cpuset groups start empty, and take no process before they have what their parent has.
FIRST_PROCESS = """
for groups in $1; do
  if [ -e "$groups/cpuset.cpus" ]; then
    cat "${groups%/*}/cpuset.cpus" > "$groups/cpuset.cpus"; cat "${groups%/*}/cpuset.mems" > "$groups/cpuset.mems"
  fi
  echo $$ > "$groups/cgroup.procs"
done
exec unshare --mount --net --pid --cgroup --fork --kill-child --mount-proc --propagation slave \\
  sh -c ': > "$0"; sleep infinity & wait' "$2"
"""

# What is started in a node later joins its control groups, which are all that are seen there.
JOIN_CGROUPS = 'for group in /sys/fs/cgroup/*/; do echo $$ > "${group}cgroup.procs"; done; exec "$@"'

# The kubelet sets these for the whole machine; it may have files of the node's instead.
KERNEL_SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
OWN_FOLDERS = ("run", "var/lib", "var/log")


def prepare(shape: Shape, node: int) -> None:
    """Create folders, certificates and configuration of a node."""
    folder = shape.node_folder(node)
    for own in (*OWN_FOLDERS, "etc/cni", "sys"):
        (folder / own).mkdir(parents=True, exist_ok=True)
    for setting in KERNEL_SETTINGS:
        (folder / "sys" / setting.replace("/", ".")).write_text(Path("/proc/sys", setting).read_text())
    authority = Authority(shape.pki)
    name = f"node-{node}"
    authority.issue_files(name, name, addresses=[shape.node_address(node)])
    authority.write_kubeconfig(folder / "etc" / "kubeconfig", shape.url, f"system:node:{name}", "system:nodes")
    (folder / "etc" / "kubelet.json").write_text(json.dumps(_kubelet_config(shape, node)))
    (folder / "etc" / "containerd.toml").write_text(_containerd_config(folder))
    (folder / "etc" / "cni" / "10-pods.conflist").write_text(json.dumps(_pod_network(shape, node)))


def make_bridge(shape: Shape) -> None:
    """Create the bridge of the nodes. This machine has an address on it, where the API server listens."""
    run("ip", "link", "add", shape.bridge, "type", "bridge")
    run("ip", "address", "add", f"{shape.address}/24", "dev", shape.bridge)
    run("ip", "link", "set", shape.bridge, "up")


def start_machine(shape: Shape, node: int) -> None:
    """Start the node's first process, with its folders and its network."""
    groups = cgroups(f"{shape.cgroup()}-{node}")
    for group in groups:
        group.mkdir(exist_ok=True)
    part = f"node-{node}"
    is_up = shape.node_folder(node) / "up"
    is_up.unlink(missing_ok=True)
    argv = ["sh", "-euc", FIRST_PROCESS, part, " ".join(map(str, groups)), str(is_up)]
    pid = processes.start(shape.record(part), shape.log(part), argv)
    until(is_up.exists, f"the first process of {part}")
    first = processes.pid_in_node(pid)
    _mount_folders(shape.node_folder(node), groups, first)
    link, pods = shape.node_link(node), shape.node_pods(node)
    run("ip", "link", "add", link, "master", shape.bridge, "type", "veth", "peer", "eth0", "netns", str(first))
    run("ip", "link", "set", link, "up")
    _run_in(first, "ip", "link", "set", "lo", "up")
    _run_in(first, "ip", "address", "add", f"{shape.node_address(node)}/24", "dev", "eth0")
    _run_in(first, "ip", "link", "set", "eth0", "up")
    _run_in(first, "ip", "route", "add", "default", "via", shape.address)
    for other in shape.numbers:
        if other != node:
            _run_in(first, "ip", "route", "add", shape.node_pods(other), "via", shape.node_address(other))
    run("ip", "route", "replace", pods, "via", shape.node_address(node), "dev", shape.bridge)


def is_containerd_ready(shape: Shape, node: int) -> bool:
    """Return whether the node's containerd responds."""
    first = processes.pid_in_node(_pid(shape, f"node-{node}"))
    return subprocess.run([*enter_command(first), "ctr", "version"], capture_output=True, check=False).returncode == 0


def load_images(shape: Shape, node: int) -> None:
    """Load the pods' images into the node's running containerd."""
    for image in images():
        load_image(shape, node, image)


def load_image(shape: Shape, node: int, image: Path) -> None:
    """Load an image into the node's running containerd."""
    first = processes.pid_in_node(_pid(shape, f"node-{node}"))
    _run_in(first, "ctr", "--namespace", "k8s.io", "images", "import", str(image))


def command(shape: Shape, part: str) -> list[str]:
    """Return the command line of `containerd-N` or `kubelet-N`, inside its running node."""
    name, _, number = part.rpartition("-")
    node = int(number)
    first = processes.pid_in_node(_pid(shape, f"node-{node}"))
    etc = shape.node_folder(node) / "etc"
    enter = [*enter_command(first), "sh", "-euc", JOIN_CGROUPS, part]
    if name == "containerd":
        return [*enter, system_program("containerd"), "--config", str(etc / "containerd.toml")]
    return [
        *enter,
        program("kubelet"),
        f"--config={etc / 'kubelet.json'}",
        f"--kubeconfig={etc / 'kubeconfig'}",
        f"--hostname-override=node-{node}",
        f"--node-ip={shape.node_address(node)}",
    ]


def cgroups(name: str) -> list[Path]:
    """Return the folders of the control group of that name, one for each hierarchy of the machine."""
    paths = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] in ("cgroup", "cgroup2"):
            paths.append(Path(before.split()[4]) / name)
    return paths


def _pid(shape: Shape, part: str) -> int:
    pid = processes.live_pid(shape.record(part))
    if pid is None:
        raise RuntimeError(f"{part} of the test cluster {shape.name} has ended; see {shape.log(part)}")
    return pid


def _mount_folders(folder: Path, groups: list[Path], first: int) -> None:
    """Mount the node's own folders over the machine's; it sees no control groups but its own."""
    mounts = [(folder / own, f"/{own}") for own in OWN_FOLDERS]
    mounts += [(folder / "sys" / name.replace("/", "."), f"/proc/sys/{name}") for name in KERNEL_SETTINGS]
    mounts += [(group, str(group.parent)) for group in groups]
    for source, target in mounts:
        _run_in(first, "mount", "--bind", str(source), target)


def _run_in(first: int, *argv: str) -> None:
    run(*enter_command(first), *argv)


def enter_command(first: int) -> list[str]:
    """Return the beginning of a command that runs in the node with that first process."""
    return ["nsenter", "--target", str(first), "--mount", "--net", "--pid", "--cgroup"]


def run_in_node(shape: Shape, node: int, *argv: str) -> None:
    """Run a command in a running node."""
    _run_in(processes.pid_in_node(_pid(shape, f"node-{node}")), *argv)


def command_beside_kubelet(shape: Shape, node: int) -> list[str]:
    """Return the beginning of a command with the files and the network of a running node, in the same process."""
    first = processes.pid_in_node(_pid(shape, f"node-{node}"))
    return ["nsenter", "--target", str(first), "--mount", "--net"]


def run(*argv: str) -> None:
    """Run a command of this machine. Raises RuntimeError with its error."""
    answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"`{' '.join(argv)}` failed: {answer.stderr.strip() or answer.stdout.strip()}")


def _kubelet_config(shape: Shape, node: int) -> dict[str, object]:
    pki = shape.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": shape.node_address(node),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.pem")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"node-{node}.pem"),
        "tlsPrivateKeyFile": str(pki / f"node-{node}-key.pem"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        # The disk is the machine's: what others do on it must not evict pods, nor remove images that cannot be pulled.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        # Secrets that change are there soon, without waiting a minute.
        "syncFrequency": "10s",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
    }


def _containerd_config(folder: Path) -> str:
    return f"""version = 2
# Only the kubelet uses containerd, and this plug-in needs a device.
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper"]

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
# A machine that lacks CAP_SYS_RESOURCE may not lower a score.
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{folder / "etc" / "cni"}"
"""


def _pod_network(shape: Shape, node: int) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": shape.node_pods(node)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
