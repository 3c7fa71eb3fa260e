//! The only holder of state, timers and in-flight work of one cluster: events in, commands out.
//! It must not know the clock, the network, or any other cluster.

pub mod command;
pub mod event;
