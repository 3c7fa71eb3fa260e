//! Amazon EC2 as it is: the SDK's shapes become ours, and ours become its calls.
//! It must not know why anything is asked for: what EC2's answers mean stands in `ec2`.

pub(crate) mod interceptor;
pub(crate) mod error;
pub(crate) mod clients;
pub(crate) mod cleanup_scope;
pub(crate) mod eks_token;
pub(crate) mod caller_identity;
pub(crate) mod paginate;
pub(crate) mod network;
pub(crate) mod instance_types;
pub(crate) mod pricing;
pub(crate) mod images;
pub(crate) mod refresh;
pub(crate) mod launch_templates;
pub(crate) mod instances;
pub(crate) mod terminate_batcher;
pub(crate) mod create_fleet;
pub(crate) mod instance_profiles;
pub(crate) mod cluster_info;
pub(crate) mod eks;
pub(crate) mod sqs;
pub(crate) mod instance_status;
pub(crate) mod interruption_listener;
pub(crate) mod join_secrets;
pub(crate) mod ssm_parameters;
pub(crate) mod zonal_shift;
pub(crate) mod refresh_schedule;
pub(crate) mod launchable_class;
pub(crate) mod dry_run;
pub(crate) mod region_task;
pub(crate) mod region;
pub(crate) mod provider;
#[cfg(test)]
pub(super) mod tests;
