"""The calls that moto has no answer to, or a wrong one: prices, reservations, groups, shifts.

Their shapes are the API's. It must not know how a request came in.
"""

import datetime
import fnmatch
import json

from wire import Refused

PAGE = 1000
# What a test without prices of its own gets: dearer with every vCPU and GiB, spot at about a third,
# every zone a little different, so that no two offerings of a type cost the same.
VCPU, GIB, ACCELERATOR = 0.0335, 0.0042, 1.1
SPOT = 0.3


class Lacks:
    """Answers by service and action; `None` says that moto shall answer."""

    def __init__(self, world):
        self.world = world
        self.prices = {}
        self.statuses = {}
        self.answers = {
            "ec2:DescribeSpotPriceHistory": self.spot_prices,
            "ec2:DescribeCapacityReservations": self.capacity_reservations,
            "ec2:DescribePlacementGroups": self.placement_groups,
            "pricing:GetProducts": self.products,
            "arc-zonal-shift:GetManagedResource": self.managed_resource,
        }

    def list_price(self, kind):
        """Dollars an hour on demand: the test's, or made up from the shape."""
        said = self.prices.get(kind) or {}
        if "on_demand" in said:
            return said["on_demand"]
        shape = self.world.types[kind]
        price = VCPU * shape["VCpuInfo"]["DefaultVCpus"]
        price += GIB * shape["MemoryInfo"]["SizeInMiB"] / 1024
        for info, list_of in (("GpuInfo", "Gpus"), ("NeuronInfo", "NeuronDevices"),
                              ("InferenceAcceleratorInfo", "Accelerators")):
            for device in (shape.get(info) or {}).get(list_of) or []:
                price += ACCELERATOR * device.get("Count", 1)
        return round(price, 4)

    def spot_price(self, kind, zone):
        said = (self.prices.get(kind) or {}).get("spot") or {}
        if zone in said:
            return said[zone]
        return round(self.list_price(kind) * (SPOT + 0.01 * (ord(zone[-1]) - ord("a"))), 4)

    def spot_prices(self, params):
        """The newest price of each type, zone and product; no history, for nobody reads it."""
        kinds = set(params.get("InstanceTypes") or self.world.types)
        products = params.get("ProductDescriptions") or ["Linux/UNIX"]
        filters = filters_of(params)
        now = datetime.datetime.now(datetime.timezone.utc)
        rows = []
        for kind, zone in sorted(self.world.offered):
            classes = self.world.types[kind].get("SupportedUsageClasses") or []
            if kind not in kinds or "spot" not in classes:
                continue
            if params.get("AvailabilityZone") not in (None, zone):
                continue
            for product in products:
                row = {"instance-type": kind, "availability-zone": zone,
                       "product-description": product}
                if passes(row, filters):
                    rows.append({
                        "AvailabilityZone": zone,
                        "InstanceType": kind,
                        "ProductDescription": product,
                        "SpotPrice": f"{self.spot_price(kind, zone):.6f}",
                        "Timestamp": now,
                    })
        rows, token = page(rows, params)
        # AWS answers with an empty token, not without one, when there is no more.
        return {"SpotPriceHistory": rows, "NextToken": token or ""}

    def capacity_reservations(self, params):
        asked = params.get("CapacityReservationIds") or []
        for one in asked:
            if one not in self.world.reservations:
                raise Refused(
                    "InvalidCapacityReservationId.NotFound",
                    f"The capacity reservation id '{one}' does not exist",
                )
        rows, filters = [], filters_of(params)
        for one, held in sorted(self.world.reservations.items()):
            facts = {
                "state": held["State"],
                "instance-type": held["InstanceType"],
                "availability-zone": held["AvailabilityZone"],
                "owner-id": held["OwnerId"],
                "instance-match-criteria": held["InstanceMatchCriteria"],
                **{f"tag:{tag['Key']}": tag["Value"] for tag in held["Tags"]},
                "tag-key": [tag["Key"] for tag in held["Tags"]],
            }
            if (not asked or one in asked) and passes(facts, filters):
                free = held["TotalInstanceCount"] - self.world.in_use(one)
                rows.append({**held, "AvailableInstanceCount": max(free, 0)})
        rows, token = page(rows, params)
        return {"CapacityReservations": rows, "NextToken": token}

    def placement_groups(self, params):
        rows, filters = [], filters_of(params)
        names, ids = params.get("GroupNames") or [], params.get("GroupIds") or []
        for name in names:
            if name not in self.world.groups:
                message = f"The Placement Group '{name}' is unknown."
                raise Refused("InvalidPlacementGroup.Unknown", message)
        for name, held in sorted(self.world.groups.items()):
            facts = {"group-name": name, "state": held["State"], "strategy": held["Strategy"]}
            chosen = not (names or ids) or name in names or held["GroupId"] in ids
            if chosen and passes(facts, filters):
                rows.append(held)
        return {"PlacementGroups": rows}

    def managed_resource(self, params):
        arn = params["resourceIdentifier"]
        now = datetime.datetime.now(datetime.timezone.utc)
        shifts = [
            {
                "appliedStatus": "APPLIED",
                "zonalShiftId": f"shift-{number}",
                "resourceIdentifier": arn,
                "awayFrom": zone,
                "expiryTime": now + datetime.timedelta(hours=1),
                "startTime": now,
                "comment": "of the tests",
            }
            for number, zone in enumerate(self.world.shifts)
        ]
        return {
            "arn": arn,
            "name": arn.rpartition("/")[2],
            "appliedWeights": {},
            "zonalShifts": shifts,
            "autoshifts": [],
            "practiceRunConfiguration": None,
            "zonalAutoshiftStatus": "DISABLED",
        }

    def products(self, params):
        """Linux prices of one region, on shared and dedicated hosts."""
        wanted = [(f["Field"], f["Value"]) for f in params.get("Filters") or []]
        rows = []
        for kind in self.world.types:
            for tenancy, times in (("Shared", 1), ("Dedicated", 1.06)):
                row = self.product(kind, tenancy, round(self.list_price(kind) * times, 4))
                facts = {**row["product"]["attributes"], "serviceCode": row["serviceCode"],
                         "productFamily": row["product"]["productFamily"]}
                if all(facts.get(field) == value for field, value in wanted):
                    rows.append(json.dumps(row))
        rows, token = page(rows, params, 100)
        return {"FormatVersion": "aws_v1", "PriceList": rows, "NextToken": token}

    def product(self, kind, tenancy, price):
        metal = "metal" in kind
        shape = self.world.types[kind]
        sku = f"{kind}-{tenancy}".upper()
        code = f"{sku}.JRTCKXETXF"
        return {
            "serviceCode": "AmazonEC2",
            "product": {
                "sku": sku,
                "productFamily": "Compute Instance (bare metal)" if metal else "Compute Instance",
                "attributes": {
                    "instanceType": kind,
                    "regionCode": self.world.region,
                    "operatingSystem": "Linux",
                    "tenancy": tenancy,
                    "capacitystatus": "Used",
                    "preInstalledSw": "NA",
                    "marketoption": "OnDemand",
                    "operation": "RunInstances",
                    "vcpu": str(shape["VCpuInfo"]["DefaultVCpus"]),
                },
            },
            "terms": {
                "OnDemand": {
                    code: {
                        "sku": sku,
                        "priceDimensions": {
                            f"{code}.6YS6EN2CT7": {
                                "unit": "Hrs",
                                "pricePerUnit": {"USD": f"{price:.10f}"},
                            }
                        },
                    }
                }
            },
        }

    def status(self, params, rows):
        """Puts the faults of instances that a test asked for into moto's statuses."""
        filters = filters_of(params)
        kept = []
        for row in rows:
            said = self.statuses.get(row["InstanceId"]) or {}
            for name in ("instance", "system"):
                since = said.get(name)
                if since is not None:
                    when = datetime.datetime.now(datetime.timezone.utc)
                    when -= datetime.timedelta(seconds=since)
                    detail = {"Name": "reachability", "Status": "failed", "ImpairedSince": when}
                    member = f"{name.capitalize()}Status"
                    row[member] = {"Status": "impaired", "Details": [detail]}
            row["Events"] = said.get("events") or []
            facts = {
                "instance-status.status": row["InstanceStatus"]["Status"],
                "system-status.status": row["SystemStatus"]["Status"],
                "event.code": [event["Code"] for event in row["Events"]],
                "instance-state-name": row["InstanceState"]["Name"],
                "availability-zone": row["AvailabilityZone"],
            }
            if passes(facts, filters):
                kept.append(row)
        return kept


def filters_of(params):
    return {row["Name"]: row.get("Values") or [] for row in params.get("Filters") or []}


def passes(facts, filters):
    """Whether facts, each one text or many, pass every filter: one of no fact passes nothing."""
    for name, wanted in filters.items():
        has = facts.get(name) or []
        has = [has] if isinstance(has, str) else has
        if not any(fnmatch.fnmatchcase(text, want) for text in has for want in wanted):
            return False
    return True


def page(rows, params, most=PAGE):
    """The rows of one page, and the token of the next."""
    size = min(int(params.get("MaxResults") or most), most)
    token = params.get("NextToken") or "0"
    if not token.isdigit() or int(token) > len(rows):
        raise Refused("InvalidNextToken", f"the token {token} is of no listing")
    start = int(token)
    after = start + size
    return rows[start:after], str(after) if after < len(rows) else None
