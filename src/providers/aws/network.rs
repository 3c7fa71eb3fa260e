//! Lists subnets, security groups, placement groups and capacity reservations of a region.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{
    CapacityReservation, CapacityReservationState, CapacityReservationTenancy,
    CapacityReservationType, Filter, InstanceMatchCriteria, PlacementGroup as Group,
    PlacementGroupState, PlacementStrategy, Tag,
};
use jiff::Timestamp;

use crate::ec2::resolve_node_class::ListedReservation;
use crate::host::clock;
use crate::model::id::{TypeName, Zone};
use crate::model::labels::Labels;
use crate::model::node_class::network::MatchCriteria;
use crate::model::node_class::resolved::{
    FoundReservation, PlacementGroup, PlacementGroupStrategy, SecurityGroup, Subnet,
};
use crate::model::reservation::{Reservation, ReservationKind};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::paginate::{self, PAGE};

/// Converts tags.
pub(crate) fn to_labels(tags: &[Tag]) -> Labels {
    tags.iter().filter_map(|tag| Some((tag.key()?.to_owned(), tag.value()?.to_owned()))).collect()
}

/// A filter with one value.
pub(crate) fn filter(name: &str, value: &str) -> Filter {
    Filter::builder().name(name).values(value).build()
}

/// Converts an SDK count. Zero if missing or negative.
fn to_count(number: Option<i32>) -> u32 {
    number.and_then(|it| u32::try_from(it).ok()).unwrap_or(0)
}

/// Converts an SDK time. `None` if out of range.
pub(crate) fn to_timestamp(date_time: &aws_sdk_ec2::primitives::DateTime) -> Option<Timestamp> {
    Timestamp::from_second(date_time.secs()).ok()
}

/// Lists all subnets.
pub(crate) async fn list_subnets(account: &AwsClients) -> Result<Vec<(Subnet, Labels)>, AwsError> {
    let pages = account.ec2.describe_subnets().into_paginator();
    let pages = pages.page_size(PAGE).send();
    paginate::collect(account, "DescribeSubnets", pages, |page, subnets| {
        subnets.extend(page.subnets().iter().filter_map(|listed| {
            let subnet = Subnet {
                id: listed.subnet_id()?.to_owned(),
                zone: Zone::from(listed.availability_zone()?),
                zone_id: listed.availability_zone_id().unwrap_or_default().to_owned(),
                free: to_count(listed.available_ip_address_count()),
            };
            Some((subnet, to_labels(listed.tags())))
        }));
    })
    .await
}

/// Lists all security groups.
pub(crate) async fn list_security_groups(
    account: &AwsClients,
) -> Result<Vec<(SecurityGroup, Labels)>, AwsError> {
    let pages = account.ec2.describe_security_groups().into_paginator();
    let pages = pages.page_size(PAGE).send();
    paginate::collect(account, "DescribeSecurityGroups", pages, |page, groups| {
        groups.extend(page.security_groups().iter().filter_map(|listed| {
            let group = SecurityGroup {
                id: listed.group_id()?.to_owned(),
                name: listed.group_name().unwrap_or_default().to_owned(),
            };
            Some((group, to_labels(listed.tags())))
        }));
    })
    .await
}

/// Lists all available placement groups, by name.
pub(crate) async fn list_placement_groups(
    account: &AwsClients,
) -> Result<BTreeMap<String, PlacementGroup>, AwsError> {
    account.buckets.read.wait_for_token().await;
    let answer = account.ec2.describe_placement_groups().send().await;
    let answer = answer.map_aws_error("DescribePlacementGroups")?;
    let groups = answer.placement_groups().iter();
    Ok(groups.filter_map(convert_placement_group).collect())
}

fn convert_placement_group(group: &Group) -> Option<(String, PlacementGroup)> {
    if group.state() != Some(&PlacementGroupState::Available) {
        return None;
    }
    let strategy = match group.strategy()? {
        PlacementStrategy::Cluster => PlacementGroupStrategy::Cluster,
        PlacementStrategy::Spread => PlacementGroupStrategy::Spread,
        PlacementStrategy::Partition => {
            PlacementGroupStrategy::Partition(to_count(group.partition_count()))
        }
        // The strategy is unknown: a node class that selects this placement group reports it as not
        // found.
        _ => return None,
    };
    let id = group.group_id()?.to_owned();
    let name = group.group_name()?.to_owned();
    Some((name, PlacementGroup { id, strategy }))
}

/// Lists all active reservations.
pub(crate) async fn list_reservations(
    account: &AwsClients,
) -> Result<Vec<ListedReservation>, AwsError> {
    let call = account.ec2.describe_capacity_reservations();
    let call = call.filters(filter("state", "active"));
    let pages = call.into_paginator().page_size(PAGE).send();
    let now = clock::now();
    paginate::collect(account, "DescribeCapacityReservations", pages, |page, found| {
        let reservations = page.capacity_reservations().iter();
        found.extend(reservations.filter_map(|listed| convert_reservation(listed, now)));
    })
    .await
}

fn convert_reservation(listed: &CapacityReservation, now: Timestamp) -> Option<ListedReservation> {
    if listed.state() != Some(&CapacityReservationState::Active) {
        return None;
    }
    let kind = match listed.reservation_type() {
        None | Some(CapacityReservationType::Default) => ReservationKind::Default,
        Some(CapacityReservationType::CapacityBlock) => ReservationKind::CapacityBlock,
        // The kind of reservation is unknown. Outrigger cannot launch into it (spec/aws.md §13.4).
        Some(_) => return None,
    };
    let reservation = Reservation {
        kind,
        interruptible: listed.interruptible().unwrap_or(false),
        left: to_count(listed.available_instance_count()),
        counted: Some(now),
        ends: listed.end_date().and_then(to_timestamp),
        ..Reservation::new(
            listed.capacity_reservation_id()?,
            to_count(listed.total_instance_count()),
        )
    };
    Some(ListedReservation {
        found: FoundReservation {
            instance_type: TypeName::from(listed.instance_type()?),
            zone: Zone::from(listed.availability_zone()?),
            reservation,
            is_usable: true,
        },
        owner: listed.owner_id().unwrap_or_default().to_owned(),
        criteria: match listed.instance_match_criteria() {
            Some(InstanceMatchCriteria::Open) => Some(MatchCriteria::Open),
            Some(InstanceMatchCriteria::Targeted) => Some(MatchCriteria::Targeted),
            _ => None,
        },
        platform: listed
            .instance_platform()
            .map_or(String::new(), |platform| platform.as_str().to_owned()),
        is_dedicated: listed.tenancy() == Some(&CapacityReservationTenancy::Dedicated),
        tags: to_labels(listed.tags()),
    })
}
