//! Runs the scheduler for complete plans and checks them with an independent implementation of the
//! rules.

pub(crate) mod fixture;
mod rules;
mod requirements;
mod variants;
mod bind_step;
mod missed_placements;
mod features;
mod checker;
mod cases;
mod daemons;
mod domain_choice;
mod even_spread;
mod reasons;
mod totals;
mod random_pods;
mod random_clusters;
mod naive_plan;
mod properties;
mod checker_tests;
mod invalid_clusters;
