//! Schema tables of `cluster` blocks.
//! They must not depend on the code that reads them.

use super::disruption::CLUSTER_DISRUPTION;
use super::{
    BLOCK, HOUR, MINUTE, SECOND, argument, duration_type, format_argument, required_argument,
};
use crate::config::id_format::IdFormat;
use crate::config::schema::{ArgumentType, BlockType, Occurrence};

pub(super) static CLUSTER: BlockType = BlockType {
    name: "cluster",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A Kubernetes cluster.",
    arguments: &[
        argument("for_each", ArgumentType::Expression).about(
            "Creates one cluster for each element. The block can use `each.key` and `each.value`.",
        ),
        argument("name", ArgumentType::Name).about(
            "Name of the cluster. Defaults to the label or, with `for_each`, to `each.key`.",
        ),
        argument("region", ArgumentType::Name)
            .about("AWS region of the instances. Required without a `simulated` or `exec` block."),
        format_argument("role_arn", IdFormat::RoleArn)
            .about("IAM role to assume for all AWS calls. Defaults to the daemon's own identity."),
        argument("mode", ArgumentType::OneOf(&["observe", "manage"]))
            .default_value("\"observe\"")
            .about("`observe` only plans. `manage` also executes the plans."),
        argument("tags", ArgumentType::Tags)
            .default_value("{}")
            .about("Tags for everything that is launched for the cluster."),
        argument("limits", ArgumentType::Quantities).default_value("{}").about(
            "Limits on all nodes of the cluster together, by resource; `nodes` is the number \
                 of nodes.",
        ),
        argument("max_unready", ArgumentType::Allowance).default_value("\"45%\"").about(
            "Maximum number of nodes that are not ready. If more are not ready, and at least \
                 three, voluntary disruption stops.",
        ),
        argument("undrained_max", ArgumentType::Allowance).default_value("\"20%\"").about(
            "How many instances Outrigger may terminate without a drain within ten minutes. A \
                 percentage is rounded down; the minimum is one. If more instances have no Node, \
                 Outrigger terminates none of them until a person accepts it.",
        ),
        argument("removed_pools", ArgumentType::OneOf(&["drain", "keep"]))
            .default_value("\"drain\"")
            .about(
                "Action on nodes whose pool is no longer configured. `drain` disrupts them as \
                 drifted, a tenth of each pool at a time. `keep` keeps them.",
            ),
        argument("zonal_shift", ArgumentType::Flag).default_value("false").about(
            "Launches no nodes in zones that AWS shifts traffic away from. Requires an `eks` \
                 block.",
        ),
        argument("disable_dry_run", ArgumentType::Flag).default_value("false").about(
            "Disables the EC2 dry runs that validate a node class before nodes are launched \
                 with it.",
        ),
        argument("binding", ArgumentType::OneOf(&["scheduler", "early"]))
            .default_value("\"scheduler\"")
            .about(
                "Component that binds pods to new nodes. `scheduler`: the cluster's scheduler, \
                 once the node exists. `early`: Outrigger, as soon as the name of the node is \
                 known.",
            ),
        argument("placement_hints", ArgumentType::Flag).default_value("true").about(
            "Sets `status.nominatedNodeName` of pending pods to the node that is planned for \
                 them.",
        ),
        argument("adopt", ArgumentType::Flag).about(
            "Adopts nodes that Karpenter launched for NodePools with the names of these pools, \
             once Karpenter is removed. Defaults to `false` in a managed cluster. In an observed \
             cluster, these nodes count as adopted unless it is `false`.",
        ),
        argument("events", ArgumentType::Flag)
            .default_value("true")
            .about("Publishes Kubernetes events for pods and nodes in a managed cluster."),
        argument("finalizer", ArgumentType::Flag).default_value("false").about(
            "Adds the finalizer `karpenter.sh/termination` to nodes. Outrigger then drains \
                 and terminates a node that a user deletes. `outrigger release` removes the \
                 finalizer.",
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
    about: "Access to the cluster's API server. A managed cluster needs this block or an `eks` \
            block.",
    arguments: &[
        required_argument("path", ArgumentType::Path).about("Path of the kubeconfig file."),
        argument("context", ArgumentType::Text)
            .about("Context to use. Defaults to the file's current context."),
    ],
    ..BLOCK
};

static EKS: BlockType = BlockType {
    name: "eks",
    about: "An EKS cluster. Outrigger needs no kubeconfig and signs the token itself. Missing \
            arguments are read from the EKS API.",
    arguments: &[
        format_argument("name", IdFormat::EksName)
            .about("Name of the EKS cluster. Defaults to the name of the cluster."),
        format_argument("endpoint", IdFormat::Https).about("URL of the API server."),
        format_argument("ca_data", IdFormat::Base64)
            .about("CA certificate: PEM, encoded in base64."),
        format_argument("role_arn", IdFormat::RoleArn)
            .about("Same as `role_arn` of the cluster. Set only one of the two."),
        format_argument("service_cidr", IdFormat::Cidr).about("CIDR block of the Services."),
    ],
    ..BLOCK
};

static INTERRUPTION: BlockType = BlockType {
    name: "interruption",
    about: "Queue of AWS interruption messages. Without this block, Outrigger only polls the \
            health of instances.",
    arguments: &[
        required_argument("queue", ArgumentType::Form(IdFormat::Queue))
            .about("SQS queue, one for all clusters of an account and region."),
        argument(
            "rebalance",
            ArgumentType::OneOf(&["ignore", "drain", "replace_first"]),
        )
        .default_value("\"ignore\"")
        .about(
            "Action on a rebalance recommendation. AWS sends it before a spot interruption, and \
             far more often. `ignore` only reports it. `drain` drains the node. `replace_first` \
             drains the node once its pods have room elsewhere, after ten minutes at the latest.",
        ),
    ],
    ..BLOCK
};

static EXEC: BlockType = BlockType {
    name: "exec",
    about: "Your own program in place of EC2. It launches, terminates and lists instances.",
    arguments: &[
        required_argument("command", ArgumentType::Texts).about(
            "Program and arguments, run without a shell. A relative path with a slash starts at \
             the configuration folder.",
        ),
        argument("catalog", ArgumentType::Path)
            .about("File of instance types. Defaults to the built-in instance types."),
        argument("environment", ArgumentType::Texts).default_value("[]").about(
            "Environment variables of the daemon to pass to the program, in addition to PATH \
                 and HOME.",
        ),
    ],
    ..BLOCK
};

static SIMULATED: BlockType = BlockType {
    name: "simulated",
    about: "A simulated EC2 in place of the real one.",
    arguments: &[
        argument("catalog", ArgumentType::Path)
            .about("File of instance types. Defaults to the built-in instance types."),
        argument("boot", duration_type(0, HOUR))
            .default_value("\"0s\"")
            .about("Time from launch to registration of the Node."),
        argument("address", ArgumentType::Address).about(
            "Address of a `simulated-cloud` process. If missing, the daemon simulates EC2 itself.",
        ),
    ],
    ..BLOCK
};

static PROXY: BlockType = BlockType {
    name: "proxy",
    about: "Proxy for the cluster's API server, in place of the kubeconfig's proxy and of \
            `HTTPS_PROXY` and `NO_PROXY`. AWS calls still use the environment's proxy.",
    arguments: &[
        required_argument("url", ArgumentType::Form(IdFormat::Proxy)).about("URL of the proxy."),
        format_argument("username", IdFormat::Filled).about("User name for the proxy."),
        format_argument("password", IdFormat::Filled).about("Password for the proxy: `secret(…)`."),
        argument("no_proxy", ArgumentType::Texts)
            .default_value("[]")
            .about("Hosts to connect to without the proxy: addresses, CIDR blocks or domains."),
    ],
    ..BLOCK
};

static API: BlockType = BlockType {
    name: "api",
    about: "Client settings for the cluster's API server.",
    arguments: &[
        argument("poll", duration_type(SECOND, HOUR))
            .about("Lists at this interval instead of watching."),
        argument("qps", ArgumentType::Whole(1, 10_000))
            .default_value("200")
            .about("Average requests per second."),
        argument("burst", ArgumentType::Whole(1, 10_000))
            .default_value("1000")
            .about("Maximum burst of API requests above `qps`."),
        argument("concurrency", ArgumentType::Whole(1, 1024))
            .default_value("32")
            .about("Maximum number of concurrent requests."),
        argument("watch_list", ArgumentType::OneOf(&["auto", "on", "off"]))
            .default_value("\"auto\"")
            .about(
                "Streams lists, which requires Kubernetes 1.34 or later. `auto` is the same as \
                 `off`, which lists page by page: a stream that takes longer than the timeout of \
                 a watch never completes.",
            ),
        argument("watch_timeout", duration_type(MINUTE, 24 * HOUR)).default_value("\"90s\"").about(
            "A watch that is silent for longer is stale, and Outrigger suspends its \
                 decisions. With `poll`, it is at least the poll interval plus 30 s.",
        ),
    ],
    ..BLOCK
};

static LEADER_ELECTION: BlockType = BlockType {
    name: "leader_election",
    about: "Leader election between hosts. This block is optional: one host at a time always leads \
            a managed cluster.",
    arguments: &[argument("lease", ArgumentType::Form(IdFormat::ObjectName))
        .default_value("\"kube-system/outrigger\"")
        .about(
            "Lease for leader election, the same on all hosts. Pauses are annotations of this \
             Lease.",
        )],
    ..BLOCK
};
