"""Holds the documents that the module render makes to what judges them: policies to the actions
that AWS has, rights in a cluster to the calls of the daemon, event patterns to the events that it
understands, policies and rights to what docs/SECURITY.md says of them.

    documents.py RENDERED.json CALLS.tsv SECURITY.md SOURCES

`RENDERED.json` has the outputs of the module by case; each case has its inputs in `with`. Every
difference is a line. It must not know how they are rendered.
"""

import csv
import fnmatch
import json
import pathlib
import re
import sys

import parliament
import yaml
from policy_sentry.querying.actions import get_action_data

# Keys of conditions that are there for every action. Source: IAM user guide, global condition keys.
GLOBAL = {"aws:RequestedRegion", "aws:SecureTransport", "aws:SourceAccount", "aws:SourceArn"}
# An action and its resources stand in several statements, each with conditions of its own, so that
# no single one has all that the action takes. What a resource is for is checked here instead.
# The same goes for what is granted on everything.
EXPECTED = {"RESOURCE_MISMATCH", "RESOURCE_STAR"}
# What the list of actions lacks. Source: EC2 user guide, example policies for RunInstances, and for
# tags as resources are made.
MORE = {
    "ec2:RunInstances": ["arn:${Partition}:ec2:${Region}:${Account}:spot-instances-request/*"],
    "ec2:CreateTags": ["arn:${Partition}:ec2:${Region}:${Account}:*/*"],
}
# What an output's policy is attached to, which is its own resource where it names none.
OWN = {
    "host_trust": "arn:aws:iam::123456789012:role/own",
    "spoke_trust": "arn:aws:iam::123456789012:role/own",
    "queue_key_policy": "arn:aws:kms:eu-central-1:123456789012:key/own",
}
# What who only observes may do beside reading: a message that is read is taken.
TAKEN = {"sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage", "kms:Decrypt"}
# What gives rights that a cluster's API takes, in the daemon's sources.
CALLS = re.compile(r"\bApi::<|: Api<|core::Request\b|Request::new\(|apiserver_version")
# Where no cluster's API is called by what is said so: tests, AWS, and who only connects; and the
# doctor, which asks for the rights of others and goes on without one.
ELSEWHERE = {
    "providers/aws/eks_token.rs", "providers/aws/eks.rs", "providers/simulated/server.rs",
    "doctor/rbac_checks.rs", "doctor/cluster_checks.rs",
}
# The modules of the feature `daemon`: only they have a client of a cluster's API.
DAEMON = ("outbound", "telemetry", "kubernetes", "providers", "runtime", "doctor")


def listed(value):
    return value if isinstance(value, list) else [value]


def fits(pattern, arn):
    """Whether an ARN in a policy is one of a kind of resource, as AWS writes its format."""
    own = re.sub(r"\$\{\w+\}", "*", pattern)
    parts, wanted = arn.split(":", 5), own.split(":", 5)
    if len(parts) < 6 or len(wanted) < 6:
        return False
    kinds = [part.split("/")[0] for part in (parts[5], wanted[5])]
    named = kinds[0] == kinds[1] or (wanted[5] == "*" and "/" not in parts[5])
    return parts[2] == wanted[2] and named


def has_key(key, rows):
    known = {own for row in rows for own in row["condition_keys"]}
    return key in GLOBAL or any(
        fnmatch.fnmatchcase(key, re.sub(r"\$\{\w+\}", "*", own)) for own in known
    )


def policy(where, text):
    """What is wrong with a policy."""
    if len(re.sub(r"\s", "", text)) > 6144:
        yield f"{where} is longer than a managed policy may be"
    trusts = '"Resource"' not in text
    for finding in [] if trusts else parliament.analyze_policy_string(text).findings:
        if finding.issue not in EXPECTED:
            yield f"{where}: {finding.issue} {finding.detail}"
    for statement in json.loads(text)["Statement"]:
        sid = statement["Sid"]
        resources = [OWN[where]] if where in OWN else listed(statement["Resource"])
        taken = set()
        for action in listed(statement["Action"]):
            if action == "sqs:*":
                continue
            service, name = action.split(":")
            known = get_action_data(service, name)
            rows = known[service] if known else []
            if not rows:
                yield f"{where} {sid}: there is no action {action}"
                continue
            formats = [row["resource_arn_format"] for row in rows] + MORE.get(action, [])
            fitting = {arn for arn in resources if any(fits(own, arn) for own in formats)}
            taken |= fitting
            if not fitting and resources != ["*"]:
                yield f"{where} {sid}: {action} has no such resource as {resources}"
            if resources == ["*"] and rows[0]["access_level"] not in ("Read", "List"):
                yield f"{where} {sid}: {action} is granted on everything"
            for keys in statement.get("Condition", {}).values():
                for key in keys:
                    if not has_key(key, rows):
                        yield f"{where} {sid}: {action} knows no condition {key}"
        for arn in set(resources) - taken - {"*"}:
            if statement["Action"] != ["sqs:*"]:
                yield f"{where} {sid}: none of its actions has a resource {arn}"


def level(action):
    service, name = action.split(":")
    return get_action_data(service, name)[service][0]["access_level"]


