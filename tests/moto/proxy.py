"""Stands before moto: records each call, refuses and breaks what it is told to, and answers what
moto answers wrong or not at all.

It must not hold what the account holds (`world`) nor decide about capacity (`fleet`).
"""

import copy
import random
import threading
import time
import traceback

from moto.ec2.models.instances import StateReason

from faults import Dropped, Faults, hang_up
from fleet import Fleet, groups
from lacks import Lacks, page, passes
from limits import Limits
from rights import Rights, of, of_launch
from wire import Answer, Call, Refused

# What moto lists whole whatever the page's size, by the member that is the list.
PAGED = {
    "ec2:DescribeInstanceTypes": ("InstanceTypes", 100),
    "ec2:DescribeInstanceTypeOfferings": ("InstanceTypeOfferings", 1000),
    "ec2:DescribeImages": ("Images", 1000),
    "ec2:DescribeSubnets": ("Subnets", 1000),
    "ec2:DescribeSecurityGroups": ("SecurityGroups", 1000),
    "ec2:DescribeLaunchTemplates": ("LaunchTemplates", 200),
}
# Of these moto lists 15 unless it is told how many, and never says that there are more.
WHOLE = {"ec2:DescribeLaunchTemplates": {"MaxResults": 100_000}}
# Two seconds of work each time, and the same in every run.
KEPT = {"ec2:DescribeInstanceTypes", "ec2:DescribeInstanceTypeOfferings"}
PROFILE = "iam-instance-profile.arn"
# The longest body of CreateFleet, in bytes. In the field, about 300 overrides are too many.
FLEET_BODY_MAX = 80_000
TOKENS = {"ec2:CreateFleet", "ec2:CreateLaunchTemplate"}
STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48,
          "stopping": 64, "stopped": 80}


