//! Resolves node classes in their account and region, and checks with dry runs whether EC2 would
//! launch from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::bootstrap::ClusterEndpoint;
use crate::catalog::Catalog;
use crate::catalog::discovered_memory::DiscoveredMemory;
use crate::catalog::node_class::{NodeClassSupply, RegionObservations};
use crate::catalog::region::Region;
use crate::doctor::codes::DoctorCode;
use crate::doctor::options::{DoctorRun, LIMIT};
use crate::doctor::report::Check;
use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::dry_run::DryRunResult;
use crate::ec2::resolve_node_class::{self, ListResult, RegionResources, ResolveError};
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::id::Zone;
use crate::model::node_class::resolved::{
    Cause, ConditionKind, NodeClassCondition, NodeClassConditionStatus, ResolvedNodeClass,
};
use crate::model::node_class::{NodeClass, NodeIdentity};
use crate::model::template_hash::node_class_hash;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::images::{Images, to_resolve_error};
use crate::providers::aws::launchable_class::{LaunchableClass, validate_user_data};
use crate::providers::aws::{dry_run, instance_profiles};

/// The next scale-out may use up the addresses of a zone that has fewer free addresses than this.
const ADDRESSES: u32 = 16;

/// The fix for a missing permission.
pub(super) const POLICY: &str = "add the named statement to the IAM policy of the daemon's role: \
                                 see the output `policy` of terraform/modules/render";

/// Discovered resources of an account and region.
pub(super) struct RegionFindings {
    pub(super) account: Arc<AwsClients>,
    pub(super) region: Region,
    pub(super) base: Arc<Catalog>,
    pub(super) found: RegionResources,
}

/// A node class of a cluster to check.
pub(super) struct NodeClassCheck<'a> {
    pub(super) findings: &'a RegionFindings,
    pub(super) cluster: &'a Cluster,
    pub(super) class: &'a NodeClass,
    /// The API endpoint of the cluster.
    pub(super) home: Option<&'a ClusterEndpoint>,
    pub(super) scope: &'a DoctorRun,
}

