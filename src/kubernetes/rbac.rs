//! All RBAC permissions that the daemon uses: the role of each, and the settings that need it.
//!
//! A test compares the table with `tests/terraform/calls.tsv`, and so with the grants in
//! `terraform/`.

use crate::model::cluster::{Binding, Cluster, ManagementMode, PlacementHints};
use crate::model::node_class::bootstrap::{Bootstrap, SecretSource};
use crate::model::pool::OnBlocked;

/// The object that grants a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The ClusterRole with read permissions.
    Observe,
    /// The ClusterRole with write permissions.
    Manage,
    /// The Role in `kube-system`.
    System,
    /// The part of the Role in `kube-system` that only managed clusters need.
    SystemManage,
}

impl Role {
    /// Description of the granting object.
    pub fn granting_object(self) -> &'static str {
        match self {
            Self::Observe => "ClusterRole outrigger-observe",
            Self::Manage => "ClusterRole outrigger-manage",
            Self::System | Self::SystemManage => "Role kube-system/outrigger",
        }
    }

    /// Namespace of the permission. `None` means all.
    pub fn namespace(self) -> Option<&'static str> {
        match self {
            Self::Observe | Self::Manage => None,
            Self::System | Self::SystemManage => Some("kube-system"),
        }
    }
}

/// The setting that uses a permission, with its name in `terraform/modules/render`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequiredFor {
    /// The daemon always uses the permission.
    Always,
    /// Default spread constraints of the scheduler.
    DefaultSpread,
    /// CapacityBuffers.
    CapacityBuffers,
    /// Nominations of pods to their planned nodes.
    PlacementHints,
    /// Binding of pods to new nodes by Outrigger.
    EarlyBinding,
    /// Deletion of pods at the end of a grace period or of a drain.
    ForcedEnds,
    /// Bootstrap tokens that the daemon creates.
    BootstrapTokens,
    /// Nodes of the simulated cloud.
    SimulatedNodes,
    /// Kubernetes Events.
    Events,
}

impl RequiredFor {
    /// The name of the setting. `None` for permissions that are always used.
    pub fn setting_name(self) -> Option<&'static str> {
        match self {
            Self::Always => None,
            Self::DefaultSpread => Some("default_spread"),
            Self::CapacityBuffers => Some("capacity_buffers"),
            Self::PlacementHints => Some("placement_hints"),
            Self::EarlyBinding => Some("early_binding"),
            Self::ForcedEnds => Some("forced_ends"),
            Self::BootstrapTokens => Some("bootstrap_tokens"),
            Self::SimulatedNodes => Some("simulated_nodes"),
            Self::Events => Some("events"),
        }
    }

    /// Returns whether the daemon works without the permission.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::CapacityBuffers | Self::PlacementHints | Self::Events)
    }

    fn is_used_by(self, cluster: &Cluster) -> bool {
        match self {
            Self::Always | Self::CapacityBuffers => true,
            Self::DefaultSpread => !cluster.scheduling.default_spread.is_empty(),
            Self::PlacementHints => cluster.placement_hints == PlacementHints::On,
            Self::EarlyBinding => cluster.binding == Binding::Early,
            Self::ForcedEnds => cluster.pools.iter().any(|pool| {
                pool.termination_grace_period.is_some()
                    || pool.expire_hard_after.is_some()
                    || pool.disruption.on_blocked == OnBlocked::Force
            }),
            Self::BootstrapTokens => {
                let mut classes = cluster.node_classes.iter();
                classes.any(|class| has_minted_token(&class.bootstrap))
            }
            // An exec program has precedence over a simulated cloud.
            Self::SimulatedNodes => cluster.simulated.is_some() && cluster.exec.is_none(),
            Self::Events => cluster.events,
        }
    }
}

/// Returns whether nodes join with a bootstrap token that the daemon creates.
fn has_minted_token(bootstrap: &Bootstrap) -> bool {
    match bootstrap {
        Bootstrap::Kubeadm { token } => *token == SecretSource::Minted,
        Bootstrap::K3s(agent) | Bootstrap::Rke2(agent) => agent.token == SecretSource::Minted,
        Bootstrap::Custom { token, .. } => *token == Some(SecretSource::Minted),
        Bootstrap::Talos { machine_config } => *machine_config == SecretSource::Minted,
        Bootstrap::Eks => false,
    }
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RbacRule<'a> {
    /// The role that grants the permission.
    pub role: Role,
    /// The setting that uses the permission.
    pub purpose: RequiredFor,
    /// API group; empty for the core one.
    pub group: &'static str,
    /// Resource, with the subresource after a slash. A non-resource URL if it starts with a slash.
    pub resource: &'static str,
    /// The object name. Empty means any.
    pub name: &'a str,
    /// The verbs, as RBAC spells them.
    pub verbs: &'static [&'static str],
}

