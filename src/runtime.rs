//! Runs the engines of a configuration against the real world: wires, drives, stops.
//! It must not know why anything is decided.

pub(crate) mod holder_identity;
pub(crate) mod config_source;
pub(crate) mod cron;
pub(crate) mod fleet_task;
pub(crate) mod activity_log;
pub(crate) mod cluster_handle;
pub(crate) mod engine_loop;
pub(crate) mod autoscaler_watch;
pub(crate) mod leader_election;
pub(crate) mod cluster_runner;
pub(crate) mod clusters;
pub(crate) mod observe;
pub(crate) mod http_server;
pub(crate) mod systemd;
pub(crate) mod control;
pub(crate) mod daemon;
