"""Calls of AWS: the only place that makes them. Each call is listed before it is made, and checked
against `policy.json`. A dry run makes none, and returns answers that let the script go on.
"""

import collections
import json
import pathlib
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

POLICY = pathlib.Path(__file__).with_name("policy.json")
# Tag of everything that the script makes. Its value is the id of the run.
TAG = "outrigger-sandbox"
# Rights that EC2 checks besides that of the call.
FURTHER = {
    "ec2:CreateFleet": ["ec2:RunInstances", "ec2:CreateTags"],
    "ec2:CreateLaunchTemplate": ["ec2:CreateTags"],
}
# Errors that a repetition does not change.
LASTING = ("AccessDenied", "AccessDeniedException", "InvalidInstanceID.NotFound", "UnauthorizedOperation",
           "ResourceNotFoundException", "ParameterNotFound")
# Answers of a dry run, by action.
DRY = {
    "sts:GetCallerIdentity": {"Account": "000000000000", "Arn": "arn:aws:iam::000000000000:user/dry-run"},
    "ec2:DescribeVpcs": {"Vpcs": [{"VpcId": "vpc-dry"}]},
    "ec2:DescribeSubnets": {"Subnets": [
        {"SubnetId": f"subnet-dry-{zone}", "AvailabilityZone": f"zone-{zone}"} for zone in "abc"
    ]},
    "ec2:DescribeInstanceTypeOfferings": {"InstanceTypeOfferings": [
        {"InstanceType": "t3.nano", "Location": f"zone-{zone}"} for zone in "abc"
    ]},
    "ssm:GetParameter": {"Parameter": {"Value": "ami-dry"}},
    "ec2:CreateFleet": {"FleetId": "fleet-dry", "Errors": [],
                        "Instances": [{"InstanceIds": ["i-dry"], "InstanceType": "t3.nano"}]},
    "ec2:DescribeFleets": {"Fleets": [{"FleetId": "fleet-dry", "FleetState": "active"}]},
    "ec2:DescribeInstances": {"Reservations": []},
    "ec2:DescribeLaunchTemplates": {"LaunchTemplates": [{"LaunchTemplateName": "dry"}]},
    "eks:DescribeCluster": {"cluster": {
        "version": "1.33", "status": "ACTIVE", "resourcesVpcConfig": {
            "subnetIds": ["subnet-dry-a"], "clusterSecurityGroupId": "sg-dry", "vpcId": "vpc-dry"},
    }},
    "sqs:GetQueueUrl": {"QueueUrl": "https://queue.invalid/dry"},
}


def granted():
    """The actions of the policy that the documentation names."""
    statements = json.loads(POLICY.read_text())["Statement"]
    allowed = [statement for statement in statements if statement["Effect"] == "Allow"]
    return {action for statement in allowed for action in statement["Action"]}


class Account:
    """An account and region, and the calls that were made or listed."""

    def __init__(self, region, dry, run, pace=1.0):
        self.region, self.dry, self.run, self.pace = region, dry, run, pace
        self.calls = collections.Counter()
        self.clients = {}
        self.allowed = granted()

    def client(self, service):
        if service not in self.clients:
            # A throttled call is counted and not hidden by a retry.
            config = Config(retries={"total_max_attempts": 1}, read_timeout=70, connect_timeout=10)
            self.clients[service] = boto3.client(service, region_name=self.region, config=config)
        return self.clients[service]

    def attempt(self, action, **params):
        """Makes a call. Returns its answer and no code, or no answer and the code of the error."""
        for right in [action, *FURTHER.get(action, [])]:
            if right not in self.allowed:
                raise SystemExit(f"{action} needs {right}, which {POLICY.name} does not grant")
        self.calls[action] += 1
        if self.dry:
            return DRY.get(action, {}), None
        service, operation = action.split(":")
        client = self.client(service)
        name = next(name for name, own in client.meta.method_to_api_mapping.items() if own == operation)
        try:
            return getattr(client, name)(**params), None
        except ClientError as error:
            return None, error.response["Error"].get("Code", "Unknown")
        except BotoCoreError as error:
            return None, type(error).__name__

    def ask(self, action, **params):
        """A call that has to succeed. It is repeated for a minute: calls are throttled here."""
        for wait in (1, 2, 4, 8, 16, 30, None):
            answer, code = self.attempt(action, **params)
            if code is None:
                return answer
            if code in LASTING or wait is None:
                raise RuntimeError(f"{action}: {code}")
            self.wait(wait)
        raise AssertionError("the last wait ends the loop")

    def ask_all(self, action, member, **params):
        """The rows of all pages."""
        rows, token = [], {}
        while True:
            answer = self.ask(action, **params, **token)
            rows += answer.get(member, [])
            if not answer.get("NextToken"):
                return rows
            token = {"NextToken": answer["NextToken"]}

    def wait(self, seconds):
        if not self.dry:
            time.sleep(seconds * self.pace)

    def tags(self, *kinds):
        own = [{"Key": TAG, "Value": self.run}, {"Key": "Name", "Value": f"{TAG}-{self.run}"}]
        return [{"ResourceType": kind, "Tags": own} for kind in kinds]
