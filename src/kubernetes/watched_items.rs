//! The kinds that are watched and listed, as types for kube.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicResourceScope, Resource};
use serde::Deserialize;
use serde::de::Deserializer;

use crate::kubernetes_convert::api_types::{
    CSINode, DaemonSet, Meta, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    PodDisruptionBudget, ReplicaSet, ReplicationController, Service, StatefulSet, StorageClass,
    VolumeAttachment,
};
use crate::model::id::ObjectKey;

/// A kind of object as the API knows it.
pub(super) trait ApiKind:
    Clone + fmt::Debug + Send + for<'de> Deserialize<'de> + 'static
{
    const KIND: &'static str;
    const GROUP: &'static str;
    const PLURAL: &'static str;

    fn meta(&self) -> &Meta;

    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.meta().namespace.as_str(), self.meta().name.as_str())
    }
}

macro_rules! api_kind {
    ($name:ident, $group:literal, $plural:literal) => {
        impl ApiKind for $name {
            const KIND: &'static str = stringify!($name);
            const GROUP: &'static str = $group;
            const PLURAL: &'static str = $plural;

            fn meta(&self) -> &Meta {
                &self.metadata
            }
        }
    };
}

api_kind!(Pod, "", "pods");
api_kind!(Node, "", "nodes");
api_kind!(DaemonSet, "apps", "daemonsets");
api_kind!(PodDisruptionBudget, "policy", "poddisruptionbudgets");
api_kind!(PersistentVolumeClaim, "", "persistentvolumeclaims");
api_kind!(PersistentVolume, "", "persistentvolumes");
api_kind!(StorageClass, "storage.k8s.io", "storageclasses");
api_kind!(CSINode, "storage.k8s.io", "csinodes");
api_kind!(VolumeAttachment, "storage.k8s.io", "volumeattachments");
api_kind!(Namespace, "", "namespaces");
api_kind!(Service, "", "services");
api_kind!(ReplicationController, "", "replicationcontrollers");
api_kind!(ReplicaSet, "apps", "replicasets");
api_kind!(StatefulSet, "apps", "statefulsets");

/// An object for kube's watcher: only the resource version of its `ObjectMeta` is set.
#[derive(Clone, Debug)]
pub(super) struct Seen<T> {
    version: ObjectMeta,
    pub(super) object: T,
}

impl<'de, T: ApiKind> Deserialize<'de> for Seen<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = T::deserialize(deserializer)?;
        let version = ObjectMeta {
            resource_version: Some(object.meta().resource_version.clone()),
            ..ObjectMeta::default()
        };
        Ok(Self { version, object })
    }
}

impl<T: ApiKind> Resource for Seen<T> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        T::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        T::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.version
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.version
    }
}
