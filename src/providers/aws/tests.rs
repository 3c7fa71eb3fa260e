//! What is asked of AWS, and what is made of its answers, on an AWS that says what the test wants.
//! It must not know what EC2's answers mean for launches: `ec2` does.

#[cfg(test)]
pub(crate) mod idle_calls;
#[cfg(test)]
pub(crate) mod moto;
#[cfg(test)]
pub(super) mod iam_denied;
mod canned;
mod image_fallback;
mod faults;
mod images;
mod launches;
mod cluster_info;
mod listings;
mod prices;
mod profiles;
mod templates;
mod queue;
mod node_classes;
