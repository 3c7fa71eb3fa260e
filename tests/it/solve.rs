//! Runs the scheduler for complete plans and checks them with an independent implementation of the
//! rules.

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
