"""Asks, runs the questions and the cluster, always removes what it made, and prints a report."""

import argparse
import json
import re
import secrets
import signal
import sys

from account import POLICY, TAG, Account, granted
from cluster import FAMILIES, Cluster
from questions import BURST, IMAGE, STEADY, Questions

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The most that a run may cost, in US dollars. Upper bounds of all regions: an hour of a t3.nano and of a
# node with its volumes and public address, two nodes for each image family, the longest run in hours.
COST_MAX = 2.0
NANO, NODE, NODES, HOURS = 0.02, 0.25, 2, 1.5
# Without Windows, whose nodes need an access entry of their own type.
DEFAULT_FAMILIES = "al2023,bottlerocket"


def cost(options):
    """An upper bound: every instance of the questions for a quarter of an hour, nodes for the longest run."""
    launched = (BURST + STEADY + 10) * NANO * 0.25
    families = len(options.families.split(",")) if options.cluster else 0
    return launched + families * NODES * NODE * HOURS


def arguments():
    parser = argparse.ArgumentParser(prog="tests/aws-sandbox", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="list the calls and commands, and make none")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--cluster", help="an EKS cluster for tests; without it, only EC2 is asked")
    parser.add_argument("--context", help="its context in kubectl's configuration; default: its name")
    parser.add_argument("--families", default=DEFAULT_FAMILIES, help="image families, by commas")
    parser.add_argument("--instance-profile", help="instance profile of the nodes")
    parser.add_argument("--queue", help="interruption queue of the region")
    parser.add_argument("--outrigger", default="target/release/outrigger", help="the program")
    parser.add_argument("--image-parameter", default=IMAGE, help="SSM parameter of the image for EC2's questions")
    parser.add_argument("--pace", type=float, default=1.0,
                        help="factor of all waiting times, for tests with an AWS that is not real")
    options = parser.parse_args()
    if options.cluster and not (options.instance_profile and options.queue):
        parser.error("--cluster needs --instance-profile and --queue")
    if set(options.families.split(",")) - set(FAMILIES):
        parser.error(f"--families knows {', '.join(FAMILIES)}")
    return options


def consent(options, account):
    """Asks before it spends."""
    bound = cost(options)
    if bound > COST_MAX:
        raise SystemExit(f"this could cost {bound:.2f} USD, and {COST_MAX:.2f} are allowed; use fewer --families")
    identity = account.ask("sts:GetCallerIdentity")
    print(f"account {identity['Account']}, {identity['Arn']}, region {options.region}")
    print(f"launches instances with the tag {TAG}={account.run}; at most {bound:.2f} USD")
    if account.dry or options.yes:
        return
    if not sys.stdin.isatty() or input("type yes to go on: ") != "yes":
        raise SystemExit("nothing was done")


def network(account):
    """A subnet of the default VPC for each zone."""
    vpcs = account.ask("ec2:DescribeVpcs", Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not vpcs:
        raise SystemExit("the region has no default VPC: aws ec2 create-default-vpc creates it")
    wanted = [{"Name": "vpc-id", "Values": [vpcs[0]["VpcId"]]}]
    subnets = account.ask("ec2:DescribeSubnets", Filters=wanted)["Subnets"]
    return {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in subnets}


def ask_ec2(account, options, found):
    """The seven questions. What was made is removed even if a question fails."""
    image = account.ask("ssm:GetParameter", Name=options.image_parameter)["Parameter"]["Value"]
    questions = Questions(account, network(account), image)
    steps = {
        "1 rate of CreateFleet": questions.rate,
        "2 a used token": questions.replay_first,
        "4 dry run of a missing template": questions.missing_template_dry,
        "5 overrides in a request": questions.body_limit,
        "6 a missing template": questions.missing_template,
        "7 fields of the errors of overrides": questions.item_fields,
        "3 instant fleets": questions.fleet_quota,
        "2 a used token, later": questions.replay_last,
    }
    try:
        questions.prepare()
        for title, step in steps.items():
            print(f"{title} …", flush=True)
            found[title] = attempted(step)
    finally:
        without_interruption()
        found["left in the account"] = attempted(questions.remove)


def ask_cluster(account, options, found):
    cluster = Cluster(account, options.cluster, options)
    try:
        print("the cluster …", flush=True)
        found["cluster"] = attempted(cluster.run)
    finally:
        without_interruption()
        found["removal"] = attempted(cluster.remove)
        found["log"] = cluster.log()
        found["left in the account, nodes"] = attempted(Questions(account, {}, "").remove)


def interrupted(number, _frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


def without_interruption():
    """Nothing but SIGKILL stops the cleanup."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def attempted(step):
    """The result of a step, or its error: one failure does not stop the others."""
    try:
        return step()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def main():
    options = arguments()
    account = Account(options.region, options.dry_run, secrets.token_hex(4), options.pace)
    consent(options, account)
    found = {}
    for number in SIGNALS:
        signal.signal(number, interrupted)
    try:
        if options.cluster:
            ask_cluster(account, options, found)
            for number in SIGNALS:
                signal.signal(number, interrupted)
        ask_ec2(account, options, found)
    except KeyboardInterrupt as why:
        found["interrupted"] = str(why)
    if options.dry_run:
        print("\ncalls:")
        for action, count in sorted(account.calls.items()):
            print(f"  {action} at least {count} times")
        unused = granted() - set(account.calls) - {"ec2:CreateTags", "ec2:RunInstances"}
        print(f"rights: {POLICY.name}" + (f"; not used here: {', '.join(sorted(unused))}" if unused else ""))
        return 0
    print("\nThe report. It holds no credentials; please add it to an issue:\n")
    report = json.dumps({"region": options.region, **found}, indent=2)
    print(re.sub(r"\b\d{12}\b", "ACCOUNT", report))
    left = found.get("left in the account") or found.get("left in the account, nodes")
    return 1 if left or "interrupted" in found else 0


if __name__ == "__main__":
    sys.exit(main())
