//! Newtypes for names and IDs, so that one kind of name is never used as another.

use std::fmt;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub String);

        impl $name {
            /// The name as a string.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name_type! {
    /// The name of a watched cluster, as configured.
    ClusterName
}
name_type! {
    /// Identifies the cluster of an API server: `ns:` and the UID of the Namespace `kube-system`.
    /// Every cluster has a different UID, and no request can delete the Namespace. A copy of the
    /// cluster's etcd has the same UID.
    ClusterUid
}
name_type! {
    /// The name of a pool, the value of the label `karpenter.sh/nodepool`.
    PoolName
}
name_type! {
    /// The name of a node class.
    NodeClassName
}
name_type! {
    /// The ID of a claim: globally unique, the client token of its launch, and a tag of its
    /// instance.
    ClaimId
}
name_type! {
    /// The ID of an instance at the provider (`i-…`).
    InstanceId
}
name_type! {
    /// The name of a Node object.
    NodeName
}
name_type! {
    /// The name of an instance type (`m7i.large`).
    TypeName
}
name_type! {
    /// The ID of a capacity reservation (`cr-…`).
    ReservationId
}
name_type! {
    /// The name of a zone (`us-east-1a`).
    Zone
}

/// Namespace and name: the key of a namespaced object within a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
}

/// The key of a pod.
pub type PodKey = ObjectKey;

impl ObjectKey {
    /// Creates a key from its two parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The namespace and name of a cluster's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Default for LeaseName {
    fn default() -> Self {
        Self { namespace: "kube-system".to_owned(), name: "outrigger".to_owned() }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
