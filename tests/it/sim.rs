//! The simulated world under test, and the engine within it.

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
