"""Hosts of their own network on this machine, for tests.

Each host is a network namespace with one address; a switch joins them, which
is a bridge in one more namespace. Nothing of it is seen from outside, and no
packet leaves it, so that parallel runs may use the same addresses.
"""

import os
import secrets
import shutil
import subprocess

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_IP = shutil.which("ip", path=_PATH)


def why_not():
    """Why no namespaces can be made here; `None` if they can."""
    if _IP is None:
        return "no ip: install iproute2"
    name = f"probe-{os.getpid()}-{secrets.token_hex(3)}"
    # Making a namespace is not enough: a container may forbid a bridge.
    commands = (
        ["netns", "add", name],
        ["-n", name, "link", "add", "switch", "type", "bridge"],
        ["-n", name, "link", "add", "one", "type", "veth", "peer", "other"],
    )
    try:
        for command in commands:
            done = _run(command)
            if done.returncode:
                return f"ip {' '.join(command)}: {done.stderr.strip()}"
    finally:
        _run(["netns", "del", name])
    return None


class Hosts:
    """Namespaces joined by a switch; leaving the context removes them.

    Host `i` has the address `10.77.0.{i + 1}` and a loopback of its own.

    Args:
        count: how many hosts there are.

    Attributes:
        addresses: the address of each, without a port.
    """

    def __init__(self, count):
        prefix = f"hosts-{os.getpid()}-{secrets.token_hex(3)}"
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self._names = [f"{prefix}-{i}" for i in range(count)]
        self._switch = f"{prefix}-switch"
        self._made = []

    def __enter__(self):
        try:
            self._make_switch()
            for i in range(len(self._names)):
                self._make_host(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The links go with their namespaces.
        for name in reversed(self._made):
            _run(["netns", "del", name])
        self._made = []

    def command(self, host, *arguments):
        """The command line that runs a command on a host.

        It replaces itself by the command: a signal to the one reaches the
        other.
        """
        return [_IP, "netns", "exec", self._names[host], *arguments]

    def cut_off(self, host):
        """Takes a host's cable out: packets vanish, nobody is told."""
        self._do("-n", self._switch, "link", "set", f"port{host}", "down")

    def join(self, host):
        """Puts a host's cable in again."""
        self._do("-n", self._switch, "link", "set", f"port{host}", "up")

    def _make_switch(self):
        self._make_namespace(self._switch)
        self._do("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        self._do("-n", self._switch, "link", "set", "bridge", "up")

    def _make_host(self, i):
        name, port = self._names[i], f"port{i}"
        self._make_namespace(name)
        self._do(
            *("-n", self._switch, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        self._do("-n", self._switch, "link", "set", port, "master", "bridge")
        self._do(
            *("-n", name, "addr", "add", f"{self.addresses[i]}/24"),
            *("dev", "eth0"),
        )
        self._do("-n", name, "link", "set", "lo", "up")
        self._do("-n", name, "link", "set", "eth0", "up")
        self.join(i)

    def _make_namespace(self, name):
        self._do("netns", "add", name)
        self._made.append(name)

    def _do(self, *arguments):
        done = _run(arguments)
        assert done.returncode == 0, f"ip {arguments}: {done.stderr}"


def _run(arguments):
    return subprocess.run(
        [_IP, *arguments], capture_output=True, text=True, timeout=30
    )
