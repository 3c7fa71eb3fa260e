#!/usr/bin/env python3
"""A whole provider for `exec { command = [...] }`: a cloud in a file, after docs/PROVIDERS.md.

It reads requests from stdin, one JSON object a line, and writes answers to stdout. What it has
launched stands in a journal, written before it answers: killed at any moment, it forgets nothing,
and several of it may share one journal. With a kubeconfig each instance registers a Node in the way
of kwok's fake nodes. It must not need more than Python's standard library.

  reference.py --state FILE --catalog TYPES [--kubeconfig FILE] [--boot SECONDS]
               [--sold-out TYPE/ZONE/CAPACITY_TYPE]... [--fault NAME [--once FILE]]

TYPES is JSON as Karpenter's kwok provider has it; FILE of --kubeconfig is JSON with a token.
--fault makes it a bad program, for tests: see FAULTS; with --once only where FILE is not there yet.
"""

import argparse
import base64
import contextlib
import datetime
import fcntl
import json
import os
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

PROTOCOL = 1
INSTALLATION = "outrigger.dev/installation"
CLUSTER = "outrigger.dev/cluster"
# How long an instance that has ended is still listed.
REMEMBERED = 3600
FAULTS = {
    "silent": "says no hello",
    "old": "speaks version 0 of the protocol",
    "exit": "ends at once",
    "hang": "answers no call",
    "hang-launch": "answers no launch",
    "deaf": "reads nothing after its hello",
    "die": "ends at every call, unanswered",
    "die-launch": "ends at every launch, after it is done and before it is answered",
    "garbage": "writes a line that is no JSON before every answer",
    "flood": "writes lines that are no JSON for ever",
    "endless": "writes one line for ever",
    "wrong-id": "answers calls that nobody made",
    "nonsense": "answers calls with what makes no sense",
    "untagged": "launches instances without tags",
    "other": "answers a launch with another claim's instance",
    "loud": "writes much to stderr",
}


class Refused(Exception):
    """The answer to a call that did not go well."""


def failed(kind, text):
    return Refused({"failed": {"kind": kind, "text": text}})


class Cloud:
    """All instances of all clusters, in a journal: each line is an instance as it has become."""

    def __init__(self, path, catalog, sold_out):
        self.journal = open(path, "a+b")
        self.read = 0
        self.instances = {}
        self.types = {own["name"]: own for own in catalog}
        self.sold_out = set(sold_out)

    @contextlib.contextmanager
    def locked(self):
        """Nobody else writes the journal meanwhile, and all that others wrote is known."""
        fcntl.flock(self.journal, fcntl.LOCK_EX)
        try:
            self.journal.seek(self.read)
            text = self.journal.read()
            whole = text.rfind(b"\n") + 1
            for line in text[:whole].splitlines():
                own = json.loads(line)
                self.instances[own["id"]] = own
            self.read += whole
            if whole < len(text):
                # Whoever wrote the rest of it was killed before it was answered for.
                self.journal.truncate(self.read)
            yield
        finally:
            fcntl.flock(self.journal, fcntl.LOCK_UN)

    def write(self, own):
        line = json.dumps(own).encode() + b"\n"
        self.journal.write(line)
        self.journal.flush()
        os.fsync(self.journal.fileno())
        self.read += len(line)
        self.instances[own["id"]] = own

    def fault_of(self, offering):
        """Why an offering cannot be had, if it cannot."""
        key = (offering["zone"], offering["capacity_type"])
        if offering.get("reservation"):
            return "unsupported"
        known = self.types.get(offering["instance_type"], {"offerings": []})["offerings"]
        if key not in {place_of(own) for own in known if own.get("Available", True)}:
            return "unsupported"
        if "/".join([offering["instance_type"], *key]) in self.sold_out:
            return "insufficient-capacity"
        return None

    def launch(self, request):
        """One instance for a claim, whatever is asked how often."""
        asked = {name: request[name] for name in ("offerings", "labels", "taints", "tags")}
        for own in self.instances.values():
            if own["claim"] != request["claim"]:
                continue
            if own["asked"] != asked:
                raise failed("invalid", "the claim was launched with other parameters")
            if own["ended"]:
                raise failed("invalid", f"the claim's instance {own['id']} has ended")
            return own
        refused = []
        for offering in request["offerings"]:
            kind = self.fault_of(offering)
            if kind is None:
                break
            refused.append({**offering, "kind": kind})
        else:
            raise Refused({"refused": refused}) if refused else failed("invalid", "no offerings")
        now = datetime.datetime.now(datetime.timezone.utc)
        own = {
            "id": f"r-{uuid.uuid4().hex[:16]}",
            "claim": request["claim"],
            "asked": asked,
            "offering": offering,
            "launched": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "ended": None,
        }
        self.write(own)
        return own

    def terminate(self, request):
        """Ends an instance, if it is the cluster's that asks."""
        own = self.instances.get(request["instance"])
        if own is None or not is_of(own, request):
            raise failed("gone", f"there is no instance {request['instance']}")
        if not own["ended"]:
            self.write({**own, "ended": time.time()})
        return "shutting-down"

    def list(self, request):
        since = time.time() - REMEMBERED
        all_known = self.instances.values()
        return [own for own in all_known if is_of(own, request) and (own["ended"] or since) >= since]


