//! What a node class is tried with before nodes are made of it, and what a dry run of that says.
//! It must not know how a call is made, nor how often.
//!
//! Source: spec/aws.md §1.5; where it is done otherwise: docs/decisions/020-dry-run.md.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::ec2::errors::{ErrorClass, failure};
use crate::engine::command::Launch;
use crate::model::cluster::Cluster;
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::ZONE;
use crate::model::node_class::resolved::Cause;
use crate::model::pool::Pool;
use crate::model::template_hash::record_in;

/// Offerings a class is tried with at most: the next only where one is refused. A subnet or a type
/// that cannot be had is no fault of the class.
pub const TRIES: usize = 3;

/// What a dry run says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRunResult {
    /// It would be launched.
    Passed,
    /// It would be refused for what the class says, or for a right that is missing; in words.
    Refused(Cause, String),
    /// It says nothing of the class: AWS is busy, or it is about the type; in words.
    Open(String),
}

/// The offerings that a class is tried with for one of its pools: the cheapest on demand, each of
/// another type and, while there are any, in another zone.
pub fn offerings(pool: &Pool, catalog: &Catalog) -> Vec<OfferingKey> {
    let in_zone = |zone: &Zone| {
        let wanted = pool.requirements.get(ZONE);
        wanted.is_none_or(|own| own.has(zone.as_str()))
    };
    let types = catalog.types();
    let types = types.filter(|own| own.requirements.intersects(&pool.requirements).is_ok());
    let mut all = Vec::new();
    for own in types {
        let on_demand = own.offerings.iter().filter(|it| {
            it.available && it.capacity_type == CapacityType::OnDemand && in_zone(&it.zone)
        });
        all.extend(on_demand.map(|it| (it.price, it.key(&own.name))));
    }
    all.sort_unstable();
    let (mut types, mut zones) = (BTreeSet::<TypeName>::new(), BTreeSet::<Zone>::new());
    let mut chosen = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let fresh = all.iter().map(|(_, key)| key);
        let fresh = fresh.filter(|key| !types.contains(&key.instance_type));
        let Some(next) = fresh.min_by_key(|key| zones.contains(&key.zone)).cloned() else {
            break;
        };
        types.insert(next.instance_type.clone());
        zones.insert(next.zone.clone());
        chosen.push(next);
    }
    chosen
}

/// The launch that is tried. The same arguments give the same launch, and so the same template.
pub fn launch(cluster: &Cluster, pool: &Pool, offering: OfferingKey) -> Launch {
    let (name, epoch) = ("dry-run", Timestamp::UNIX_EPOCH);
    let record = record_in(cluster, pool, name, epoch, (name, name));
    let mut taints = pool.taints.clone();
    taints.extend(pool.startup_taints.iter().cloned());
    Launch {
        tags: Launch::tags_of(cluster, &record),
        claim: record,
        offerings: vec![offering],
        labels: pool.labels.clone(),
        taints,
        devices: BTreeSet::new(),
        overlaid: false,
        relaxed: false,
        varied: false,
    }
}

/// What the error of a dry run says; every dry run ends in one. `operation`, `code`, `message` and
/// `status` are as in [`failure`].
pub fn verdict(operation: &str, code: &str, message: &str, status: Option<u16>) -> DryRunResult {
    let failure = failure(operation, code, message, status);
    let cause = match failure.sort {
        ErrorClass::DryRun => return DryRunResult::Passed,
        ErrorClass::Denied => Cause::Denied,
        ErrorClass::UserDataTooLarge => Cause::UserDataTooLarge,
        ErrorClass::ProfileUnknown => Cause::InstanceProfileNotFound,
        ErrorClass::Invalid if message.contains("iamInstanceProfile.name is invalid") => {
            Cause::InstanceProfileNotFound
        }
        ErrorClass::Invalid if is_about_class(code, message) => Cause::LaunchInvalid,
        _ => return DryRunResult::Open(failure.text),
    };
    DryRunResult::Refused(cause, failure.text)
}

/// Whether an error is about what a node class says. Others may be about the type or the subnet
/// that happened to be tried.
fn is_about_class(code: &str, message: &str) -> bool {
    const OF_CLASS: [&str; 6] = [
        "InvalidAMIID",
        "InvalidBlockDeviceMapping",
        "InvalidGroup",
        "InvalidSecurityGroupID",
        "InvalidSnapshot",
        "InvalidUserData",
    ];
    let kind = code.split('.').next().unwrap_or(code);
    OF_CLASS.contains(&kind) || message.contains("belong to different networks")
}
