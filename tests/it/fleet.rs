//! State shared by clusters: grants, releases, and the usage of other clusters.

mod stage;
mod grants;
mod leaves;
mod random;