def place_of(offering):
    """Zone and capacity type of an offering in the catalog."""
    values = {own["key"]: own["values"][0] for own in offering["Requirements"]}
    return (values["topology.kubernetes.io/zone"], values["karpenter.sh/capacity-type"])


def is_of(own, request):
    tags = own["asked"]["tags"]
    mine = (tags.get(INSTALLATION), tags.get(CLUSTER))
    return mine == (request["installation"], request["cluster"])


def shown(own):
    """An instance as answers have it."""
    return {
        "id": own["id"],
        **own["offering"],
        "state": "terminated" if own["ended"] else "running",
        "launched": own["launched"],
        "tags": own["asked"]["tags"],
        "node": {"name": own["id"], "provider_id": provider_id(own)},
    }


def provider_id(own):
    return f"reference:///{own['id']}"


class Api:
    """The API of a cluster, as far as a kubelet needs it to register."""

    def __init__(self, kubeconfig, cloud, boot):
        with open(kubeconfig) as file:
            config = json.load(file)
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.context = ssl.create_default_context(cadata=authority)
        self.server = cluster["server"]
        self.token = config["users"][0]["user"]["token"]
        self.cloud = cloud
        self.boot = boot

    def node(self, own):
        offering, asked = own["offering"], own["asked"]
        shape = self.cloud.types[offering["instance_type"]]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": own["id"],
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {
                    **asked["labels"],
                    "kubernetes.io/arch": shape["architecture"],
                    "kubernetes.io/os": shape["operatingSystems"][0],
                    "kubernetes.io/hostname": own["id"],
                    "node.kubernetes.io/instance-type": offering["instance_type"],
                    "topology.kubernetes.io/zone": offering["zone"],
                    "karpenter.sh/capacity-type": offering["capacity_type"],
                },
            },
            "spec": {"providerID": provider_id(own), "taints": asked["taints"]},
            "status": {"capacity": shape["resources"], "allocatable": shape["resources"]},
        }

    def call(self, method, path, kind, body):
        headers = {"Content-Type": kind, "Authorization": f"Bearer {self.token}"}
        url = f"{self.server}/api/v1/nodes{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        urllib.request.urlopen(request, timeout=15, context=self.context).close()

    def send(self, node):
        """Makes a Node; one that is there already keeps its labels and taints, as by a kubelet."""
        try:
            self.call("POST", "", "application/json", node)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            merge, path = "application/merge-patch+json", f"/{node['metadata']['name']}"
            status = {**node["status"], "nodeInfo": {"kubeletVersion": "reference"}}
            self.call("PATCH", f"{path}/status", merge, {"status": status})
            annotations = {"annotations": node["metadata"]["annotations"]}
            self.call("PATCH", path, merge, {"metadata": annotations})

    def register(self, own):
        """Registers an instance's Node, again and again while the API does not take it."""
        time.sleep(self.boot)
        for attempt in range(360):
            if self.cloud.instances[own["id"]]["ended"]:
                return
            try:
                self.send(self.node(own))
                return
            except OSError as error:
                why = error
            print(f"register {own['id']}: {why}", file=sys.stderr)
            time.sleep(min(10, 0.2 * 2**attempt))

    def boots(self, own):
        threading.Thread(target=self.register, args=(own,), daemon=True).start()


