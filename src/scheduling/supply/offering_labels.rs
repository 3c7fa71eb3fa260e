//! Labels that offerings, launches and instance types decide.

use std::collections::BTreeMap;

use crate::model::id::Zone;
use crate::model::labels::{OF_LAUNCHES, OF_OFFERINGS, ZONE, ZONE_ID};
use crate::model::requirement::{Operator, Requirement, Requirements};
use crate::scheduling::supply::daemon_overhead::{is_pool_label, select_keys};

/// Treats zone name and zone ID as equivalent.
pub(in crate::scheduling) fn restrict_zones(
    labels: &mut Requirements,
    zone_ids: &BTreeMap<Zone, String>,
) {
    let Some(wanted) = labels.get(ZONE_ID).filter(|_| !zone_ids.is_empty()) else {
        return;
    };
    let zones = zone_ids.iter().filter(|(_, id)| wanted.allows_value(id));
    let zones = Requirement::is_in(zones.map(|(zone, _)| zone.as_str()));
    labels.add(ZONE, zones);
}

/// Returns whether the offering decides a label.
pub(in crate::scheduling) fn is_offering_label(key: &str) -> bool {
    OF_OFFERINGS.contains(&key)
}

/// Returns whether the launch decides a label.
pub(in crate::scheduling) fn is_launch_label(key: &str) -> bool {
    OF_LAUNCHES.contains(&key)
}

/// Returns whether the type decides a label, and neither the pool nor the offering does.
pub(in crate::scheduling) fn is_type_label(key: &str) -> bool {
    !is_pool_label(key) && !is_offering_label(key)
}

pub(in crate::scheduling) fn is_decided(requirement: &Requirement) -> bool {
    match requirement.operator() {
        Operator::DoesNotExist => true,
        Operator::In => requirement.values().is_some_and(|values| values.len() == 1),
        _ => false,
    }
}

/// Returns the requirements on labels that types decide, and neither pools nor offerings do.
pub(in crate::scheduling) fn type_requirements(labels: &Requirements) -> Requirements {
    select_keys(labels, is_type_label)
}
