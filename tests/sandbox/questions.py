"""The seven questions about EC2 that its documentation does not answer. Each returns a dictionary for
the report. The instances are of the smallest type, and end by themselves after a quarter of an hour.
"""

import base64
import concurrent.futures
import time
import uuid

TYPE = "t3.nano"
# Each instance ends by itself, even if the script is killed.
USER_DATA = "#!/bin/sh\nshutdown -h +15\n"
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
# Calls of the first question: at once, and afterwards at a steady rate.
BURST, STEADY, PER_SECOND = 30, 30, 5
# Instant fleets in one call that deletes them. Source: EC2 API reference, DeleteFleets.
FLEETS = 25
# EC2 may answer a used token otherwise after this time, in seconds.
REPLAY_AFTER = 600


class Questions:
    def __init__(self, account, subnets, image):
        self.account, self.subnets, self.image = account, subnets, image
        self.template = f"outrigger-sandbox-{account.run}"
        self.fleets, self.codes, self.own = [], [], None

    def prepare(self):
        data = {
            "ImageId": self.image,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "UserData": base64.b64encode(USER_DATA.encode()).decode(),
            "MetadataOptions": {"HttpTokens": "required"},
        }
        self.account.ask(
            "ec2:CreateLaunchTemplate", LaunchTemplateName=self.template, LaunchTemplateData=data,
            TagSpecifications=self.account.tags("launch-template"),
        )

    def subnet(self):
        """The subnet of a zone that has the type."""
        if self.own is None:
            found = [row["SubnetId"] for row in self.offered() if row["InstanceType"] == TYPE]
            if not found:
                raise RuntimeError(f"no subnet of the default VPC is in a zone with {TYPE}")
            self.own = found[0]
        return self.own

    def offered(self):
        """Types and subnets that a request can name."""
        rows = self.account.ask_all("ec2:DescribeInstanceTypeOfferings", "InstanceTypeOfferings",
                                    LocationType="availability-zone")
        return [{"InstanceType": row["InstanceType"], "SubnetId": self.subnets[row["Location"]]}
                for row in rows if row["Location"] in self.subnets]

    def fleet(self, **how):
        """The answer or the code of a call that was not throttled."""
        for _ in range(60):
            answer, code = self.fleet_once(**how)
            if code != "RequestLimitExceeded":
                break
            self.account.wait(2)
        return answer, code

    def fleet_once(self, overrides=None, template=None, count=1, token=None, dry=False):
        """A CreateFleet call as Outrigger makes it. Returns the answer or the code."""
        overrides = overrides or [{"InstanceType": TYPE, "SubnetId": self.subnet()}]
        for number, override in enumerate(overrides):
            override.setdefault("Priority", float(number))
        answer, code = self.account.attempt(
            "ec2:CreateFleet", Type="instant", DryRun=dry, ClientToken=token or uuid.uuid4().hex,
            LaunchTemplateConfigs=[{
                "LaunchTemplateSpecification": {
                    "LaunchTemplateName": template or self.template, "Version": "$Latest",
                },
                "Overrides": overrides,
            }],
            TargetCapacitySpecification={
                "TotalTargetCapacity": count, "DefaultTargetCapacityType": "on-demand",
            },
            OnDemandOptions={"AllocationStrategy": "prioritized"},
            TagSpecifications=self.account.tags("fleet", "instance", "volume"),
        )
        if answer and answer.get("FleetId"):
            self.fleets.append(answer["FleetId"])
        self.codes += [code] if code else []
        self.codes += [item.get("ErrorCode") for item in (answer or {}).get("Errors", [])]
        return answer, code

    def rate(self):
        """1. How many CreateFleet calls EC2 permits, at once and per second."""
        self.subnet()

        def one(after):
            self.account.wait(after)
            sent = time.monotonic()
            answer, code = self.fleet_once()
            return sent, code, bool(answer and answer.get("Instances"))

        with concurrent.futures.ThreadPoolExecutor(BURST) as pool:
            burst = list(pool.map(one, [0] * BURST))
        self.end_all()
        self.account.wait(30)
        with concurrent.futures.ThreadPoolExecutor(STEADY) as pool:
            steady = sorted(pool.map(one, [number / PER_SECOND for number in range(STEADY)]))
        self.end_all()
        # Until the first call is throttled, EC2 permits those that it has saved up.
        first = next((at for at, row in enumerate(steady) if row[1] is not None), len(steady))
        later = steady[first:]
        took = later[-1][0] - later[0][0] if len(later) > 1 else 0
        passed = sum(row[1] is None for row in later)
        return {
            "calls at once": BURST,
            "permitted at once": sum(code is None for _, code, _ in burst),
            "launched at once": sum(has for _, _, has in burst),
            "codes": sorted({code for _, code, _ in burst + steady if code}),
            "permitted after half a minute, before the first is throttled": first,
            "permitted per second afterwards": round(passed / took, 2) if took else None,
            "sent per second afterwards": round(len(later) / took, 2) if took else None,
        }

    def replay_first(self):
        """2. What EC2 answers to a used token, first part. The rest comes ten minutes later."""
        self.token, self.used = uuid.uuid4().hex, time.monotonic()
        first = described(*self.fleet(token=self.token))
        again = described(*self.fleet(token=self.token))
        other = described(*self.fleet(token=self.token, count=2))
        self.end_all()
        ended = described(*self.fleet(token=self.token))
        return {"first": first, "at once": again, "with another count": other,
                "after the instance has ended": ended}

    def replay_last(self):
        """2. The same token after ten minutes."""
        past = (time.monotonic() - self.used) / self.account.pace
        self.account.wait(max(0, REPLAY_AFTER - past))
        return {"after ten minutes": described(*self.fleet(token=self.token))}

    def fleet_quota(self):
        """3. Whether instant fleets count towards a quota, and how long they exist."""
        states = []
        for start in range(0, len(self.fleets), 50):
            answer = self.account.ask("ec2:DescribeFleets", FleetIds=self.fleets[start:start + 50])
            states += [fleet["FleetState"] for fleet in answer["Fleets"]]
        return {"fleets": len(self.fleets), "states": {own: states.count(own) for own in set(states)},
                "MaxFleetCountExceeded": self.codes.count("MaxFleetCountExceeded")}

    def missing_template_dry(self):
        """4. What a dry run says of a template that does not exist."""
        _, code = self.fleet(template=f"{self.template}-missing", dry=True)
        return {"code": code}

    def body_limit(self):
        """5. How many overrides a request may have."""
        rows, found = self.offered(), {}
        for count in range(100, 700, 100):
            overrides = [dict(row) for row in rows[:count]]
            _, code = self.fleet(overrides=overrides, dry=True)
            found[str(count)] = {"overrides": len(overrides), "code": code}
        return found

    def missing_template(self):
        """6. Whether a missing template is an error of the call or of an override."""
        answer, code = self.fleet(template=f"{self.template}-missing")
        return {"call": code, "items": items(answer)}

    def item_fields(self):
        """7. Which fields name the override in the errors of a partly filled fleet. The image is not
        for the architecture of the first types."""
        overrides = [
            {"InstanceType": name, "SubnetId": self.subnet()} for name in ("t4g.nano", "t4g.micro", TYPE)
        ]
        answer, code = self.fleet(overrides=overrides, count=2)
        self.end_all()
        return {"call": code, "items": items(answer)}

    def instances(self):
        """Ids of all instances of this run that have not ended."""
        filters = [
            {"Name": "tag:outrigger-sandbox", "Values": [self.account.run]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        rows = self.account.ask_all("ec2:DescribeInstances", "Reservations", Filters=filters)
        return [one["InstanceId"] for row in rows for one in row["Instances"]]

    def end_all(self):
        """Ends all instances of this run. EC2 lists new ones late, so it looks three times."""
        for wait in (5, 15, 0):
            ids = self.instances()
            if ids or self.account.dry:
                _, code = self.account.attempt("ec2:TerminateInstances", InstanceIds=ids)
                # One id that EC2 does not know yet makes the whole call fail.
                for one in ids if code else []:
                    self.account.attempt("ec2:TerminateInstances", InstanceIds=[one])
            self.account.wait(wait)

    def remove(self):
        """Removes everything that this run has made. Returns what is left."""
        self.end_all()
        for start in range(0, len(self.fleets), FLEETS):
            self.account.attempt("ec2:DeleteFleets", FleetIds=self.fleets[start:start + FLEETS],
                                 TerminateInstances=True)
        for name in self.templates():
            self.account.attempt("ec2:DeleteLaunchTemplate", LaunchTemplateName=name)
        return self.templates() + self.instances()

    def templates(self):
        """Names of all launch templates of this run, also those of the daemon."""
        filters = [{"Name": "tag:outrigger-sandbox", "Values": [self.account.run]}]
        rows = self.account.ask_all("ec2:DescribeLaunchTemplates", "LaunchTemplates", Filters=filters)
        return [row["LaunchTemplateName"] for row in rows]


def items(answer):
    """The errors of an answer, with the fields that name the override."""
    rows = (answer or {}).get("Errors", [])
    return [
        {
            "code": row.get("ErrorCode"),
            "fields": sorted(row.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})),
        }
        for row in rows
    ]


def described(answer, code):
    """An answer in short."""
    rows = (answer or {}).get("Instances", [])
    return {"code": code, "instances": [one for row in rows for one in row["InstanceIds"]],
            "errors": [item["code"] for item in items(answer)]}
