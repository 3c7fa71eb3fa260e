#!/usr/bin/env python3
"""Runs the daemon's packages on a host: a Debian root whose systemd is the first process of
namespaces of its own, with the control plane of the tests beside it.

  tests/packages/session.py ROOT DEB NEWER_DEB RPM NEWER_RPM

The transcript in docs/INSTALL.md is typed there, command by command, and has to be answered as it
says. Then packages are upgraded, removed and purged. Every fault is a line on stdout; what could
not be tried is a line `SKIP NAME: WHY`.

It must not change anything of the machine but ROOT, must not listen or connect beyond its own
network namespace, and must not leave a process behind.
"""

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
TRANSCRIPT = os.path.join(TOP, "docs", "INSTALL.md")
# Which part of it: the code after this heading and before the next.
HEADING = "## Walkthrough"
PLANE = os.path.join(TOP, "tests", "plane", "up")
# How the plane begins to say that there is nothing it could start.
MISSING = "control plane binaries: "
# What is asked again until it is answered as the transcript says: it tells what goes on meanwhile.
WATCHED = ("journalctl ", "systemctl status ", "outrigger status")
# Where systemd puts what is enabled.
ENABLED = "etc/systemd/system"
# For what takes a second or ten on a quiet machine.
PATIENCE = 90
# In a network namespace of its own the daemon's port is free, and nothing else is in reach.
INSIDE = "OUTRIGGER_SESSION_INSIDE"
# Without colours, pagers and the caller's language.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
}
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LIBC = ctypes.CDLL(None)


class Fault(Exception):
    """What is not as it should be, in one line."""


class Missing(Exception):
    """What this machine has not got, in one line."""


def expect(fact, what):
    if not fact:
        raise Fault(what)


def until(what, fact):
    """Waits for something that comes true by itself."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        expect(time.monotonic() < deadline, f"{what}: not within {PATIENCE} s")
        time.sleep(0.2)


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Groups:
    """A control group in each hierarchy, which the host's systemd takes for the root of all."""

    def __init__(self):
        with open("/proc/self/mountinfo") as file:
            lines = [line.split() for line in file]
        mounts = {}
        for line in lines:
            kind, options = line[line.index("-") + 1], line[-1].split(",")
            if kind == "cgroup2":
                mounts[""] = line[4]
            elif kind == "cgroup":
                mounts.update({option.removeprefix("name="): line[4] for option in options})
        self.made = []
        with open("/proc/self/cgroup") as file:
            for line in file:
                _, names, path = line.rstrip("\n").split(":", 2)
                at = mounts.get(names.split(",")[0].removeprefix("name="))
                if at is not None:
                    group = os.path.join(at, path.lstrip("/"), f"outrigger-tests-{os.getpid()}")
                    try:
                        os.mkdir(group)
                    except OSError as error:
                        raise Missing(f"control groups of one's own: {error}") from error
                    self.made.append(group)

    def enter(self):
        for group in self.made:
            # A hierarchy that wants to be set up first is not joined; systemd asks nothing of it.
            try:
                with open(os.path.join(group, "cgroup.procs"), "w") as file:
                    file.write("0")
            except OSError:
                pass

    def remove(self):
        for group in self.made:
            for folder, _, _ in os.walk(group, topdown=False):
                for _ in range(50):
                    try:
                        os.rmdir(folder)
                        break
                    except OSError:
                        # Its last process is being buried.
                        time.sleep(0.05)


