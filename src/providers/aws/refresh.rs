//! Refreshes the resources that node classes select from. A failed listing keeps the last result.

use crate::ec2::resolve_node_class::{ListResult, RegionResources};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::images::to_resolve_error;
use crate::providers::aws::network;

/// Lists subnets and security groups, and reservations and placement groups if used. Returns
/// whether subnets were listed, and the errors.
pub(crate) async fn refresh_resources(
    account: &AwsClients,
    found: &mut RegionResources,
    reservations: bool,
    groups: bool,
) -> (bool, Result<(), AwsError>) {
    let subnets = network::list_subnets(account).await;
    let mut outcome = update_listing(&mut found.subnets, subnets);
    let counted = outcome.is_ok();
    let listed = network::list_security_groups(account).await;
    outcome = outcome.and(update_listing(&mut found.security_groups, listed));
    if reservations {
        outcome = outcome.and(refresh_reservations(account, found).await);
    }
    if groups {
        let listed = network::list_placement_groups(account).await;
        outcome = outcome.and(update_listing(&mut found.placement_groups, listed));
    }
    (counted, outcome)
}

/// Lists reservations.
pub(crate) async fn refresh_reservations(
    account: &AwsClients,
    found: &mut RegionResources,
) -> Result<(), AwsError> {
    update_listing(&mut found.reservations, network::list_reservations(account).await)
}

fn update_listing<T>(
    known: &mut ListResult<T>,
    answer: Result<T, AwsError>,
) -> Result<(), AwsError> {
    match answer {
        Ok(listed) => *known = Ok(listed),
        Err(fault) => {
            if known.is_err() {
                *known = Err(to_resolve_error(&fault, "ec2"));
            }
            return Err(fault);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::update_listing;
    use crate::model::node_class::resolved::Cause;
    use crate::providers::aws::error::AwsError;

    #[test]
    fn failed_listing_keeps_the_known_value() {
        let fault = AwsError::without_response("DescribeSubnets", "no answer");
        let mut known = Err(crate::ec2::resolve_node_class::ResolveError {
            cause: Cause::Denied,
            text: "not allowed".to_owned(),
        });
        assert!(update_listing(&mut known, Err::<u8, _>(fault.clone())).is_err());
        let error = known.clone().expect_err("nothing is known");
        assert_eq!(error.cause, Cause::Unavailable, "the latest error");
        assert!(update_listing(&mut known, Ok(1)).is_ok());
        assert!(update_listing(&mut known, Err(fault)).is_err());
        assert_eq!(known, Ok(1));
    }
}
