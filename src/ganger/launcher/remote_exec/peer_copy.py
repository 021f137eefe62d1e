"""Copies of a node's checkpoints on another node of the gang: `launcher.pyz push NODE PEER` sends, `hold NODE` takes.

The launcher starts `push` after a save. It asks the agent of the peer, which knows the generation's token, to start
`hold`, and sends the newest checkpoint of this attempt: a line of JSON with its manifest, and once the peer has
answered that it has room, the contents of its files. The copy becomes visible when all of it has the recorded
checksums. A checkpoint that cannot be sent is dropped: training does not wait for it, and the next one is sent again.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys

from ganger.launcher.ranks.checkpoint_copier import DROPPED
from ganger.launcher.remote_exec import frames
from ganger.launcher.remote_exec.agent_client import READ_BYTES, AgentError, connect, receive_challenge
from ganger.launcher.task_directory import write_json
from ganger.train import complete_checkpoints, launcher_environment, read_lock
from ganger.train.complete_checkpoints import MANIFEST, PART_PREFIX, PREFIX
from ganger.train.tiers import local_tier
from ganger.train.tiers.copy_checkpoints import NICENESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

SENT, DROPPED_CODE, BROKEN = 0, 1, 65
STALL_S = 10.0
"""Time for which the peer may take nothing."""
MAX_HEADER_BYTES = 64 << 20
SEND, HAVE = b"send\n", b"have\n"
_NAME = re.compile(rf"({PREFIX}|{PART_PREFIX})(\d{{9,15}})")


class _PeerError(Exception):
    """A checkpoint that the peer cannot take; the text is one sentence."""


# -- the node that has the checkpoint ---------------------------------------------------------------------------------


def push(arguments: list[str]) -> int:
    """Send the newest checkpoint of this attempt on this node to the peer; return the exit code."""
    node, peer = arguments
    os.nice(NICENESS)  # ranks come first
    newest = _newest(launcher_environment.local_checkpoint_directory())
    if newest is None:
        return SENT
    step, directory, manifest = newest
    try:
        connection, token = connect(peer)
        with connection:
            connection.settimeout(STALL_S)
            _Sending(connection, token, f"{frames.HOLD} {node}").send(directory, manifest)
    except (_PeerError, AgentError, OSError, ValueError, KeyError) as error:
        reason = f"it has taken nothing for {STALL_S:g} s" if isinstance(error, socket.timeout) else str(error)
        write_json(os.path.join(os.environ["GANGER_TASK_DIR"], DROPPED), {"step": step, "reason": reason})
        return DROPPED_CODE
    return SENT


def _newest(local: str) -> tuple[int, str, dict[str, Any]] | None:
    """Return step, directory and manifest of the newest whole checkpoint, or part, that this attempt has saved here."""
    kinds = PREFIX, PART_PREFIX
    listed = [found for kind in kinds for found in complete_checkpoints.list_checkpoints(local, kind)]
    for step, directory in sorted(listed, reverse=True):
        read_lock.hold(os.path.join(directory, MANIFEST))
        manifest, flaw = complete_checkpoints.examine(directory, step, most_bytes=-1)
        is_own = (manifest.get("uid"), manifest.get("attempt")) == _owner()
        if not flaw and is_own:
            return step, directory, manifest
    return None


class _Sending:
    """One checkpoint on its way to the peer."""

    def __init__(self, connection: socket.socket, token: str, command: str) -> None:
        self._connection = connection
        challenge, self._buffer = receive_challenge(connection)
        proof = frames.proof(token, challenge, command)
        request = {"v": frames.VERSION, "proof": proof, "command": command}
        connection.sendall(json.dumps(request).encode() + b"\n")
        self._answer, self._errors = b"", b""
        self._is_taken = False

    def send(self, directory: str, manifest: dict[str, Any]) -> None:
        """Send a checkpoint unless the peer has it; raise _PeerError, or OSError."""
        header = json.dumps({"name": os.path.basename(directory), "manifest": manifest}).encode() + b"\n"
        for start in range(0, len(header), READ_BYTES):
            self._write(header[start : start + READ_BYTES])
        while b"\n" not in self._answer and not self._is_taken:
            self._read()
        if self._answer.startswith(SEND):
            for name in manifest["files"]:
                with complete_checkpoints.open_regular(os.path.join(directory, name)) as file:
                    while data := file.read(READ_BYTES):
                        self._write(data)
        self._write(b"")
        while not self._is_taken:
            self._read()

    def _write(self, data: bytes) -> None:
        while select.select([self._connection], [], [], 0)[0]:
            self._read()
        self._connection.sendall(frames.frame(frames.STDIN, data))

    def _read(self) -> None:
        data = self._connection.recv(READ_BYTES)
        if not data:
            raise _PeerError("its launcher closed the connection")
        received, self._buffer = frames.split(self._buffer + data)
        for kind, payload in received:
            if kind == frames.STDOUT:
                self._answer += payload
            elif kind == frames.STDERR:
                self._errors += payload
            elif kind == frames.EXIT:
                self._is_taken = int(payload) in (SENT, frames.DISMISSED)
            if kind == frames.EXIT and not self._is_taken:
                raise _PeerError(
                    self._errors.decode("utf-8", "replace").strip() or f"it ended with code {int(payload)}"
                )


# -- the node that takes a copy ---------------------------------------------------------------------------------------


def hold(arguments: list[str]) -> int:
    """Take a checkpoint of another node from stdin; return the exit code."""
    (node,) = arguments
    os.nice(NICENESS)
    local = launcher_environment.local_checkpoint_directory()
    try:
        _take(sys.stdin.buffer, local, node)
    except _PeerError as error:
        sys.stderr.write(f"{error}\n")
        return BROKEN
    except OSError as error:
        sys.stderr.write(f"it cannot write {error.filename or local}: {error.strerror}\n")
        return BROKEN
    return SENT


def _take(stream: BinaryIO, local: str, node: str) -> None:
    """Take one checkpoint; nothing of it remains unless it is whole."""
    import shutil

    name, step, manifest = _header(stream.readline(MAX_HEADER_BYTES))
    place = os.path.join(local, local_tier.HELD, node)
    final = os.path.join(place, name)
    if not complete_checkpoints.examine(final, step, most_bytes=-1)[1]:
        _reply(HAVE)
        return
    os.makedirs(place, exist_ok=True)
    for other in os.listdir(place):
        if other.startswith("."):  # of a sender that is gone
            shutil.rmtree(os.path.join(place, other), ignore_errors=True)
    _check_room(place, sum(stats["bytes"] for stats in manifest["files"].values()))
    draft = os.path.join(place, f".{os.getpid()}")
    os.mkdir(draft)
    try:
        _reply(SEND)
        for file_name, stats in manifest["files"].items():
            _take_file(stream, os.path.join(draft, file_name), stats)
        with open(os.path.join(draft, MANIFEST), "w", encoding="utf-8") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)  # of an earlier attempt, or broken
        os.rename(draft, final)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    local_tier.drop_held(local, final)


def _take_file(stream: BinaryIO, path: str, stats: dict[str, int]) -> None:
    import zlib

    os.makedirs(os.path.dirname(path), exist_ok=True)
    missing_bytes, crc32 = stats["bytes"], 0
    with open(path, "wb") as file:
        while missing_bytes:
            data = stream.read(min(READ_BYTES, missing_bytes))
            if not data:
                raise _PeerError("the sender ended")
            file.write(data)
            crc32 = zlib.crc32(data, crc32)
            missing_bytes -= len(data)
        file.flush()
        os.fsync(file.fileno())
    if crc32 != stats["crc32"]:
        raise _PeerError(f"{os.path.basename(path)} has other contents than when it was saved")


def _header(line: bytes) -> tuple[str, int, dict[str, Any]]:
    """Return name, step and manifest; raise _PeerError unless it is a checkpoint of this attempt with safe paths."""
    try:
        header = json.loads(line)
        match, manifest = _NAME.fullmatch(header["name"]), header["manifest"]
        if match is None or (manifest["uid"], manifest["attempt"]) != _owner() or manifest["step"] != int(match[2]):
            raise ValueError("it is not of this attempt")
        for name, stats in manifest["files"].items():
            is_safe = os.path.normpath(name) == name and not name.startswith(("/", "..")) and "\0" not in name
            if not is_safe or name in (".", MANIFEST):
                raise ValueError(f"{name[:100]!r} is not a name of a file in it")
            if not all(type(stats[key]) is int and stats[key] >= 0 for key in ("bytes", "crc32")):
                raise ValueError("a size or a checksum is not a number")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _PeerError(f"it is not a checkpoint: {error}") from None
    return header["name"], int(match[2]), manifest


def _check_room(place: str, size_bytes: int) -> None:
    """Raise _PeerError unless the disk has room for the copy, and for one of its own as large."""
    disk = os.statvfs(place)
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes < 2 * size_bytes:
        raise _PeerError(f"it has no room: {free_bytes >> 20} MiB are free, and a copy has {size_bytes >> 20} MiB")


def _owner() -> tuple[str, int]:
    return launcher_environment.uid(), launcher_environment.attempt()


def _reply(answer: bytes) -> None:
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
