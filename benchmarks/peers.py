"""Installs the libraries that the benchmarks race, each in an environment of its own.

    python benchmarks/peers.py list
    python benchmarks/peers.py install NAME

The environments are `benchmarks/.venvs/NAME`, or `$KERAS_RECSYS_PEERS/NAME` where that
variable names another folder. `PeerProcess` talks to a script of `runners/` that runs
in one of them.
"""

import argparse
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import venv

from harness import PeerMissing

PEERS = {
    "deepctr": ["deepctr==0.9.4", "tf_keras==2.21.0", "tensorflow==2.21.0"],
    "fuxictr": ["fuxictr==2.3.10", "torch==2.13.0"],
    "torch": ["torch==2.13.0", "numpy"],
}
"""The pinned requirements of each peer, as `pip install` takes them."""

RUNNERS = pathlib.Path(__file__).parent / "runners"


def folder():
    """Gives the folder that holds one environment a peer."""
    elsewhere = os.environ.get("KERAS_RECSYS_PEERS")
    return pathlib.Path(elsewhere or pathlib.Path(__file__).parent / ".venvs")


def peer_python(name):
    """Gives the interpreter of the environment of a peer.

    Args:
        name: A key of `PEERS`.

    Returns:
        A `pathlib.Path`, or `None` if the peer is not installed.

    Raises:
        ValueError: If there is no such peer.
    """
    if name not in PEERS:
        raise ValueError(
            f"`name` must be one of {sorted(PEERS)}. Received: name={name!r}."
        )
    bin_folder = "Scripts" if os.name == "nt" else "bin"
    python = folder() / name / bin_folder / "python"
    return python if python.exists() else None


def require_peer(name):
    """Gives the interpreter of a peer, or raises `PeerMissing`."""
    python = peer_python(name)
    if python is None:
        raise PeerMissing(
            f"{name} is not installed: python benchmarks/peers.py install {name}"
        )
    return python


def install(name):
    """Makes the environment of a peer anew and installs its pinned requirements."""
    if name not in PEERS:
        raise ValueError(
            f"`name` must be one of {sorted(PEERS)}. Received: name={name!r}."
        )
    path = folder() / name
    if path.is_symlink():  # what it points to is not ours to clear
        path.unlink()
    venv.create(path, with_pip=True, clear=True)
    bin_folder = "Scripts" if os.name == "nt" else "bin"
    pip = [path / bin_folder / "python", "-m", "pip", "install"]
    subprocess.run([*pip, *PEERS[name]], check=True)


class PeerProcess:
    """A runner in the environment of a peer, which answers one command at a time.

    Used as a context manager. Between two commands the runner waits for a line and
    uses no CPU, so that what runs meanwhile in this process is not disturbed.

    Args:
        name: A key of `PEERS`.
        script: File name of the runner in `runners/`.
        *args: Its arguments.
        env: Dict of further environment variables.

    Raises:
        PeerMissing: If the peer is not installed; `ask` raises it too, if the runner
            reports an error, ends, or takes too long.
    """

    def __init__(self, name, script, *args, env=None):
        python = require_peer(name)
        self.name = name
        self._log = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(
            [python, RUNNERS / script, *map(str, args)],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        self._answer(timeout=300)

    def __enter__(self):
        """Gives the process itself."""
        return self

    def __exit__(self, *exc_info):
        """Ends the runner."""
        self.close()

    def ask(self, command, timeout=1800):
        """Sends a command and waits for the reply, a dict.

        Args:
            command: The command and its words in one line.
            timeout: Seconds to wait; then the runner is killed. Defaults to `1800`.
        """
        if self._process.poll() is not None:
            raise PeerMissing(f"{self.name} has ended: {self._tail()}")
        self._process.stdin.write(command.encode() + b"\n")
        return self._answer(timeout)

    def seconds(self, command):
        """Makes a callable for `interleave` that asks and returns the seconds."""
        return lambda: float(self.ask(command)["seconds"])

    def close(self):
        """Ends the runner."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self, timeout):
        line = b""
        deadline = time.monotonic() + timeout
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                raise PeerMissing(f"{self.name} gave no answer in {timeout} s")
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                self._process.wait()
                raise PeerMissing(f"{self.name} ended: {self._tail()}")
            line += piece
        reply = json.loads(line)
        if "error" in reply:
            raise PeerMissing(f"{self.name}: {reply['error']}")
        return reply

    def _tail(self):
        self._log.seek(0)
        return " | ".join(self._log.read().strip().split("\n")[-3:])[-500:]


def main(argv=None):
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="peers.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="says what is installed, and where")
    installs = commands.add_parser("install", help="makes the environment of a peer")
    installs.add_argument("name", choices=sorted(PEERS))
    args = parser.parse_args(argv)
    if args.command == "install":
        install(args.name)
    for name in sorted(PEERS):
        where = peer_python(name) or "not installed"
        print(f"{name:12} {where}  ({' '.join(PEERS[name])})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
