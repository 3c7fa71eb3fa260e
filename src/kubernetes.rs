//! Speaks to the API of one cluster: reads it as events, carries commands out on it.
//! It must not know why anything is asked for.

mod watched_items;
pub(crate) mod rbac;
pub(crate) mod watch_activity;
pub(crate) mod token_layer;
pub(crate) mod exec_credential;
pub(crate) mod client;
pub(crate) mod api_error;
pub(crate) mod list;
pub(crate) mod capacity_buffers;
pub(crate) mod karpenter_objects;
pub(crate) mod lease;
pub(crate) mod watch;
pub(crate) mod commands;
pub(crate) mod release;
pub(crate) mod event_recorder;
