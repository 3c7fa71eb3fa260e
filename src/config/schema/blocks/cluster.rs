//! Schema tables of `cluster` blocks.
//! They must not depend on the code that reads them.

use super::disruption::{CLUSTER_DISRUPTION, SWEEP};
use super::{HOUR, MINUTE, SECOND, duration_type};
use crate::config::id_format::IdFormat;
use crate::config::schema::ArgumentType;

block_types! {
    /// A Kubernetes cluster.
    pub(super) static CLUSTER = "cluster" "NAME", PerLabel, arguments! {
        /// Creates one cluster for each element. The block can use `each.key` and `each.value`.
        for_each: ArgumentType::Expression;
        /// Name of the cluster. Defaults to the label or, with `for_each`, to `each.key`.
        name: ArgumentType::Name;
        /// AWS region of the instances. Required without a `simulated` or `exec` block.
        region: ArgumentType::Name;
        /// URL of the API server for nodes, which verify it with the CA of the cluster. Defaults to
        /// the endpoint of the EKS cluster or, without an `eks` block, to the URL that Outrigger
        /// uses.
        node_endpoint: ArgumentType::Form(IdFormat::Https);
        /// IAM role to assume for all AWS calls. Defaults to the daemon's own identity.
        role_arn: ArgumentType::Form(IdFormat::RoleArn);
        /// External ID with which the role is assumed, if its trust policy requires one.
        external_id: ArgumentType::Form(IdFormat::ExternalId);
        /// `observe` only plans. `manage` also executes the plans.
        mode: ArgumentType::OneOf(&["observe", "manage"]) => "observe";
        /// Tags for everything that is launched for the cluster.
        tags: ArgumentType::Tags => {};
        /// Limits on all nodes of the cluster together, by resource; `nodes` is the number of
        /// nodes.
        limits: ArgumentType::Quantities => {};
        /// Maximum number of nodes that are not ready. If more are not ready, and at least three,
        /// voluntary disruption stops.
        max_unready: ArgumentType::Allowance => "45%";
        /// How many instances Outrigger may terminate without a drain within ten minutes. A
        /// percentage is rounded down; the minimum is one. If more instances have no Node,
        /// Outrigger terminates none of them until a person accepts it.
        undrained_max: ArgumentType::Allowance => "20%";
        /// Action on nodes whose pool is no longer configured. `drain` disrupts them as drifted, a
        /// tenth of each pool at a time. `keep` keeps them.
        removed_pools: ArgumentType::OneOf(&["drain", "keep"]) => "drain";
        /// Launches no nodes in zones that AWS shifts traffic away from. Requires an `eks` block.
        zonal_shift: ArgumentType::Flag => false;
        /// Disables the EC2 dry runs that validate a node class before nodes are launched with it.
        disable_dry_run: ArgumentType::Flag => false;
        /// Whether the host reaches AWS only through VPC endpoints, the same for all clusters of a
        /// region. Outrigger then does not call IAM and the price list, which have none: node
        /// classes need `instance_profile`, and list prices are those that ship.
        isolated_vpc: ArgumentType::Flag => false;
        /// Component that binds pods to new nodes. `scheduler`: the cluster's scheduler, once the
        /// node exists. `early`: Outrigger, as soon as the name of the node is known.
        binding: ArgumentType::OneOf(&["scheduler", "early"]) => "scheduler";
        /// Sets `status.nominatedNodeName` of pending pods to the node that is planned for them.
        placement_hints: ArgumentType::Flag => true;
        /// Adopts nodes that Karpenter launched for NodePools with the names of these pools, once
        /// Karpenter is removed. Defaults to `false` in a managed cluster. In an observed cluster,
        /// these nodes count as adopted unless it is `false`.
        adopt: ArgumentType::Flag;
        /// Publishes Kubernetes events for pods and nodes in a managed cluster.
        events: ArgumentType::Flag => true;
        /// Adds the finalizer `karpenter.sh/termination` to nodes. Outrigger then drains and
        /// terminates a node that a user deletes. `outrigger release` removes the finalizer.
        finalizer: ArgumentType::Flag => false;
    }, [
        &KUBECONFIG, &EKS, &INTERRUPTION, &SIMULATED, &EXEC, &PROXY, &API,
        &LEADER_ELECTION, &CLUSTER_DISRUPTION, &SWEEP,
    ];

    /// Access to the cluster's API server. A managed cluster needs this block or an `eks` block.
    static KUBECONFIG = "kubeconfig", Once, arguments! {
        /// Path of the kubeconfig file.
        path: ArgumentType::Path => required;
        /// Context to use. Defaults to the file's current context.
        context: ArgumentType::Text;
    };

    /// An EKS cluster. Outrigger needs no kubeconfig and signs the token itself. Missing arguments
    /// are read from the EKS API.
    static EKS = "eks", Once, arguments! {
        /// Name of the EKS cluster. Defaults to the name of the cluster.
        name: ArgumentType::Form(IdFormat::EksName);
        /// URL of the API server.
        endpoint: ArgumentType::Form(IdFormat::Https);
        /// CA certificate: PEM, encoded in base64.
        ca_data: ArgumentType::Form(IdFormat::Base64);
        /// Same as `role_arn` of the cluster. Set only one of the two.
        role_arn: ArgumentType::Form(IdFormat::RoleArn);
        /// CIDR block of the Services.
        service_cidr: ArgumentType::Form(IdFormat::Cidr);
    };

    /// Queue of AWS interruption messages. Without this block, Outrigger only polls the health of
    /// instances.
    static INTERRUPTION = "interruption", Once, arguments! {
        /// SQS queue, one for all clusters of an account and region.
        queue: ArgumentType::Form(IdFormat::Queue) => required;
        /// Action on a rebalance recommendation. AWS sends it before a spot interruption, and far
        /// more often. `ignore` only reports it. `drain` drains the node. `replace_first` drains
        /// the node once its pods have room elsewhere, after ten minutes at the latest.
        rebalance: ArgumentType::OneOf(&["ignore", "drain", "replace_first"]) => "ignore";
    };

    /// Your own program in place of EC2. It launches, terminates and lists instances.
    static EXEC = "exec", Once, arguments! {
        /// Program and arguments, run without a shell. A relative path with a slash starts at the
        /// configuration folder.
        command: ArgumentType::Texts => required;
        /// File of instance types. Defaults to the built-in instance types.
        catalog: ArgumentType::Path;
        /// Environment variables of the daemon to pass to the program, in addition to PATH and
        /// HOME.
        environment: ArgumentType::Texts => [];
    };

    /// A simulated EC2 in place of the real one.
    static SIMULATED = "simulated", Once, arguments! {
        /// File of instance types. Defaults to the built-in instance types.
        catalog: ArgumentType::Path;
        /// Time from launch to registration of the Node.
        boot: duration_type(0, HOUR) => "0s";
        /// Address of a `simulated-cloud` process. If missing, the daemon simulates EC2 itself.
        address: ArgumentType::Address;
    };

    /// Proxy for the cluster's API server, in place of the kubeconfig's proxy and of `HTTPS_PROXY`
    /// and `NO_PROXY`. AWS calls still use the environment's proxy.
    static PROXY = "proxy", Once, arguments! {
        /// URL of the proxy.
        url: ArgumentType::Form(IdFormat::Proxy) => required;
        /// User name for the proxy.
        username: ArgumentType::Form(IdFormat::Filled);
        /// Password for the proxy: `secret(…)`.
        password: ArgumentType::Form(IdFormat::Filled);
        /// Hosts to connect to without the proxy: addresses, CIDR blocks or domains.
        no_proxy: ArgumentType::Texts => [];
    };

    /// Client settings for the cluster's API server.
    static API = "api", Once, arguments! {
        /// Lists at this interval instead of watching.
        poll: duration_type(SECOND, HOUR);
        /// Average requests per second.
        qps: ArgumentType::Whole(1, 10_000) => 200;
        /// Maximum burst of API requests above `qps`.
        burst: ArgumentType::Whole(1, 10_000) => 1000;
        /// Maximum number of concurrent requests, for launches, terminations, listings of instances
        /// and all other requests each.
        concurrency: ArgumentType::Whole(1, 1024) => 32;
        /// Streams lists, which requires Kubernetes 1.34 or later. `auto` is the same as `off`,
        /// which lists page by page: a stream that takes longer than the timeout of a watch never
        /// completes.
        watch_list: ArgumentType::OneOf(&["auto", "on", "off"]) => "auto";
        /// A watch that is silent for longer is stale, and Outrigger suspends its decisions. With
        /// `poll`, it is at least the poll interval plus 30 s.
        watch_timeout: duration_type(MINUTE, 24 * HOUR) => "90s";
    };

    /// Leader election between hosts. This block is optional: one host at a time always leads a
    /// managed cluster.
    static LEADER_ELECTION = "leader_election", Once, arguments! {
        /// Lease for leader election, the same on all hosts. Pauses are annotations of this Lease.
        lease: ArgumentType::Form(IdFormat::ObjectName) => "kube-system/outrigger";
    };
}