impl NodeClassCheck<'_> {
    /// Resolves the node class, and checks its conditions and whether EC2 would launch from it.
    pub(super) async fn run(self) -> Check {
        let Self { findings, class, scope, .. } = self;
        let version = self.home.map(|home| home.version.as_str());
        let mut images = Images::default();
        let images = scope.within(images.find(&findings.account, &class.images, version));
        let (images, profile) = tokio::join!(images, scope.within(self.instance_profile()));
        let (profile, exists) = match profile.unwrap_or_else(|| Err(timeout_error())) {
            Ok((name, exists)) => (Ok(name), exists),
            Err(trouble) => (Err(trouble), true),
        };
        let images = images.unwrap_or_else(|| Err(timeout_error()));
        let mut resolved = resolve_node_class::resolve_node_class(
            class,
            &findings.found,
            images,
            profile,
            clock::now(),
        );
        let validation = validate_user_data(class, &resolved, self.home);
        resolved.conditions.push(validation);
        let conditions = resolved.conditions.iter();
        let mut checks: Vec<Check> =
            conditions.map(|it| check_condition(it, &resolved, class)).collect();
        if !exists {
            let why = "its instance profile is created at the first launch";
            checks.push(Check::ok("instance_profile", why));
        }
        checks.push(match scope.skipped_topic("launch") {
            Some(left_out) => left_out,
            None if self.cluster.disable_dry_run => {
                Check::left_out("launch", "not tried: disable_dry_run = true")
            }
            None => self.check_launch(resolved, exists).await,
        });
        Check::from_parts(&format!("node_class {}", class.name), "", checks)
    }

    /// Returns the instance profile of the class and whether it exists. The profile of a role is
    /// created on first use.
    async fn instance_profile(&self) -> ListResult<(String, bool)> {
        match &self.class.identity {
            Some(NodeIdentity::Profile(name)) => Ok((name.clone(), true)),
            // IAM cannot be reached. In a managed cluster, this is an error of the configuration.
            Some(NodeIdentity::Role(role)) if self.cluster.isolated_vpc => {
                Ok((instance_profiles::profile_name(self.cluster, role), true))
            }
            Some(NodeIdentity::Role(role)) => {
                let account = &self.findings.account;
                let found = instance_profiles::find_profile(account, self.cluster, role).await;
                found.map_err(|fault| to_resolve_error(&fault, "iam"))
            }
            None => Err(ResolveError {
                cause: Cause::InstanceProfileNotFound,
                text: "the node class has neither a role nor an instance profile".to_owned(),
            }),
        }
    }

    /// Checks with dry runs whether EC2 would launch from the class.
    async fn check_launch(&self, resolved: ResolvedNodeClass, has_profile: bool) -> Check {
        let Self { findings, class, scope, .. } = self;
        let Some(home) = self.home.filter(|_| resolved.first_unmet().is_none()) else {
            let why = "not tried: some resources of the node class are missing";
            return Check::skipped("launch", why, None);
        };
        let observations = RegionObservations {
            memory: &DiscoveredMemory::default(),
            shifted_zones: &BTreeSet::new(),
        };
        let ready = LaunchableClass {
            class: (*class).clone(),
            hash: node_class_hash(Some(class)),
            supply: NodeClassSupply::new(
                &findings.region,
                &findings.base,
                class,
                &resolved,
                observations,
            ),
            resolved,
        };
        let mut requests = dry_run::test_requests(self.cluster, home, &ready);
        if let Err(why) = &ready.supply.supply {
            return Check::skipped("launch", &format!("not tried: {why}"), None);
        }
        if !has_profile {
            // A dry run would fail with a profile that the daemon creates only at the first launch.
            let configs = requests.iter_mut().flat_map(|request| &mut request.configs);
            configs.for_each(|config| config.template.profile = None);
        }
        let mut first = None;
        for request in &requests {
            let dry_run = dry_run::test_permissions(&findings.account, request);
            let Some(results) = scope.within(dry_run).await else {
                return scope.timed_out("launch");
            };
            let is_refused =
                results.iter().any(|(_, result)| matches!(result, DryRunResult::Refused(..)));
            let check = dry_run_check(request, results, class);
            if !is_refused {
                return check;
            }
            first.get_or_insert(check);
        }
        let none = "not tried: no pool that uses the class has an on-demand offering";
        first.unwrap_or_else(|| Check::skipped("launch", none, None))
    }
}

fn timeout_error() -> ResolveError {
    ResolveError {
        cause: Cause::Unavailable,
        text: format!("no response within {} s", LIMIT.as_secs()),
    }
}

/// Reports a condition of a node class.
fn check_condition(
    condition: &NodeClassCondition,
    resolved: &ResolvedNodeClass,
    class: &NodeClass,
) -> Check {
    let name = match condition.kind {
        ConditionKind::ImagesReady => "images",
        ConditionKind::SubnetsReady => "subnets",
        ConditionKind::SecurityGroupsReady => "security_groups",
        ConditionKind::InstanceProfileReady => "instance_profile",
        ConditionKind::CapacityReservationsReady => "capacity_reservations",
        ConditionKind::PlacementGroupReady => "placement_group",
        ConditionKind::ValidationSucceeded => "user_data",
    };
    match condition.status {
        NodeClassConditionStatus::False => {
            let code = condition.cause.map_or(DoctorCode::ClassUnready.code(), Cause::as_str);
            Check::failed((name, code), &condition.message, &condition_fix(condition.cause, class))
        }
        NodeClassConditionStatus::Unknown => Check::skipped(name, &condition.message, None),
        NodeClassConditionStatus::True if condition.kind == ConditionKind::SubnetsReady => {
            check_subnets(resolved, class)
        }
        NodeClassConditionStatus::True => {
            Check::ok(name, &describe_resolved(condition.kind, resolved))
        }
    }
}

