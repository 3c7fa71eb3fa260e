//! Everything that can happen to an engine: a closed list.
//! It must not know what an event leads to.

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

/// What the provider says will happen to an instance, or happens to it. Later ones leave less time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// It may be taken back soon.
    Rebalance,
    /// Its host is to be maintained.
    Maintenance,
    /// Its reservation takes it back.
    Reservation,
    /// It is spot capacity and taken back in two minutes.
    Spot,
    /// It is being stopped or ended.
    Stopping,
    /// Its checks fail: nothing that runs on it is waited for.
    Failed,
}

impl Interruption {
    /// The spelling in logs and metrics. Source: spec/aws.md §6.1.
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

    /// Why a node leaves for it.
    pub fn reason(self) -> Reason {
        match self {
            Self::Failed => Reason::Unhealthy,
            _ => Reason::Interrupted,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time that `poll_timeout` named has come.
    Timeout,
    /// The configuration in force is another.
    ConfigChanged(Arc<Cluster>),
    /// Instance types or prices are others.
    CatalogChanged(Arc<Catalog>),
    /// What node classes have for their pools is something else: images, zones, amounts, or why no
    /// node can be made of them. Of a provider without classes this never comes.
    ClassesChanged(Arc<ClassSupplies>),
    /// The CapacityBuffers of the cluster are others, or their status is.
    BuffersChanged(Vec<BufferObject>),
    /// A full listing of a kind: what is not in it does not exist. The kind is synced from here.
    Reset(ObjectKind, Vec<WatchedObject>),
    /// An object is new or changed.
    Applied(WatchedObject),
    /// An object is gone.
    Deleted(ObjectKind, ObjectKey),
    /// The watch of a kind is alive though nothing changed (a bookmark, a poll without news).
    WatchAlive(ObjectKind),
    /// The watch of a kind broke, for a reason in bounded words, empty where nobody has said one;
    /// it is not synced until its next listing.
    WatchLost(ObjectKind, String),
    /// A command was carried out, or not.
    Answered(CommandId, CommandResult),
    /// The provider says that something happens to an instance, and when.
    Interrupted(InstanceId, Interruption, Timestamp),
    /// Offerings were refused to nodes of a class beside those that a launch was answered with: an
    /// instance was launched all the same.
    Refused(Option<NodeClassName>, Vec<OfferingRefusal>),
    /// What is known of the fleet is another; none where the cluster shares nothing with others.
    FleetChanged(Option<Arc<FleetView>>),
    /// Another cluster that launches where this one does had these refused: until when they are
    /// held down.
    HeldDown(Vec<UnavailableKey>, Timestamp),
    /// The clock of this host differs from another by so much that it is a fault; none where it
    /// does not any more.
    ClockSkewed(Option<ClockSkew>),
}