def managed(text, clusters, tags):
    """Where a policy grants for observed clusters what is for managed ones alone, or goes by tags
    that not everything has."""
    wanted = [own for own in clusters if own["mode"] == "manage"]
    names = [own["name"] for own in wanted]
    for statement in json.loads(text)["Statement"]:
        sid, condition = statement["Sid"], statement.get("Condition", {})
        keys = {key: value for all_ in condition.values() for key, value in all_.items()}
        for action in statement["Action"]:
            if not wanted and level(action) not in ("Read", "List") and action not in TAKEN:
                yield f"{sid}: {action} is granted where all clusters are observed"
        for key, value in keys.items():
            kind, _, tag = key.partition("/")
            others = sid == "AllowAdoptionTagging" and kind == "aws:ResourceTag"
            if kind in ("aws:RequestTag", "aws:ResourceTag") and tag not in tags and not others:
                yield f"{sid}: not everything that is launched has the tag {tag}"
            if tag == "outrigger.dev/cluster" and value != names:
                yield f"{sid} is for the clusters {value}"
        makes = "ec2:RunInstances" in statement["Action"] and "aws:RequestTag" in str(keys)
        if makes and "aws:RequestTag/outrigger.dev/cluster" not in keys:
            yield f"{sid} makes instances of any cluster"
        ends = "ec2:TerminateInstances" in statement["Action"]
        if (ends or sid == "AllowScopedResourceTagging") and (
            "aws:ResourceTag/outrigger.dev/cluster" not in keys
        ):
            yield f"{sid} is for instances of any cluster"
        roles = {arn for own in wanted for arn in own["node_role_arns"]}
        if statement["Action"] == ["iam:PassRole"] and set(statement["Resource"]) != roles:
            yield f"{sid} passes {statement['Resource']}"


def launched(root):
    """Tags of all that a launch makes, the template that others share included."""
    text = (pathlib.Path(root) / "model/claim.rs").read_text()
    known = dict(re.findall(r'const (TAG_\w+): &str = "([^"]+)";', text))
    body = text[text.index("pub fn to_tags(") :]
    own = set(re.findall(r"\((TAG_\w+), ", body[: body.index(".into_iter()")]))
    lone = text[text.index("const TAGS_OF_ONE_CLAIM") :]
    lone = set(re.findall(r"TAG_\w+", lone[lone.index("= [") : lone.index("];")]))
    return {known[name] for name in own - lone}


def granted(rbac):
    """Rights of a case: role, group, resource, name, verb; and who the roles are bound to."""
    rights, bound = set(), {}
    for own in yaml.safe_load_all(rbac):
        name = own["metadata"]["name"]
        role = {"outrigger-observe": "observe", "outrigger-manage": "manage"}.get(name, "system")
        if own["kind"].endswith("Binding"):
            bound[own["roleRef"]["kind"], name] = [one["name"] for one in own["subjects"]]
            continue
        for rule in own["rules"]:
            groups = rule.get("apiGroups", [""])
            whats = rule.get("resources") or rule["nonResourceURLs"]
            for right in (
                (role, group, what, one, verb)
                for group in groups
                for what in whats
                for one in rule.get("resourceNames", [""])
                for verb in rule["verbs"]
            ):
                if right in rights:
                    yield f"the right {right} is given twice", None
                rights.add(right)
    yield None, (rights, bound)


def dash(text):
    return "" if text == "-" else text


def needed(calls, given):
    """The rights that the calls take under the inputs of a case."""
    for own in calls:
        role = own["role"]
        if role == "system-manage":
            if given["mode"] != "manage":
                continue
            role = "system"
        if own["option"] != "-" and not given[own["option"]]:
            continue
        is_lease = own["resource"] == "leases" and own["name"] == "outrigger"
        name = given["lease_name"] if is_lease else own["name"]
        for resource in own["resource"].split(","):
            for verb in own["verbs"].split(","):
                yield role, dash(own["group"]), resource, dash(name), verb


def rbac(case, calls):
    """Where the rights of a case and the calls of the daemon differ."""
    given = case["with"]
    for fault, found in granted(case["rbac"]):
        if fault:
            yield fault
    rights, bound = found
    wanted = set(needed(calls, given))
    for right in sorted(wanted - rights):
        yield f"no rule grants {right}, which is needed with {given}"
    for right in sorted(rights - wanted):
        yield f"a rule grants {right}, which no call takes with {given}"
    group = [given["group"]]
    expect = {
        ("ClusterRole", "outrigger-observe"): group,
        ("ClusterRole", "outrigger-manage"): group if given["mode"] == "manage" else [],
        ("Role", "outrigger"): group,
    }
    if bound != expect:
        yield f"roles are bound to {bound} with {given}"


