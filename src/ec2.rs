//! The rules of EC2 without I/O: builds requests and interprets responses.
//!
//! ```text
//! Launch, node class, resources ─► create_fleet ─► requests ─► providers ─► responses ─► errors
//!                                      └─ launch_template, subnet_capacity
//! ```

// Launch templates, named by content hash.
pub mod launch_template;
// Tracks known launch templates and finds unused ones.
pub mod launch_template_cache;
// Free IP addresses of subnets.
pub mod subnet_capacity;
// The CreateFleet request of a claim.
pub mod create_fleet;
// IAM actions and their policy statements.
pub mod iam_policy;
// Classification of EC2 errors.
pub mod errors;
// The dry run of a node class and its result.
pub mod dry_run;
// EventBridge messages about instances.
pub mod interruption_message;
// Health of instances from DescribeInstanceStatus.
pub mod instance_status;
// AMI aliases and their SSM parameters.
pub mod ami_alias;
// Purchase option of a listed instance.
pub mod purchase_option;
// Resources that node class terms select.
pub mod resolve_node_class;
// Decides which launch templates and profiles this host may delete.
pub mod cleanup_scope;
// Adoption of instances by their tags.
pub mod adoption;
