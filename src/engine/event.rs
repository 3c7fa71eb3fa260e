//! The events that an engine receives.

use std::sync::Arc;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::catalog::node_class::ClassSupplies;
use crate::engine::command::{CommandId, CommandResult, OfferingRefusal};
use crate::model::buffer_object::BufferObject;
use crate::model::clock_skew::ClockSkew;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::{InstanceId, NodeClassName, ObjectKey};
use crate::model::instance::UnavailableKey;
use crate::model::pool::Reason;
use crate::model::watched_object::{ObjectKind, WatchedObject};

/// A provider notice about an instance. Later variants leave less time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// The instance may be interrupted soon.
    Rebalance,
    /// Its host is scheduled for maintenance.
    Maintenance,
    /// Its capacity reservation reclaims it.
    Reservation,
    /// It is a spot instance that is interrupted in two minutes.
    Spot,
    /// It is being stopped or terminated.
    Stopping,
    /// Its status checks fail: its pods are not awaited.
    Failed,
}

impl Interruption {
    /// Returns the name in logs and metrics. Source: spec/aws.md §6.1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rebalance => "rebalance_recommendation",
            Self::Maintenance => "scheduled_change",
            Self::Reservation => "capacity_reservation_interrupted",
            Self::Spot => "spot_interrupted",
            Self::Stopping => "instance_stopping",
            Self::Failed => "instance_status_failed",
        }
    }

    /// Returns the disruption reason.
    pub fn disruption_reason(self) -> Reason {
        match self {
            Self::Failed => Reason::Unhealthy,
            _ => Reason::Interrupted,
        }
    }
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time that `poll_timeout` returned is reached.
    Timeout,
    /// The configuration has changed.
    ConfigChanged(Arc<Cluster>),
    /// Instance types or prices have changed.
    CatalogChanged(Arc<Catalog>),
    /// The resolved node classes have changed: images, zones, quantities or errors. Providers
    /// without node classes do not send it.
    ClassesChanged(Arc<ClassSupplies>),
    /// The CapacityBuffers of the cluster or their status have changed.
    BuffersChanged(Vec<BufferObject>),
    /// A full listing of a kind: other objects do not exist. The kind is in sync from here.
    Reset(ObjectKind, Vec<WatchedObject>),
    /// An object was created or changed.
    Applied(WatchedObject),
    /// An object was deleted.
    Deleted(ObjectKind, ObjectKey),
    /// The watch of a kind is active although nothing changed (a bookmark, or a poll without news).
    WatchAlive(ObjectKind),
    /// The watch of a kind broke, with a truncated error message, which may be empty. The kind is
    /// out of sync until its next listing.
    WatchLost(ObjectKind, String),
    /// The result of a command.
    Answered(CommandId, CommandResult),
    /// The provider announces an interruption of an instance at this time.
    Interrupted(InstanceId, Interruption, Timestamp),
    /// Offerings were refused to nodes of a class, although the launch succeeded with a different
    /// offering.
    Refused(Option<NodeClassName>, Vec<OfferingRefusal>),
    /// The state of the fleet has changed. `None` if the cluster shares nothing.
    FleetChanged(Option<Arc<FleetView>>),
    /// Offerings were refused in a cluster that launches in the same place, with the end of their
    /// back-off.
    HeldDown(Vec<UnavailableKey>, Timestamp),
    /// The clock of this host differs too much from a remote clock. `None` if it no longer does.
    ClockSkewed(Option<ClockSkew>),
}
