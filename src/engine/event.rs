//! Everything that can happen to an engine: a closed list.
//! It must not know what an event leads to.

use std::sync::Arc;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::catalog::class::ClassSupplies;
use crate::engine::command::{Answer, CommandId};
use crate::model::buffer::Buffer;
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::{InstanceId, ObjectKey};
use crate::model::instance::OfferingKey;
use crate::model::object::{Kind, Object};

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
    /// The buffers that objects of the cluster declare are others.
    BuffersChanged(Vec<Buffer>),
    /// A full listing of a kind: what is not in it does not exist. The kind is synced from here.
    Reset(Kind, Vec<Object>),
    /// An object is new or changed.
    Applied(Object),
    /// An object is gone.
    Deleted(Kind, ObjectKey),
    /// The watch of a kind is alive though nothing changed (a bookmark, a poll without news).
    WatchAlive(Kind),
    /// The watch of a kind broke; it is not synced until its next listing.
    WatchLost(Kind),
    /// A command was carried out, or not.
    Answered(CommandId, Answer),
    /// The provider will take an instance back at a time.
    Interrupted(InstanceId, Timestamp),
    /// What is known of the fleet is another; none where the cluster shares nothing with others.
    FleetChanged(Option<Arc<FleetView>>),
    /// Another cluster that launches where this one does had these refused: until when they are
    /// held down.
    HeldDown(Vec<OfferingKey>, Timestamp),
}
