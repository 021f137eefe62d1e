"""Spark and a Java runtime for the Spark operator and the pods of its applications, in a cache outside of the checkout.

Spark is the PySpark of `requirements/spark.txt`, and Java is Debian's package, unpacked without being installed: the
operator runs `spark-submit` on this machine, and pods mount the folder from it.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.testcluster.programs.binaries import cache
from tools.testcluster.programs.requirements import Unavailable

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements" / "spark.txt"
JAVA_PACKAGE: Final = "openjdk-17-jre-headless"
JAVA_HOME: Final = "usr/lib/jvm/java-17-openjdk-amd64"
LEFT_OUT: Final = (
    "pyspark/jars/rocksdbjni-*",
    "pyspark/jars/spark-connect_*",
    "pyspark/jars/spark-mllib_*",
    "pyspark/jars/breeze_*",
    "pyspark/jars/spire_*",
    "pyspark/jars/cats-kernel_*",
    "pyspark/jars/scala-compiler-*",
    "pyspark/jars/derby-*",
    "pyspark/jars/datanucleus-*",
)
"""Large files that applications without SQL and MLlib do not load."""
MASTER: Final = '"https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"'
ENTRY: Final = f"""#!/bin/sh
# What an image of Spark runs with the arguments `driver ...` or `executor`. Pods of the test cluster have no name
# server: executors reach the driver by its address, and it the API server by the address that every pod is given.
here=$(dirname "$0")
export SPARK_HOME="$here/python/pyspark" JAVA_HOME="$here/java"
role=$1
shift
if [ "$role" = driver ]; then
  exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client --conf spark.driver.host="$SPARK_DRIVER_BIND_ADDRESS" \\
    --conf spark.driver.bindAddress="$SPARK_DRIVER_BIND_ADDRESS" --conf spark.kubernetes.driver.master={MASTER} "$@"
fi
options=$(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')
exec "$JAVA_HOME/bin/java" $options -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \\
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url "$SPARK_DRIVER_URL" \\
  --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \\
  --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \\
  --podName "$SPARK_EXECUTOR_POD_NAME"
"""
APPLICATION: Final = '''"""Compute on the executors, report the sum, and go on until it is stopped."""

import time

from pyspark import SparkContext

context = SparkContext()
print("sum of squares:", context.parallelize(range(1000), 12).map(lambda number: number * number).sum(), flush=True)
while True:
    time.sleep(1)
'''


def spark() -> Path:
    """Return the folder with `java`, `python` with PySpark, `entry.sh` and `application.py`, made before by `make`."""
    made_from = (LOCK.read_bytes(), JAVA_PACKAGE, LEFT_OUT, ENTRY, APPLICATION)
    return cache().with_name("operators") / f"spark-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:12]}"


def is_made() -> bool:
    """Return whether it exists."""
    return (spark() / "application.py").exists()


def make() -> None:
    """Make it; the application is written last, so that all is complete when that exists. Raises Unavailable."""
    folder = spark()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _unpack_java(folder / "java")
    _install_pyspark(folder / "python")
    (folder / "entry.sh").write_text(ENTRY)
    (folder / "entry.sh").chmod(0o755)
    (folder / "application.py").write_text(APPLICATION)


def _unpack_java(target: Path) -> None:
    """Unpack the runtime of Debian's package; its links into /etc become the files that they lead to."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable(f"Spark needs Java from Debian's package {JAVA_PACKAGE}, and this machine has no apt-get")
    with TemporaryDirectory() as name:
        folder = Path(name)
        options = ("-qq", "-o", "APT::Sandbox::User=root")
        subprocess.run(["apt-get", *options, "download", JAVA_PACKAGE], cwd=folder, check=True)
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, folder / "files"], check=True)
        home = folder / "files" / JAVA_HOME
        for link in [path for path in home.rglob("*") if path.is_symlink()]:
            file = folder / "files" / str(link.readlink()).lstrip("/")
            link.unlink()
            if file.exists():
                shutil.copy(file, link)
        shutil.copytree(home, target, ignore=shutil.ignore_patterns("legal", "man", "ct.sym"))


def _install_pyspark(target: Path) -> None:
    command = [ROOT / ".venv" / "bin" / "uv", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
    # Its source distribution is large, and needed once.
    subprocess.run([*command, "--no-cache", "--target", target, "--requirements", LOCK], check=True)
    for pattern in LEFT_OUT:
        for file in target.glob(pattern):
            file.unlink()
