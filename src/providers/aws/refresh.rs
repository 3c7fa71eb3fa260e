//! Refreshes the resources that node classes select from. A failed listing keeps the last result.

use crate::ec2::resolve_node_class::{ListResult, RegionResources};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::images::trouble;
use crate::providers::aws::network;

/// Lists subnets and security groups, and reservations and placement groups if used. Returns
/// whether subnets were listed, and the errors.
pub(crate) async fn refresh(
    account: &AwsClients,
    found: &mut RegionResources,
    reservations: bool,
    groups: bool,
) -> (bool, Result<(), AwsError>) {
    let subnets = network::subnets(account).await;
    let mut outcome = take(&mut found.subnets, subnets);
    let counted = outcome.is_ok();
    let listed = network::security_groups(account).await;
    outcome = outcome.and(take(&mut found.security_groups, listed));
    if reservations {
        let listed = network::reservations(account).await;
        outcome = outcome.and(take(&mut found.reservations, listed));
    }
    if groups {
        let listed = network::placement_groups(account).await;
        outcome = outcome.and(take(&mut found.placement_groups, listed));
    }
    (counted, outcome)
}

fn take<T>(known: &mut ListResult<T>, answer: Result<T, AwsError>) -> Result<(), AwsError> {
    match answer {
        Ok(listed) => *known = Ok(listed),
        Err(fault) => {
            if known.is_err() {
                *known = Err(trouble(&fault, "ec2"));
            }
            return Err(fault);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::take;
    use crate::model::node_class::resolved::Cause;
    use crate::providers::aws::error::AwsError;

    #[test]
    fn what_was_known_stays_while_it_cannot_be_listed() {
        let fault = AwsError::silent("DescribeSubnets", "no answer");
        let mut known = Err(crate::ec2::resolve_node_class::ResolveError {
            cause: Cause::Denied,
            text: "not allowed".to_owned(),
        });
        assert!(take(&mut known, Err::<u8, _>(fault.clone())).is_err());
        let trouble = known.clone().expect_err("nothing is known");
        assert_eq!(trouble.cause, Cause::Unavailable, "the newest reason");
        assert!(take(&mut known, Ok(1)).is_ok());
        assert!(take(&mut known, Err(fault)).is_err());
        assert_eq!(known, Ok(1));
    }
}