/// Describes the resolved resources.
fn describe_resolved(kind: ConditionKind, resolved: &ResolvedNodeClass) -> String {
    match kind {
        ConditionKind::ImagesReady => match resolved.images.first() {
            Some(newest) => format!("{}, {} ({})", resolved.images.len(), newest.id, newest.name),
            None => "none".to_owned(),
        },
        ConditionKind::SecurityGroupsReady => {
            let groups = resolved.security_groups.iter();
            let ids: Vec<&str> = groups.map(|group| group.id.as_str()).collect();
            ids.join(", ")
        }
        ConditionKind::InstanceProfileReady => resolved.profile.clone().unwrap_or_default(),
        ConditionKind::CapacityReservationsReady => {
            resolved.reservations.iter().filter(|found| found.is_usable).count().to_string()
        }
        ConditionKind::PlacementGroupReady => {
            let group = resolved.placement_group.as_ref();
            group.map_or(String::new(), |group| group.id.clone())
        }
        ConditionKind::SubnetsReady | ConditionKind::ValidationSucceeded => {
            "can be rendered for each image".to_owned()
        }
    }
}

/// Checks the free addresses of each zone.
fn check_subnets(resolved: &ResolvedNodeClass, class: &NodeClass) -> Check {
    let mut zones: BTreeMap<&Zone, u32> = BTreeMap::new();
    for subnet in &resolved.subnets {
        let free = zones.entry(&subnet.zone).or_default();
        *free = free.saturating_add(subnet.free);
    }
    let free_addresses = zones.iter().map(|(zone, free)| format!("{zone} {free}"));
    let free_addresses = free_addresses.collect::<Vec<_>>().join(", ");
    let finding = format!("{}; free addresses: {free_addresses}", resolved.subnets.len());
    let fix = format!("add a larger subnet to node_class {:?} in that zone", class.name.as_str());
    if zones.values().all(|free| *free == 0) {
        let why = format!("no free addresses: {finding}");
        return Check::failed(("subnets", DoctorCode::SubnetsFull.code()), &why, &fix);
    }
    if zones.values().any(|free| *free < ADDRESSES) {
        let why = format!("a zone has fewer than {ADDRESSES} free addresses: {finding}");
        return Check::warning(("subnets", DoctorCode::SubnetsShort.code()), &why, &fix);
    }
    Check::ok("subnets", &finding)
}

/// Returns the fix for an unmet condition.
fn condition_fix(cause: Option<Cause>, class: &NodeClass) -> String {
    let name = class.name.as_str();
    let command = match cause {
        Some(Cause::Denied) => return POLICY.to_owned(),
        Some(Cause::ImageNotFound) => "aws ec2 describe-images --owners self amazon",
        Some(Cause::SubnetsNotFound) => {
            "aws ec2 describe-subnets; tag the intended ones: aws ec2 create-tags --resources \
             SUBNET --tags Key=KEY,Value=VALUE"
        }
        Some(Cause::SecurityGroupsNotFound) => {
            "aws ec2 describe-security-groups; tag the intended ones: aws ec2 create-tags \
             --resources GROUP --tags Key=KEY,Value=VALUE"
        }
        Some(Cause::PlacementGroupNotFound) => "aws ec2 describe-placement-groups",
        Some(Cause::InstanceProfileNotFound) => "aws iam list-instance-profiles",
        Some(Cause::RoleNotFound) => "aws iam list-roles",
        _ => return format!("correct node_class {name:?}; see docs/CONFIGURATION.md"),
    };
    format!("{command}; or correct node_class {name:?}")
}

fn dry_run_check(
    request: &FleetRequest,
    results: [(&str, DryRunResult); 3],
    class: &NodeClass,
) -> Check {
    let finding = request.overrides().next().map_or(String::new(), |first| {
        format!("dry run of {} in {}", first.offering.instance_type, first.offering.zone)
    });
    let parts = results.into_iter().map(|(call, verdict)| match verdict {
        DryRunResult::Passed => Check::ok(call, "would succeed"),
        // EC2 evaluates the permission on a resource without tags, because the launch template does
        // not exist.
        DryRunResult::Refused(Cause::Denied, why) if why.contains(":launch-template/") => {
            let why = format!("cannot be verified before the first launch: {why}");
            Check::skipped(call, &why, None)
        }
        DryRunResult::Refused(cause, why) => {
            Check::failed((call, cause.as_str()), &why, &condition_fix(Some(cause), class))
        }
        DryRunResult::Open(why) => Check::skipped(call, &why, None),
    });
    Check::from_parts("launch", &finding, parts.collect())
}