class Host:
    """A Debian root with systemd."""

    def __init__(self, root, groups):
        self.root = root

        def prepare():
            die_with_parent()
            groups.enter()

        unshare = ["unshare", "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--fork"]
        self.outer = subprocess.Popen(
            [*unshare, "--kill-child=KILL", os.path.join(HERE, "init"), root],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare,
        )
        self.init = None
        until("systemd has started", self.is_up)

    def is_up(self):
        if self.outer.poll() is not None:
            said = self.outer.stdout.read().decode(errors="replace").strip()
            raise Fault(f"the host has ended: {said}")
        with open(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children") as file:
            children = file.read().split()
        # Before that it is the script which prepares everything.
        if not children or not os.readlink(f"/proc/{children[0]}/exe").endswith("/systemd"):
            return False
        self.init = children[0]
        return self.run("systemctl is-system-running")[1].strip() in ("running", "degraded")

    def run(self, command):
        """The exit code and all that was said, of a command typed by root."""
        enter = ["nsenter", "-t", self.init, "-m", "-p", "-C", "-u", "-i", "-r", "-w"]
        done = subprocess.run(
            [*enter, "sh", "-c", f"cd /root\n{command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def does(self, command):
        """What was said by a command that must not fail."""
        code, said = self.run(command)
        expect(code == 0, f"`{command}` ended with {code}: {' | '.join(said.splitlines()[-8:])}")
        return said

    def says(self, command):
        return self.run(command)[1].strip()

    def path(self, name):
        return os.path.join(self.root, name.lstrip("/"))

    def has(self, name):
        return os.path.lexists(self.path(name))

    def stop(self):
        self.outer.kill()
        self.outer.wait()


class Plane:
    """The control plane of the tests, driven by lines as its harness does."""

    def __init__(self):
        self.script = subprocess.Popen(
            [sys.executable, PLANE, "--driven"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        self.facts = json.loads(self.script.stdout.readline() or "{}")

    def ask(self, method, path, body=None):
        with open(self.facts["kubeconfig"]) as file:
            cluster = json.load(file)["clusters"][0]["cluster"]
        request = urllib.request.Request(
            cluster["server"] + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.facts['token']}",
                "Content-Type": "application/json",
            },
        )
        # Who is asked was found by this script, on loopback.
        context = ssl._create_unverified_context()
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=30) as response:
            return json.load(response)

    def list(self, path):
        return self.ask("GET", path)["items"]

    def pods(self):
        return self.list("/api/v1/namespaces/default/pods")

    def nodes(self):
        return self.list("/api/v1/nodes")

    def deploy(self, replicas):
        """Pods that find no room: there is no node."""
        labels = {"app": "web"}
        amounts = {"requests": {"cpu": "1", "memory": "1Gi"}}
        pod = {"containers": [{"name": "web", "image": "web", "resources": amounts}]}
        self.ask(
            "POST",
            "/apis/apps/v1/namespaces/default/deployments",
            {
                "metadata": {"name": "web"},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            },
        )
        until("pods are made", lambda: len(self.pods()) == replicas)

    def stop(self):
        self.script.stdin.close()
        try:
            self.script.wait(20)
        except subprocess.TimeoutExpired:
            self.script.kill()
            self.script.wait()


def blocks():
    """The blocks of the transcript: each a list of commands with what they are answered."""
    with open(TRANSCRIPT) as file:
        section = file.read().partition(f"\n{HEADING}\n")[2].partition("\n## ")[0]
    found = []
    for text in re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        commands = []
        for line in text.splitlines():
            if line.startswith("# "):
                commands.append((line[2:], []))
            elif (line + " ").startswith("> ") and commands and not commands[-1][1]:
                commands[-1] = (f"{commands[-1][0]}\n{line[2:]}", [])
            else:
                expect(commands, f"the transcript begins with an answer: {line}")
                commands[-1][1].append(line)
        found.append(commands)
    expect(len(found) == 3, f"{HEADING!r} has {len(found)} transcripts in place of three")
    return found


def pattern(lines):
    """What an answer has to be: `…` is any lines where it is alone, any text where it is not."""
    text = ""
    for line in lines:
        if line == "…":
            text += r"(?:.*\n)*?"
        else:
            text += "[^\n]*?".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
    return re.compile(text)


def type_in(host, commands):
    """Types commands, and holds what is said against what is expected."""
    for command, lines in commands:
        expected, answer = pattern(lines), None
        deadline = time.monotonic() + (PATIENCE if command.startswith(WATCHED) else 0)
        while True:
            code, said = host.run(command)
            # A carriage return writes over the line, as progress does.
            answer = "".join(re.sub(r".*\r", "", line) + "\n" for line in said.splitlines())
            if expected.fullmatch(answer):
                expect(code == 0, f"`{command}` ended with {code}")
                break
            if time.monotonic() > deadline:
                print(f"# {command}\n{answer}", file=sys.stderr)
                first = command.splitlines()[0]
                raise Fault(f"docs/INSTALL.md: `{first}` is answered otherwise; stderr has how")
            time.sleep(0.5)


def installed(host):
    """What must be so once a package is installed, whichever it is."""
    for unit in ("outrigger.service", "outrigger.socket"):
        state = host.says(f"systemctl is-enabled {unit}")
        expect(state == "disabled", f"{unit} is {state} after the installation")
        state = host.says(f"systemctl is-active {unit}")
        expect(state == "inactive", f"{unit} is {state} after the installation")
    host.does("getent passwd outrigger")
    for folder, facts in {
        "/etc/outrigger": "755 root root",
        "/etc/outrigger/credentials": "700 root root",
        "/etc/outrigger.d": "755 root root",
    }.items():
        found = host.says(f"stat -c '%a %U %G' {folder}")
        expect(found == facts, f"{folder} is {found} after the installation")


def starts_without_configuration(host):
    """The file that comes with a package names no cluster: that is said, and not tried again."""
    expect(host.run("systemctl start outrigger")[0] != 0, "a daemon without clusters starts")
    facts = host.says("systemctl show -P ExecMainStatus -P NRestarts -P ActiveState outrigger")
    expect(sorted(facts.split()) == ["0", "78", "failed"], f"without clusters it is {facts!r}")
    said = host.says("journalctl -u outrigger -o cat")
    expect("configuration has no cluster" in said, "a daemon without clusters does not say so")
    host.does("systemctl reset-failed outrigger")


def process(host):
    return host.says("systemctl show -P MainPID outrigger")


def is_running(host):
    return host.says("systemctl is-active outrigger") == "active"


def upgraded(host, command, before):
    """Upgrades, while the daemon runs and a file of the administrator's differs."""
    host.does("echo OUTRIGGER_VAR_kept=yes >>/etc/default/outrigger")
    said = host.does(command)
    expect("Next steps" not in said, "an upgrade says what comes after an installation")
    until("an upgrade starts the daemon anew", lambda: is_running(host))
    expect(process(host) != before, "an upgrade leaves the old daemon running")
    kept = host.says("cat /etc/default/outrigger")
    expect("OUTRIGGER_VAR_kept=yes" in kept, "an upgrade writes over /etc/default/outrigger")


def removed(host):
    """What must be so once a package is gone, whichever it was."""
    state = host.says("systemctl is-active outrigger outrigger.socket")
    expect(state == "inactive\ninactive", f"units are {state!r} after the removal")
    running = host.says("grep -lx outrigger /proc/[0-9]*/comm")
    expect(not running, f"the daemon runs on after the removal: {running}")
    left = host.says(f"find /{ENABLED} -name 'outrigger*'")
    expect(not left, f"{left} is left after the removal")
    expect(not host.has("/usr/bin/outrigger"), "the binary is left after the removal")
    for name in ("/etc/outrigger.d/lab.hcl", "/etc/outrigger/kubeconfig"):
        expect(host.has(name), f"{name} of the administrator is gone after the removal")
    host.does("getent passwd outrigger")


def transcript(host, plane):
    plane.deploy(3)
    shutil.copy(plane.facts["kubeconfig"], host.path("/root/kubeconfig"))
    install, observe, manage = blocks()
    type_in(host, install)
    installed(host)
    starts_without_configuration(host)
    type_in(host, observe)
    expect(not plane.nodes(), "a cluster that is observed has got nodes")
    leases = plane.list("/apis/coordination.k8s.io/v1/leases")
    leases = [lease["metadata"]["name"] for lease in leases]
    expect(not any("outrigger" in name for name in leases), f"an observer's leases: {leases}")
    for pod in plane.pods():
        metadata, phase = pod["metadata"], pod["status"]["phase"]
        expect(phase == "Pending", f"a pod of a cluster that is observed is {phase}")
        expect(not metadata.get("annotations"), "a cluster that is observed has annotated pods")
    type_in(host, manage)
    phases = lambda: {pod["status"]["phase"] for pod in plane.pods()}
    until("pods run in a cluster that is managed", lambda: phases() == {"Running"})
    owners = [node["metadata"]["labels"].get("outrigger.dev/managed-by") for node in plane.nodes()]
    expect(owners == ["lab"] * 3, f"nodes of a cluster that is managed belong to {owners}")


def deb_goes(host, newer):
    upgraded(host, f"dpkg -i {newer}", process(host))
    host.does("dpkg --remove outrigger")
    removed(host)
    expect(host.has("/etc/outrigger.d/outrigger.hcl"), "a removal takes the configuration away")
    host.does("dpkg --purge outrigger")
    removed(host)
    for name in (
        "/etc/outrigger.d/outrigger.hcl",
        "/etc/default/outrigger",
        "/etc/outrigger/credentials",
        "/var/lib/outrigger",
        "/var/lib/private/outrigger",
    ):
        expect(not host.has(name), f"{name} is left after the purge")


def rpm_comes_and_goes(host, package, newer):
    # Debian's database of packages tells rpm nothing.
    rpm = "rpm --force-debian --nodeps"
    # Terraform's user data writes the configuration first.
    host.does("echo '# mine' >/etc/outrigger.d/outrigger.hcl")
    said = host.does(f"{rpm} -i {package}")
    expect("Next steps" in said, "an installation of the .rpm does not say what comes next")
    installed(host)
    mine = host.says("cat /etc/outrigger.d/outrigger.hcl")
    expect(mine == "# mine", "the .rpm writes over a configuration that is there")
    host.does("systemctl start outrigger")
    host.does("systemctl enable outrigger outrigger.socket")
    until("the daemon of the .rpm runs", lambda: is_running(host))
    upgraded(host, f"{rpm} -U {newer}", process(host))
    host.does(f"{rpm} -e outrigger")
    removed(host)
    expect(host.has("/etc/default/outrigger.rpmsave"), "a removal takes a changed file away")
    expect(not host.has("/etc/outrigger.d/outrigger.hcl"), "a removal leaves a file of its own")
    expect(not host.has("/var/lib/private/outrigger"), "a removal leaves the state")


def session(root, packages):
    for package in packages:
        shutil.copy(package, os.path.join(root, "root"))
    names = [os.path.basename(package) for package in packages]
    groups = host = plane = None
    try:
        groups = Groups()
        plane = Plane()
        missing = plane.facts.get("error", "")
        if missing.startswith(MISSING):
            raise Missing(missing)
        expect("kubeconfig" in plane.facts, f"the control plane does not start: {missing}")
        host = Host(root, groups)
        transcript(host, plane)
        deb_goes(host, names[1])
        rpm_comes_and_goes(host, names[2], names[3])
    except Fault:
        if host is not None and host.init is not None:
            print(host.says("journalctl -b --no-hostname | tail -n 40"), file=sys.stderr)
        raise
    finally:
        if host is not None:
            host.stop()
        if plane is not None:
            plane.stop()
        if groups is not None:
            groups.remove()


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def main():
    if len(sys.argv) != 6:
        print(__doc__, file=sys.stderr)
        return 2
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "yes"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    raise_loopback()
    # Whoever ends this ends all that it started.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        session(os.path.abspath(sys.argv[1]), sys.argv[2:])
    except Missing as missing:
        print(f"SKIP packages::session: {missing}")
    except Fault as fault:
        print(fault)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
