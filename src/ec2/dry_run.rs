//! Dry runs of a node class before nodes are launched from it, and their result.
//!
//! Source: spec/aws.md §1.5. For deviations from this source, see docs/decisions/020-dry-run.md.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::ec2::errors::{ErrorClass, classify_error};
use crate::model::cluster::Cluster;
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::ZONE;
use crate::model::node_class::resolved::Cause;
use crate::model::pool::Pool;
use crate::model::template_hash::record_in;
use crate::provider::Launch;

/// Maximum number of offerings in the dry runs of a class. The next offering is tried only if the
/// previous one is refused. An unavailable subnet or type is not an error of the class.
pub const TRIES: usize = 3;

/// The result of a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRunResult {
    /// The launch would succeed.
    Passed,
    /// The launch would be refused because of the class or a missing permission. The field is the
    /// message.
    Refused(Cause, String),
    /// Not conclusive for the class: AWS throttles, or the error is about the type. The field is
    /// the message.
    Open(String),
}

/// The offerings for the dry runs of a class for one of its pools: the cheapest on demand, with
/// distinct types and, if possible, distinct zones.
pub fn dry_run_offerings(pool: &Pool, catalog: &Catalog) -> Vec<OfferingKey> {
    let allowed_zones = pool.requirements.get(ZONE);
    let types = catalog.types().filter(|instance_type| {
        let requirements = &instance_type.requirements;
        requirements.check_intersection(&pool.requirements).is_ok()
    });
    let mut all = Vec::new();
    for instance_type in types {
        let on_demand = instance_type.offerings.iter().filter(|offering| {
            offering.available
                && offering.capacity_type == CapacityType::OnDemand
                && allowed_zones.is_none_or(|zones| zones.allows_value(offering.zone.as_str()))
        });
        all.extend(on_demand.map(|offering| (offering.price, offering.key(&instance_type.name))));
    }
    all.sort_unstable();
    let (mut types, mut zones) = (BTreeSet::<TypeName>::new(), BTreeSet::<Zone>::new());
    let mut chosen = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let unused =
            all.iter().map(|(_, key)| key).filter(|key| !types.contains(&key.instance_type));
        let Some(next) = unused.min_by_key(|key| zones.contains(&key.zone)).cloned() else {
            break;
        };
        types.insert(next.instance_type.clone());
        zones.insert(next.zone.clone());
        chosen.push(next);
    }
    chosen
}

/// The launch of a dry run. The same arguments return the same launch, and therefore the same
/// launch template.
pub fn dry_run_launch(cluster: &Cluster, pool: &Pool, offering: OfferingKey) -> Launch {
    let (name, epoch) = ("dry-run", Timestamp::UNIX_EPOCH);
    let record = record_in(cluster, pool, name, epoch, name, name);
    let mut taints = pool.taints.clone();
    taints.extend(pool.startup_taints.iter().cloned());
    Launch {
        tags: Launch::tags_of_new(cluster, &record),
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

/// Converts the error of a dry run. EC2 answers every dry run with an error. `operation`, `code`,
/// `message` and `status` are as in [`failure`].
pub fn dry_run_result(
    operation: &str,
    code: &str,
    message: &str,
    status: Option<u16>,
) -> DryRunResult {
    let failure = classify_error(operation, code, message, status);
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

/// Returns whether an error is about the node class. Other errors may be about the tried type or
/// subnet.
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
