//! User data: what each family is told, held against snapshots and the formats' own parsers.
//! It must not know how instances are launched with it.
//!
//! The rows of spec/aws.md §12.5 and the rules 17 to 29 of §10 are named where they are tested.

mod case;
mod accepted;
mod eks;
mod bottlerocket;
mod bare;
mod hostile;
