//! The health of a cluster, as `status`, `top` and the log name it.

/// The health of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterHealth {
    /// The engine makes decisions.
    Ready,
    /// Another host is the leader, and this host is on standby.
    Standby,
    /// The cluster has not been ready for a long time. Startup does not wait for this cluster.
    Degraded,
    /// The engine of the cluster does not make decisions yet.
    #[default]
    Unready,
    /// The engine of the cluster has stopped.
    Ended,
}

impl ClusterHealth {
    /// All values, best first.
    pub const ALL: [Self; 5] =
        [Self::Ready, Self::Standby, Self::Degraded, Self::Unready, Self::Ended];

    /// Returns whether startup need not wait for a cluster with this health.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Ready | Self::Standby | Self::Degraded)
    }

    /// The name of this health in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Standby => "on standby",
            Self::Degraded => "degraded",
            Self::Unready => "not ready",
            Self::Ended => "ended",
        }
    }
}
