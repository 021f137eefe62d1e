"""Image of the controller, made as the Containerfile says but without a container engine.

The image that the Containerfile begins with cannot be pulled here. That of the pods, which has Debian's Python, stands
for it; requirements, source, user, variables and entry point are those of the Containerfile.
"""

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.testcluster.programs.images import base_layer, write_archive

CONTROLLER_IMAGE = "localhost/ganger-testcluster/controller:1"
PYTHON = "3.11"
"""Version of the Python of the base image."""
ROOT = Path(__file__).parents[3]
PREFIX = "/opt/ganger"


def make_controller_image(target: Path) -> None:
    """Write the image as an archive to import."""
    _, _, last_stage = (ROOT / "Containerfile").read_text().rpartition("\nFROM ")
    settings = dict(re.findall(r"^(USER|ENV|ENTRYPOINT) (.*)$", last_stage, re.MULTILINE))
    config = {
        "User": settings["USER"],
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *settings["ENV"].split()],
        "Entrypoint": json.loads(settings["ENTRYPOINT"]),
    }
    write_archive(target, CONTROLLER_IMAGE, [base_layer(), _ganger_layer()], config)


def _ganger_layer() -> bytes:
    """Return an environment with the locked requirements and the source of this checkout."""
    buffer = io.BytesIO()
    with TemporaryDirectory() as folder, tarfile.open(fileobj=buffer, mode="w") as layer:
        command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", f"--target={folder}"]
        command += [f"--python-version={PYTHON}", "--python-platform=x86_64-manylinux_2_28", "--only-binary=:all:"]
        command += ["--require-hashes", f"--requirements={ROOT / 'requirements' / 'kubernetes.txt'}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise RuntimeError(f"the requirements of the controller cannot be installed: {answer.stderr[-2000:]}")
        packages = f"{PREFIX}/lib/python{PYTHON}/site-packages".lstrip("/")
        layer.add(folder, packages, filter=_owned_by_root)
        layer.add(ROOT / "src" / "ganger", f"{packages}/ganger", filter=_owned_by_root)
        python = tarfile.TarInfo(f"{PREFIX}/bin/python".lstrip("/"))
        python.type, python.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        layer.addfile(python)
        settings = b"home = /usr/bin\ninclude-system-site-packages = false\n"
        entry = tarfile.TarInfo(f"{PREFIX}/pyvenv.cfg".lstrip("/"))
        entry.size = len(settings)
        layer.addfile(entry, io.BytesIO(settings))
    return buffer.getvalue()


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry that every user may read, and none but root may change."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry
