//! Speaks to the API of one cluster: reads it as events, carries commands out on it.
//! It must not know why anything is asked for.

mod seen;

pub(crate) mod rights;

pub(crate) mod pulse;

pub(crate) mod bearer;

pub(crate) mod plugin;

pub(crate) mod client;

pub(crate) mod cause;

pub(crate) mod list;

pub(crate) mod buffers;

pub(crate) mod objects;

pub(crate) mod lease;

pub(crate) mod watch;

pub(crate) mod act;

pub(crate) mod release;

pub(crate) mod herald;
