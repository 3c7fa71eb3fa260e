//! EC2's rules as values: what is asked of it, and what its answers mean.
//! It must not know how a request is sent, nor the clock, nor what a claim is for.
//!
//! ```text
//! Launch, node class, what AWS found ─► fleet ─► requests ─► the shell ─► answers ─► refusal
//!                                         └─ template, subnets
//! ```

pub mod template;

pub mod shelf;

pub mod subnets;

pub mod fleet;

pub mod rights;

pub mod refusal;

pub mod trial;

pub mod notice;

pub mod health;

pub mod alias;

pub mod listing;

pub mod find;

pub mod adopt;
