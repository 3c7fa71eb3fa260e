//! The simulated world under test, and the engine within it.

mod setup;

mod day;

mod meddlers;

mod random;

mod together;
