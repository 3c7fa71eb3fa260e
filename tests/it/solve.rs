//! Asks the solver for whole plans and holds them against an independent reading of the rules.
//! It must not know how the solver comes to its answers.

pub(crate) mod world;
mod rules;
mod algebra;
mod sites;
mod scene;
mod left;
mod parts;
mod check;
mod cases;
mod daemons;
mod pin;
mod level;
mod reasons;
mod weight;
mod crowd;
mod random;
mod naive;
mod properties;
mod proof;
mod hostile;
