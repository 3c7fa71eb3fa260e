//! EC2's rules as values: what is asked of it, and what its answers mean.
//! It must not know how a request is sent, nor the clock, nor what a claim is for.
//!
//! ```text
//! Launch, node class, what AWS found ─► fleet ─► requests ─► the shell ─► answers ─► refusal
//!                                         └─ template, subnets
//! ```

pub mod launch_template;
pub mod launch_template_cache;
pub mod subnet_capacity;
pub mod create_fleet;
pub mod iam_policy;
pub mod errors;
pub mod dry_run;
pub mod interruption_message;
pub mod instance_status;
pub mod ami_alias;
pub mod purchase_option;
pub mod resolve_node_class;
pub mod adoption;