impl RbacRule<'_> {
    /// The RBAC rule to add, for some of the verbs.
    pub fn rule_for_verbs(&self, verbs: &[&str]) -> String {
        let verbs = yaml_list(verbs);
        if self.resource.starts_with('/') {
            let path = yaml_list(&[self.resource]);
            return format!("{{nonResourceURLs: {path}, verbs: {verbs}}}");
        }
        let (group, resource) = (yaml_list(&[self.group]), yaml_list(&[self.resource]));
        let name = match self.name {
            "" => String::new(),
            name => format!("resourceNames: {}, ", yaml_list(&[name])),
        };
        format!("{{apiGroups: {group}, resources: {resource}, {name}verbs: {verbs}}}")
    }

    /// Description of the resource.
    pub fn describe_resource(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let name = match self.name {
            "" => String::new(),
            name => format!(" {name}"),
        };
        format!("{}{dot}{}{name}", self.resource, self.group)
    }
}

fn yaml_list(values: &[&str]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
    format!("[{}]", values.join(", "))
}

const WATCHED: &[&str] = &["list", "watch"];
/// The daemon also reads single objects of these kinds by name, if they are missing from a listing.
const PROBED: &[&str] = &["get", "list", "watch"];

const fn rule_for_role(
    role: Role,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> RbacRule<'static> {
    RbacRule { role, purpose: RequiredFor::Always, group, resource, name: "", verbs }
}

const fn watched_resource(group: &'static str, resource: &'static str) -> RbacRule<'static> {
    rule_for_role(Role::Observe, group, resource, WATCHED)
}

const fn probed_resource(resource: &'static str) -> RbacRule<'static> {
    rule_for_role(Role::Observe, "", resource, PROBED)
}

const fn spread_resource(group: &'static str, resource: &'static str) -> RbacRule<'static> {
    watched_resource(group, resource).used_by(RequiredFor::DefaultSpread)
}

const fn managed_resource(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> RbacRule<'static> {
    rule_for_role(Role::Manage, group, resource, verbs)
}

impl RbacRule<'static> {
    /// The rule for the object of this name only.
    const fn for_object_named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// The rule for clusters with this setting only.
    const fn used_by(self, purpose: RequiredFor) -> Self {
        Self { purpose, ..self }
    }
}

const LEASES: &str = "coordination.k8s.io";

/// All permissions.
pub const RIGHTS: [RbacRule<'static>; 35] = [
    probed_resource("pods"),
    probed_resource("nodes"),
    watched_resource("", "persistentvolumeclaims"),
    watched_resource("", "persistentvolumes"),
    watched_resource("", "namespaces"),
    watched_resource("apps", "daemonsets"),
    watched_resource("policy", "poddisruptionbudgets"),
    watched_resource("storage.k8s.io", "storageclasses"),
    watched_resource("storage.k8s.io", "csinodes"),
    rule_for_role(Role::Observe, "networking.k8s.io", "servicecidrs", &["get"])
        .for_object_named("kubernetes"),
    rule_for_role(Role::Observe, "", "/version", &["get"]),
    rule_for_role(Role::Observe, LEASES, "leases", &["get"])
        .for_object_named("karpenter-leader-election"),
    spread_resource("", "services"),
    spread_resource("", "replicationcontrollers"),
    spread_resource("apps", "replicasets"),
    spread_resource("apps", "statefulsets"),
    rule_for_role(Role::Observe, "autoscaling.x-k8s.io", "capacitybuffers", &["list"])
        .used_by(RequiredFor::CapacityBuffers),
    rule_for_role(Role::Observe, "", "podtemplates", &["get"])
        .used_by(RequiredFor::CapacityBuffers),
    managed_resource("", "nodes", &["patch", "delete"]),
    managed_resource("", "pods/eviction", &["create"]),
    managed_resource("storage.k8s.io", "volumeattachments", &["list"]),
    managed_resource("", "pods/status", &["patch"]).used_by(RequiredFor::PlacementHints),
    managed_resource("autoscaling.x-k8s.io", "capacitybuffers/status", &["patch"])
        .used_by(RequiredFor::CapacityBuffers),
    managed_resource("events.k8s.io", "events", &["create"]).used_by(RequiredFor::Events),
    managed_resource("", "nodes", &["create"]).used_by(RequiredFor::EarlyBinding),
    managed_resource("", "pods/binding", &["create"]).used_by(RequiredFor::EarlyBinding),
    managed_resource("", "pods", &["delete"]).used_by(RequiredFor::EarlyBinding),
    managed_resource("", "pods", &["delete"]).used_by(RequiredFor::ForcedEnds),
    managed_resource("", "nodes", &["create", "patch"]).used_by(RequiredFor::SimulatedNodes),
    managed_resource("", "nodes/status", &["patch"]).used_by(RequiredFor::SimulatedNodes),
    rule_for_role(Role::System, LEASES, "leases", &["get"]).for_object_named("outrigger"),
    rule_for_role(Role::System, "", "services", &["get"]).for_object_named("kube-dns"),
    rule_for_role(Role::SystemManage, LEASES, "leases", &["patch"]).for_object_named("outrigger"),
    rule_for_role(Role::SystemManage, LEASES, "leases", &["create"]),
    rule_for_role(Role::SystemManage, "", "secrets", &["create"])
        .used_by(RequiredFor::BootstrapTokens),
];

