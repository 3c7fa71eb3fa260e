//! The verbs that need this process alone, run as the binary of whatever build is tested.
//! It must not know what the daemon does.

mod report;
mod missing;
