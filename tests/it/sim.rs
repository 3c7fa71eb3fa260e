//! The simulated world under test, and the engine within it.

mod setup;
mod day;
mod ending;
mod meddlers;
mod leaving;
mod fleets;
mod random;
mod named;
mod shrink;
mod together;
