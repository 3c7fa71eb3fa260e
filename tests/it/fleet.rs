//! State shared by clusters: grants, releases, and the usage of other clusters.

mod fixture;
mod grants;
mod disruption_budgets;
mod random;
