//! The table of `cluster` blocks.
//! It must not know how it is read.

use super::disruption::CLUSTER_DISRUPTION;
use super::{BLOCK, HOUR, MINUTE, SECOND, argument, duration, form, required};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

pub(super) static CLUSTER: BlockType = BlockType {
    name: "cluster",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A Kubernetes cluster to look after.",
    arguments: &[
        argument(
            "for_each",
            ArgumentType::Expression,
            "",
            "Makes one cluster for each element, known within the block as `each.key` and \
             `each.value`.",
        ),
        argument(
            "name",
            ArgumentType::Name,
            "",
            "Name of the cluster; the label or, with `for_each`, `each.key` if missing.",
        ),
        argument(
            "region",
            ArgumentType::Name,
            "",
            "Region of its instances. Required unless it is simulated or has an `exec` block.",
        ),
        form(
            "role_arn",
            IdFormat::RoleArn,
            "IAM role that is assumed for all calls to AWS; the daemon's own identity if missing.",
        ),
        argument(
            "mode",
            ArgumentType::OneOf(&["observe", "manage"]),
            "\"observe\"",
            "Whether plans are only made or also carried out.",
        ),
        argument(
            "tags",
            ArgumentType::Tags,
            "{}",
            "Tags for everything launched for it.",
        ),
        argument(
            "limits",
            ArgumentType::Quantities,
            "{}",
            "Limits on all its nodes together, by resource; `nodes` is their number.",
        ),
        argument(
            "unready_max",
            ArgumentType::Allowance,
            "\"45%\"",
            "Where more of its nodes are not ready, and three at least, none leaves on purpose.",
        ),
        argument(
            "undrained_max",
            ArgumentType::Allowance,
            "\"20%\"",
            "How many of its instances may end without a drain within ten minutes, a percentage \
             rounded down, and one at least. If more instances have no Node, Outrigger ends none \
             of them until a person accepts it.",
        ),
        argument(
            "removed_pools",
            ArgumentType::OneOf(&["drain", "keep"]),
            "\"drain\"",
            "What becomes of nodes whose pool is not configured any more: they leave as drifted, a \
             tenth of each pool at a time, or stay.",
        ),
        argument(
            "zonal_shift",
            ArgumentType::Flag,
            "false",
            "Whether zones that AWS shifts traffic away from get no new nodes. Needs an `eks` \
             block.",
        ),
        argument(
            "disable_dry_run",
            ArgumentType::Flag,
            "false",
            "Whether node classes are not tried against EC2 by dry runs before nodes are made of \
             them.",
        ),
        argument(
            "binding",
            ArgumentType::OneOf(&["scheduler", "early"]),
            "\"scheduler\"",
            "Who binds pods to nodes that are still to come: the cluster's scheduler once they \
             are there, or Outrigger as soon as a node's name is known.",
        ),
        argument(
            "placement_hints",
            ArgumentType::Flag,
            "true",
            "Whether waiting pods are told of the node planned for them, in \
             `status.nominatedNodeName`.",
        ),
        argument(
            "adopt",
            ArgumentType::Flag,
            "",
            "Whether nodes that Karpenter has made for pools of these names become Outrigger's, \
             once Karpenter is gone. Not in a managed cluster if missing; in one that is only \
             observed they count as if they were, unless this is `false`.",
        ),
        argument(
            "events",
            ArgumentType::Flag,
            "true",
            "Whether pods and nodes get events of Kubernetes about what is done with them, where \
             the cluster is managed.",
        ),
        argument(
            "finalizer",
            ArgumentType::Flag,
            "false",
            "Whether nodes bear the finalizer `karpenter.sh/termination`, so that one that \
             somebody deletes is drained and ended before it goes. `outrigger release` takes it \
             off again.",
        ),
    ],
    blocks: &[
        &KUBECONFIG,
        &EKS,
        &INTERRUPTION,
        &SIMULATED,
        &EXEC,
        &PROXY,
        &API,
        &LEADER_ELECTION,
        &CLUSTER_DISRUPTION,
    ],
    ..BLOCK
};

static KUBECONFIG: BlockType = BlockType {
    name: "kubeconfig",
    about: "How its API is reached. A managed cluster needs it, or an `eks` block.",
    arguments: &[
        required("path", ArgumentType::Path, "The kubeconfig file."),
        argument(
            "context",
            ArgumentType::Text,
            "",
            "Context; the file's current one if missing.",
        ),
    ],
    ..BLOCK
};