def answer_of(cloud, api, request):
    verb = request["verb"]
    try:
        with cloud.locked():
            known = set(cloud.instances)
            if verb == "launch":
                own = cloud.launch(request)
                if api is not None and own["id"] not in known:
                    api.boots(own)
                return {"launched": shown(own)}
            if verb == "terminate":
                return {"terminating": cloud.terminate(request)}
            if verb == "list":
                return {"instances": [shown(own) for own in cloud.list(request)]}
            return {"failed": {"kind": "invalid", "text": f"{verb} is no verb"}}
    except Refused as refused:
        return refused.args[0]


def say(line):
    sys.stdout.write(line)
    sys.stdout.flush()


def misbehave(fault, request, answer):
    """What a bad program writes in place of an answer, where it writes anything."""
    verb = request["verb"]
    if fault == "die" or (fault == "die-launch" and verb == "launch"):
        print(f"dies at {verb}", file=sys.stderr)
        os._exit(3)
    if fault == "hang" or (fault == "hang-launch" and verb == "launch"):
        return None
    while fault in ("flood", "endless"):
        say("x" * 1000 + "\n" * (fault == "flood"))
    if fault == "garbage":
        say("I am no JSON\n")
    if fault == "wrong-id":
        return {"id": request["id"] + 1000, "answer": answer}
    if fault == "nonsense":
        return {"id": request["id"], "answer": {"launched": {"id": 7}, "done": True}}
    if fault == "untagged" and "launched" in answer:
        answer["launched"]["tags"] = {}
    if fault == "other" and "launched" in answer:
        tags = answer["launched"]["tags"]
        answer["launched"]["tags"] = {**tags, "outrigger.dev/claim": "another"}
    if fault == "loud":
        print("loud\n" * 1000, file=sys.stderr)
    return {"id": request["id"], "answer": answer}


def hello(fault):
    request = json.loads(sys.stdin.readline())
    if fault == "exit":
        sys.exit("ends at once")
    if fault == "silent":
        time.sleep(3600)
    if PROTOCOL not in request["protocols"]:
        answer = {"failed": {"kind": "invalid", "text": f"speaks only version {PROTOCOL}"}}
    else:
        answer = {"hello": {"protocol": PROTOCOL - (fault == "old"), "name": "reference"}}
    say(json.dumps({"id": request["id"], "answer": answer}) + "\n")
    if fault == "deaf":
        time.sleep(3600)
    return request


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--state", required=True)
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--boot", type=float, default=0)
    parser.add_argument("--sold-out", action="append", default=[])
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--once")
    given = parser.parse_args()
    if given.once:
        try:
            open(given.once, "x").close()
        except FileExistsError:
            given.fault = None
    with open(given.catalog) as file:
        cloud = Cloud(given.state, json.load(file), given.sold_out)
    api = Api(given.kubeconfig, cloud, given.boot) if given.kubeconfig else None
    greeting = hello(given.fault)
    if api is not None:
        # Instances whose Nodes an earlier run had no time to register.
        with cloud.locked():
            for own in cloud.list(greeting):
                if not own["ended"]:
                    api.boots(own)
    for line in sys.stdin:
        request = json.loads(line)
        answer = misbehave(given.fault, request, answer_of(cloud, api, request))
        if answer is not None:
            say(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
