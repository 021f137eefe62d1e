"""The templates of the chart: manifests with values in place of what sites choose.

A choice is written into an object as a word `@PATH@`, which becomes an expression of Helm once the object is text.
"""

import importlib.resources
import io
import re
from collections.abc import Iterator
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.cli.admin.install import CUSTOMIZED, FILES, STORE_DIRECTORY, STORE_MOUNT, customize

NAMESPACE: Final = "@Release.Namespace@"
IMAGE: Final = "@image@"
CONDITIONS: Final = {
    "priority-class": "priorityClass.enabled",
    "flow-control": "flowControl.enabled",
    "git-network": "networkPolicy.enabled",
    "network": "networkPolicy.enabled .Values.controller.enabled",
    "controller": "controller.enabled",
    "agent": "agent.enabled",
    "user-roles": "userRoles.enabled",
}
"""Files that a value leaves out."""
WITHOUT: Final = ("namespace",)
"""The namespace is that of the release: Helm makes it, or an administrator does."""
KEEP: Final = "helm.sh/resource-policy"

HELPERS: Final = """\
{{- define "ganger.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}
"""
NOTES: Final = """\
ganger {{ .Chart.AppVersion }} is installed in {{ .Release.Namespace }}.
{{- if .Values.controller.enabled }}

  kubectl -n {{ .Release.Namespace }} rollout status deployment/ganger-controller
{{- else }}

No controller was installed: start it outside the cluster, see docs/how-to/kubernetes.md.
{{- end }}
{{- if ne .Release.Namespace "ganger-system" }}

Users of this controller must set: export GANGER_CONTROLLER_NAMESPACE={{ .Release.Namespace }}
{{- end }}

  ganger --context NAME run -- hostname
"""


def files() -> dict[str, str]:
    """Return the templates by name."""
    names = [name for name in FILES if name not in WITHOUT]
    return {f"{name}.yaml": template(name) for name in names} | {"_helpers.tpl": HELPERS, "NOTES.txt": NOTES}


def template(name: str) -> str:
    """Return one manifest as a template."""
    text = "---\n".join(_with_condition(manifest, _as_text(manifest)) for manifest in _objects(name))
    condition = CONDITIONS.get(name, "")
    if not condition:
        return text
    both = f"and .Values.{condition}" if " " in condition else f".Values.{condition}"
    return f"{{{{- if {both} }}}}\n{text}{{{{- end }}}}\n"


def deployment() -> dict[str, Any]:
    """Return the controller's Deployment as `ganger install` prints it."""
    (manifest,) = (item for item in _load("controller") if item["kind"] == "Deployment")
    return manifest


def _load(name: str) -> list[dict[str, Any]]:
    text = (importlib.resources.files("ganger") / "manifests" / f"{name}.yaml").read_text()
    return list(YAML().load_all(text))


def _objects(name: str) -> Iterator[dict[str, Any]]:
    for manifest in _load(name):
        if name in CUSTOMIZED:
            customize(manifest, NAMESPACE, IMAGE)
        match manifest["kind"]:
            case "CustomResourceDefinition":
                manifest["metadata"].setdefault("annotations", {})[KEEP] = "keep"
            case "Deployment":
                _open_deployment(manifest)
            case "DaemonSet":
                _open_image(manifest["spec"]["template"]["spec"])
            case "NetworkPolicy" if name == "git-network":
                for rule in manifest["spec"]["egress"][1]["to"]:
                    if rule["ipBlock"]["cidr"] == "0.0.0.0/0":
                        rule["ipBlock"]["except"] = [*rule["ipBlock"]["except"], "@list networkPolicy.gitExcept@"]
            case _:
                pass
        yield manifest


def _open_deployment(manifest: dict[str, Any]) -> None:
    """Put values in place of what a site chooses of the controller."""
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    spec["replicas"] = "@controller.replicas@"
    pod["priorityClassName"] = "@controller.priorityClassName@"
    _open_image(pod)
    for key in ("nodeSelector", "tolerations", "affinity"):
        pod[key] = f"@map controller.{key}@"
    container["resources"] = "@map controller.resources@"
    (credentials,) = container["envFrom"]
    credentials["secretRef"]["name"] = "@store.secretName@"
    mount, claim = f"{{name: store, mountPath: {STORE_MOUNT}}}", "{name: store, persistentVolumeClaim: {claimName: $}}"
    container["args"] += [
        "@with store.url printf --store=%s@",
        f"@with store.claimName --store={STORE_DIRECTORY}@",
        "@list controller.args@",
    ]
    container["volumeMounts"].append(f"@with store.claimName {mount}@")
    pod["volumes"].append(f"@with store.claimName {claim}@")


def _open_image(pod: dict[str, Any]) -> None:
    pod["imagePullSecrets"] = "@map image.pullSecrets@"
    pod["containers"][0]["imagePullPolicy"] = "@image.pullPolicy@"


def _with_condition(manifest: dict[str, Any], text: str) -> str:
    """Return the text of an object, which some values leave out by itself."""
    if manifest["kind"] != "PodDisruptionBudget":
        return text
    return f"{{{{- if gt (int .Values.controller.replicas) 1 }}}}\n{text}{{{{- end }}}}\n"


def _as_text(manifest: dict[str, Any]) -> str:
    yaml, stream = YAML(), io.StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.dump(manifest, stream)
    text = stream.getvalue().replace("{{", '{{ "{{" }}')
    text = re.sub(r"^( *)(\w+): '?@map ([\w.]+)@'?$", _mapping, text, flags=re.MULTILINE)
    text = re.sub(r"^( *)- '?@with ([\w.]+) (.+)@'?$", _item, text, flags=re.MULTILINE)
    text = re.sub(r"^( *)- '?@list ([\w.]+)@'?$", _list, text, flags=re.MULTILINE)
    text = text.replace(IMAGE, '{{ include "ganger.image" . }}').replace(NAMESPACE, "{{ .Release.Namespace }}")
    text = re.sub(r"'?@([a-z][\w.]+)@'?", r"{{ .Values.\1 }}", text)
    return re.sub(r"^(.*: )(\{\{ (?:include|\.Release).*\}\})$", r'\1"\2"', _unquoted(text), flags=re.MULTILINE)


def _unquoted(text: str) -> str:
    """Remove the quotes that YAML has put around an expression."""
    return re.sub(r"'([^'\n]*\{\{[^'\n]*\}\}[^'\n]*)'", r"\1", text)


def _mapping(match: re.Match[str]) -> str:
    indent, key, path = match.groups()
    body = f"{indent}{key}:\n{indent}  {{{{- toYaml . | nindent {len(indent) + 2} }}}}"
    return f"{indent}{{{{- with .Values.{path} }}}}\n{body}\n{indent}{{{{- end }}}}"


def _item(match: re.Match[str]) -> str:
    """Return an item of a list that is there if a value is: `$`, or a word of `printf`, stands for the value."""
    indent, path, text = match.groups()
    word, _, pattern = text.partition("printf ")
    text = text.replace("$", "{{ . | quote }}") if word else f'{{{{ printf "{pattern}" . | quote }}}}'
    return f"{indent}{{{{- with .Values.{path} }}}}\n{indent}- {text}\n{indent}{{{{- end }}}}"


def _list(match: re.Match[str]) -> str:
    indent, path = match.groups()
    body = f"{indent}{{{{- toYaml . | nindent {len(indent)} }}}}"
    return f"{indent}{{{{- with .Values.{path} }}}}\n{body}\n{indent}{{{{- end }}}}"
