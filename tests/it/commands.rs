//! Commands that need no other process, run with the binary of the tested build.

mod report;
mod missing_features;
