//! Tests of the simulated cluster, and of the engine in it.

mod setup;
mod day;
mod ending;
mod external_changes;
mod leaving;
mod fleets;
mod random;
mod named;
mod shrink;
mod together;
