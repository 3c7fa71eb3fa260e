"""The account that moto holds, and what of it the tests see and seed.

It must not know about requests: it works on moto's own objects.
"""

import base64
import contextlib
import datetime
import hashlib

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.instances import MetadataOptions
from moto.eks.models import eks_backends
from moto.iam.models import iam_backends
from moto.sqs.models import sqs_backends
from moto.ssm.models import Parameter, ssm_backends

import userdata

DISCOVERY = "karpenter.sh/discovery"
WINDOWS = {"2019": "10.0.17763", "2022": "10.0.20348", "2025": "10.0.26100"}
# Two of each family, so that "latest" and a pinned version differ.
DATES = [datetime.datetime(2026, 9, 1), datetime.datetime(2026, 11, 1)]
BOTTLEROCKET = ["1.48.0", "1.50.0"]


def tags_of(resource):
    """The tags of a resource: moto looks through those of all resources for them."""
    own = resource.ec2_backend.tags.get(resource.id) or {}
    return [{"resource_id": resource.id, "key": key, "value": value} for key, value in own.items()]


TaggedEC2Resource.get_tags = tags_of


def image_id(name):
    """The same name has the same id in every run."""
    return "ami-" + hashlib.sha256(name.encode()).hexdigest()[:17]


class World:
    """One region of one account, with one EKS cluster's things in it."""

    def __init__(self, region, cluster, version, only=None):
        self.account, self.region = DEFAULT_ACCOUNT_ID, region
        self.cluster, self.version = cluster, version
        self.ec2 = ec2_backends[self.account][region]
        self.iam = iam_backends[self.account]["aws"]
        self.ssm = ssm_backends[self.account][region]
        self.sqs = sqs_backends[self.account][region]
        self.eks = eks_backends[self.account][region]
        offered = INSTANCE_TYPE_OFFERINGS["availability-zone"][region]
        self.only = only
        self.offered = {
            (row["InstanceType"], row["Location"]) for row in offered
            if self.sells(row["InstanceType"])
        }
        self.types = {kind: INSTANCE_TYPES[kind] for kind, _ in sorted(self.offered)}
        # What moto does not keep: by instance, and the reservations and groups it has no idea of.
        self.lives = {}
        self.reservations = {}
        self.groups = {}
        self.shifts = []

    def sells(self, kind):
        """Whether the region has a type: all that moto knows, or the few that a test wants."""
        return self.only is None or kind in self.only

    def seed(self):
        """Creates everything, and says what is what."""
        tags = {DISCOVERY: self.cluster}
        vpc = self.ec2.create_vpc("10.0.0.0/16")
        zones = [f"{self.region}{letter}" for letter in "abc"]
        subnets = {}
        for number, zone in enumerate(zones):
            subnet = self.ec2.create_subnet(
                vpc.id, f"10.0.{number * 16}.0/20", availability_zone=zone
            )
            subnet.add_tags({**tags, "Name": f"{self.cluster}-{zone}"})
            subnets[zone] = subnet.id
        groups = []
        for name in ("node", "shared"):
            name = f"{self.cluster}-{name}"
            group = self.ec2.create_security_group(name, "of the tests", vpc.id)
            group.add_tags(tags)
            groups.append(group.id)
        role, profile = f"{self.cluster}-node", f"{self.cluster}-profile"
        trust = '{"Version":"2012-10-17","Statement":[]}'
        arn = self.iam.create_role(role, trust, "/", None, "", {}, 3600).arn
        self.iam.create_instance_profile(profile, "/", [role])
        queue = self.sqs.create_queue(self.cluster, {})
        self.eks.create_cluster(
            self.cluster,
            arn,
            {"subnetIds": list(subnets.values()), "securityGroupIds": groups},
            self.version,
            {"serviceIpv4Cidr": "10.96.0.0/16", "ipFamily": "ipv4"},
        )
        return {
            "account": self.account,
            "region": self.region,
            "cluster": self.cluster,
            "version": self.version,
            "vpc": vpc.id,
            "subnets": subnets,
            "security_groups": groups,
            "role": role,
            "instance_profile": profile,
            "queue": queue.name,
            "images": self.seed_images(),
        }

    def seed_images(self):
        """Registers the images of every family, and answers the newest by name."""
        images, k8s = {}, self.version
        for date, rocket in zip(DATES, BOTTLEROCKET):
            latest = date == DATES[-1]
            stamp = f"v{date:%Y%m%d}"
            al2023 = f"/aws/service/eks/optimized-ami/{k8s}/amazon-linux-2023"
            for arch, variant in [
                ("x86_64", "standard"),
                ("x86_64", "nvidia"),
                ("x86_64", "neuron"),
                ("arm64", "standard"),
                ("arm64", "nvidia"),
            ]:
                name = f"amazon-eks-node-al2023-{arch}-{variant}-{k8s}-{stamp}"
                image = self.image(name, arch, date)
                words = [name] + (["recommended"] if latest else [])
                for word in words:
                    self.parameter(f"{al2023}/{arch}/{variant}/{word}/image_id", image)
                images[f"al2023/{arch}/{variant}"] = image
            for arch, suffix in [("x86_64", ""), ("arm64", ""), ("x86_64", "-nvidia"),
                                 ("arm64", "-nvidia")]:
                name = f"bottlerocket-aws-k8s-{k8s}{suffix}-{arch}-v{rocket}"
                image = self.image(name, arch, date)
                path = f"/aws/service/bottlerocket/aws-k8s-{k8s}{suffix}/{arch}"
                for word in [rocket] + (["latest"] if latest else []):
                    self.parameter(f"{path}/{word}/image_id", image)
                images[f"bottlerocket/{arch}{suffix.replace('-', '/')}"] = image
        for year in WINDOWS:
            name = f"Windows_Server-{year}-English-Core-EKS_Optimized-{k8s}"
            image = self.image(f"{name}-2026.11.01", "x86_64", DATES[-1], "windows")
            self.parameter(f"/aws/service/ami-windows-latest/{name}/image_id", image)
            images[f"windows{year}"] = image
        return images

    def image(self, name, arch, date, platform=None, owner=None, tags=None, deprecated=None):
        ami = Ami(
            self.ec2,
            image_id(name),
            name=name,
            description=name,
            owner_id=owner or "602401143452",
            owner_alias=None if owner else "amazon",
            public=not owner,
            virtualization_type="hvm",
            architecture=arch,
            creation_date=date,
            platform=platform,
            root_device_type="ebs",
            root_device_name="/dev/sda1" if platform else "/dev/xvda",
            region_name=f"{self.region}a",
            tags=tags,
        )
        if deprecated:
            ami.deprecation_time = deprecated
        self.ec2.amis[ami.id] = ami
        return ami.id

    def parameter(self, name, value, kind="String"):
        """Written past the API, which keeps everyone out of /aws/service as AWS does."""
        held = self.ssm._parameters
        now = datetime.datetime.now(datetime.timezone.utc)
        dict.__setitem__(held, name, [
            Parameter(self.account, name, value, kind, None, None, None, now, 1, "text")
        ])

    def zone_of(self, subnet):
        return self.ec2.get_subnet(subnet).availability_zone

    def profile(self, asked):
        """The instance profile that a template names, or nothing."""
        for profile in self.iam.instance_profiles.values():
            if asked in ({"Name": profile.name}, {"Arn": profile.arn}):
                return profile
        return None

    def find(self, one):
        """An instance by its id; moto looks through all of them."""
        life = self.lives.get(one)
        return life["instance"] if life else self.ec2.get_instance_by_id(one)

    @contextlib.contextmanager
    def without(self, hidden):
        """Moto as if these instances were not there yet. Moto keeps instances by launch."""
        launches = {self.lives[one]["launch"] for one in hidden}
        held = {one: self.ec2.reservations[one] for one in launches}
        whole = {one: launch.instances for one, launch in held.items()}
        for one, launch in held.items():
            launch.instances = [here for here in whole[one] if here.id not in hidden]
            if not launch.instances:
                del self.ec2.reservations[one]
        try:
            yield
        finally:
            for one, launch in held.items():
                launch.instances = whole[one]
            self.ec2.reservations.update(held)

    def born(self, instance, template, data, spot, reservation):
        """Gives a new instance what its template says and moto drops."""
        # Of a spot instance moto forgets the region, which is in its name.
        instance.region_name = self.region
        interfaces = data.get("NetworkInterfaces") or [{}]
        groups = interfaces[0].get("Groups") or data.get("SecurityGroupIds") or []
        instance.security_groups = [self.ec2.get_security_group_from_id(g) for g in groups]
        for nic in instance.nics.values():
            nic._group_set = []
            nic.delete_on_termination = True
        asked = data.get("IamInstanceProfile")
        profile = self.profile(asked) if asked else None
        if profile:
            instance.iam_instance_profile = {"Arn": profile.arn, "Id": profile.id}
        instance.metadata_options = MetadataOptions(data.get("MetadataOptions"))
        instance.monitoring_state = (
            "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled"
        )
        placement = data.get("Placement") or {}
        instance.placement.tenancy = placement.get("Tenancy", "default")
        instance.placement.group_id = placement.get("GroupId")
        instance.placement.partition_number = placement.get("PartitionNumber")
        if spot:
            instance.lifecycle = instance.instance_lifecycle = "spot"
            instance.spot_instance_request_id = spot
        if reservation:
            instance.capacity_reservation_id = reservation
            instance.capacity_reservation_specification = {
                "CapacityReservationPreference": "capacity-reservations-only",
                "CapacityReservationTarget": {"CapacityReservationId": reservation},
            }
        self.devices(instance, data)
        # It is among the newest.
        launches = reversed(self.ec2.reservations.values())
        self.lives[instance.id] = {
            "instance": instance,
            "launch": next(launch.id for launch in launches if instance in launch.instances),
            "template": template,
            "data": data,
            "spot": bool(spot),
            "reservation": reservation,
        }

    def devices(self, instance, data):
        said = [device for device in data.get("BlockDeviceMappings") or [] if device.get("Ebs")]
        if not said:
            return
        instance.teardown_defaults()
        tags = [spec for spec in data.get("TagSpecifications") or []
                if spec.get("ResourceType") == "volume"]
        for device in said:
            ebs = device["Ebs"]
            instance.add_block_device(
                ebs.get("VolumeSize", 20),
                device["DeviceName"],
                ebs.get("SnapshotId"),
                ebs.get("Encrypted", False),
                ebs.get("DeleteOnTermination", True),
                ebs.get("KmsKeyId"),
                ebs.get("VolumeType", "gp2"),
            )
        for held in instance.block_device_mapping.values():
            for spec in tags:
                pairs = {tag["Key"]: tag.get("Value", "") for tag in spec["Tags"]}
                self.ec2.volumes[held.volume_id].add_tags(pairs)

    def in_use(self, reservation):
        return sum(
            1 for instance in self.ec2.all_instances()
            if self.lives.get(instance.id, {}).get("reservation") == reservation
            and instance.state in ("pending", "running")
        )

    def instances(self, states=None):
        """Every instance there ever was, as it is in truth and whatever is hidden; or those in
        some states."""
        return [
            self.instance(instance) for instance in self.ec2.all_instances()
            if states is None or instance.state in states
        ]

    def roll(self, installation=None):
        """The same in short, of one installation or of all: which there are, in which state, and
        whose."""
        rows = []
        for instance in self.ec2.all_instances():
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            batch = tags.get("outrigger.dev/batch")
            if installation in (None, tags.get("outrigger.dev/installation")):
                rows.append({
                    "id": instance.id,
                    "state": instance.state,
                    "claim": tags.get("outrigger.dev/claim") or batch and f"{batch}/{instance.id}",
                })
        return rows

    def instance(self, instance):
        life = self.lives.get(instance.id, {})
        data = life.get("data") or {}
        shape = self.types.get(instance.instance_type) or {}
        written = data.get("UserData")
        text = base64.b64decode(str(written.as_bytes().decode())) if written else b""
        kind = "spot" if life.get("spot") else "on-demand"
        return {
            "id": instance.id,
            "state": instance.state,
            "type": instance.instance_type,
            "zone": instance.availability_zone,
            "capacity_type": "reserved" if life.get("reservation") else kind,
            "image": instance.image_id,
            "architecture": instance.architecture,
            "subnet": instance.subnet_id,
            "private_ip": instance.private_ip_address,
            "private_dns_name": instance.private_dns_name,
            "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
            "launched": instance.launch_time.isoformat(),
            "template": life.get("template"),
            "template_data": data,
            "vcpus": (shape.get("VCpuInfo") or {}).get("DefaultVCpus"),
            "memory_mib": (shape.get("MemoryInfo") or {}).get("SizeInMiB"),
            "kubelet": userdata.kubelet(text),
        }
