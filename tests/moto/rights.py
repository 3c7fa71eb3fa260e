"""Which rights a call takes, which of them are denied, and which the daemon has ever taken.

As a program it holds the latter, written down by a whole run of the tests, against the policy that
ships; every difference is a line, and the last says how many rights there are:

    rights.py DIRECTORY POLICY.tf

It must not know how a call is answered.
"""

import os
import pathlib
import re
import sys

# What a call takes beside the right that it is called by, if `TagSpecifications` or `Tags` are
# among its parameters. Source: the service authorization reference, "dependent actions".
TAGS = {
    "ec2:CreateFleet": "ec2:CreateTags",
    "ec2:CreateLaunchTemplate": "ec2:CreateTags",
    "iam:CreateInstanceProfile": "iam:TagInstanceProfile",
}
PASSES = {"iam:AddRoleToInstanceProfile"}
# What no policy of ours can grant: a role says itself who may assume it, and who he is everybody
# may ask.
FREE = {"sts:AssumeRole", "sts:GetCallerIdentity"}
# The tag that everything has to have which the policy lets the daemon make, use or remove.
OWN = "outrigger.dev/installation"
# The policy allows nobody to change these tags of our instances.
FIXED = {f"outrigger.dev/{own}" for own in ("batch", "claim", "cluster", "cluster-uid", "installation", "lease")}
MADE = {
    "ec2:CreateFleet": {"fleet", "instance", "volume"},
    "ec2:CreateLaunchTemplate": {"launch-template"},
}
# How the daemon's clients call themselves in `User-Agent`.
APP = "app/outrigger"
DIRECTORY = "OUTRIGGER_AWS_RECORD"


def of(name, params):
    """All rights that a call takes, by what a policy calls them."""
    taken = [name]
    if name in TAGS and (params.get("TagSpecifications") or params.get("Tags")):
        taken.append(TAGS[name])
    if name in PASSES:
        taken.append("iam:PassRole")
    return taken


def of_launch(data):
    """What launching from a template takes; EC2 finds out override by override."""
    return ["ec2:RunInstances"] + (["iam:PassRole"] if data.get("IamInstanceProfile") else [])


def is_own(tags):
    """Whether tags, in the words of whichever service, name an installation."""
    return any(OWN in (tag.get("Key"), tag.get("key")) for tag in tags or [])


def is_karpenters(tags):
    """Whether tags are those of an instance that may be taken over from Karpenter."""
    return {"eks:eks-cluster-name", "karpenter.sh/nodepool"} <= {tag["key"] for tag in tags}


def untagged(specifications, kinds):
    """The kinds of resources that would be made without the tag."""
    return kinds - {
        row.get("ResourceType") for row in specifications or [] if is_own(row.get("Tags"))
    }


class Rights:
    """The rights of all callers, and those that the daemon has taken."""

    def __init__(self, world):
        self.world = world
        self.denied = set()
        self.taken = set()
        directory = os.environ.get(DIRECTORY)
        self.path = pathlib.Path(directory, f"{os.getpid()}.moto") if directory else None

    def need(self, call, action):
        """Refuses a call that lacks a right. What tests ask for themselves is not written down."""
        if self.path and action not in self.taken and call.is_from(APP):
            self.taken.add(action)
            with self.path.open("a") as file:
                file.write(f"{action}\n")
        if action in self.denied:
            raise call.denied(action)


    def own(self, call):
        """Refuses the daemon what the policy grants it only for what is tagged as its own."""
        if not call.is_from(APP):
            return
        params, world = call.params, self.world
        if untagged(params.get("TagSpecifications"), MADE.get(call.name, set())):
            raise call.denied(call.name)
        foreign = False
        if call.name in ("ec2:TerminateInstances", "ec2:CreateTags"):
            named = params.get("InstanceIds") or params.get("Resources") or []
            known = [world.find(one) for one in named]
            adopts = call.name == "ec2:CreateTags" and is_own(params.get("Tags"))
            fixed = FIXED & {tag.get("Key") for tag in params.get("Tags") or []}
            foreign = any(
                fixed if is_own(one.get_tags()) else not (adopts and is_karpenters(one.get_tags()))
                for one in known if one
            )
        elif call.name == "ec2:DeleteLaunchTemplate":
            name = params.get("LaunchTemplateName")
            known = [own for own in world.ec2.launch_templates.values() if own.name == name]
            foreign = any(not is_own(own.get_tags()) for own in known)
        elif call.name == "iam:CreateInstanceProfile":
            foreign = not is_own(params.get("Tags"))
        elif call.name.endswith("InstanceProfile") and call.name != "iam:GetInstanceProfile":
            profile = world.iam.instance_profiles.get(params.get("InstanceProfileName"))
            foreign = profile is not None and not is_own(profile.tags)
        if foreign:
            raise call.denied(call.name)

    def launch(self, call, template, data, kind):
        """The same for one override of a fleet."""
        for action in of_launch(data):
            self.need(call, action)
        if not call.is_from(APP):
            return
        kinds = {"network-interface"} | ({"spot-instances-request"} if kind == "spot" else set())
        if not is_own(template.get_tags()) or untagged(data.get("TagSpecifications"), kinds):
            raise call.denied("ec2:RunInstances")


def granted(policy):
    """All actions of a policy in HCL."""
    lists = re.findall(r"\bAction\s*=\s*\[(.*?)\]", policy, re.DOTALL)
    return {action for text in lists for action in re.findall(r'"([^"]+)"', text)}


def main(directory, policy):
    files = [path for path in pathlib.Path(directory).iterdir() if path.is_file()]
    taken = {line for path in files for line in path.read_text().split()}
    known = granted(pathlib.Path(policy).read_text())
    for action in sorted(taken - known - FREE):
        print(f"{action} is taken by the daemon, and {policy} does not grant it")
    for action in sorted(known - taken):
        print(f"{action} is granted by {policy}, and no test ever takes it")
    print(f"rights: {len(taken & known)} taken of {len(known)} granted", file=sys.stderr)
    return 0 if taken - FREE == known else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
