//! Calls Amazon EC2 and other AWS services, and converts the types of the SDK. The meaning of
//! responses is in `ec2`.

/// Rate limits of the EC2 API.
pub(crate) mod rate_limits;
/// SDK interceptor that checks the leadership, adds the term and counts requests.
pub(crate) mod interceptor;
/// Errors of AWS calls.
pub(crate) mod error;
/// SDK clients of an account and region, with rate limits.
pub(crate) mod clients;
/// Bearer tokens of EKS.
pub(crate) mod eks_token;
/// sts:GetCallerIdentity.
pub(crate) mod caller_identity;
/// Pagination of listings.
pub(crate) mod paginate;
/// Subnets, security groups, placement groups.
pub(crate) mod network;
/// DescribeInstanceTypes and DescribeInstanceTypeOfferings.
pub(crate) mod instance_types;
/// On-demand and spot prices.
pub(crate) mod pricing;
/// AMIs and their SSM parameters.
pub(crate) mod images;
/// Refreshes listings. If a listing fails, its last result is kept.
pub(crate) mod refresh;
/// Launch template calls.
pub(crate) mod launch_templates;
/// DescribeInstances.
pub(crate) mod instances;
/// Batches TerminateInstances.
pub(crate) mod terminate_batcher;
/// CreateFleet calls.
pub(crate) mod create_fleet;
/// Instance profiles of roles.
pub(crate) mod instance_profiles;
/// Endpoint, CA and service CIDR of a cluster, for user data.
pub(crate) mod cluster_info;
/// Clusters of EKS without a kubeconfig.
pub(crate) mod eks;
/// Calls of the interruption queue.
pub(crate) mod sqs;
/// DescribeInstanceStatus.
pub(crate) mod instance_status;
/// Listens to the interruption queue.
pub(crate) mod interruption_listener;
/// Secrets with which nodes join their cluster.
pub(crate) mod join_secrets;
/// SSM parameters that the configuration reads.
pub(crate) mod ssm_parameters;
/// Zonal shifts of ARC.
pub(crate) mod zonal_shift;
/// When each listing is refreshed.
pub(crate) mod refresh_schedule;
/// A node class with everything that a launch needs.
pub(crate) mod launchable_class;
/// Dry runs of node classes before launches.
pub(crate) mod dry_run;
/// The task of a role and region: caches listings, resolves node classes.
pub(crate) mod region_task;
/// Handles to the tasks of regions.
pub(crate) mod region;
/// Gathers the launches of one cluster into calls.
pub(crate) mod launcher;
/// The provider for one cluster.
pub(crate) mod provider;
#[cfg(test)]
pub(super) mod tests;
