//! `outrigger top`: a full-screen live view of the clusters of the local daemon.

// Durations, quantities and percentages as short strings.
pub mod format;
// Tables before their layout: columns, rows, sort order.
pub mod table;
// Column widths for a given screen width.
pub mod column_layout;
// Data received from the daemon, with its age.
pub mod daemon_data;
// View of all clusters.
pub mod fleet_view;
// View of the nodes of a cluster.
pub mod nodes_view;
// View of pending pods.
pub mod pods_view;
// View of recent activity.
pub mod activity_view;
// State of the screen and key bindings.
pub mod app;
// Rendering of a screen at any size.
#[cfg(feature = "daemon")]
mod render;
// Raw mode, input and output of the terminal.
#[cfg(feature = "daemon")]
mod terminal;
// Arguments, and the loop of requests, screens and keys.
#[cfg(feature = "daemon")]
pub(crate) mod command;
#[cfg(all(test, feature = "daemon"))]
mod tests;
