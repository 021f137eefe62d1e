"""`launcher.pyz agent NODE WORD...`: run a command on another node of the same generation, in place of ssh.

mpirun and similar programs start it on the node of rank 0, as the script `agent` in the generation's directory. It
proves to that node's `agent` that it knows the generation's token, which is not sent; input, output and exit code are
those of the command.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from ganger.launcher.remote_exec.frames import EXIT, STDIN, STDOUT, VERSION, frame, proof, split

NO_CONNECTION = 255  # exit code of ssh when ssh itself fails
CONNECT_TIMEOUT_S = 30.0
READ_BYTES = 64 * 1024


class AgentError(Exception):
    """The command did not run, or its outcome is unknown; the text is one sentence."""


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code (128 plus a signal), or 255 if there was none."""
    try:
        if len(arguments) < 2:
            raise AgentError("usage: agent NODE WORD...")
        node, command = arguments[0], " ".join(arguments[1:])
        connection, token = connect(node)
        with connection:
            return _run(connection, node, token, command)
    except AgentError as error:
        sys.stderr.write(f"ganger agent: {error}\n")
        return NO_CONNECTION


def connect(node: str) -> tuple[socket.socket, str]:
    """Return a connection to the agent of a node, and the token; raise AgentError."""
    directory = os.environ.get("GANGER_TASK_DIR")
    if not directory:
        raise AgentError("GANGER_TASK_DIR is not set: the agent exists only in jobs whose framework uses it")
    try:
        with open(os.path.join(directory, "agents.json"), encoding="utf-8") as file:
            agents = json.load(file)
        with open(os.path.join(directory, "agent-token"), encoding="utf-8") as file:
            token = file.read().strip()
        agents = {str(name): (str(address), int(port)) for name, (address, port) in agents.items()}
    except (OSError, ValueError, OverflowError, TypeError, AttributeError, RecursionError) as error:
        raise AgentError(f"this job has no agents: {error}") from None
    if node not in agents:
        raise AgentError(f"no node {node!r} in this job; it has {', '.join(agents)}")
    address, port = agents[node]
    try:
        return socket.create_connection((address, port), CONNECT_TIMEOUT_S), token
    except (OSError, OverflowError, ValueError) as error:
        raise AgentError(f"cannot connect to the agent of {node} at {address}:{port}: {error}") from None


def _run(connection: socket.socket, node: str, token: str, command: str) -> int:
    try:
        challenge, buffer = receive_challenge(connection)
        connection.settimeout(None)
        answer = {"v": VERSION, "proof": proof(token, challenge, command), "command": command}
        connection.sendall(json.dumps(answer).encode() + b"\n")
        threading.Thread(target=_forward_input, args=(connection,), daemon=True).start()
        while True:
            data = connection.recv(READ_BYTES)
            if not data:
                break
            frames, buffer = split(buffer + data)
            for kind, payload in frames:
                if kind == EXIT:
                    return int(payload) & 255
                _write(1 if kind == STDOUT else 2, payload)
    except (ConnectionError, socket.timeout):
        pass
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise AgentError(f"the agent of {node} sent what is not of its protocol: {error!r}") from None
    raise AgentError(f"the agent of {node} closed the connection: is the token in agent-token correct?")


def receive_challenge(connection: socket.socket) -> tuple[str, bytes]:
    """Return the agent's challenge, and what it sent after it. Raises ConnectionError."""
    received = b""
    while b"\n" not in received:
        data = connection.recv(READ_BYTES)
        if not data or len(received) > READ_BYTES:
            raise ConnectionResetError
        received += data
    line, _, rest = received.partition(b"\n")
    return str(json.loads(line)["challenge"]), rest


def _forward_input(connection: socket.socket) -> None:
    try:
        while True:
            data = os.read(0, READ_BYTES)
            connection.sendall(frame(STDIN, data))
            if not data:
                return
    except OSError:
        return  # the command has ended, or there is no input


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