/// Returns the permissions that a cluster needs in its mode, without duplicates. The rules for the
/// Lease contain its configured name.
pub fn needed_rules(cluster: &Cluster) -> Vec<RbacRule<'_>> {
    let manages = cluster.mode == ManagementMode::Manage;
    let mut all: Vec<RbacRule<'_>> = Vec::new();
    for mut rule in RIGHTS.map(|rule| -> RbacRule<'_> { rule }) {
        if rule.resource == "leases" && rule.name == "outrigger" {
            rule.name = &cluster.lease.name;
        }
        let of_mode = manages || matches!(rule.role, Role::Observe | Role::System);
        if of_mode
            && rule.purpose.is_used_by(cluster)
            && !all.iter().any(|other| {
                (other.group, other.resource, other.name) == (rule.group, rule.resource, rule.name)
                    && rule.verbs.iter().all(|verb| other.verbs.contains(verb))
            })
        {
            all.push(rule);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{RIGHTS, RbacRule, Role, needed_rules};
    use crate::model::cluster::{Binding, Cluster, ManagementMode};

    const CALLS: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terraform/calls.tsv"));

    fn role(role: Role) -> &'static str {
        match role {
            Role::Observe => "observe",
            Role::Manage => "manage",
            Role::System => "system",
            Role::SystemManage => "system-manage",
        }
    }

    fn dash(text: &str) -> &str {
        if text.is_empty() { "-" } else { text }
    }

    #[test]
    fn rbac_table_matches_the_calls_of_the_daemon() {
        let mut called = BTreeSet::new();
        for line in CALLS.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('\t').collect();
            let [_, _, role, option, group, resources, name, verbs] = cells[..] else {
                panic!("not eight cells: {line}");
            };
            for resource in resources.split(',') {
                for verb in verbs.split(',') {
                    called.insert([role, option, group, resource, name, verb].join(" "));
                }
            }
        }
        let mut known = BTreeSet::new();
        for rule in RIGHTS {
            for verb in rule.verbs {
                let option = rule.purpose.setting_name().unwrap_or("-");
                let (group, name) = (dash(rule.group), dash(rule.name));
                known.insert([role(rule.role), option, group, rule.resource, name, verb].join(" "));
            }
        }
        assert_eq!(known, called);
    }

    #[test]
    fn observe_mode_needs_only_read_permissions() {
        let mut cluster = Cluster::default();
        let reads =
            |rule: &RbacRule<'_>| rule.verbs.iter().all(|verb| super::PROBED.contains(verb));
        assert!(needed_rules(&cluster).iter().all(reads));
        let observed = needed_rules(&cluster).len();
        cluster.mode = ManagementMode::Manage;
        let managed = needed_rules(&cluster);
        assert!(managed.len() > observed && !managed.iter().all(reads));
        let count = managed.len();
        cluster.binding = Binding::Early;
        assert_eq!(needed_rules(&cluster).len(), count + 3);
    }

    #[test]
    fn lease_rule_uses_the_configured_lease_name() {
        let mut cluster = Cluster::default();
        cluster.lease.name = "autoscaler".to_owned();
        let all = needed_rules(&cluster);
        let leases = all.iter().filter(|rule| rule.resource == "leases");
        let leases: Vec<&str> = leases.map(|rule| rule.name).collect();
        assert_eq!(leases, ["karpenter-leader-election", "autoscaler"]);
    }

    #[test]
    fn rules_are_rendered_as_rbac_yaml() {
        let find = |resource: &str| {
            let mut all = RIGHTS.iter();
            *all.find(|rule| rule.resource == resource).expect("a rule")
        };
        for (resource, expect) in [
            (
                "servicecidrs",
                "{apiGroups: [\"networking.k8s.io\"], resources: [\"servicecidrs\"], \
                 resourceNames: [\"kubernetes\"], verbs: [\"get\"]}",
            ),
            (
                "pods/eviction",
                "{apiGroups: [\"\"], resources: [\"pods/eviction\"], verbs: [\"create\"]}",
            ),
            ("/version", "{nonResourceURLs: [\"/version\"], verbs: [\"get\"]}"),
        ] {
            let rule = find(resource);
            assert_eq!(rule.rule_for_verbs(rule.verbs), expect);
        }
    }
}
