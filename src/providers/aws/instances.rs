//! Lists and terminates the instances of an account and region. Clusters share listings.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types::{
    Filter, Instance as Listed, InstanceLifecycleType, InstanceStateName,
    StateReason as ListedReason,
};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use crate::ec2::purchase_option::{self, Bought};
use crate::host::{clock, text};
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClusterName, InstanceId, ReservationId};
use crate::model::instance::{ExpectedNode, Instance, InstanceFacts, InstanceState, StateReason};
use crate::model::labels::Labels;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::launch_templates::to_tags;
use crate::providers::aws::network::{filter, to_labels, to_timestamp};
use crate::providers::aws::paginate::{self, PAGE};

/// Maximum age of a listing that further clusters receive. A cluster must not have received this
/// listing before, and must have changed no instance since. Idle clusters thus use the same
/// listings.
const SHARED: Duration = Duration::from_secs(20);

/// An instance that a listing of this age does not contain is foreign: EC2 lists launched instances
/// within seconds. Notices about foreign instances may be frequent.
const FRESH: Duration = Duration::from_secs(10);

/// EC2 lists each launched instance within this time.
pub(crate) const LISTED_WITHIN: Duration = Duration::from_mins(1);

/// Delays before reads of a just launched instance. EC2 shows most instances immediately, and all
/// within seconds. One read serves all concurrent launches.
const NAME_WAITS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];

/// Shared listings of the instances of an installation.
#[derive(Debug, Default)]
pub(crate) struct Lister {
    known: Mutex<KnownListings>,
    /// Held during a listing. Callers that need a new listing wait for the same one, and callers
    /// that can use the known one do not wait.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct KnownListings {
    by_installation: BTreeMap<String, SharedListing>,
    /// Clusters that have changed an instance since the listing in progress began.
    changed: BTreeSet<ClusterName>,
}

#[derive(Debug)]
struct SharedListing {
    began: Instant,
    instances: Vec<Instance>,
    /// Clusters that received this listing, or that have changed an instance since.
    received_by: BTreeSet<ClusterName>,
    /// True if the listing is outdated, because an instance was launched or terminated since.
    is_outdated: bool,
}

impl SharedListing {
    fn instance(&self, id: &InstanceId) -> Option<&Instance> {
        self.instances.iter().find(|instance| instance.id == *id)
    }
}

impl Lister {
    /// Returns the instances of a cluster. A cluster never receives the same listing twice, so that
    /// two equal listings are independent.
    pub(crate) async fn list(
        &self,
        account: &AwsClients,
        installation: &str,
        cluster: &ClusterName,
    ) -> Result<Vec<Instance>, AwsError> {
        let usable =
            |cached: &SharedListing, age, _| age <= SHARED && !cached.received_by.contains(cluster);
        let is_own = |instance: &&Instance| {
            instance.tags.get(TAG_CLUSTER).is_some_and(|name| name == cluster.as_str())
        };
        self.read(account, installation, usable, |shared| {
            shared.received_by.insert(cluster.clone());
            shared.instances.iter().filter(is_own).cloned().collect()
        })
        .await
    }

    /// Returns one instance of an installation. `None` if it does not exist. Reads again if the
    /// listing may be too old for a just launched instance.
    pub(crate) async fn find(
        &self,
        account: &AwsClients,
        installation: &str,
        instance: &InstanceId,
    ) -> Result<Option<Instance>, AwsError> {
        let usable = |cached: &SharedListing, age, is_new| {
            cached.instance(instance).is_some() || is_new || (!cached.is_outdated && age <= FRESH)
        };
        self.read(account, installation, usable, |shared| shared.instance(instance).cloned()).await
    }

