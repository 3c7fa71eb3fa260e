"""Reads user data as the machine that gets it would, with the formats' own parsers.

It must not know who wrote the text.
"""

import email
import functools
import gzip
import re
import tomllib

import yaml

NODEADM = "application/node.eks.aws"


@functools.lru_cache(maxsize=1000)
def kubelet(text):
    """What a kubelet started by this user data says of its node, or why it would not start."""
    if not text:
        return None
    try:
        if text[:2] == b"\x1f\x8b":
            text = gzip.decompress(text)
        text = text.decode()
        if text.startswith(("MIME-Version:", "Content-Type: multipart/")):
            return nodeadm(parts(text))
        if text.lstrip().startswith("#!"):
            return script(text)
        if re.search(r"^\[settings", text, re.M):
            return bottlerocket(tomllib.loads(text))
        return nodeadm([yaml.safe_load(text)])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def parts(text):
    """The NodeConfig documents of a MIME archive, in their order."""
    message = email.message_from_string(text)
    if message.defects:
        raise ValueError(f"the MIME archive is broken: {message.defects}")
    found = []
    for part in message.walk():
        if part.get_content_type() == NODEADM:
            found.extend(yaml.safe_load_all(part.get_payload(decode=True)))
    return found


def nodeadm(documents):
    """Later documents win, as nodeadm merges them."""
    said = {"labels": {}, "taints": [], "max_pods": None, "cluster": None, "endpoint": None}
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != "NodeConfig":
            continue
        spec = document.get("spec") or {}
        home = spec.get("cluster") or {}
        said["cluster"] = home.get("name", said["cluster"])
        said["endpoint"] = home.get("apiServerEndpoint", said["endpoint"])
        config = (spec.get("kubelet") or {}).get("config") or {}
        said["max_pods"] = config.get("maxPods", said["max_pods"])
        said["taints"] = config.get("registerWithTaints", said["taints"])
        flags(said, (spec.get("kubelet") or {}).get("flags") or [])
    if said["cluster"] is None:
        raise ValueError("no NodeConfig names a cluster")
    return said


def flags(said, words):
    """The flags of a kubelet's command line that say something of its node."""
    for word in words:
        name, _, value = word.partition("=")
        value = value.strip("\"'")
        if name == "--node-labels":
            pairs = (pair.partition("=") for pair in value.split(",") if pair)
            said["labels"].update({key: text for key, _, text in pairs})
        if name == "--register-with-taints":
            said["taints"] = [taint(text) for text in value.split(",") if text]
        if name == "--max-pods":
            said["max_pods"] = int(value)


def taint(text):
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    return {"key": key, "value": value, "effect": effect}


def script(text):
    """A shell script that passes flags to a kubelet somewhere."""
    said = {"labels": {}, "taints": [], "max_pods": None, "cluster": None, "endpoint": None}
    flags(said, re.findall(r"--(?:node-labels|register-with-taints|max-pods)=[^\s'\"]+", text))
    return said


def bottlerocket(document):
    kubernetes = document["settings"]["kubernetes"]
    taints = [
        {"key": key, **dict(zip(("value", "effect"), value.rsplit(":", 1)))}
        for key, values in (kubernetes.get("node-taints") or {}).items()
        for value in values
    ]
    return {
        "labels": kubernetes.get("node-labels") or {},
        "taints": taints,
        "max_pods": kubernetes.get("max-pods"),
        "cluster": kubernetes.get("cluster-name"),
        "endpoint": kubernetes.get("api-server"),
    }