def sources(calls, root):
    """Calls in the sources that the table does not have."""
    root = pathlib.Path(root)
    files = [own for folder in DAEMON for own in (root / folder).rglob("*.rs")]
    files += [root / f"{folder}.rs" for folder in DAEMON]
    found = set()
    for path in sorted(files):
        own = path.relative_to(root).as_posix()
        if "cases" in own or "tests" in own or "conformance" in own or own in ELSEWHERE:
            continue
        text = path.read_text().split("#[cfg(test)]")[0]
        if CALLS.search(text):
            found.add(f"src/{own}")
    named = {own["file"] for own in calls}
    for path in sorted(found - named):
        yield f"{path} calls a cluster's API, and calls.tsv has nothing of it"
    for path in sorted(named - found):
        yield f"{path} calls no cluster's API, and calls.tsv says so"
    text = (root / "kubernetes/commands.rs").read_text()
    arms = text[text.index("match command {") : text.index("Command::Launch(_)")]
    commands = {own["call"] for own in calls if own["file"] == "src/kubernetes/commands.rs"}
    for name in sorted(set(re.findall(r"Command::(\w+)", arms)) ^ commands):
        yield f"the command {name} is carried out or in calls.tsv, but not both"
    text = (root / "model/watched_object.rs").read_text()
    kinds = text[text.index("pub enum ObjectKind {") :]
    plurals = re.findall(r'=> "([a-z]+)",', kinds[: kinds.index("}")])
    watched = {
        resource
        for own in calls
        if own["call"] == "watch_kind"
        for resource in own["resource"].split(",")
    }
    for name in sorted(set(plurals) ^ watched):
        yield f"the kind {name} is watched or in calls.tsv, but not both"


def events(case, root):
    """Events that are sent and not understood, or the other way round."""
    text = (pathlib.Path(root) / "ec2/interruption_message.rs").read_text().split("#[cfg(test)]")[0]
    known = set(re.findall(r'\("0", "([a-z0-9.]+)", "([^"]+)"\)', text))
    sent = [json.loads(own) for own in case["event_patterns"].values()]
    kinds = {(own["source"][0], own["detail-type"][0]) for own in sent}
    for kind in sorted(kinds ^ known):
        yield f"the event {kind} is sent or understood, but not both"
    for own in sent:
        for values in own.get("detail", {}).values():
            for value in values:
                if f'"{value}"' not in text:
                    yield f"of {own['detail-type'][0]} {value!r} is sent, and not understood"


def rows(text, title):
    """The rows of the table under a title; what stands in backquotes without them."""
    part = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\| (.*) \|$", part[1] if part else "", re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[1:]]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


def security(text, case, calls, where):
    """Where a document says something else of statements and rules than there is."""
    said = {words(row[0])[0]: set(words(row[1])) for row in rows(text, "AWS permissions")}
    there = {}
    for output in ("policy", "decrypt_policy", "assume_policy", "queue_policy", "queue_key_policy"):
        for own in json.loads(case[output])["Statement"]:
            there[own["Sid"]] = set(listed(own["Action"]))
    for sid in sorted(set(said) ^ set(there)):
        yield f"{where}: the statement {sid} is there or described, but not both"
    for sid in sorted(set(said) & set(there)):
        if said[sid] != there[sid]:
            yield f"{where}: {sid} has the actions {sorted(there[sid])}"
    said = set()
    for role, what, verbs, option, why in rows(text, "Kubernetes permissions"):
        resource, *name = words(what)
        options = words(option) or ["-"]
        for verb in words(verbs):
            for own in options:
                said.add((role, own, resource, *(name or ["-"]), verb))
        if not why:
            yield f"{where}: {what} has no reason"
    there = set()
    for own in calls:
        for resource in own["resource"].split(","):
            full = resource + ("" if own["group"] == "-" else f".{own['group']}")
            for verb in own["verbs"].split(","):
                role = own["role"].replace("system-manage", "system, managed")
                there.add((role, own["option"], full, own["name"], verb))
    for right in sorted(said - there):
        yield f"{where} speaks of {right}, which no call takes"
    for right in sorted(there - said):
        yield f"{where} does not speak of {right}"


def main(rendered, table, document, root):
    cases = json.loads(pathlib.Path(rendered).read_text())
    lines = [own for own in pathlib.Path(table).read_text().splitlines() if own[:2] != "# "]
    lines[0] = lines[0].lstrip("#")
    calls = list(csv.DictReader(lines, delimiter="\t"))
    wrong = []
    tags = launched(root)
    outputs = ("policy", "decrypt_policy", "assume_policy", "queue_policy", "queue_key_policy")
    for name, case in cases.items():
        for output in (*outputs, "host_trust", "spoke_trust"):
            if case[output]:
                wrong += policy(output, case[output])
        wrong += managed(case["policy"], case["with"]["clusters"], tags)
        wrong += rbac(case, calls)
        for own in yaml.safe_load_all(case["flow_schemas"]):
            if not own["apiVersion"].startswith("flowcontrol.apiserver.k8s.io/"):
                wrong.append(f"{name}: no FlowSchema")
    wrong += sources(calls, root)
    wrong += events(cases["everything"], root)
    text = pathlib.Path(document).read_text() if pathlib.Path(document).exists() else ""
    wrong += security(text, cases["everything"], calls, document)
    once = list(dict.fromkeys(wrong))
    print(*once, sep="\n", end="\n" if once else "")
    return 1 if once else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