class Proxy:
    """A WSGI application around moto's."""

    def __init__(self, moto, world, settings):
        self.moto = moto
        self.world = world
        self.settings = settings
        self.rights = Rights(world)
        self.faults = Faults()
        self.lacks = Lacks(world)
        self.limits = Limits()
        self.fleet = Fleet(world, self.rights)
        self.began = time.monotonic()
        self.lock = threading.RLock()
        self.calls = []
        self.tokens = {}
        self.last = {}
        self.kept = {}
        # When an instance was launched, and the same of those that boot or end just now.
        self.born = {}
        self.chance = random.Random(1)
        self.booting = {}
        self.ending = {}
        # When an instance ended.
        self.over = {}

    def __call__(self, environ, start_response):
        try:
            call = Call(environ)
        except Exception as error:
            traceback.print_exc()
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [f"not a call of AWS: {error}".encode()]
        try:
            answer = self.answer(call)
        except Dropped:
            self.faults.written(call)
            raise
        headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} -", headers)
        return Written(answer.body, lambda: self.faults.written(call))

    def answer(self, call):
        """What the caller gets, with the fault that a test asked for."""
        rule = self.faults.of(call)
        entry = {
            "at": round(call.at - self.began, 3),
            "call": call.name,
            "key": call.key,
            "agent": call.agent,
            "region": call.region,
            "params": call.params,
            "fault": rule["kind"] if rule else None,
            "status": None,
            "error": None,
        }
        with self.lock:
            self.calls.append(entry)
        answer = None
        if rule and not rule["after"]:
            answer = self.broken(rule, call)
        if answer is None:
            takes = 0.0
            if call.action == "CreateFleet":
                takes = self.chance.uniform(*self.settings["fleet"])
            # The instances are there before their answer.
            time.sleep(takes / 2)
            answer = self.done(call, entry)
            time.sleep(takes / 2 if answer.status == 200 else 0)
        if rule and rule["after"]:
            answer = self.broken(rule, call) or answer
        entry["status"] = answer.status
        return answer

    def broken(self, rule, call):
        kind = rule["kind"]
        if kind == "drop":
            hang_up(call)
        if kind == "throttle":
            return call.refuse(call.throttled())
        if kind == "unavailable":
            return call.refuse(call.unavailable())
        if kind == "error":
            words = rule.get("message", rule["code"])
            return call.refuse(Refused(rule["code"], words, rule.get("status", 400)))
        if kind == "stale":
            with self.lock:
                return self.last.get((call.name, call.same()))
        self.faults.wait(rule, call)
        return None

    def done(self, call, entry):
        """The answer of a service that is well."""
        try:
            with self.lock:
                # EC2 counts a call before it reads it, so a throttled call has no effect.
                if not self.limits.passes(call):
                    raise call.throttled()
            for action in of(call.name, call.params):
                self.rights.need(call, action)
            self.rights.own(call)
            if call.name == "sqs:ReceiveMessage":
                # It may wait for 20 s.
                return self.pass_on(call)
            with self.lock:
                self.age()
                answer = self.once(call) if call.name in TOKENS else self.serve(call)
                if answer.status == 200 and call.action.startswith(("Describe", "List", "Get")):
                    self.last[call.name, call.same()] = answer
                return answer
        except Refused as refused:
            entry["error"] = refused.code
            return call.refuse(refused)
        except Exception as error:
            # Moto's own refusals, where its models were asked directly, say what they would be.
            code = getattr(error, "code", None) or getattr(error, "error_type", None)
            if not isinstance(code, str):
                traceback.print_exc()
                code = "InternalError"
            entry["error"] = code
            message = getattr(error, "message", None) or str(error)
            return call.refuse(Refused(code, message, 500 if code == "InternalError" else 400))

    def once(self, call):
        """One answer for one token, however often it is asked."""
        token = call.params.get("ClientToken")
        if not token or call.params.get("DryRun"):
            return self.serve(call)
        key, said = (call.name, token), call.same()
        if key not in self.tokens:
            answer = self.serve(call)
            # A call that was refused as a whole has used nothing up.
            if answer.status == 200:
                self.tokens[key] = said, answer
            return answer
        first, answer = self.tokens[key]
        if first != said or self.settings["replay"] == "mismatch":
            raise Refused(
                "IdempotentParameterMismatch",
                "The client token you have provided is associated with a request whose "
                "parameters differ.",
            )
        if self.settings["replay"] == "without" and call.action == "CreateFleet":
            # EC2 promises no more than that nothing is launched twice.
            return call.write({**call.read(answer), "Errors": [], "Instances": []})
        return answer

    def serve(self, call):
        """The answer, without regard to tokens and faults."""
        own = self.lacks.answers.get(call.name)
        if own is not None:
            if call.params.get("DryRun"):
                raise Refused("DryRunOperation", "Request would have succeeded.", 412)
            return call.write(own(call.params))
        if call.name in PAGED:
            return self.paged(call)
        if call.service == "ec2":
            special = getattr(self, f"ec2_{call.action}", None)
            if special is not None:
                return special(call)
        return self.pass_on(call)

    def pass_on(self, call, environ=None):
        """Moto's answer."""
        got = {}

        def start_response(status, headers, _info=None):
            got["status"], got["headers"] = int(status.split()[0]), headers

        environ = dict(environ or call.environ)
        body = b"".join(self.moto(environ, start_response))
        return Answer(got["status"], got["headers"], body)

    def paged(self, call):
        """A listing in pages, where moto has only one."""
        member, most = PAGED[call.name]
        params = {
            name: value for name, value in call.params.items()
            if name not in ("MaxResults", "NextToken", "DryRun")
        }
        key = call.name, str(sorted(params.items()))
        rows = self.kept.get(key)
        if rows is None:
            whole = {**params, **WHOLE.get(call.name, {})}
            answer = self.pass_on(call, call.with_params(whole))
            if answer.status != 200:
                return answer
            rows = call.read(answer)[member]
            if call.name in KEPT:
                rows = [row for row in rows if self.world.sells(row["InstanceType"])]
                self.kept[key] = rows
        if "MaxResults" not in call.params and "NextToken" not in call.params:
            most = max(len(rows), 1)
        rows, token = page(rows, call.params, most)
        return call.write({member: rows, "NextToken": token})

    def ec2_CreateFleet(self, call):
        if call.params.get("DryRun"):
            return self.pass_on(call)
        if len(call.body) > FLEET_BODY_MAX:
            raise Refused(
                "InvalidInput",
                "The request failed because the payload for the body of the request is too large.",
            )

        def ask(params):
            answer = self.pass_on(call, call.with_params(params))
            if answer.status != 200:
                error = call.read(answer)["Error"]
                raise Refused(error["Code"], error["Message"], answer.status)
            return call.read(answer)

        result = self.fleet.create(call, ask)
        for row in result["Instances"]:
            for one in row["InstanceIds"]:
                self.born[one] = self.booting[one] = time.monotonic()
                self.set_state(one, "pending")
        return call.write(result)

    def ec2_RunInstances(self, call):
        """Only tried, never done: what it would be refused for is found out as for a fleet."""
        if not call.params.get("DryRun"):
            return self.pass_on(call)
        named = call.params.get("LaunchTemplate")
        if named:
            _, data = self.fleet.template(named)
            profile = data.get("IamInstanceProfile")
            if profile and self.world.profile(profile) is None:
                name = profile.get("Name") or profile.get("Arn")
                raise Refused(
                    "InvalidParameterValue",
                    f"Value ({name}) for parameter iamInstanceProfile.name is invalid. "
                    "Invalid IAM Instance Profile name",
                )
            for action in of_launch(data):
                self.rights.need(call, action)
            for group in groups(data):
                if self.world.ec2.get_security_group_from_id(group) is None:
                    message = f"The security group '{group}' does not exist"
                    raise Refused("InvalidGroup.NotFound", message)
        raise Refused("DryRunOperation", "Request would have succeeded.", 412)

    def ec2_DescribeInstances(self, call):
        """Without those that were launched a moment ago, or ended long ago. Moto knows no filter
        by profile."""
        rows = call.params.get("Filters") or []
        wanted = {row["Name"]: row["Values"] for row in rows if row["Name"] == PROFILE}
        if not wanted:
            with self.world.without(self.hidden()):
                return self.pass_on(call)
        others = {
            one for one, life in self.world.lives.items()
            if not passes({PROFILE: (life["instance"].iam_instance_profile or {}).get("Arn")}, wanted)
        }
        rest = {**call.params, "Filters": [row for row in rows if row["Name"] != PROFILE]}
        with self.world.without(self.hidden() | others):
            return self.pass_on(call, call.with_params(rest))

    def ec2_DescribeInstanceStatus(self, call):
        # Moto knows none of the filters that tests need.
        if call.params.get("DryRun"):
            raise Refused("DryRunOperation", "Request would have succeeded.", 412)
        named = {name: call.params[name] for name in ("InstanceIds", "IncludeAllInstances")
                 if name in call.params}
        with self.world.without(self.hidden()):
            answer = self.pass_on(call, call.with_params(named))
        if answer.status != 200:
            return answer
        rows = copy.deepcopy(call.read(answer)["InstanceStatuses"])
        rows, token = page(self.lacks.status(call.params, rows), call.params)
        return call.write({"InstanceStatuses": rows, "NextToken": token})

    def ec2_TerminateInstances(self, call):
        asked = call.params.get("InstanceIds") or []
        hidden = self.hidden()
        states = {one: None if one in hidden else self.state(one) for one in asked}
        live = [one for one in asked if states[one] in ("pending", "running", None)]
        if call.params.get("DryRun") or None in states.values():
            with self.world.without(hidden):
                return self.pass_on(call)
        if live:
            # Moto does not end an instance twice.
            answer = self.pass_on(call, call.with_params({"InstanceIds": live}))
            if answer.status != 200:
                return answer
        for one in live:
            self.ending[one] = time.monotonic()
            self.set_state(one, "shutting-down")
        rows = [
            {"InstanceId": one, "PreviousState": shown(states[one]),
             "CurrentState": shown(self.state(one))}
            for one in asked
        ]
        return call.write({"TerminatingInstances": rows})

    def ec2_CreateTags(self, call):
        for one in call.params.get("Resources") or []:
            if one.startswith("i-") and self.world.find(one) is None:
                message = f"The instance ID '{one}' does not exist"
                raise Refused("InvalidInstanceID.NotFound", message)
        return self.pass_on(call)

    def ec2_DeleteLaunchTemplate(self, call):
        """Moto's second answer is that of a call without parameters."""
        name, one = call.params.get("LaunchTemplateName"), call.params.get("LaunchTemplateId")
        backend = self.world.ec2
        if name and name not in backend.launch_template_name_to_ids:
            raise Refused(
                "InvalidLaunchTemplateName.NotFoundException",
                f"The specified launch template, with template name {name}, does not exist.",
            )
        if one and one not in backend.launch_templates:
            raise Refused(
                "InvalidLaunchTemplateId.NotFound",
                f"The specified launch template, with template ID {one}, does not exist.",
            )
        return self.pass_on(call)

    def hidden(self):
        """The instances that this call does not see. Once the time is half over, each call has its
        own view of them."""
        now, hide, forget = time.monotonic(), self.settings["hide"], self.settings["forget"]
        new = {one for one, at in self.born.items()
               if now - at < hide / 2 or now - at < hide and self.chance.random() < 0.5}
        return new | {one for one, at in self.over.items() if now - at >= forget}

    def state(self, one):
        instance = self.world.find(one)
        return instance.state if instance else None

    def set_state(self, one, name):
        instance = self.world.find(one)
        instance._state.name, instance._state.code = name, STATES[name]

    def age(self):
        """Instances boot and end in a while, not at once."""
        now = time.monotonic()
        doomed = self.fleet.doomed
        for one in [one for one, end in doomed.items() if self.born[one] + end[0] <= now]:
            _, code, message = doomed.pop(one)
            if self.state(one) in ("pending", "running"):
                self.set_state(one, "terminated")
                self.world.find(one).state_reason = StateReason(message, code)
                self.over[one] = now
        for waiting, setting, before, after in (
            (self.booting, "boot", "pending", "running"),
            (self.ending, "end", "shutting-down", "terminated"),
        ):
            # The oldest first, and the settings are the same for all.
            while waiting:
                one, at = next(iter(waiting.items()))
                if time.monotonic() - at < self.settings[setting]:
                    break
                del waiting[one]
                if self.state(one) == before:
                    self.set_state(one, after)
                if after == "terminated":
                    self.over[one] = time.monotonic()


class Written:
    """The body of an answer; says when it has been written."""

    def __init__(self, body, then):
        self.body, self.close = body, then

    def __iter__(self):
        yield self.body


def shown(state):
    return {"Name": state, "Code": STATES[state]}
