"""Code of a GangJob that is stored for pods, and code that is rejected; with real clusters: tests/conformance."""

import asyncio
import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ganger.code.packed_code import pack
from ganger.errors import RequestError
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import ObjectMeta
from ganger.model.job import JobSpec, Origin
from ganger.spec import spec_from_dict
from tests.kubernetes.jobs.test_gang_jobs import NO_CODE

ORIGIN = Origin(directory="/ganger/work")
ABOUT = ObjectMeta(name="bert", namespace="team")


def asking(code: object) -> JobSpec:
    return spec_from_dict({"run": "true", "code": code}, "a test")


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "run").write_text("#!/bin/sh\n")
        (tmp_path / name / "sub" / "run").chmod(0o755)
    subprocess.run(["touch", "-d", "2001-01-01", str(tmp_path / "two" / "sub" / "run")], check=True)
    first = pack(tmp_path / "one")
    assert pack(tmp_path / "two") == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert [(entry.name, entry.mode & 0o777, entry.uid) for entry in archive if entry.isfile()] == [
            ("sub/run", 0o755, 0)
        ]


def provided(spec: JobSpec, metadata: ObjectMeta) -> Origin:
    return asyncio.run(NO_CODE.provide(spec, metadata, ORIGIN))


def test_a_directory_counts_when_its_archive_is_named() -> None:
    output = replace_annotations({object_names.CODE: "a" * 64})
    assert provided(asking("./src"), output) == replace(ORIGIN, code_hash="a" * 64)
    for wrong in ("", "a" * 63, "../../" + "a" * 58):
        with pytest.raises(RequestError, match="which a controller cannot access"):
            provided(asking("./src"), replace_annotations({object_names.CODE: wrong}))


def replace_annotations(output: dict[str, str]) -> ObjectMeta:
    return ObjectMeta(name=ABOUT.name, namespace=ABOUT.namespace, annotations=output)


def test_a_job_without_code_comes_from_nowhere_else() -> None:
    assert provided(spec_from_dict({"run": "true"}, "a test"), ABOUT) == ORIGIN
