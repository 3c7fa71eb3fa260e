//! Lists and terminates the instances of an account and region. Clusters share listings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_ec2::types::{Instance as Listed, InstanceLifecycleType, InstanceStateName};
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::ec2::purchase_option::{self, Bought};
use crate::host::clock;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClusterName, InstanceId, ReservationId};
use crate::model::instance::{ExpectedNode, Instance, InstanceFacts, InstanceState};
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
pub(crate) struct Lister(Mutex<BTreeMap<String, SharedListing>>);

#[derive(Debug)]
struct SharedListing {
    began: Instant,
    instances: Vec<Instance>,
    /// Clusters that received this listing, or that have changed an instance since.
    received_by: BTreeSet<ClusterName>,
    /// True if the listing is outdated, because an instance was launched or terminated since.
    is_outdated: bool,
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
        // Concurrent callers wait for the same listing.
        let mut known = self.0.lock().await;
        let shared = shared_listing(&mut known, account, installation, |cached, age| {
            age <= SHARED && !cached.received_by.contains(cluster)
        })
        .await?;
        shared.received_by.insert(cluster.clone());
        Ok(shared
            .instances
            .iter()
            .filter(|instance| {
                let tag = instance.tags.get(TAG_CLUSTER);
                tag.is_some_and(|name| name == cluster.as_str())
            })
            .cloned()
            .collect())
    }

    /// Returns one instance of an installation. `None` if it does not exist. Reads again if the
    /// listing may be too old for a just launched instance.
    pub(crate) async fn find(
        &self,
        account: &AwsClients,
        installation: &str,
        instance: &InstanceId,
    ) -> Result<Option<Instance>, AwsError> {
        let mut known = self.0.lock().await;
        let shared = shared_listing(&mut known, account, installation, |cached, age| {
            let shows = cached.instances.iter().any(|it| it.id == *instance);
            shows || (!cached.is_outdated && age <= FRESH)
        })
        .await?;
        Ok(shared.instances.iter().find(|it| it.id == *instance).cloned())
    }

    /// Returns the Node of a just launched instance. EC2 provides the data only in listings, and
    /// may not list the instance for a while.
    pub(crate) async fn node_of(
        &self,
        account: &AwsClients,
        installation: &str,
        cluster: &ClusterName,
        instance: &InstanceId,
    ) -> Option<Box<ExpectedNode>> {
        for wait in NAME_WAITS {
            sleep(wait).await;
            // The launch makes earlier listings outdated.
            self.mark_outdated(cluster).await;
            if let Ok(Some(found)) = self.find(account, installation, instance).await
                && found.node.is_some()
            {
                return found.node;
            }
        }
        None
    }

    /// Records that a cluster has launched or terminated an instance, which makes earlier listings
    /// outdated.
    pub(crate) async fn mark_outdated(&self, cluster: &ClusterName) {
        for shared in self.0.lock().await.values_mut() {
            shared.received_by.insert(cluster.clone());
            shared.is_outdated = true;
        }
    }
}

/// Returns the cached listing of an installation if it is recent enough, otherwise a new listing.
async fn shared_listing<'k>(
    known: &'k mut BTreeMap<String, SharedListing>,
    account: &AwsClients,
    installation: &str,
    usable: impl Fn(&SharedListing, Duration) -> bool,
) -> Result<&'k mut SharedListing, AwsError> {
    let now = clock::monotonic_now();
    let last = known.remove(installation);
    let shared = match last.filter(|cached| usable(cached, now.duration_since(cached.began))) {
        Some(cached) => cached,
        None => SharedListing {
            began: now,
            instances: list_instances(account, installation).await?,
            received_by: BTreeSet::new(),
            is_outdated: false,
        },
    };
    Ok(known.entry(installation.to_owned()).or_insert(shared))
}

/// Returns any instance by id. `None` if it does not exist.
pub(crate) async fn describe_instance(
    account: &AwsClients,
    instance: &InstanceId,
) -> Result<Option<Instance>, AwsError> {
    account.buckets.read.wait_for_token().await;
    // Uses a filter, because an unknown id would be an error.
    let answer = account
        .ec2
        .describe_instances()
        .filters(filter("instance-id", instance.as_str()))
        .send()
        .await
        .map_aws_error("DescribeInstances")?;
    let mut listed = answer.reservations().iter().flat_map(|it| it.instances());
    Ok(listed.find_map(self::convert_instance))
}

async fn list_instances(
    account: &AwsClients,
    installation: &str,
) -> Result<Vec<Instance>, AwsError> {
    let wanted = filter(&format!("tag:{TAG_INSTALLATION}"), installation);
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
    }
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

/// Terminates instances, and returns the state of each as far as EC2 reports it.
pub(crate) async fn terminate_instances(
    account: &AwsClients,
    instances: &[InstanceId],
) -> Result<BTreeMap<InstanceId, InstanceState>, AwsError> {
    account.buckets.terminate.wait_for_token().await;
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
