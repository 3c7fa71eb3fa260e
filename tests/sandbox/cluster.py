"""Outrigger with a real EKS cluster: a node of each image family joins, a drifted node is replaced, and
an interrupted node is drained. kubectl has to reach the cluster as its administrator, and the caller
has to be allowed what `terraform/modules/iam` grants the daemon.
"""

import ctypes
import json
import pathlib
import signal
import subprocess
import tempfile
import time

# Image families, and the device whose size changes when the nodes have to drift.
FAMILIES = {"al2023": "/dev/xvda", "bottlerocket": "/dev/xvdb", "windows2022": "/dev/sda1"}
NAMESPACE = "outrigger-sandbox"
# A signal for a process whose parent ends. Source: prctl(2).
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
PAUSE = "registry.k8s.io/pause:3.10"
# Seconds within which a node joins, a drifted node is replaced, an interrupted node gets its taint.
JOINS, REPLACED, TAINTED = 900, 1200, 60


class Cluster:
    def __init__(self, account, name, options):
        self.account, self.name, self.options = account, name, options
        self.temporary = tempfile.TemporaryDirectory(prefix="outrigger-sandbox-")
        self.directory = pathlib.Path(self.temporary.name)
        self.families = [own for own in FAMILIES if own in options.families.split(",")]
        self.daemon = None

    def command(self, *words, text=None, check=True):
        """Runs a program, or lists it. No shell reads the words."""
        if self.account.dry:
            print(f"  runs {' '.join(words)}")
            return ""
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=300)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubectl(self, *words, text=None, check=True):
        return self.command("kubectl", "--context", self.options.context or self.name, *words,
                            text=text, check=check)

    def configure(self, volume):
        """Writes the configuration: one pool with one node for each family."""
        cluster = self.account.ask("eks:DescribeCluster", name=self.name)["cluster"]["resourcesVpcConfig"]
        subnets = "\n".join(f'  subnet {{ id = "{own}" }}' for own in cluster["subnetIds"])
        blocks = [f'''outrigger {{ installation = "sandbox-{self.account.run}" }}

cluster "sandbox" {{
  region = "{self.account.region}"
  mode   = "manage"
  tags   = {{ outrigger-sandbox = "{self.account.run}" }}
  eks {{ name = "{self.name}" }}
  interruption {{ queue = "{self.options.queue}" }}
}}''']
        for family in self.families:
            blocks.append(f'''node_class "{family}" {{
  instance_profile = "{self.options.instance_profile}"
  ami {{ alias = "{family}@latest" }}
{subnets}
  security_group {{ id = "{cluster["clusterSecurityGroupId"]}" }}
  block_device "{FAMILIES[family]}" {{ volume_size = "{volume}Gi" }}
}}

pool "{family}" {{
  node_class = node_class.{family}
  limits     = {{ nodes = 2 }}
  labels     = {{ sandbox-family = "{family}" }}
  taint "sandbox" {{ effect = "NoSchedule" }}
  require "karpenter.sh/capacity-type" {{ in = ["on-demand"] }}
  require "node.kubernetes.io/instance-type" {{ in = ["t3.large", "t3a.large", "m5.large"] }}
}}''')
        (self.directory / "main.hcl").write_text("\n\n".join(blocks) + "\n")

    def workload(self):
        """A Deployment with one pod for each family."""
        objects = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
        for family in self.families:
            objects.append({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": family, "namespace": NAMESPACE},
                "spec": {
                    "replicas": 1, "selector": {"matchLabels": {"app": family}},
                    "template": {"metadata": {"labels": {"app": family}}, "spec": {
                        "nodeSelector": {"sandbox-family": family},
                        # Not the taint of a node that is drained.
                        "tolerations": [{"key": "sandbox", "operator": "Exists"}],
                        "containers": [{"name": "pause", "image": PAUSE,
                                        "resources": {"requests": {"cpu": "100m"}}}],
                    }},
                },
            })
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})

    def nodes(self, family):
        """Ready nodes of a family: instances by name."""
        if self.account.dry:
            self.kubectl("get", "nodes", "--selector", f"sandbox-family={family}", "--output", "json")
            return {}
        listed = json.loads(self.kubectl("get", "nodes", "--selector", f"sandbox-family={family}",
                                         "--output", "json"))
        found = {}
        for node in listed["items"]:
            conditions = {own["type"]: own["status"] for own in node["status"]["conditions"]}
            if conditions.get("Ready") == "True":
                found[node["metadata"]["name"]] = node["spec"]["providerID"].rsplit("/", 1)[-1]
        return found

    def until(self, limit, condition, began=None):
        """Seconds until a condition holds. `None` if it does not within the limit."""
        began = began or time.monotonic()
        while True:
            if condition() or self.account.dry:
                return round(time.monotonic() - began)
            if time.monotonic() - began > limit:
                return None
            time.sleep(2)

    def start(self):
        log = self.directory / "daemon.log"
        words = [self.options.outrigger, "run", "--config", str(self.directory)]
        if self.account.dry:
            print(f"  runs {' '.join(words)} in the background")
            return
        with log.open("w") as out:
            # It ends with this process, however that ends.
            self.daemon = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True,
                                           preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))

    def run(self):
        """All steps. Returns the results for the report."""
        found = {}
        self.configure(volume=50)
        words = (self.options.outrigger, "doctor", "--config", str(self.directory))
        found["doctor"] = self.command(*words, check=False).splitlines()[-40:]
        self.kubectl("apply", "--filename", "-", text=self.workload())
        self.start()
        began = time.monotonic()
        found["seconds until a node of the family is ready"] = {
            family: self.until(JOINS, lambda: self.nodes(family), began) for family in self.families
        }
        family = self.families[0]
        found["seconds until an interrupted node has its taint"] = self.interrupt(family)
        found["seconds until a drifted node is replaced"] = self.drift(family)
        return found

    def interrupt(self, family):
        """Sends the message of a spot interruption of a node. EC2 sends it only for spot instances."""
        url = self.account.ask("sqs:GetQueueUrl", QueueName=self.options.queue)["QueueUrl"]
        nodes = {"dry": "i-dry"} if self.account.dry else self.nodes(family)
        if not nodes:
            raise RuntimeError(f"no node of {family} is ready")
        name, instance = next(iter(nodes.items()))
        message = {
            "version": "0", "id": self.account.run, "source": "aws.ec2", "resources": [],
            "detail-type": "EC2 Spot Instance Interruption Warning", "region": self.account.region,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        }
        self.account.ask("sqs:SendMessage", QueueUrl=url, MessageBody=json.dumps(message))

        def is_tainted():
            taints = self.kubectl("get", "node", name, "--ignore-not-found", "--output",
                                  "jsonpath={.spec.taints[*].key}")
            return "karpenter.sh/disrupted" in taints

        return self.until(TAINTED, is_tainted)

    def drift(self, family):
        """Changes the volume of the node class, and waits for a new node without the old one."""
        self.until(JOINS, lambda: len(self.nodes(family)) == 1)
        before = set(self.nodes(family))
        if not before and not self.account.dry:
            raise RuntimeError(f"no node of {family} is ready")
        self.configure(volume=60)
        if self.daemon:
            self.daemon.send_signal(signal.SIGHUP)
        return self.until(REPLACED, lambda: (now := set(self.nodes(family))) and not now & before)

    def remove(self):
        """Stops the daemon first, so that it launches nothing more, and removes the workload and the
        Nodes. The Lease `kube-system/outrigger` stays."""
        if self.daemon:
            self.daemon.terminate()
            try:
                self.daemon.wait(60)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s", check=False)
        for family in self.families:
            self.kubectl("delete", "nodes", "--selector", f"sandbox-family={family}", check=False)

    def log(self):
        """The last lines of the daemon's log."""
        path = self.directory / "daemon.log"
        return path.read_text().splitlines()[-200:] if path.exists() else []
