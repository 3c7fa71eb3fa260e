//! User data of each image family, compared with snapshots and parsed by the formats' own parsers.
//!
//! The rows of spec/aws.md §12.5 and the rules 17 to 29 of §10 are named where they are tested.

mod fixture;
mod accepted_by_parsers;
mod eks;
mod bottlerocket;
mod without_eks;
mod escaping;
