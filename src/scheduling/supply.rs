//! What a pool can supply: node templates, DaemonSet overhead, minValues and limits.

pub(super) mod limits;
pub(super) mod daemon_overhead;
pub(super) mod node_template;
pub(super) mod min_values;