static EKS: BlockType = BlockType {
    name: "eks",
    about: "An EKS cluster: its API is reached without a kubeconfig, with a token signed in \
            process. What is missing here, EKS is asked for.",
    arguments: &[
        form(
            "name",
            IdFormat::EksName,
            "Its name in EKS; the cluster's own if missing.",
        ),
        form("endpoint", IdFormat::Https, "URL of its API."),
        form("ca_data", IdFormat::Base64, "Its CA: PEM, in base64."),
        form(
            "role_arn",
            IdFormat::RoleArn,
            "The same as `role_arn` of the cluster: said in one of the two places.",
        ),
        form("service_cidr", IdFormat::Cidr, "Addresses of its Services."),
    ],
    ..BLOCK
};

static INTERRUPTION: BlockType = BlockType {
    name: "interruption",
    about: "Where AWS tells of interruptions. Without it, only the health of instances is asked.",
    arguments: &[
        required(
            "queue",
            ArgumentType::Form(IdFormat::Queue),
            "SQS queue: one for all clusters of an account and region.",
        ),
        argument(
            "rebalance",
            ArgumentType::OneOf(&["ignore", "drain", "replace_first"]),
            "\"ignore\"",
            "What becomes of a recommendation to rebalance, which comes before a spot instance \
             is taken back, and far more often: it is only reported, the node leaves, or it \
             leaves once others have taken its place, after ten minutes at the latest.",
        ),
    ],
    ..BLOCK
};

static EXEC: BlockType = BlockType {
    name: "exec",
    about: "A program of your own in place of EC2: it launches, ends and lists instances.",
    arguments: &[
        required(
            "command",
            ArgumentType::Texts,
            "Program and arguments. No shell reads them; a program with a slash in its name is \
             looked for from the folder of the configuration.",
        ),
        argument(
            "catalog",
            ArgumentType::Path,
            "",
            "File of instance types; those that ship with Outrigger if missing.",
        ),
        argument(
            "environment",
            ArgumentType::Texts,
            "[]",
            "Variables of the daemon's environment that it gets beside PATH and HOME.",
        ),
    ],
    ..BLOCK
};

static SIMULATED: BlockType = BlockType {
    name: "simulated",
    about: "A simulated EC2 in place of the real one.",
    arguments: &[
        argument(
            "catalog",
            ArgumentType::Path,
            "",
            "File of instance types; those that ship with Outrigger if missing.",
        ),
        argument(
            "boot",
            duration(0, HOUR),
            "\"0s\"",
            "Time from launch to a registered Node.",
        ),
        argument(
            "address",
            ArgumentType::Address,
            "",
            "Address of a `simulated-cloud` process; in process if missing.",
        ),
    ],
    ..BLOCK
};

static PROXY: BlockType = BlockType {
    name: "proxy",
    about: "A proxy by which its API is reached, in place of the kubeconfig's and of those that \
            `HTTPS_PROXY` and `NO_PROXY` name. AWS is reached as the environment says.",
    arguments: &[
        required("url", ArgumentType::Form(IdFormat::Proxy), "Where it is."),
        form("username", IdFormat::Filled, "Who we are to it."),
        form("password", IdFormat::Filled, "Our password: `secret(…)`."),
        argument(
            "no_proxy",
            ArgumentType::Texts,
            "[]",
            "Hosts that are reached without it: addresses, ranges of them, or domains.",
        ),
    ],
    ..BLOCK
};

static API: BlockType = BlockType {
    name: "api",
    about: "How its API is used.",
    arguments: &[
        argument(
            "poll",
            duration(SECOND, HOUR),
            "",
            "Lists this often instead of watching.",
        ),
        argument(
            "qps",
            ArgumentType::Whole(1, 10_000),
            "200",
            "Requests per second, on average.",
        ),
        argument(
            "burst",
            ArgumentType::Whole(1, 10_000),
            "1000",
            "Requests at once, at most.",
        ),
        argument(
            "concurrency",
            ArgumentType::Whole(1, 1024),
            "32",
            "Requests in flight at once.",
        ),
        argument(
            "watch_list",
            ArgumentType::OneOf(&["auto", "on", "off"]),
            "\"auto\"",
            "Whether lists are streamed; servers from Kubernetes 1.34 on can do that. `auto` is \
             page by page, as `off` is: a stream that takes longer than a watch lasts never ends.",
        ),
        argument(
            "view_max_age",
            duration(MINUTE, 24 * HOUR),
            "\"90s\"",
            "A watch without a sign of life for longer is stale: nothing voluntary is done. With \
             `poll`, 30 s more than that at least.",
        ),
    ],
    ..BLOCK
};

static LEADER_ELECTION: BlockType = BlockType {
    name: "leader_election",
    about: "How several hosts agree on which of them leads the cluster. There is no need for it: a \
            managed cluster is always led by one host at a time.",
    arguments: &[argument(
        "lease",
        ArgumentType::Form(IdFormat::ObjectName),
        "\"kube-system/outrigger\"",
        "Its Lease, the same on all hosts. Pauses are written there as well.",
    )],
    ..BLOCK
};