    /// Records that a cluster has launched or terminated an instance, which makes earlier listings
    /// outdated.
    pub(crate) fn mark_outdated(&self, cluster: &ClusterName) {
        let mut known = self.known();
        known.changed.insert(cluster.clone());
        for shared in known.by_installation.values_mut() {
            shared.received_by.insert(cluster.clone());
            shared.is_outdated = true;
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownListings> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the known listing of an installation if it is usable, otherwise a new one. Whether the
    /// known one is usable may depend on its age, and on whether it began after this call.
    async fn read<T>(
        &self,
        account: &AwsClients,
        installation: &str,
        usable: impl Fn(&SharedListing, Duration, bool) -> bool,
        mut read: impl FnMut(&mut SharedListing) -> T,
    ) -> Result<T, AwsError> {
        let asked = clock::monotonic_now();
        let mut read_known = || {
            let mut known = self.known();
            let shared = known.by_installation.get_mut(installation)?;
            let age = clock::monotonic_now().duration_since(shared.began);
            usable(shared, age, shared.began >= asked).then(|| read(shared))
        };
        if let Some(found) = read_known() {
            return Ok(found);
        }
        let _reading = self.reading.lock().await;
        // Another caller may have listed meanwhile.
        if let Some(found) = read_known() {
            return Ok(found);
        }
        let began = clock::monotonic_now();
        self.known().changed.clear();
        let instances = instances_with_tag(account, TAG_INSTALLATION, installation).await?;
        let mut known = self.known();
        let received_by = mem::take(&mut known.changed);
        let is_outdated = !received_by.is_empty();
        let mut shared = SharedListing { began, instances, received_by, is_outdated };
        let found = read(&mut shared);
        known.by_installation.insert(installation.to_owned(), shared);
        Ok(found)
    }
}

/// Returns the Nodes of just launched instances. Only listings contain the data, and they may lack
/// the instances for a while. One call serves all of them.
pub(crate) async fn expected_nodes(
    account: &AwsClients,
    mut instances: Vec<InstanceId>,
) -> BTreeMap<InstanceId, Box<ExpectedNode>> {
    let mut nodes = BTreeMap::new();
    for wait in NAME_WAITS {
        sleep(wait).await;
        let listed = describe_instances(account, &instances).await.unwrap_or_default();
        nodes.extend(listed.into_iter().filter_map(|it| Some((it.id, it.node?))));
        instances.retain(|id| !nodes.contains_key(id));
        if instances.is_empty() {
            break;
        }
    }
    nodes
}

/// Returns any instances by id, at most 200. Unknown ones are missing from the result.
pub(crate) async fn describe_instances(
    account: &AwsClients,
    instances: &[InstanceId],
) -> Result<Vec<Instance>, AwsError> {
    // Uses a filter, because an unknown id would be an error.
    let wanted = Filter::builder().name("instance-id");
    let ids = instances.iter().map(InstanceId::to_string).collect();
    list_matching(account, wanted.set_values(Some(ids)).build()).await
}

/// Returns the instances with a tag.
pub(crate) async fn instances_with_tag(
    account: &AwsClients,
    tag: &str,
    value: &str,
) -> Result<Vec<Instance>, AwsError> {
    list_matching(account, filter(&format!("tag:{tag}"), value)).await
}

async fn list_matching(account: &AwsClients, wanted: Filter) -> Result<Vec<Instance>, AwsError> {
    let call = account.ec2.describe_instances().filters(wanted);
    let pages = call.into_paginator().page_size(PAGE).send();
    paginate::collect(account, "DescribeInstances", pages, |page, instances| {
        let listed = page.reservations().iter().flat_map(|it| it.instances());
        instances.extend(listed.filter_map(convert_instance));
    })
    .await
}

/// Converts an instance. `None` if required fields are missing.
fn convert_instance(listed: &Listed) -> Option<Instance> {
    let zone = listed.placement()?.availability_zone()?;
    let is_spot = listed.instance_lifecycle() == Some(&InstanceLifecycleType::Spot);
    let specification = listed.capacity_reservation_specification();
    let bought = Bought {
        spot_request: listed.spot_instance_request_id().or(is_spot.then_some("")),
        reservation: listed.capacity_reservation_id(),
        preference: specification
            .and_then(|it| it.capacity_reservation_preference())
            .map(|preference| preference.as_str()),
    };
    let id = InstanceId::from(listed.instance_id()?);
    // The hostname type of the subnet, address or id, determines the node name of the kubelet.
    let name = listed.private_dns_name().filter(|name| !name.is_empty());
    let node = name.map(|name| ExpectedNode::of_ec2(name, &zone.into(), &id));
    Some(Instance {
        id,
        offering: purchase_option::offering_key(listed.instance_type()?.as_str(), zone, bought),
        state: convert_state(listed.state()?.name()?)?,
        launched: listed.launch_time().and_then(to_timestamp).unwrap_or(Timestamp::UNIX_EPOCH),
        tags: to_labels(listed.tags()).into(),
        node: node.map(Box::new),
        facts: Some(Box::new(instance_facts(listed))),
    })
}

/// The fields for drift detection.
fn instance_facts(listed: &Listed) -> InstanceFacts {
    let groups = listed.security_groups().iter();
    let interfaces = listed.network_interfaces();
    let kinds = interfaces.iter().filter_map(|it| it.interface_type());
    let adapters = kinds.filter(|kind| matches!(*kind, "efa" | "efa-only"));
    let placement = listed.placement();
    let partition = placement.and_then(|placement| placement.partition_number());
    InstanceFacts {
        image: listed.image_id().map(str::to_owned),
        subnet: listed.subnet_id().map(str::to_owned),
        security_groups: groups.filter_map(|group| group.group_id().map(str::to_owned)).collect(),
        placement_group: placement.and_then(|it| it.group_id()).map(str::to_owned),
        partition: partition
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| *number > 0),
        reservation: listed.capacity_reservation_id().map(ReservationId::from),
        adapters: u32::try_from(adapters.count()).ok().filter(|_| !interfaces.is_empty()),
        state_reason: listed.state_reason().and_then(convert_state_reason),
    }
}

/// Converts why an instance has stopped or ended. Instances that start have the reason `pending`.
fn convert_state_reason(reason: &ListedReason) -> Option<StateReason> {
    let is_end = |code: &&str| code.starts_with("Server.") || code.starts_with("Client.");
    let code = reason.code().filter(is_end)?;
    let message = reason.message().unwrap_or_default();
    Some(StateReason { code: text::bounded_line(code), message: text::bounded_line(message) })
}

pub(crate) fn convert_state(name: &InstanceStateName) -> Option<InstanceState> {
    Some(match name {
        InstanceStateName::Pending => InstanceState::Pending,
        InstanceStateName::Running => InstanceState::Running,
        InstanceStateName::Stopping => InstanceState::Stopping,
        InstanceStateName::Stopped => InstanceState::Stopped,
        InstanceStateName::ShuttingDown => InstanceState::ShuttingDown,
        InstanceStateName::Terminated => InstanceState::Terminated,
        _ => return None,
    })
}

/// Sets tags on instances.
pub(crate) async fn tag_instances(
    account: &AwsClients,
    instances: &[InstanceId],
    labels: &Labels,
) -> Result<(), AwsError> {
    account.buckets.change.wait_for_token().await;
    let ids = instances.iter().map(InstanceId::to_string).collect();
    let call = account.ec2.create_tags().set_resources(Some(ids));
    let answer = call.set_tags(Some(to_tags(labels))).send().await;
    answer.map_aws_error("CreateTags").map(drop)
}

/// Terminates instances, and returns the state of each as far as EC2 reports it. The caller has
/// waited for the rate limit.
pub(crate) async fn terminate_instances(
    account: &AwsClients,
    instances: &[InstanceId],
) -> Result<BTreeMap<InstanceId, InstanceState>, AwsError> {
    let ids = instances.iter().map(InstanceId::to_string).collect();
    let call = account.ec2.terminate_instances();
    let answer = call.set_instance_ids(Some(ids)).send().await;
    let answer = answer.map_aws_error("TerminateInstances")?;
    let changes = answer.terminating_instances().iter().filter_map(|change| {
        let id = InstanceId::from(change.instance_id()?);
        Some((id, convert_state(change.current_state()?.name()?)?))
    });
    Ok(changes.collect())
}
