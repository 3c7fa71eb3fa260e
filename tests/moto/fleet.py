"""CreateFleet as EC2 does it: capacity by type, zone and capacity type, errors item by item.

Moto takes the first override there is and never lacks capacity. Here an override that cannot be had
becomes an error of the answer, and moto is asked for the best of the rest. It must not know how a
request came in.
"""

import uuid

from wire import Refused

MESSAGES = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient {type} capacity in the "
    "Availability Zone you requested ({zone}). Our system will be working on provisioning "
    "additional capacity.",
    "InsufficientFreeAddressesInSubnet": "There are not enough free addresses in subnet "
    "'{subnet}' to satisfy the requested number of instances.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit "
    "allows for the instance bucket that the specified instance type belongs to.",
    "UnfulfillableCapacity": "Unable to fulfill capacity due to your request configuration. "
    "Please adjust your request and try again.",
    "ReservationCapacityExceeded": "The requested reservation does not have sufficient "
    "compatible and available capacity for this request.",
    "InvalidFleetConfiguration": "Your requested instance type ({type}) is not supported in "
    "your requested Availability Zone ({zone}).",
}
WILD = ("type", "zone", "capacity_type", "subnet")


class Fleet:
    """What of the region's capacity is out, by rules that tests write."""

    def __init__(self, world, rights):
        self.world = world
        self.rights = rights
        self.outages = []
        self.scarce = []
        self.dooms = []
        # How new instances end by themselves: seconds after their launch, code and message.
        self.doomed = {}

    def outage(self, command):
        """A rule: overrides that match every field it names get its error."""
        rule = self.rule(command, "code", "message", "times")
        self.outages.append({"code": "InsufficientInstanceCapacity", "times": None, **rule})

    def capacity(self, command):
        """A rule: of overrides that match every field it names, `left` instances can be had."""
        self.scarce.append({**self.rule(command, "left"), "left": int(command["left"])})

    def doom(self, command):
        """A rule: instances of overrides that match every field it names end `after` seconds of
        their launch, `times` of them or all, with this `code` and `message` as their reason."""
        rule = self.rule(command, "code", "message", "after", "times")
        self.dooms.append({"after": 2.0, "message": command["code"], "times": None, **rule})

    def rule(self, command, *fields):
        unknown = set(command) - {"do", *fields, *WILD}
        if unknown:
            raise ValueError(f"a rule of {command['do']} has no field {sorted(unknown)}")
        return command

    def rules(self, offer, rules):
        """The rules that match an override."""
        return [rule for rule in rules
                if all(rule.get(name) in (None, offer[name]) for name in WILD)]

    def take(self, offer, rules):
        """The first rule that matches an override and is not used up. Using it counts."""
        for rule in self.rules(offer, rules):
            if rule["times"] != 0:
                if rule["times"] is not None:
                    rule["times"] -= 1
                return rule
        return None

    def create(self, call, ask):
        """Answers the call; `ask` has moto create a fleet of the parameters it is given."""
        offers = self.offers(call.params)
        if not offers:
            raise Refused("MissingParameter", "the fleet has no launch template with overrides")
        errors, had, free = [], [], self.free(offers)
        for offer in offers:
            refusal = self.refusal(call, offer, free)
            if refusal is None:
                had.append(offer)
            else:
                errors.append(self.item(offer, *refusal))
        target = call.params.get("TargetCapacitySpecification") or {}
        wanted = int(target.get("TotalTargetCapacity") or 1)
        fleet, instances = f"fleet-{uuid.uuid4()}", []
        # The first of equals: EC2 says nothing of their order, and a test wants the same twice.
        for offer in sorted(had, key=lambda offer: offer["priority"]):
            count = min(wanted, self.room(offer, free))
            if count > 0:
                instances.append(self.launch(call, ask, offer, count, fleet))
                wanted -= count
                free[offer["subnet"]] = free.get(offer["subnet"], count) - count
            if wanted == 0:
                break
            errors.append(self.item(offer, *self.spent(offer, free)))
        return {"FleetId": fleet, "Errors": errors, "Instances": instances}

    def launch(self, call, ask, offer, count, fleet):
        """Has moto launch instances of one override, in a row of the answer."""
        config = {
            "LaunchTemplateSpecification": offer["specification"],
            "Overrides": [offer["override"]],
        }
        target = {**call.params["TargetCapacitySpecification"], "TotalTargetCapacity": count}
        answer = ask({
            **call.params,
            "LaunchTemplateConfigs": [config],
            "TargetCapacitySpecification": target,
        })
        rows = answer["Instances"]
        made = [one for row in rows for one in row["InstanceIds"]]
        for one in made:
            self.born(one, offer)
            # Nobody else can write it, nor can any copy of the instance have it.
            self.world.ec2.tags[one]["aws:ec2:fleet-id"] = fleet
            doom = self.take(offer, self.dooms)
            if doom:
                self.doomed[one] = doom["after"], doom["code"], doom["message"]
        for rule in self.rules(offer, self.scarce):
            rule["left"] -= count
        return {**rows[0], "InstanceIds": made, "LaunchTemplateAndOverrides": self.named(offer)}

    def room(self, offer, free):
        """How many instances of an override can be had."""
        held = self.world.reservations.get(offer["reservation"])
        rooms = [rule["left"] for rule in self.rules(offer, self.scarce)]
        if offer["subnet"] in free:
            rooms.append(free[offer["subnet"]])
        if held:
            rooms.append(held["TotalInstanceCount"] - self.world.in_use(offer["reservation"]))
        return max(0, min(rooms, default=1000))

    def spent(self, offer, free):
        """Why no more instances of an override can be had."""
        if free.get(offer["subnet"], 1) <= 0:
            return "InsufficientFreeAddressesInSubnet", None
        if offer["reservation"]:
            return "ReservationCapacityExceeded", None
        return "InsufficientInstanceCapacity", None

    def offers(self, params):
        """Every override, with all that decides whether it can be had."""
        target = params.get("TargetCapacitySpecification") or {}
        kind = target.get("DefaultTargetCapacityType", "on-demand")
        offers = []
        for config in params.get("LaunchTemplateConfigs") or []:
            specification = config.get("LaunchTemplateSpecification") or {}
            template, data = self.template(specification)
            for override in config.get("Overrides") or [{}]:
                subnet = override.get("SubnetId")
                zone = self.world.zone_of(subnet) if subnet else override.get("AvailabilityZone")
                target = (data.get("CapacityReservationSpecification") or {}).get(
                    "CapacityReservationTarget"
                ) or {}
                reservation = target.get("CapacityReservationId")
                offers.append({
                    "type": override.get("InstanceType") or data.get("InstanceType"),
                    "zone": zone,
                    "subnet": subnet,
                    "capacity_type": "reserved" if reservation else kind,
                    "reservation": reservation,
                    "image": override.get("ImageId") or data.get("ImageId"),
                    "priority": float(override.get("Priority") or 0),
                    "template": template,
                    "data": data,
                    "specification": specification,
                    "override": override,
                })
        return offers

    def template(self, specification):
        backend = self.world.ec2
        if specification.get("LaunchTemplateId"):
            template = backend.get_launch_template(specification["LaunchTemplateId"])
        else:
            template = backend.get_launch_template_by_name(specification["LaunchTemplateName"])
        return template, template.get_version(specification.get("Version", "$Default")).data

    def free(self, offers):
        """Addresses left by subnet: moto counts them anew each time it is asked."""
        subnets = {offer["subnet"] for offer in offers} - {None}
        return {one: self.world.ec2.get_subnet(one).available_ip_address_count for one in subnets}

    def refusal(self, call, offer, free):
        """Why an override cannot be had, as EC2 would find out: rights, words, capacity."""
        data = offer["data"]
        try:
            self.rights.launch(call, offer["template"], data, offer["capacity_type"])
        except Refused as refused:
            return refused.code, refused.message
        wrong = self.wrong(offer, data)
        if wrong:
            return wrong
        ruled = self.take(offer, self.outages)
        if ruled:
            return ruled["code"], ruled.get("message")
        if self.room(offer, free) == 0:
            return self.spent(offer, free)
        return None

    def wrong(self, offer, data):
        """What no amount of capacity would cure."""
        world, kind, image = self.world, offer["type"], offer["image"]
        if (kind, offer["zone"]) not in world.offered:
            return "InvalidFleetConfiguration", None
        classes = world.types[kind].get("SupportedUsageClasses") or ["on-demand"]
        if offer["capacity_type"] == "spot" and "spot" not in classes:
            return "InvalidFleetConfiguration", None
        ami = world.ec2.amis.get(image)
        if ami is None:
            return "InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist"
        has = world.types[kind]["ProcessorInfo"]["SupportedArchitectures"]
        if ami.architecture not in has:
            return "InvalidParameterValue", (
                f"The architecture '{has[-1]}' of the specified instance type does not match the "
                f"architecture '{ami.architecture}' of the specified AMI."
            )
        asked = data.get("IamInstanceProfile")
        if asked and world.profile(asked) is None:
            name = asked.get("Name") or asked.get("Arn")
            return "InvalidParameterValue", (
                f"Value ({name}) for parameter iamInstanceProfile.name is invalid. "
                "Invalid IAM Instance Profile name"
            )
        for group in groups(data):
            if world.ec2.get_security_group_from_id(group) is None:
                return "InvalidGroup.NotFound", f"The security group '{group}' does not exist"
        if offer["reservation"] and offer["reservation"] not in world.reservations:
            return "InvalidCapacityReservationId.NotFound", (
                f"The capacity reservation id '{offer['reservation']}' does not exist"
            )
        return None

    def named(self, offer):
        template = offer["template"]
        version = template.get_version(offer["specification"].get("Version", "$Default"))
        return {
            "LaunchTemplateSpecification": {
                "LaunchTemplateId": template.id,
                "LaunchTemplateName": template.name,
                "Version": str(version.number),
            },
            "Overrides": {**offer["override"], "AvailabilityZone": offer["zone"]},
        }

    def item(self, offer, code, message):
        return {
            "LaunchTemplateAndOverrides": self.named(offer),
            "Lifecycle": "spot" if offer["capacity_type"] == "spot" else "on-demand",
            "ErrorCode": code,
            "ErrorMessage": message or MESSAGES.get(code, code).format(**offer),
        }

    def born(self, one, offer):
        backend = self.world.ec2
        instance = backend.get_instance(one)
        requests = backend.spot_instance_requests.values()
        spot = next((ask.id for ask in requests if ask.instance is instance), None)
        template = offer["template"]
        named = {"id": template.id, "name": template.name}
        self.world.born(instance, named, offer["data"], spot, offer["reservation"])


def groups(data):
    """The security groups that a template names, wherever it may name them."""
    interfaces = data.get("NetworkInterfaces") or []
    found = [group for one in interfaces for group in one.get("Groups") or []]
    return found + (data.get("SecurityGroupIds") or [])
