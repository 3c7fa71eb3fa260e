//! Which nodes should leave on purpose, and why each of the others may not.
//! It must not know how a node is drained or ended.

pub mod verdict;

pub mod gate;

pub mod windows;

pub mod cooldown;

pub mod budgets;

pub mod emptiness;

pub mod surplus;

pub mod drift;

pub mod drifted;

pub mod expiry;

pub mod repair;

pub mod health;

pub mod change;

pub mod churn;

pub mod fewest;

pub mod balance;

pub mod offers;

pub mod swaps;

pub mod zones;

pub mod trial;

pub mod consolidation;
