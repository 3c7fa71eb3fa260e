//! Reads zonal shifts of an EKS cluster.
//!
//! Source: spec/aws.md §5.12; the API of Amazon Application Recovery Controller.

use std::collections::BTreeSet;

use aws_sdk_arczonalshift::types::{AppliedStatus, AutoshiftAppliedStatus};
use jiff::Timestamp;

use crate::host::clock;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};

/// Returns the ids of zones with an active shift. Clusters that are not registered with this
/// service have no zonal shift.
pub(crate) async fn shifted_zones(
    account: &AwsClients,
    arn: &str,
) -> Result<BTreeSet<String>, AwsError> {
    account.buckets.read.wait_for_token().await;
    let call = account.shift.get_managed_resource().resource_identifier(arn);
    let answer = match call.send().await.map_aws_error("GetManagedResource") {
        Err(fault) if fault.has_code(&["ResourceNotFoundException"]) => return Ok(BTreeSet::new()),
        answer => answer?,
    };
    let now = clock::now();
    let mut zones = BTreeSet::new();
    for shift in answer.zonal_shifts() {
        let expires = Timestamp::from_second(shift.expiry_time().secs()).unwrap_or(now);
        if *shift.applied_status() == AppliedStatus::Applied && expires > now {
            zones.insert(shift.away_from().to_owned());
        }
    }
    // Autoshifts of AWS have no expiry.
    for shift in answer.autoshifts() {
        if *shift.applied_status() == AutoshiftAppliedStatus::Applied {
            zones.insert(shift.away_from().to_owned());
        }
    }
    Ok(zones)
}
