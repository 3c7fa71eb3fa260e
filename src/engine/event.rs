//! The events that an engine receives.

use std::sync::Arc;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::catalog::node_class::ClassSupplies;
use crate::engine::command::CommandId;
use crate::model::buffer_object::BufferObject;
use crate::model::clock_skew::ClockSkew;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::{InstanceId, NodeClassName, ObjectKey};
use crate::model::instance::UnavailableKey;
use crate::model::sweep::SweepRequest;
use crate::model::watched_object::{ObjectKind, WatchedObject};
use crate::provider::{CommandResult, Interruption, NoticeReceipt, OfferingRefusal};

/// An event.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time that `poll_timeout` returned is reached.
    Timeout,
    /// The regular full pass is requested. The same as `Timeout` if the last full pass was less
    /// than nine minutes ago.
    RegularPass,
    /// The configuration has changed.
    ConfigChanged(Arc<Cluster>),
    /// Instance types or prices have changed.
    CatalogChanged(Arc<Catalog>),
    /// The resolved node classes have changed: images, zones, quantities or errors. Providers
    /// without node classes do not send this event.
    ClassesChanged(Arc<ClassSupplies>),
    /// The CapacityBuffers of the cluster or their status have changed.
    BuffersChanged(Vec<BufferObject>),
    /// A full listing of a kind: objects that it lacks do not exist. From this event on, the kind
    /// is in sync.
    Reset(ObjectKind, Vec<WatchedObject>),
    /// An object was created or changed.
    Applied(WatchedObject),
    /// An object was deleted.
    Deleted(ObjectKind, ObjectKey),
    /// The watch of a kind is active although nothing changed (a bookmark, or a poll without
    /// changes).
    WatchAlive(ObjectKind),
    /// The watch of a kind broke, with a truncated error message, which may be empty. The kind is
    /// out of sync until its next listing.
    WatchLost(ObjectKind, String),
    /// The result of a command.
    Answered(CommandId, CommandResult),
    /// The provider announces an interruption of an instance at this time. The engine acknowledges
    /// the receipt, if any, when it has acted on the notice.
    Interrupted(InstanceId, Interruption, Timestamp, Option<NoticeReceipt>),
    /// Some offerings were refused for a node class, although the launch succeeded with a different
    /// offering.
    Refused(Option<NodeClassName>, Vec<OfferingRefusal>),
    /// The state of the fleet has changed. `None` if the cluster shares nothing.
    FleetChanged(Option<Arc<FleetView>>),
    /// Offerings were refused in another cluster of the same provider account, with the end of
    /// their back-off.
    HeldDown(Vec<UnavailableKey>, Timestamp),
    /// The clock of this host differs too much from a remote clock. `None` if the difference is no
    /// longer too large.
    ClockSkewed(Option<ClockSkew>),
    /// A user requests a sweep now.
    SweepRequested(SweepRequest),
}

impl Event {
    /// Returns the notice of an interruption whose sender awaits no receipt.
    pub fn interrupted(instance: InstanceId, what: Interruption, at: Timestamp) -> Self {
        Self::Interrupted(instance, what, at, None)
    }
}
